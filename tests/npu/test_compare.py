"""Two sides of traces: what stalls are judged by, which files count, and what the sides are called."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jsonschema
import msgspec
import pytest

import opscope
from aie_gemm import Gemm
from aie_traces import json_text
from opscope.api import to_json
from opscope.core.stats.effect import Verdict
from opscope.npu.analysis.compare import FigureChange, TilesComparison, TilesEvidence
from opscope.npu.reports.comparison import tiles_comparison_document, tiles_text
from opscope.npu.workflows.aie import TilesRequest, analyze_tiles
from opscope.reports.document.terminal import terminal_document
from opscope.reports.gate import gate_markdown, gate_summary
from terminal_text import text_of

FEW = {"outputs": 6, "each": 4, "transfers": (64, 128, 64)}


def side(directory: Path, *cores: Gemm) -> Path:
    """A directory with one trace for each core."""
    directory.mkdir(parents=True, exist_ok=True)
    for number, core in enumerate(cores):
        (directory / f"{number}.json").write_bytes(b"".join(json_text([core.tile()])))
    return directory


def compared(baseline: Path, candidate: Path) -> TilesComparison:
    """The comparison, which keeps its published schema."""
    found = opscope.compare_tiles(baseline, candidate)
    assert isinstance(found, TilesComparison)
    jsonschema.validate(json.loads(to_json(found)), msgspec.json.schema(TilesComparison))
    return found


def lock_stall(rows: list[FigureChange]) -> FigureChange:
    """The row of lock stalls."""
    return next(row for row in rows if row.name == "lock stall")


def test_a_stall_of_the_same_cycles_is_not_slower_for_a_larger_share(tmp_path: Path) -> None:
    """Calls get faster, the wait stays 900 cycles for each output tile: its share of a shorter run only looks worse."""
    before = side(tmp_path / "a", *(Gemm(**FEW, call=300 + number, rest=900) for number in range(6)))
    after = side(tmp_path / "b", *(Gemm(**FEW, call=260 + number, rest=900) for number in range(6)))
    found = compared(before, after)
    cycles = lock_stall(found.stall_cycles)

    assert found.overall.verdict is Verdict.FASTER
    assert cycles.verdict is Verdict.NO_DIFFERENCE
    assert (cycles.unit, cycles.baseline, cycles.change) == ("cycles/iteration", 900, 0)


@pytest.mark.parametrize(
    ("rests", "verdict", "change"),
    [((900, 800), Verdict.FASTER, -100), ((800, 900), Verdict.SLOWER, 100)],
)
def test_a_stall_has_its_own_verdict(tmp_path: Path, rests: tuple[int, int], verdict: Verdict, change: int) -> None:
    """Fewer cycles of an iteration are better, more are worse, by the cycles that the made traces differ in."""
    sides = [
        side(tmp_path / name, *(Gemm(**FEW, rest=rest + number) for number in range(8)))
        for name, rest in zip("ab", rests, strict=True)
    ]
    found = lock_stall(compared(*sides).stall_cycles)

    assert found.verdict is verdict
    assert found.change == change
    assert found.ci95 is not None
    assert found.ci95[0] <= found.change <= found.ci95[1]


def test_stalls_are_counted_within_iterations_where_there_are_any(tmp_path: Path) -> None:
    """An iteration of two output tiles has one wait inside it, and one before the next iteration."""
    product = TilesRequest(M=32, K=128, N=32, m=16, k=32, n=32, row=1, col=1, iterations=3, dtype="bf16", arch="npu1")
    sides = []
    for name, rest in (("a", 700), ("b", 500)):
        trace = side(tmp_path / name, Gemm(outputs=6, rest=rest)) / "0.json"
        (tmp_path / name / "analysis.json").write_bytes(to_json(analyze_tiles(trace, product).analysis))
        sides.append(tmp_path / name)
    found = compared(*sides)
    row = lock_stall(found.stall_cycles)

    assert found.overall.name == "cycles of an iteration"
    assert (row.unit, row.baseline, row.candidate, row.change) == ("cycles/iteration", 1400, 1000, -400)
    shown = text_of(terminal_document(tiles_comparison_document(found)))
    assert [line.split()[:5] for line in shown.splitlines() if "lock" in line] == [
        "lock stall 1,400 1,000 -400".split()
    ]
    assert "start to start" in shown


def test_a_single_iteration_has_no_wait_for_the_next(tmp_path: Path) -> None:
    """Where a trace has one iteration alone, only the stalls within iterations are compared."""
    product = TilesRequest(M=32, K=128, N=32, m=16, k=32, n=32, row=1, col=1, iterations=3, dtype="bf16", arch="npu1")
    for name, outputs in (("a", 6), ("b", 2)):
        trace = side(tmp_path / name, Gemm(outputs=outputs, rest=700)) / "0.json"
        (tmp_path / name / "analysis.json").write_bytes(to_json(analyze_tiles(trace, product).analysis))
    row = lock_stall(compared(tmp_path / "a", tmp_path / "b").stall_cycles)

    assert (row.baseline, row.candidate) == (700, 700)


def test_without_common_iterations_stalls_are_counted_for_each_call(tmp_path: Path) -> None:
    """Iterations of other calls do not compare, calls do: a wait of 900 and one of 720 cycles for each fourth call."""
    before = side(tmp_path / "a", Gemm(outputs=6, rest=900))
    after = side(tmp_path / "b", Gemm(outputs=6, each=5, rest=720))
    row = lock_stall(compared(before, after).stall_cycles)

    assert row.unit == "cycles/call"
    assert (row.baseline, row.candidate) == (pytest.approx(900 * 5 / 23), pytest.approx(720 * 5 / 29))


def test_the_gate_does_not_name_a_stall_whose_share_grew(tmp_path: Path) -> None:
    """What became worse are figures in cycles."""
    before = side(tmp_path / "a", *(Gemm(**FEW, call=300 + number, rest=900) for number in range(6)))
    after = side(tmp_path / "b", *(Gemm(**FEW, call=260 + number, rest=900) for number in range(6)))
    report = opscope.check_tiles(after, before)

    assert isinstance(report.evidence, TilesEvidence)
    assert report.evidence.slower == []


def test_the_gate_names_a_stall_that_grew(tmp_path: Path) -> None:
    """In cycles of an iteration, on the terminal and in Markdown."""
    before = side(tmp_path / "a", *(Gemm(**FEW, rest=800 + number) for number in range(8)))
    after = side(tmp_path / "b", *(Gemm(**FEW, rest=900 + number) for number in range(8)))
    report = opscope.check_tiles(after, before, threshold=0.01)

    assert isinstance(report.evidence, TilesEvidence)
    assert [(row.name, row.unit, row.change) for row in report.evidence.slower] == [
        ("lock stall", "cycles/iteration", 100)
    ]
    text = tiles_text(report)
    for shown in (text_of(gate_summary(report, text)), gate_markdown(report, text)):
        assert "start to start" in shown


def test_copies_of_a_trace_count_once(tmp_path: Path) -> None:
    """Three files, two of them the same: two repetitions, and the side says so."""
    before = side(tmp_path / "a", Gemm(call=300), Gemm(call=304))
    shutil.copy(before / "0.json", before / "again.json")
    found = compared(before, side(tmp_path / "b", Gemm(call=310)))

    assert (found.baseline.traces, found.baseline.copies) == (2, 1)
    assert "1 file of a is a copy of another: each trace counts once" in found.notes


def test_a_trace_on_both_sides_is_said(tmp_path: Path) -> None:
    """The sides of a verdict must be independent."""
    before = side(tmp_path / "a", Gemm(call=300), Gemm(call=304))
    found = compared(before, side(tmp_path / "b", Gemm(call=304), Gemm(call=310)))

    assert "1 trace on both sides: verdicts assume that the sides are independent" in found.notes


def test_a_trace_compared_with_itself_does_not_differ(tmp_path: Path) -> None:
    """It is one trace on either side, of one name."""
    trace = side(tmp_path / "a", Gemm()) / "0.json"
    found = compared(trace, trace)

    assert (found.baseline.traces, found.candidate.traces) == (1, 1)
    assert (found.baseline.label, found.candidate.label) == ("0.json", "0.json")
    assert found.overall.ratio == 1
    assert "both sides are the same traces: there is nothing to compare" in found.notes


def test_sides_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """By as much of their paths as it takes."""
    paths = [
        side(tmp_path / name / "traces", Gemm(call=call)) / "0.json" for name, call in (("old", 300), ("new", 310))
    ]
    found = compared(*paths)

    assert (found.baseline.label, found.candidate.label) == ("old/traces/0.json", "new/traces/0.json")


def test_long_names_are_not_cut_where_they_would_be_the_same(tmp_path: Path) -> None:
    """Two names that differ in the middle alone are shown whole; others are cut to the line."""
    names = [f"runs_of_the_whole_week_{when}/traces_of_the_matrix_product" for when in ("before", "after")]
    found = compared(*(side(tmp_path / name, Gemm(call=300 + len(name))) for name in names))
    shown = text_of(terminal_document(tiles_comparison_document(found))).replace("\n", "")

    assert [name in shown for name in names] == [True, True]
