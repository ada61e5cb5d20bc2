"""From night to night: what newest runs are against their predecessors, and which levels of a fleet changed."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from nightly_fleet import NightlyFleet, eventful_fleet, steady_fleet, store_nights
from opscope.api import stored_fleet
from opscope.core.stats.effect import Verdict
from opscope.fleet.analysis.nights import RunSeries, level_changes_since, run_changes

_BEGIN, _EVER = map(datetime.fromisoformat, ("2026-01-01", "2020-01-01"))
NOISE = [1.004, 0.997, 1.001, 0.995, 1.006, 0.999, 1.002, 0.996, 1.003, 0.998]


def nights(latencies: list[float], model: str = "toy", device: str = "phone") -> RunSeries:
    """One run a night."""
    when = [_BEGIN + timedelta(days=night) for night in range(len(latencies))]
    return RunSeries(model, device, "accelerated", latencies, when, when)


def series_of(fleet: NightlyFleet) -> list[RunSeries]:
    """Every pair of a fleet that ran each night."""
    return [
        nights(fleet.accelerated[m, d].tolist(), model, device)
        for m, model in enumerate(fleet.models)
        for d, device in enumerate(fleet.devices)
        if not np.isnan(fleet.accelerated[m, d]).any()
    ]


def steady(count: int, level: float = 1e6) -> list[float]:
    """Runs with a scatter of 0.4 %."""
    return [level * NOISE[number % len(NOISE)] for number in range(count)]


def test_a_newest_run_beyond_the_scatter_of_its_predecessors_is_slower() -> None:
    """20 % after thirty runs: against the level, against the run before, and it is the first one."""
    (found,) = run_changes([nights([*steady(30), 1.2e6])])
    assert found is not None
    assert found.verdict is Verdict.SLOWER
    assert found.since_level == pytest.approx(1.2, rel=1e-3)
    assert found.since_previous == pytest.approx(1.2 / 0.998, rel=1e-6)
    assert (found.runs, found.in_a_row, len(found.latencies_ns)) == (30, 1, 31)
    assert found.expected is not None
    assert 0.98 < found.expected[0] < 1 < found.expected[1] < 1.02


def test_the_second_night_in_a_row_is_counted() -> None:
    """It is not a change to the run before, and still one to the level."""
    (found,) = run_changes([nights([*steady(30), 1.2e6, 1.201e6])])
    assert found is not None
    assert (found.verdict, found.in_a_row) == (Verdict.SLOWER, 2)
    assert found.since_previous == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("latencies", "verdict"),
    [
        (steady(30), Verdict.NO_DIFFERENCE),
        ([*([1e6] * 30), 1.005e6], Verdict.NO_DIFFERENCE),
        ([*steady(3), 2e6], Verdict.UNDECIDABLE),
        ([*steady(30), 0.8e6], Verdict.FASTER),
    ],
)
def test_what_scatter_or_too_few_runs_explain_is_no_change(latencies: list[float], verdict: Verdict) -> None:
    """Nor is a change below 1 %, however quiet the series is."""
    (found,) = run_changes([nights(latencies)])
    assert found is not None
    assert found.verdict is verdict
    assert found.in_a_row == (1 if verdict is Verdict.FASTER else 0)


def test_one_run_and_zeros_are_not_compared() -> None:
    """There is nothing before, or no ratio."""
    assert run_changes([nights([1e6]), nights([0.0, 1e6])]) == [None, None]
    assert run_changes([]) == []


def test_runs_before_the_last_change_of_level_do_not_count() -> None:
    """Twice as fast since twelve nights: the newest run is measured by these."""
    (found,) = run_changes([nights([*steady(20, 2e6), *steady(13)])])
    assert found is not None
    assert (found.verdict, found.runs) == (Verdict.NO_DIFFERENCE, 12)


def test_thousands_of_steady_series_seldom_raise_an_alarm() -> None:
    """Of 800 series single verdicts at 5 % would call 40; corrected for all, hardly one is called.

    A level that seems to have changed in the last four nights leaves too few runs to judge by: of 1 in 100 at most.
    """
    runs = series_of(steady_fleet(40, 20, 20, seed=5))
    verdicts = Counter(one.verdict for one in run_changes(runs) if one is not None)
    assert verdicts[Verdict.SLOWER] + verdicts[Verdict.FASTER] <= 1
    assert verdicts[Verdict.UNDECIDABLE] <= 8
    assert len(level_changes_since(runs, _EVER)) <= 2


def test_levels_that_changed_stand_newest_first() -> None:
    """A step three nights ago before an older one; a drift by when it began; a steady series is not told."""
    drift = [1e6 * NOISE[n % 10] * 1.01**n for n in range(30)]
    runs = [
        nights([*steady(20), *steady(10, 1.2e6)], "older"),
        nights(steady(30), "steady"),
        nights([*steady(27), *steady(3, 1.3e6)], "newer"),
        nights(drift, "drift"),
        nights([1e6] * 11, "short"),
    ]
    found = level_changes_since(runs, _EVER)
    assert [(one.model, one.drifts, one.better) for one in found] == [
        ("newer", False, False),
        ("older", False, False),
        ("drift", True, False),
    ]
    newer = found[0]
    assert (newer.before, newer.label, newer.runs) == ("2026-01-27", "2026-01-28", 3)
    assert newer.ci95[0] < 1.3 < newer.ci95[1]
    assert [one.model for one in level_changes_since(runs, _BEGIN + timedelta(days=25))] == ["newer", "drift"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty models on ten devices over twenty nights in which much happens."""
    place = tmp_path_factory.mktemp("nights") / "store"
    store_nights(place, eventful_fleet(40, 10, 20, seed=4))
    return place


