"""Runs that call several methods: each method is a series of its own in a store, since together they are mixed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from fakes import FakeClock, PhasesTarget
from opscope.analysis.compare.compare import ComparedSide
from opscope.analysis.gate.decision import Outcome
from opscope.api import (
    Settings,
    add_to_store,
    check_fleet,
    check_history,
    combined,
    profile,
    query_store,
    stored_fleet,
    stored_history,
)
from opscope.bundle.bundle import Bundle
from opscope.core.stats.effect import Verdict
from opscope.fleet.analysis.history_gate import Predecessors, history_gate
from opscope.fleet.bundles import BundleLabels
from opscope.reports.combined.combined import combined_markdown
from opscope.reports.formats.ci import junit_xml
from opscope.reports.gate import comparison_text
from opscope.workflows.reports.reports import content_of

TWO_METHODS = Path(__file__).parents[1] / "data" / "two_methods.pte"
NIGHTS = 12
SLOWER = 1.3


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A bundle a night; in the last three prefill takes longer, and decode does not."""
    settings = Settings(rounds=6, runs=3, warmup=1, ceilings=False, methods=("prefill", "decode:4"))
    directory, found = tmp_path_factory.mktemp("nights"), []
    for night in range(NIGHTS):
        target = PhasesTarget(night, prefill=SLOWER if night >= NIGHTS - 3 else 1.0)
        clock = FakeClock()
        clock.seconds += timedelta(days=night).total_seconds()
        out = directory / f"{night:02}"
        profile(str(TWO_METHODS), settings=settings, out=out, target=target, clock=clock)
        found.append(out)
    return found


@pytest.fixture(scope="module")
def store(bundles: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them, each where it began."""
    path = tmp_path_factory.mktemp("store") / "store"
    add_to_store(bundles, path, given=BundleLabels("a phone"))
    return path


def test_a_run_has_a_row_for_each_method(bundles: list[Path], store: Path) -> None:
    """With the figures of its own calls, and its verdict against the baseline; shares add up to all calls."""
    content = content_of(Bundle.open(bundles[0]))
    (analysis,) = [one.analysis for one in content.variants if one.variant.name == "accelerated"]
    rows = query_store(
        "SELECT method, latency_ns, calls_share, share, speedup, verdict FROM methods m JOIN bundles b USING (bundle) "
        f"WHERE variant = 'accelerated' AND b.source = '{bundles[0]}' ORDER BY latency_ns DESC",
        store,
    ).rows
    assert [row[0] for row in rows] == ["prefill", "decode"]
    assert [row[1] for row in rows] == [analysis.headline_of(row[0]) for row in rows]
    assert [row[2] for row in rows] == [0.2, 0.8]
    assert sum(row[3] for row in rows) == pytest.approx(1)
    ends = {one.method: one.end_to_end for one in content.comparisons[0].methods}
    assert [row[4:] for row in rows] == [(ends[row[0]].speedup, "faster") for row in rows]


def test_a_history_follows_each_method(store: Path) -> None:
    """The step is in prefill alone, in the latency and in its parts; load times are of the run."""
    for metric in ("latency", "kind:convolution"):
        found = {(one.subject.variant, one.subject.method): one for one in stored_history(metric, store).series}
        assert found.keys() == {(v, m) for v in ("accelerated", "baseline") for m in ("prefill", "decode")}
        assert [len(one.points) for one in found.values()] == [NIGHTS] * 4
        stepped = [key[1] for key, one in found.items() if one.changes]
        assert stepped == ["prefill", "prefill"]
    assert {one.subject.method for one in stored_history("load", store).series} == {None}
    chosen = stored_history("latency", store, where="method=decode,variant=accelerated")
    assert [one.subject.method for one in chosen.series] == ["decode"]


def test_a_run_is_judged_by_the_history_of_each_method(bundles: list[Path], tmp_path: Path) -> None:
    """A slower prefill is a regression, though most calls are decode; operators are those of the method."""
    store = tmp_path / "store"
    add_to_store(bundles[:8], store, given=BundleLabels())
    good, slow = (check_history(bundles[number], "store:", store=store) for number in (8, 9))
    assert [(one.method, one.outcome) for one in good.criteria] == [
        ("prefill", Outcome.PASSED),
        ("decode", Outcome.PASSED),
    ]
    assert [(one.method, one.outcome) for one in slow.criteria] == [
        ("prefill", Outcome.REGRESSION),
        ("decode", Outcome.PASSED),
    ]
    assert slow.criteria[0].name == "latency of prefill against the stored history"
    assert slow.criteria[0].measured == pytest.approx(0.26, abs=0.05)
    assert {one.method for one in slow.evidence.slower} == {"prefill"}


def test_a_method_without_a_history_is_no_pass(bundles: list[Path]) -> None:
    """The other one is judged all the same, and the text says which is not."""
    (analysis,) = [
        one.analysis for one in content_of(Bundle.open(bundles[8])).variants if one.variant.name == "accelerated"
    ]
    own = analysis.headline_of("decode")
    before = Predecessors([own * (1 + 0.001 * number) for number in range(8)], list("abcdefgh"), {}, 0)
    side = ComparedSide(label="history", path="store:", headline_ns=own)
    decision = history_gate(analysis, 6, (side, side), {"decode": before}, threshold=0.03, model="two")
    assert [(one.method, one.outcome) for one in decision.criteria] == [
        ("decode", Outcome.PASSED),
        ("prefill", Outcome.INCONCLUSIVE),
    ]
    assert not decision.let_through
    assert "not judged: no stored run calls it" in comparison_text(decision).sentence
    assert junit_xml(decision, comparison_text(decision)).count(b"<error") == 1


def test_a_fleet_follows_each_method(store: Path) -> None:
    """Which series is slower, and its operators; the newest runs side by side."""
    found = check_fleet("2026-01-10", store)
    slower = [(one.subject.variant, one.subject.method) for one in found.evidence.slower]
    assert sorted(slower) == [("accelerated", "prefill"), ("baseline", "prefill")]
    fleet = stored_fleet(store)
    assert [run.variant for run in fleet.runs] == [
        "accelerated, decode",
        "accelerated, prefill",
        "baseline, decode",
        "baseline, prefill",
    ]
    assert fleet.dominant[0].present == 2


def test_bundles_side_by_side_have_a_line_for_each_method(bundles: list[Path]) -> None:
    """Each is compared with the same method of the first bundle."""
    report = combined([bundles[0], bundles[-1]])
    lines = [(one.method, one.verdict) for one in report.bundles[1].configurations]
    assert lines == [("prefill", Verdict.FASTER), ("decode", Verdict.FASTER)]
    (series,) = report.series
    assert [(one.method, one.verdict) for one in series.versions] == [
        ("prefill", None),
        ("decode", None),
        ("prefill", Verdict.SLOWER),
        ("decode", Verdict.NO_DIFFERENCE),
    ]
    assert "| method |" in combined_markdown(report)
