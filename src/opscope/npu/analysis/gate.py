"""A gate over AI Engine traces: is the candidate slower than is let through. Schema ``opscope.tiles-check/1``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.gate.gate import Outcome, Slowdown, judge
from opscope.core.stats.effect import Verdict
from opscope.npu.analysis.compare import FEWEST, FigureChange, TilesSide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.npu.analysis.compare import TilesComparison


class TilesGate(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.tiles-check/1"):
    """The decision of a gate over AI Engine traces.

    Attributes:
        outcome: passed, regression, or inconclusive.
        let_through: whether the candidate may pass: it passed, or is inconclusive where that was allowed.
        baseline: the side that the candidate is measured by.
        candidate: the side that is judged.
        threshold: the largest slowdown that is let through, as a fraction.
        slowdown: candidate / baseline - 1.
        ci95_slowdown: its 95 % interval; null with fewer than two traces a side.
        figure: what was judged, in cycles.
        reason: why this outcome.
        slower: figures that are shown to be worse.
        advice: what to do when it is not a pass; null for a pass.
        mismatches: why the sides are not comparable; only with force.
        notes: what else limits the meaning of the figures.
    """

    outcome: Outcome
    let_through: bool
    baseline: TilesSide
    candidate: TilesSide
    threshold: float
    slowdown: float
    ci95_slowdown: tuple[float, float] | None
    figure: FigureChange
    reason: str
    slower: list[FigureChange]
    advice: str | None
    mismatches: list[str]
    notes: list[str]


def gate_tiles(comparison: TilesComparison, threshold: float, mismatches: Sequence[str] = ()) -> TilesGate:
    """The decision on a comparison."""
    shown = _slowdown(comparison.overall)
    outcome, reason = judge(shown, threshold)
    figures = [*comparison.kinds, *(comparison.stall_cycles or comparison.stalls), *comparison.rates]
    return TilesGate(
        outcome=outcome,
        let_through=outcome is Outcome.PASSED,
        baseline=comparison.baseline,
        candidate=comparison.candidate,
        threshold=threshold,
        slowdown=shown.estimate,
        ci95_slowdown=shown.interval,
        figure=comparison.overall,
        reason=reason.replace("processes", "traces"),
        slower=[figure for figure in figures if figure.verdict is Verdict.SLOWER],
        advice=_advice(outcome, comparison),
        mismatches=list(mismatches),
        notes=list(comparison.notes),
    )


def lenient(report: TilesGate) -> TilesGate:
    """The report with an inconclusive outcome let through, which a note then says; any other as it is."""
    if report.outcome is not Outcome.INCONCLUSIVE:
        return report
    notes = ["inconclusive results pass, as requested", *report.notes]
    return msgspec.structs.replace(report, let_through=True, notes=notes)


def _slowdown(found: FigureChange) -> Slowdown:
    ratio = found.ratio or 1.0
    interval = None if found.ci95 is None else (1 / found.ci95[1] - 1, 1 / found.ci95[0] - 1)
    decidable = found.verdict is not Verdict.UNDECIDABLE
    return Slowdown(1 / ratio - 1, interval, found.verdict, found.minimum_detectable, decidable)


def _advice(outcome: Outcome, comparison: TilesComparison) -> str | None:
    if outcome is Outcome.PASSED:
        return None
    if outcome is Outcome.REGRESSION:
        return "kinds and stalls that became worse say where; `opscope aie` shows the candidate's cores"
    fewest = min(comparison.baseline.traces, comparison.candidate.traces)
    if fewest < FEWEST:
        return f"capture {FEWEST} traces or more of each side, and give a directory of them for each"
    return f"capture more than {fewest} traces of each side"
