"""A gate over AI Engine traces: is the candidate slower than is let through."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.gate.decision import Criterion, Outcome, Quantity, decided
from opscope.analysis.gate.gate import Slowdown, judge
from opscope.core.stats.effect import Verdict
from opscope.npu.analysis.compare import FEWEST, FigureChange, TilesSide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.analysis.gate.decision import Decision
    from opscope.npu.analysis.compare import TilesComparison


class TilesEvidence(msgspec.Struct, frozen=True, tag_field="kind", tag="tiles"):
    """What a decision over AI Engine traces rests on.

    Attributes:
        baseline: the side that the candidate is measured by.
        candidate: the side that is judged.
        figure: what was judged, in cycles.
        slower: figures that are shown to be worse.
    """

    baseline: TilesSide
    candidate: TilesSide
    figure: FigureChange
    slower: list[FigureChange]


def gate_tiles(
    comparison: TilesComparison, threshold: float, mismatches: Sequence[str] = ()
) -> Decision[TilesEvidence]:
    """The decision on a comparison."""
    found, shown = comparison.overall, _slowdown(comparison.overall)
    outcome, reason = judge(shown, threshold)
    criterion = Criterion(
        name=found.name,
        quantity=Quantity.SLOWDOWN,
        limit=threshold,
        measured=shown.estimate if found.ratio else None,
        ci95=shown.interval,
        outcome=outcome,
        reason=reason.replace("processes", "traces"),
        verdict=shown.verdict,
        minimum_detectable=shown.minimum_detectable,
    )
    figures = [*comparison.kinds, *(comparison.stall_cycles or comparison.stalls), *comparison.rates]
    slower = [figure for figure in figures if figure.verdict is Verdict.SLOWER]
    return decided(
        [criterion],
        TilesEvidence(comparison.baseline, comparison.candidate, found, slower),
        advice=_advice(outcome, comparison),
        mismatches=mismatches,
        notes=comparison.notes,
    )


def _slowdown(found: FigureChange) -> Slowdown:
    ratio = found.ratio or 1.0
    interval = None if found.ci95 is None else (1 / found.ci95[1] - 1, 1 / found.ci95[0] - 1)
    decidable = bool(found.ratio) and found.verdict is not Verdict.UNDECIDABLE
    return Slowdown(1 / ratio - 1, interval, found.verdict, found.minimum_detectable, decidable)


def _advice(outcome: Outcome, comparison: TilesComparison) -> str | None:
    if outcome is Outcome.PASSED:
        return None
    if outcome is Outcome.REGRESSION:
        return "see which kinds and stalls regressed; `opscope aie` shows the candidate's cores"
    fewest = min(comparison.baseline.traces, comparison.candidate.traces)
    if fewest < FEWEST:
        return f"capture at least {FEWEST} traces per side, and give a directory of them for each side"
    return f"capture more than {fewest} traces per side"
