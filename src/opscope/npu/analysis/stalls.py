"""What the cores of a trace wait for, in cycles of an iteration or of a multiplying call.

Two runs are compared by these. A share of the window also changes with everything else in the window: a faster kernel
makes the share of the same lock stall larger.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.npu.analysis.activity import EVENTS
from opscope.npu.analysis.tiles_result import mean_known

if TYPE_CHECKING:
    from opscope.npu.analysis.cycles import CycleSplit
    from opscope.npu.analysis.tiles_result import IterationRow, TileRow, TilesAnalysis

STALLS = tuple(category for category in EVENTS if category != "vector")
"""Categories of cycles in which a core waits."""


def has_gaps(analysis: TilesAnalysis) -> bool:
    """Whether every core has a measured iteration with another one behind it."""
    return all(any(one.gap is not None for one in _measured(row)) for row in analysis.working)


def cycles_per_iteration(analysis: TilesAnalysis, category: str, gaps: bool) -> float | None:
    """Cycles of a stall in a measured, complete iteration: mean over those of a core, then over the cores.

    None where a core did not trace it, has no such iteration, or where opscope 0.1 wrote the analysis.

    Args:
        analysis: of a trace.
        category: of cycles.
        gaps: whether the wait for the next iteration counts, too.
    """
    return mean_known(_of_iterations(row, category, gaps) for row in analysis.working)


def cycles_per_call(analysis: TilesAnalysis, category: str) -> float | None:
    """Cycles of a stall for each multiplying call: within it, and from its end to the next; mean over the cores.

    None where a core did not trace it, or has fewer than two such calls.
    """
    return mean_known(_of_calls(row, category) for row in analysis.working)


def _measured(row: TileRow) -> list[IterationRow]:
    return [one for one in row.iterations if one.complete and one.phase == "measured"]


def _of_iterations(row: TileRow, category: str, gaps: bool) -> float | None:
    if EVENTS[category] in row.not_traced:
        return None
    within = mean_known(_cycles(one.split, category) for one in _measured(row))
    waits = [_cycles(one.gap, category) for one in _measured(row) if gaps and one.gap is not None]
    return within if within is None else within + (mean_known(waits) or 0.0)


def _cycles(split: CycleSplit | None, category: str) -> float | None:
    return None if split is None else float(getattr(split, category))


def _of_calls(row: TileRow, category: str) -> float | None:
    calls = sum(kind.n for kind in row.kinds if kind.multiplies)
    if EVENTS[category] in row.not_traced or calls < 2:  # noqa: PLR2004 - one call has no gap to the next
        return None
    inside, between = (int(getattr(split, category)) for split in (row.cycles.in_call, row.cycles.between_calls))
    return inside / calls + between / (calls - 1)
