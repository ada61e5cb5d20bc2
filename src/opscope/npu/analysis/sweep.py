"""Many traces of AI Engine tiles side by side: one row each, for a sweep over the sizes of a matrix product."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

import msgspec

from opscope.npu.analysis.cycles import STALLS, category_name
from opscope.npu.analysis.rates import GmacRange
from opscope.npu.analysis.tiles_result import all_known
from opscope.program.cost.gemm import Tiling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.npu.analysis.tiles_result import TilesAnalysis


class SweepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One trace of a sweep; figures are null where they are not known.

    Attributes:
        label: name of the trace.
        path: where it stands.
        tiling: what one call works on, and the whole product.
        cores: that were traced and have calls.
        in_calls: part of their windows that is within calls.
        mac_per_cycle: of a core, mean over the cores.
        utilisation: the same as a fraction of the peak.
        coverage: least over the cores.
        gmac_per_s: of a core; a range where the clock is not known, with that at an assumed one.
        iteration_cycles: median of the iterations of all cores together.
        period_cycles: from one multiplying call to the next, median over the cores.
        call_cycles: that such a call takes, likewise.
        bound_by: what sets the pace of the core with the longest period.
        stall: the largest stall that was traced.
        stall_share: part of the windows that it takes.
        problem: why there are no figures; null when there are, though the trace may be cut off.
        complete: whether the trace is whole.
    """

    label: str
    path: str
    tiling: Tiling | None = None
    cores: int = 0
    in_calls: float | None = None
    mac_per_cycle: float | None = None
    utilisation: float | None = None
    coverage: float | None = None
    gmac_per_s: GmacRange | None = None
    iteration_cycles: float | None = None
    period_cycles: float | None = None
    call_cycles: float | None = None
    bound_by: str | None = None
    stall: str | None = None
    stall_share: float | None = None
    problem: str | None = None
    complete: bool = True

    @property
    def macs(self) -> int | None:
        """Multiply-accumulates of the whole product; None when its sizes are not known."""
        return self.tiling.macs if self.tiling else None


class Sweep(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.tiles-sweep/1"):
    """Several traces in the order of their work, those of unknown size last, and what is to be said about them."""

    rows: list[SweepRow]
    notes: list[str]


def sweep(rows: Sequence[SweepRow], notes: Sequence[str] = ()) -> Sweep:
    """Rows in order of the work of their products."""
    ordered = sorted(rows, key=lambda row: (row.macs is None, row.macs or 0, row.label))
    return Sweep(ordered, list(notes))


def sweep_row(label: str, analysis: TilesAnalysis) -> SweepRow:
    """What a sweep shows of one trace."""
    rows = analysis.working
    trace = analysis.trace
    row = SweepRow(label=label, path=trace.path, tiling=analysis.given.tiling, complete=trace.complete)
    if not rows:
        return msgspec.structs.replace(row, problem="no kernel call of a core is in it")
    window = sum(one.window_cycles for one in rows)
    stalls = {name: sum(one.cycles.of(name) for one in rows) for name in STALLS}
    worst = max(stalls, key=lambda name: stalls[name])
    paced = [one for one in rows if one.bound]
    slow = max(paced, key=lambda one: one.bound.measured_period_cycles if one.bound else 0.0, default=None)
    return msgspec.structs.replace(
        row,
        cores=len(rows),
        in_calls=analysis.in_call_share,
        mac_per_cycle=analysis.mac_per_cycle,
        utilisation=analysis.utilisation,
        coverage=min(all_known(one.coverage for one in rows), default=None),
        gmac_per_s=analysis.gmac_per_s,
        iteration_cycles=analysis.array.median_runtime_cycles if analysis.array else None,
        period_cycles=median(one.bound.measured_period_cycles for one in paced if one.bound) if paced else None,
        call_cycles=median(one.bound.call_cycles for one in paced if one.bound) if paced else None,
        bound_by=slow.bound.by if slow and slow.bound else None,
        stall=category_name(worst) if stalls[worst] else None,
        stall_share=stalls[worst] / window if stalls[worst] else None,
    )