def test_a_store_tells_where_it_got_worse(store: Path) -> None:
    """The device that got slower stands first, and is told as one; one that was away has no run in the newest night."""
    found = stored_fleet(store)
    faster, away = "RK3588 board #1", "Pixel 8 #2"
    wide = next(one for one in found.widespread if not one.lately and not one.better)
    assert (wide.key, wide.name) == ("device", "Xperia 5 #1")
    assert wide.count > 30
    assert wide.ratio == pytest.approx(1.12, abs=0.01)
    assert found.by_device[0].name == wide.name
    assert any(one.lately and one.better and one.name == faster for one in found.widespread)
    assert not any(run.change for run in found.runs if run.device == away)
    assert {run.change for run in found.runs if run.role == "baseline"} == {None}
    assert found.night == "2026-01-19T05:00:00"


def test_a_store_tells_who_is_far_from_the_best_device(store: Path) -> None:
    """The fastest device of a model is once the best, and a pair far from it is one whose device is usually nearer."""
    found = stored_fleet(store, where="variant=accelerated")
    model = [run for run in found.runs if run.model == found.models[0]]
    assert min(run.times_best or 0.0 for run in model) == 1.0
    part = next(one for one in found.by_model if one.name == found.models[0])
    assert part.fastest is not None
    assert part.fastest[1] == min(run.latency_ns or 0.0 for run in model)
    first = found.distant[0]
    assert first.times_best / first.usual > 2
    ratios = [one.times_best / one.usual for one in found.distant]
    assert ratios == sorted(ratios, reverse=True)


def test_a_configuration_is_followed_in_one_way_of_timing(tmp_path: Path) -> None:
    """Nights are those until a date; without a run before the newest there is nothing to compare."""
    store_nights(tmp_path / "store", steady_fleet(2, 2, 3))
    assert all(run.change is None for run in stored_fleet(tmp_path / "store", where="until=2026-01-01T12:00").runs)
    changes = [run.change for run in stored_fleet(tmp_path / "store").runs if run.role != "baseline"]
    assert [one.verdict for one in changes if one] == [Verdict.UNDECIDABLE] * 4
