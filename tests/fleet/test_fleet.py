"""The report on a fleet: who is fast and slow where, and what takes the time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from many_bundles import Made, Mint
from opscope.api import add_to_store, fleet_report, stored_fleet
from opscope.core.errors import NotFoundError, UsageError
from opscope.core.outputs import MARKDOWN_MARK
from opscope.fleet.analysis.fleet import SortTime, dominant, fleet, rankings
from opscope.fleet.analysis.parts import FleetRun
from opscope.fleet.reports.fleet import fleet_html, fleet_markdown, speedup_shade
from opscope.fleet.store.rows import BundleLabels


def run(device: str, model: str = "toy", variant: str = "accelerated", **given: object) -> FleetRun:
    """A configuration of which only what matters is said."""
    usual = {
        "bundle": f"{device}-{model}",
        "role": variant,
        "created": "2026-01-01T00:00:00",
        "runs": 1,
        "latency_ns": 1e6,
        "arm": "untraced",
        "speedup": None if variant == "baseline" else 2.0,
        "ci95": None,
        "verdict": None if variant == "baseline" else "faster",
        "grade": "good",
    }
    return FleetRun(device=device, model=model, variant=variant, **(usual | given))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models on two devices; one of them was run again with another result."""
    work = tmp_path_factory.mktemp("fleet")
    mint = Mint(work / "mint", operators=12, rounds=2, runs=2)
    made = [Made(n, model=f"m{n % 2}", cpu=f"d{n // 2}", hours=n, factor=1.0 + n) for n in range(4)]
    for one in (*made, Made(9, model="m0", cpu="d0", hours=9, factor=7.0)):
        add_to_store([mint.make(work / f"{one.number}", one)], work / "store")
    return work / "store"


def test_each_configuration_counts_with_its_newest_run(store: Path) -> None:
    """Four configurations of two variants; that of two runs has the latency of the second."""
    found = stored_fleet(store)
    assert (found.models, found.devices, found.variants) == (
        ["m0", "m1"],
        ["d0, Linux x86_64", "d1, Linux x86_64"],
        ["accelerated"],
    )
    assert len(found.runs) == 8
    first, other = (found.run("d0, Linux x86_64", model, "accelerated") for model in found.models)
    assert first is not None
    assert other is not None
    assert (first.runs, other.runs) == (2, 1)
    assert first.latency_ns == pytest.approx((other.latency_ns or 0) * 7 / 2, rel=1e-6)


def test_a_filter_chooses_runs(store: Path) -> None:
    """Until the second run of it, the configuration has the first one's latency."""
    before = stored_fleet(store, where="until=2026-01-01T08:00,model=m0")
    assert {one.runs for one in before.runs} == {1}
    with pytest.raises(NotFoundError):
        stored_fleet(store, where="model=m9")


def test_devices_are_ranked_by_model_and_way_of_timing() -> None:
    """Slowest first; a latency with tracing is not a match for one without, and one device is not a ranking."""
    runs = [
        run("a", latency_ns=1e6),
        run("b", latency_ns=3e6),
        run("c", latency_ns=9e6, arm="traced"),
        run("a", "alone"),
        run("d", latency_ns=None),
    ]
    (found,) = rankings(runs)
    assert (found.devices, found.ratio) == ([("b", 3e6), ("a", 1e6)], 3.0)


def test_what_dominates_is_a_mean_over_configurations() -> None:
    """A sort that is in one of two configurations counts half; where it is largest is said."""
    runs = [run("a"), run("b")]
    sorts = [
        SortTime("a-toy", "accelerated", "Convolution", "Convolution", "XNNPACK", 0.6),
        SortTime("b-toy", "accelerated", "Convolution", "Convolution", "XNNPACK", 0.2),
        SortTime("b-toy", "accelerated", "Softmax", "Other", "portable", 0.7),
        SortTime("b-toy", "baseline", "Softmax", "Other", "portable", 0.9),
    ]
    first, second = dominant(runs, sorts)
    assert (first.operator, first.share, first.present, first.first) == ("Convolution", 0.4, 2, 1)
    assert first.where == "toy on a, accelerated"
    assert (second.operator, second.share, second.highest, second.first) == ("Softmax", 0.35, 0.7, 1)


@pytest.mark.parametrize(
    ("speedup", "verdict", "shade"),
    [
        (1.0, "faster", 0),
        (2.0, "faster", 2),
        (16.0, "faster", 5),
        (0.5, "slower", -2),
        (2.0, "no_difference", 0),
        (2.0, "undecidable", 0),
        (None, None, 0),
    ],
)
def test_only_what_was_shown_has_a_colour(speedup: float | None, verdict: str | None, shade: int) -> None:
    """By the logarithm of the speedup, up to four times on either side."""
    assert speedup_shade(run("a", speedup=speedup, verdict=verdict)) == shade


def test_the_report_has_a_page_markdown_and_json(store: Path, tmp_path: Path) -> None:
    """With every model and device; an unknown format is refused before anything is written."""
    written = fleet_report(tmp_path / "out", store)
    assert [path.name for path in written] == ["fleet.html", "fleet.md", "fleet.json"]
    for path in written[:2]:
        text = path.read_text()
        assert all(name in text for name in ("m0", "m1", "d0", "d1"))
    assert json.loads(written[2].read_text())["schema"] == "opscope.fleet/1"
    assert "default-src &#39;none&#39;" in written[0].read_text()
    with pytest.raises(UsageError):
        fleet_report(tmp_path / "other", store, ["pdf"])
    assert not (tmp_path / "other").exists()


def test_names_stay_text() -> None:
    """Devices, models, variants and operators that look like markup."""
    trap = "<img src=x onerror=alert(1)>|`x`"
    runs = [run(f"{trap}{n}", trap, trap, role="accelerated", bundle="x") for n in range(2)]
    found = fleet(trap, runs, [SortTime("x", trap, trap, trap, trap, 0.5)])
    assert "<img" not in fleet_html(found)
    assert " style=" not in fleet_html(found)
    unescaped = (
        fleet_markdown(found)
        .removesuffix(f"{MARKDOWN_MARK}\n")
        .replace("\\<", "")
        .replace("\\`", "")
        .replace("\\|", "")
    )
    assert "<" not in unescaped
    assert "`" not in unescaped


def test_two_devices_of_one_kind_are_told_apart_by_their_names(tmp_path: Path) -> None:
    """``--device`` names them; without it they are one."""
    mint = Mint(tmp_path / "mint", operators=6, rounds=2, runs=2)
    for number, name in enumerate(("left board", "right board")):
        bundle = mint.make(tmp_path / f"{number}", Made(number, hours=number))
        add_to_store([bundle], tmp_path / "store", given=BundleLabels(device=name))
    assert stored_fleet(tmp_path / "store").devices == ["left board", "right board"]
