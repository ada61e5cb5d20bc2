"""What sets the pace of the multiplying calls of a tile: the call itself, or the transfer of an operand.

Data move while the core computes, so a call and each port's transfer overlap, and the longest of them is the period
from one call to the next. That prediction stands beside the period that was measured, with what is left between them.

A port is blamed only by enough periods that agree, and that nothing in the trace contradicts. A call that mostly waits
is bound by what it waits for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from opscope.analysis.findings.message import Message, Severity
from opscope.core.stats.distributions import FEWEST, median_bounds, ratio_interval
from opscope.core.units import range_text, share_text
from opscope.npu.analysis.cycles import STALLS, Activity, activity, category_name, cover, split_by, together
from opscope.npu.analysis.findings import place, tile_finding
from opscope.npu.analysis.ports import Port
from opscope.npu.analysis.waits import stall_step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.core.table.nesting import Ints
    from opscope.core.table.tiles import TileTrace
    from opscope.npu.analysis.calls import CallSpans
    from opscope.npu.analysis.kinds import MacCalls

EXPLAINED = 0.1
"""Share of the measured period that may be left over, or missing, for the prediction to explain it."""
CALL = "call"
"""The verdict when the call itself takes longest."""
NOTHING_TRACED = "not explained"
"""The verdict when nothing in the trace takes as long as the period."""
IN_CALLS = " in calls"
"""How verdicts end that name what a call waits for."""


class Period(msgspec.Struct, frozen=True):
    """Cycles from the start of one multiplying call to the start of the next.

    Attributes:
        n: number of periods.
        median: of them.
        min: shortest.
        max: longest.
        ci95_median: 95 % interval of the median, free of any distribution; null with fewer than six periods.
    """

    n: int
    median: float
    min: int
    max: int
    ci95_median: tuple[float, float] | None = None


class Gain(msgspec.Struct, frozen=True):
    """How many times as fast calls could follow each other at most, if what they wait for took no time.

    Attributes:
        at_most: period over what would be left of it.
        ci95: its 95 % interval; null with fewer than six periods.
        n: periods that it rests on.
    """

    at_most: float
    ci95: tuple[float, float] | None
    n: int


class TileBound(msgspec.Struct, frozen=True):
    """What sets the pace of the calls that multiply.

    Attributes:
        by: ``call``, a stall that takes most of the call (``lock stall in calls``), the stream of an operand
            (``B input stream``), the name of a port whose operand is not known, or ``not explained``.
        predicted_period_cycles: the longest of the call and each port's transfers.
        measured_period_cycles: the median period.
        residual_cycles: measured less predicted.
        call_cycles: median duration of these calls, with the zero-fill or other call before each where most periods
            have one.
        port: event of the port behind the verdict; null when it is another.
        period: all measured periods.
        ports: that were traced and used.
        reason: how the verdict was reached.
        gain: without the port that sets the pace, at most; null when none does.
    """

    by: str
    predicted_period_cycles: float
    measured_period_cycles: float
    residual_cycles: float
    call_cycles: float
    port: str | None
    period: Period
    ports: tuple[Port, ...]
    reason: str
    gain: Gain | None = None

    @property
    def is_known(self) -> bool:
        """Return whether something is known to set the pace."""
        return self.by != NOTHING_TRACED

    @property
    def is_call(self) -> bool:
        """Return whether it is the call, or what the call waits for."""
        return self.is_known and self.port is None


class _Paced(NamedTuple):
    """Multiplying calls, and the periods between their starts; arrays of shape (periods,) unless said otherwise."""

    call: float  # median duration, with that of other calls in a period
    calls: Ints  # durations of the calls that begin the periods
    spent: Mapping[str, Ints]  # cycles of all multiplying calls, by category
    start: Ints  # of the periods
    end: Ints  # of the periods
    known: Activity  # activity of the tile
    measured: Period  # the periods described

    @property
    def waits(self) -> float:
        """Median cycles of a call in which it waits for others: for buffers, streams or neighbours."""
        spent = self.spent
        return float(np.median(spent["lock_stall"] + spent["stream_stall"] + spent["cascade_stall"]))


def bound(
    tile: TileTrace,
    calls: CallSpans,
    work: MacCalls,
    moved: tuple[Port, ...],
    known: Activity | None = None,
    around: Sequence[TileTrace] = (),
) -> tuple[TileBound | None, str, tuple[Message, ...]]:
    """The verdict on what sets the pace of a tile, its reason, and what contradicts or limits it.

    There is no verdict with fewer than two calls that multiply; then the reason is why.
    """
    call, measured = work.median_cycles, _describe_periods(work.start)
    if call is None or measured is None:
        why = work.reason if call is None else "only one call multiplies, so there is no period to measure"
        return None, why, ()
    known = known or activity(tile)
    spent = np.concatenate([[0], np.cumsum(np.where(work.multiplies, 0, calls.durations))])
    paced = _Paced(
        call=call + float(np.median(np.diff(spent[np.flatnonzero(work.multiplies)]))),
        calls=(work.end - work.start)[:-1],
        spent=split_by(known, work.start, work.end),
        start=work.start[:-1],
        end=work.start[1:],
        known=known,
        measured=measured,
    )
    tile_bound, doubts = _find_verdict(tile, calls, paced, moved, around)
    return tile_bound, tile_bound.reason, doubts


def _describe_periods(start: Ints) -> Period | None:
    periods = np.diff(start)
    if not len(periods):
        return None
    interval = median_bounds(np.sort(periods).astype(np.float64))
    return Period(len(periods), float(np.median(periods)), int(periods.min()), int(periods.max()), interval)


def _find_verdict(
    tile: TileTrace, calls: CallSpans, paced: _Paced, moved: tuple[Port, ...], around: Sequence[TileTrace]
) -> tuple[TileBound, tuple[Message, ...]]:
    slowest = max(moved, key=lambda port: port.cycles_per_call or 0.0, default=None)
    needed = (slowest.cycles_per_call or 0.0) if slowest else 0.0
    measured, predicted = paced.measured, max(paced.call, needed)
    tile_bound = TileBound(
        by=NOTHING_TRACED,
        predicted_period_cycles=predicted,
        measured_period_cycles=measured.median,
        residual_cycles=measured.median - predicted,
        call_cycles=paced.call,
        port=None,
        period=measured,
        ports=moved,
        reason=_reason_text(paced.call, slowest if needed > paced.call else None, moved),
    )
    doubt = None
    if slowest is not None and needed > paced.call - paced.waits and _is_explained(needed, measured):
        doubt = _doubt_port(tile, slowest, needed, paced, around)
        if doubt is None:
            return _by_port(tile_bound, slowest, paced), ()
    if needed <= paced.call and _is_explained(paced.call, measured):
        return _by_call(tile_bound, paced), ()
    why = f"{tile_bound.reason}; {doubt.title}" if doubt else tile_bound.reason
    unexplained = doubt or _report_residual(tile, calls, tile_bound, paced, around)
    return msgspec.structs.replace(tile_bound, reason=why), (unexplained,)


def _is_explained(predicted: float, measured: Period) -> bool:
    return abs(measured.median - predicted) <= EXPLAINED * measured.median


def _by_port(tile_bound: TileBound, paced: Port, periods: _Paced) -> TileBound:
    """The port sets the pace; without it the longest of the others would."""
    rest = max((port.cycles_per_call or 0.0 for port in tile_bound.ports if port is not paced), default=0.0)
    left = max(periods.call, rest)
    each = (periods.end - periods.start) / np.maximum(periods.calls, max(rest, 1.0))
    at_most, interval = periods.measured.median / left, median_bounds(np.sort(each))
    if interval is not None:
        interval = min(interval[0], at_most), max(interval[1], at_most)
    gain = Gain(at_most, interval, periods.measured.n)
    reason = _reason_text(periods.call, paced, tile_bound.ports)
    return msgspec.structs.replace(tile_bound, by=paced.label, port=paced.name, reason=reason, gain=gain)


def _by_call(tile_bound: TileBound, paced: _Paced) -> TileBound:
    """The call sets the pace: what it waits for, where that takes more of it than all work."""
    spent = msgspec.structs.asdict(together(paced.spent))
    most = max(STALLS, key=lambda stall: spent[stall])
    if spent[most] <= spent["vector"] + spent["other"]:
        return msgspec.structs.replace(tile_bound, by=CALL)
    share = share_text(spent[most] / sum(spent.values()))
    reason = f"{tile_bound.reason}; {share} of the cycles in calls are {category_name(most)}"
    return msgspec.structs.replace(tile_bound, by=f"{category_name(most)}{IN_CALLS}", reason=reason)


def _doubt_port(
    tile: TileTrace, port: Port, needed: float, paced: _Paced, around: Sequence[TileTrace]
) -> Message | None:
    """Return why a port that takes as long as the period may not set the pace; None without a doubt.

    Too few periods, too wide a spread, or a port that is idle while the core waits.
    """
    measured = paced.measured
    seen = f"{port.name} needs {needed:,.0f} cycles per call; periods of {_spread_text(measured)} cycles"
    if measured.n < FEWEST:
        return _unexplained_finding(
            tile,
            (f"no explanation for the call period, n = {measured.n}: too few periods to name a stream"),
            seen,
            (f"trace more calls: at least {FEWEST + 1} that multiply"),
        ).about(subject="too few periods")
    first, third = np.percentile(paced.end - paced.start, [25, 75]).tolist()
    if max(abs(first - needed), abs(third - needed)) > EXPLAINED * measured.median:
        middle = f"the middle half ranges from {first:,.0f} to {third:,.0f}"
        return _unexplained_finding(
            tile,
            (f"no explanation for the call period, n = {measured.n}: the periods vary too much for one stream"),
            f"{seen}, {middle}",
            _SCATTER,
        ).about(subject="scattered periods")
    idle = _idle_waits(tile, port, paced)
    if idle <= EXPLAINED * measured.median:
        return None
    waited = f"in the median period the core waits {idle:,.0f} of {measured.median:,.0f} cycles for a lock meanwhile"
    return _unexplained_finding(
        tile,
        (f"no explanation for the call period, n = {measured.n}: the core waits while {port.name} is idle"),
        f"{seen}; {waited}",
        (stall_step("lock_stall", tile, around)),
    ).about(subject="idle port")


_SCATTER = "compare short and long periods: the timeline shows which stream or lock the long ones wait for"


def _idle_waits(tile: TileTrace, port: Port, paced: _Paced) -> float:
    """Cycles of the median period in which the core waits for a lock and the port moves nothing."""
    waits = paced.known.covers.get("lock_stall")
    if waits is None:
        return 0.0
    spans = next(slot.spans for slot in tile.slots if slot.number == port.slot and slot.name == port.name)
    moving = cover(spans.start, spans.end)
    waited = waits.end - waits.start - moving.within(waits.start, waits.end)
    before = np.concatenate([[0], np.cumsum(waited)])
    each = np.diff(before[np.searchsorted(waits.start, np.append(paced.start, paced.end[-1]))])
    return float(np.median(each))


def _spread_text(measured: Period) -> str:
    return range_text(f"{measured.min:,}", f"{measured.max:,}")


def _unexplained_finding(tile: TileTrace, title: str, evidence: str, step: str) -> Message:
    return tile_finding(
        "period_not_explained", Severity.MEDIUM, title=title, evidence=evidence, where=place(tile), step=step
    )


def _reason_text(call: float, paced: Port | None, moved: tuple[Port, ...]) -> str:
    longest = f"a call takes {call:g} cycles"
    if paced is not None:
        how = f"{paced.transfer_cycles} cycles per transfer" if paced.transfer_cycles else "as measured"
        return f"{paced.name} needs {paced.cycles_per_call:g} cycles per call ({how}), {longest}"
    if not moved:
        return f"{longest}; no PORT_RUNNING event was traced, so transfers are unknown"
    return f"{longest}, every traced port needs less per call"


def _report_residual(
    tile: TileTrace, calls: CallSpans, tile_bound: TileBound, paced: _Paced, around: Sequence[TileTrace]
) -> Message:
    left, measured = tile_bound.residual_cycles, paced.measured
    title = "calls run faster than their data could arrive"
    step = "the size, type or number of ports is wrong: check m, k, n, dtype and arch"
    spread = f"median of {measured.n}, {_spread_text(measured) if measured.min < measured.max else 'all equal'}"
    evidence = (
        f"predicted {tile_bound.predicted_period_cycles:,.0f} cycles, measured {measured.median:,.0f} ({spread}): "
        f"{share_text(abs(left) / max(measured.median, 1.0))} of it is {'left over' if left > 0 else 'missing'}"
    )
    if left > 0:
        title = "neither the calls nor the traced ports explain the period"
        spent = together(split_by(paced.known, calls.end[:-1], calls.start[1:]))
        shares = {name: cycles / max(spent.total, 1) for name, cycles in msgspec.structs.asdict(spent).items()}
        most = max(shares, key=lambda name: shares[name])
        evidence += f"; of the cycles between calls {share_text(shares[most])} are {category_name(most)}"
        step = stall_step(most, tile, around) if most in STALLS else _CODE
    message = _unexplained_finding(tile, title, evidence, step)
    if left <= 0:
        return message.about(subject="too short")
    total = int(paced.end[-1] - paced.start[0])
    return message.about(saving_cycles=total - tile_bound.predicted_period_cycles * measured.n)


_CODE = "the core runs code between the calls: check the loop around the kernel, its locks and its address computation"


class CallStall(msgspec.Struct, frozen=True):
    """What the calls of a core wait for.

    Attributes:
        stall: category of its cycles, as in the account of cycles.
        cycles: in calls.
        share: of the cycles in calls.
        gain: without it, at most; null when a stream is known to set the pace, which then hides it.
    """

    stall: str
    cycles: int
    share: float
    gain: Gain | None


def call_stalls(
    calls: CallSpans, work: MacCalls, known: Activity, tile_bound: TileBound | None, moved: tuple[Port, ...]
) -> tuple[CallStall, ...]:
    """The stalls in calls, the largest first; none where none was seen."""
    if not len(calls):
        return ()
    spent, inside = split_by(known, calls.start, calls.end), int(calls.durations.sum())
    cycles = {stall: int(spent[stall].sum()) for stall in STALLS}
    return tuple(
        CallStall(stall, own, own / inside, gain_without(calls, work, spent[stall], tile_bound, moved))
        for stall, own in sorted(cycles.items(), key=lambda stalled: -stalled[1])
        if own
    )


def gain_without(
    calls: CallSpans, work: MacCalls, cycles: Ints, tile_bound: TileBound | None, moved: tuple[Port, ...]
) -> Gain | None:
    """Return what is to be gained without some cycles of the calls; None when a stream is known to set the pace.

    The ports' transfers between the first multiplying call and the last stay, so no more is promised than they allow.
    The interval is that of a ratio of sums over the periods from call to call.
    """
    if tile_bound is not None and tile_bound.port is not None:
        return None
    periods = np.append(calls.start[1:], calls.end[-1]) - calls.start
    needed = max((min(port.cycles_per_call or 0.0, port.busy_per_call or 0.0) for port in moved), default=0.0)
    left = (periods - cycles).astype(np.float64)
    moving = np.where(work.multiplies, needed, 0.0)
    moving[np.flatnonzero(work.multiplies)[-1:]] = 0.0
    if left.sum() < moving.sum():
        left = moving
    if left.sum() <= 0:
        return None
    at_most = float(periods.sum() / left.sum())
    return Gain(at_most, ratio_interval(periods.astype(np.float64), left), len(calls))
