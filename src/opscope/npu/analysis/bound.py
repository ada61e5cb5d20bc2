"""What sets the pace of the multiplying calls of a tile: the call itself, or the transfer of an operand.

Data move while the core computes, so a call and each port's transfer overlap, and the longest of them is the period
from one call to the next. That prediction stands beside the period that was measured, with what is left between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from opscope.analysis.findings.message import Message, Severity
from opscope.core.units import share_text
from opscope.npu.analysis.cycles import split_spans
from opscope.npu.analysis.findings import place, tile_finding
from opscope.npu.analysis.ports import Port, ports

if TYPE_CHECKING:
    from opscope.core.table.nesting import Ints
    from opscope.core.table.tiles import TileTrace
    from opscope.npu.analysis.calls import CallSpans
    from opscope.npu.analysis.kinds import MacCalls
    from opscope.npu.analysis.specification import RunSpecification

EXPLAINED = 0.1
"""Share of the measured period that may be left over, or missing, for the prediction to explain it."""
CALL = "call"
"""The verdict when the call itself takes longest."""
NOTHING_TRACED = "not explained"
"""The verdict when nothing in the trace takes as long as the period."""


class Period(msgspec.Struct, frozen=True):
    """Cycles from the start of one multiplying call to the start of the next.

    Attributes:
        n: number of periods.
        median: of them.
        p10: what one in ten stays below.
        p90: what nine in ten stay below.
        min: shortest.
        max: longest.
    """

    n: int
    median: float
    p10: float
    p90: float
    min: int
    max: int


class TileBound(msgspec.Struct, frozen=True, kw_only=True):
    """What sets the pace of a tile.

    Attributes:
        by: the verdict: ``call``, the stream of an operand (``B input stream``), the name of a port whose operand is
            not known, or ``not explained``; null when there is no prediction.
        port: event of the port behind the verdict; null when it is another.
        call_cycles: median duration of the calls that multiply, with the zero-fill or other call before each where
            most periods have one; null without any.
        ports: all ports that were traced and used.
        predicted_period_cycles: the longest of the call and the ports' transfers; null without calls.
        measured: periods; null with fewer than two calls.
        measured_period_cycles: the median period; null likewise.
        residual_cycles: measured less predicted; null likewise.
        reason: how the verdict was reached, or why there is none.
        findings: what contradicts or limits it.
    """

    by: str | None = None
    port: str | None = None
    call_cycles: float | None
    ports: tuple[Port, ...]
    predicted_period_cycles: float | None = None
    measured: Period | None = None
    measured_period_cycles: float | None = None
    residual_cycles: float | None = None
    reason: str
    findings: tuple[Message, ...] = ()


def bound(tile: TileTrace, calls: CallSpans, work: MacCalls, said: RunSpecification) -> TileBound:
    """The verdict on what sets the pace of a tile.

    Args:
        tile: of the calls.
        calls: all of the tile.
        work: those that multiply.
        said: tiling, device and type, as far as they are known; without them ports have no operands, and count by the
            cycles that they were busy in a period.
    """
    moved = ports(tile, work, said.tiling, said.stream_bytes, said.dtype)
    call, measured = work.median_cycles, _period(work.start)
    if call is None or measured is None:
        reason = work.reason if call is None else "a single call multiplies, so there is no period to measure"
        return TileBound(call_cycles=call, ports=moved, reason=reason)
    found = _verdict(call + _others(calls, work), moved, measured)
    if found.by != NOTHING_TRACED:
        return found
    return msgspec.structs.replace(found, findings=(_residual(tile, calls, found, measured),))


def _others(calls: CallSpans, work: MacCalls) -> float:
    """Cycles in calls that do not multiply, in the median period: 0 where most periods have no such call."""
    spent = np.concatenate([[0], np.cumsum(np.where(work.multiplies, 0, calls.durations))])
    return float(np.median(np.diff(spent[np.flatnonzero(work.multiplies)])))


def _period(start: Ints) -> Period | None:
    periods = np.diff(start)
    if not len(periods):
        return None
    p10, median, p90 = np.percentile(periods, [10, 50, 90]).tolist()
    return Period(len(periods), median, p10, p90, int(periods.min()), int(periods.max()))


def _verdict(call: float, moved: tuple[Port, ...], measured: Period) -> TileBound:
    slowest = max(moved, key=lambda port: port.cycles_per_call or 0.0, default=None)
    needed = (slowest.cycles_per_call or 0.0) if slowest else 0.0
    predicted, paced = max(call, needed), slowest if needed > call else None
    residual = measured.median - predicted
    explained = abs(residual) <= EXPLAINED * measured.median
    return TileBound(
        by=(paced.label if paced else CALL) if explained else NOTHING_TRACED,
        port=paced.name if paced and explained else None,
        call_cycles=call,
        ports=moved,
        predicted_period_cycles=predicted,
        measured=measured,
        measured_period_cycles=measured.median,
        residual_cycles=residual,
        reason=_reason(call, paced, moved),
    )


def _reason(call: float, paced: Port | None, moved: tuple[Port, ...]) -> str:
    longest = f"a call takes {call:g} cycles"
    if paced is not None:
        how = f"{paced.transfer_cycles} cycles a transfer" if paced.transfer_cycles else "as measured"
        return f"{paced.name} needs {paced.cycles_per_call:g} cycles for each call ({how}), {longest}"
    if not moved:
        return f"{longest}; no PORT_RUNNING event was traced, so transfers are not known"
    return f"{longest}, every port that was traced needs less for each call"


def _residual(tile: TileTrace, calls: CallSpans, found: TileBound, measured: Period) -> Message:
    left = found.residual_cycles or 0.0
    title = "calls follow each other faster than their data could arrive"
    step = "the size, type or number of ports is another: check m, k, n, dtype and arch"
    evidence = (
        f"predicted {found.predicted_period_cycles:g} cycles, measured {measured.median:g} (median of {measured.n}): "
        f"{share_text(abs(left) / max(measured.median, 1.0))} of it is {'left over' if left > 0 else 'missing'}"
    )
    if left > 0:
        title = "neither the calls nor the ports that were traced explain the period"
        spent = split_spans(tile, calls.end[:-1], calls.start[1:]).total()
        shares = {name: cycles / max(spent.total, 1) for name, cycles in msgspec.structs.asdict(spent).items()}
        most = max(shares, key=lambda name: shares[name])
        evidence += f"; of the cycles between calls {share_text(shares[most])} are {most.replace('_', ' ')}"
        step = _STEPS.get(most, _STEPS["other"])
    return tile_finding("period_not_explained", Severity.MEDIUM, title, evidence, place(tile), step)


_STEPS = {
    "lock_stall": "the core waits for buffers: trace the ports of all operands, and the memory tile behind them",
    "stream_stall": "the core waits for a stream: trace the tile at its other end",
    "cascade_stall": "the core waits for its neighbour in the cascade: trace that core as well",
    "memory_stall": "the core waits for its data memory: trace CONFLICT_DM_BANK_0 to 7 of its memory module",
    "other": "the core runs code between the calls: look at the loop around the kernel, its locks and its addresses",
}
