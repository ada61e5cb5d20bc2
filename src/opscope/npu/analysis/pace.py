"""Pace of the multiplying calls of a tile, which the call itself sets, or the transfer of an operand.

A trace has the cycles in which a port moved data. They add up to whole buffers, and a part of one where the trace ends:
so they tell which operand of a matrix product the port carries. Data move while the core computes, so a call and each
port's transfer overlap, and the longest of them is the period from one call to the next. That prediction stands beside
the period that was measured, with what is left between them.

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
from opscope.npu.analysis.cycles import STALLS, category_name, cover, sum_split
from opscope.npu.analysis.findings import place, tile_finding
from opscope.npu.analysis.waits import PORT, stall_step
from opscope.program.cost.gemm import Operand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.core.table.nesting import Ints
    from opscope.core.table.tiles import SlotTrace, TileTrace
    from opscope.npu.analysis.calls import CallSpans
    from opscope.npu.analysis.kinds import CoreCalls
    from opscope.npu.analysis.specification import RunSpecification
    from opscope.program.cost.gemm import Tiling

_AHEAD = 4
"""Buffers that an input may be ahead of the calls, or behind those of a trace that began in the middle of a run."""
_MOST = 0.5
EXPLAINED = 0.1
"""Share of the measured period that may be left over, or missing, for the prediction to explain it."""
NOTHING_TRACED = "not explained"
"""The verdict when nothing in the trace takes as long as the period."""


class Port(msgspec.Struct, frozen=True):
    """Traffic of a stream port.

    Attributes:
        slot: of its event.
        name: of its event.
        busy_cycles: in which it moved data, in the whole trace.
        busy_per_call: the same for one period of the multiplying calls, as measured between the first and the last
            start of such a call; null with fewer than two.
        operands: those whose buffers fit; several when the trace cannot tell them apart, none when none fits.
        buffer_bytes: of one transfer; null without an operand.
        transfer_cycles: of one transfer; null without an operand.
        transfers: whole ones in the trace; null without an operand.
        partial_cycles: of the transfer that the end of the trace cuts; null without an operand.
        cycles_per_call: that the port needs for one multiplying call: of the transfers where the operand is known, else
            ``busy_per_call``.
        reason: how the operand was found, or why there is none.
    """

    slot: int
    name: str
    busy_cycles: int
    busy_per_call: float | None
    operands: tuple[str, ...]
    buffer_bytes: int | None
    transfer_cycles: int | None
    transfers: int | None
    partial_cycles: int | None
    cycles_per_call: float | None
    reason: str

    @property
    def label(self) -> str:
        """The operand and its direction, or the name of the event where that is not known."""
        if not self.operands:
            return self.name
        names = " or ".join(self.operands)
        if Operand.C.value not in self.operands:
            return f"{names} input stream"
        return f"{names} output stream" if len(self.operands) == 1 else f"{names} stream"


class _Fit(NamedTuple):
    """A buffer whose transfers could be those of a port."""

    operand: Operand
    bytes: int
    cycles: int
    distance: float  # from the number of transfers to that which the calls need


def find_ports(core: CoreCalls, specification: RunSpecification) -> tuple[Port, ...]:
    """Find what each traced and used port of a core carries."""
    work, tiling, device, dtype = core.work, specification.tiling, specification.device, specification.dtype
    used = [slot for slot in core.tile.slots if slot.name.startswith(PORT) and len(slot.spans.start)]
    values = (("tile sizes m, k, n", tiling), ("architecture", device), ("type of operands", dtype))
    absent = [name for name, value in values if value is None]
    missing = f"{', '.join(absent)} not given" if absent else ""
    missing = missing if len(work) else "no call multiplies"
    if missing or tiling is None or device is None or dtype is None:
        return tuple(_describe_port(slot, work, [], None, f"operand unknown: {missing}") for slot in used)
    fits = []
    for slot in used:
        sums, buffers = np.cumsum(slot.spans.end - slot.spans.start), list[_Fit]()
        for operand in Operand:
            sizes = [(size, -(-size // device.stream_bytes_per_cycle)) for size in tiling.buffer_bytes(operand, dtype)]
            fitting = [fit for size in sizes if (fit := _match_buffer(operand, size, sums, core, tiling))]
            buffers += sorted(fitting, key=lambda fit: (fit.distance, -_share_ending_at_pauses(sums, fit.cycles)))[:1]
        inputs = [fit for fit in buffers if fit.operand is not Operand.C]
        if slot.spans.start[0] < work.end[0] and (inputs or tiling.calls_per_output is None):
            buffers = inputs
        fits.append(_select_likeliest(buffers, sums))
    for _ in Operand:  # operands that only one port can carry are not those of the others
        sure = {port_fits[0].operand for port_fits in fits if len(port_fits) == 1}
        fits = [
            port_fits if len(port_fits) == 1 else [fit for fit in port_fits if fit.operand not in sure] or port_fits
            for port_fits in fits
        ]
    per_output = tiling.calls_per_output
    return tuple(_describe_port(slot, work, port_fits, per_output) for slot, port_fits in zip(used, fits, strict=True))


def _match_buffer(operand: Operand, size: tuple[int, int], sums: Ints, core: CoreCalls, tiling: Tiling) -> _Fit | None:
    """Match a buffer, of a size in bytes and in cycles, whose number of transfers goes with the calls.

    None if that is too far from what these need, or there are none. Without K it is not known how many buffers of C
    there should be; then the port must pause after most of them.
    """
    transfers, per_output, calls = int(sums[-1]) // size[1], tiling.calls_per_output, len(core.work)
    if operand is Operand.C and per_output is None:
        fits = 0 < transfers <= calls and _share_ending_at_pauses(sums, size[1]) > _MOST
        return _Fit(operand, *size, float(_AHEAD)) if fits else None
    needed = calls / (per_output or 1) if operand is Operand.C else calls + core.has_begun_call
    distance = abs(transfers - needed)
    return _Fit(operand, *size, distance) if transfers > 0 and distance <= _AHEAD else None


def _select_likeliest(fits: list[_Fit], sums: Ints) -> list[_Fit]:
    """Select the buffers whose transfers end where the port paused; all of them if that tells nothing."""
    if len(fits) < 2:  # noqa: PLR2004 - one cannot be told from another
        return fits
    shares = [_share_ending_at_pauses(sums, fit.cycles) for fit in fits]
    return [fit for fit, share in zip(fits, shares, strict=True) if share == max(shares)]


def _share_ending_at_pauses(sums: Ints, cycles: int) -> float:
    transfers = int(sums[-1]) // cycles
    return float((sums % cycles == 0).sum()) / transfers if transfers else 0.0


def _describe_port(
    slot: SlotTrace, work: CallSpans, fits: Sequence[_Fit], per_output: int | None, reason: str | None = None
) -> Port:
    """Describe a port by the buffers that fit, with the calls for each output tile."""
    start, end, measured = slot.spans.start, slot.spans.end, None
    busy = int((end - start).sum())
    if len(work) > 1:
        window = work.start[0], work.start[-1]
        measured = int((np.clip(end, *window) - np.clip(start, *window)).sum()) / (len(work) - 1)
    names, sizes = tuple(fit.operand.value for fit in fits), {fit.bytes for fit in fits}
    if len(sizes) != 1:
        why = reason or (
            "several buffer sizes match its busy cycles"
            if sizes
            else "no buffer of this tile matches its busy cycles: different size or type, or other data"
        )
        return Port(slot.number, slot.name, busy, measured, names, None, None, None, None, measured, why)
    cycles = fits[0].cycles
    transfers, partial = divmod(busy, cycles)
    needed = float(cycles)
    if names == (Operand.C.value,):
        needed = cycles / per_output if per_output else cycles * transfers / len(work)
    why = "its busy cycles match the number of buffers that the calls need"
    if len(fits) > 1:
        why = "these operands have equal buffer sizes, and the calls need equally many of each"
    buffers = (fits[0].bytes, cycles, transfers, partial, needed)
    return Port(slot.number, slot.name, busy, measured, names, *buffers, why)


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

    def is_explained_by(self, cycles: float) -> bool:
        """Return whether a transfer or a call of so many cycles takes as long as the median period."""
        return abs(self.median - cycles) <= EXPLAINED * self.median

    @property
    def spread(self) -> str:
        """Shortest and longest of them in words."""
        return range_text(f"{self.min:,}", f"{self.max:,}")


class Gain(msgspec.Struct, frozen=True):
    """Factor by which calls could follow each other faster at most, if what they wait for took no time.

    Attributes:
        at_most: period over what would be left of it.
        ci95: its 95 % interval; null with fewer than six periods.
        n: periods that it rests on.
    """

    at_most: float
    ci95: tuple[float, float] | None
    n: int


class TileBound(msgspec.Struct, frozen=True):
    """Cause of the pace of the calls that multiply.

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
    def is_call(self) -> bool:
        """Return whether it is the call, or what the call waits for."""
        return self.by != NOTHING_TRACED and self.port is None

    @property
    def limiting_port(self) -> Port | None:
        """The port behind the verdict. None if it is another."""
        return next((port for port in self.ports if port.name == self.port), None)


def find_bound(
    core: CoreCalls, ports: tuple[Port, ...], around: Sequence[TileTrace] = ()
) -> tuple[TileBound | None, str, tuple[Message, ...]]:
    """Return the verdict on what sets the pace of a tile, its reason, and what contradicts or limits it.

    There is no verdict with fewer than two calls that multiply; then the reason is why.
    """
    work = core.work
    if len(work) < 2:  # noqa: PLR2004 - two calls make a period
        return (
            None,
            "only one call multiplies, so there is no period to measure" if len(work) else core.kinds.reason,
            (),
        )
    tile_bound, slowest = _describe_pace(core, ports)
    measured, call = tile_bound.period, tile_bound.call_cycles
    needed = (slowest.cycles_per_call or 0.0) if slowest else 0.0
    doubt = None
    if slowest is not None and needed > call - _median_waits(core) and measured.is_explained_by(needed):
        doubt = _doubt_port(core, slowest, needed, measured, around)
        if doubt is None:
            tile_bound = _name_port(tile_bound, slowest, core)
            return tile_bound, tile_bound.reason, ()
    if needed <= call and measured.is_explained_by(call):
        tile_bound = _name_call(tile_bound, core)
        return tile_bound, tile_bound.reason, ()
    if doubt:
        tile_bound = msgspec.structs.replace(tile_bound, reason=f"{tile_bound.reason}; {doubt.title}")
    return tile_bound, tile_bound.reason, (doubt or _report_residual(core, tile_bound, around),)


def _describe_pace(core: CoreCalls, ports: tuple[Port, ...]) -> tuple[TileBound, Port | None]:
    """Return a bound that nothing explains yet, and the port that needs most cycles for a call."""
    work, multiplies = core.work, core.kinds.work
    periods = np.diff(work.start)
    interval = median_bounds(np.sort(periods).astype(np.float64))
    measured = Period(len(periods), float(np.median(periods)), int(periods.min()), int(periods.max()), interval)
    between = np.concatenate([[0], np.cumsum(np.where(multiplies, 0, core.calls.durations))])
    call = float(np.median(work.durations)) + float(np.median(np.diff(between[np.flatnonzero(multiplies)])))
    slowest = max(ports, key=lambda port: port.cycles_per_call or 0.0, default=None)
    predicted = max(call, (slowest.cycles_per_call or 0.0) if slowest else 0.0)
    tile_bound = TileBound(
        by=NOTHING_TRACED,
        predicted_period_cycles=predicted,
        measured_period_cycles=measured.median,
        residual_cycles=measured.median - predicted,
        call_cycles=call,
        port=None,
        period=measured,
        ports=ports,
        reason=_reason_text(call, slowest if predicted > call else None, ports),
    )
    return tile_bound, slowest


def _median_waits(core: CoreCalls) -> float:
    """Return the median cycles of a multiplying call in which it waits for buffers, streams or neighbours."""
    spent = core.active.split(core.work.start, core.work.end)
    return float(np.median(spent["lock_stall"] + spent["stream_stall"] + spent["cascade_stall"]))


def _name_port(tile_bound: TileBound, slowest: Port, core: CoreCalls) -> TileBound:
    """Let a port set the pace; without it the longest of the others would."""
    rest = max((port.cycles_per_call or 0.0 for port in tile_bound.ports if port is not slowest), default=0.0)
    at_most = tile_bound.period.median / max(tile_bound.call_cycles, rest)
    scaled = np.diff(core.work.start) / np.maximum(core.work.durations[:-1], max(rest, 1.0))
    interval = median_bounds(np.sort(scaled))
    if interval is not None:
        interval = min(interval[0], at_most), max(interval[1], at_most)
    return msgspec.structs.replace(
        tile_bound,
        by=slowest.label,
        port=slowest.name,
        reason=_reason_text(tile_bound.call_cycles, slowest, tile_bound.ports),
        gain=Gain(at_most, interval, tile_bound.period.n),
    )


def _name_call(tile_bound: TileBound, core: CoreCalls) -> TileBound:
    """Let the call set the pace, or what it waits for where that takes more of it than all work."""
    spent = msgspec.structs.asdict(sum_split(core.active.split(core.work.start, core.work.end)))
    most = max(STALLS, key=lambda stall: spent[stall])
    if spent[most] <= spent["vector"] + spent["other"]:
        return msgspec.structs.replace(tile_bound, by="call")
    share = share_text(spent[most] / sum(spent.values()))
    reason = f"{tile_bound.reason}; {share} of the cycles in calls are {category_name(most)}"
    return msgspec.structs.replace(tile_bound, by=f"{category_name(most)} in calls", reason=reason)


def _doubt_port(
    core: CoreCalls, port: Port, needed: float, measured: Period, around: Sequence[TileTrace]
) -> Message | None:
    """Return why a port that takes as long as the period may not set the pace. None without a doubt.

    Too few periods, too wide a spread, or a port that is idle while the core waits.
    """
    title = f"no explanation for the call period, n = {measured.n}"
    seen = f"{port.name} needs {needed:,.0f} cycles per call; periods of {measured.spread} cycles"
    if measured.n < FEWEST:
        step = f"trace more calls: at least {FEWEST + 1} that multiply"
        title = f"{title}: too few periods to name a stream"
        return _report_unexplained(core, title, seen, step).about(subject="too few periods")
    first, third = np.percentile(np.diff(core.work.start), [25, 75]).tolist()
    if max(abs(first - needed), abs(third - needed)) > EXPLAINED * measured.median:
        seen = f"{seen}, the middle half ranges from {first:,.0f} to {third:,.0f}"
        step = "compare short and long periods: the timeline shows which stream or lock the long ones wait for"
        title = f"{title}: the periods vary too much for one stream"
        return _report_unexplained(core, title, seen, step).about(subject="scattered periods")
    idle = _idle_waits(core, port)
    if idle <= EXPLAINED * measured.median:
        return None
    waits = f"in the median period the core waits {idle:,.0f} of {measured.median:,.0f} cycles for a lock meanwhile"
    title = f"{title}: the core waits while {port.name} is idle"
    step = stall_step("lock_stall", core.tile, around)
    return _report_unexplained(core, title, f"{seen}; {waits}", step).about(subject="idle port")


def _idle_waits(core: CoreCalls, port: Port) -> float:
    """Return the cycles of the median period in which the core waits for a lock and the port moves nothing."""
    waits = core.active.covers.get("lock_stall")
    if waits is None:
        return 0.0
    spans = next(slot.spans for slot in core.tile.slots if slot.number == port.slot and slot.name == port.name)
    moving = cover(spans.start, spans.end).within(waits.start, waits.end)
    before = np.concatenate([[0], np.cumsum(waits.end - waits.start - moving)])
    return float(np.median(np.diff(before[np.searchsorted(waits.start, core.work.start)])))


def _report_unexplained(core: CoreCalls, title: str, evidence: str, step: str) -> Message:
    return tile_finding(
        "period_not_explained", Severity.MEDIUM, title=title, evidence=evidence, where=place(core.tile), step=step
    )


def _reason_text(call: float, slowest: Port | None, ports: tuple[Port, ...]) -> str:
    longest = f"a call takes {call:g} cycles"
    if slowest is not None:
        how = f"{slowest.transfer_cycles} cycles per transfer" if slowest.transfer_cycles else "as measured"
        return f"{slowest.name} needs {slowest.cycles_per_call:g} cycles per call ({how}), {longest}"
    if not ports:
        return f"{longest}; no PORT_RUNNING event was traced, so transfers are unknown"
    return f"{longest}, every traced port needs less per call"


def _report_residual(core: CoreCalls, tile_bound: TileBound, around: Sequence[TileTrace]) -> Message:
    rest, measured = tile_bound.residual_cycles, tile_bound.period
    spread = f"median of {measured.n}, {measured.spread if measured.min < measured.max else 'all equal'}"
    evidence = (
        f"predicted {tile_bound.predicted_period_cycles:,.0f} cycles, measured {measured.median:,.0f} ({spread}): "
        f"{share_text(abs(rest) / max(measured.median, 1.0))} of it is {'left over' if rest > 0 else 'missing'}"
    )
    if rest <= 0:
        title = "calls run faster than their data could arrive"
        step = "the size, type or number of ports is wrong: check m, k, n, dtype and arch"
        return _report_unexplained(core, title, evidence, step).about(subject="too short")
    spent = sum_split(core.active.split(core.calls.end[:-1], core.calls.start[1:]))
    cycles = msgspec.structs.asdict(spent)
    most = max(cycles, key=lambda name: cycles[name])
    share = share_text(cycles[most] / max(spent.total, 1))
    step = (
        "the core runs code between the calls: check the loop around the kernel, its locks and its address computation"
    )
    if most in STALLS:
        step = stall_step(most, core.tile, around)
    title = "neither the calls nor the traced ports explain the period"
    evidence += f"; of the cycles between calls {share} are {category_name(most)}"
    total = int(core.work.start[-1] - core.work.start[0])
    return _report_unexplained(core, title, evidence, step).about(
        saving_cycles=total - tile_bound.predicted_period_cycles * measured.n
    )


class CallStall(msgspec.Struct, frozen=True):
    """Stall in the calls of a core.

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


def call_stalls(core: CoreCalls, tile_bound: TileBound | None, ports: tuple[Port, ...]) -> tuple[CallStall, ...]:
    """Return the stalls in calls, the largest first; none where none was seen."""
    spent, total = core.active.split(core.calls.start, core.calls.end), int(core.calls.durations.sum())
    cycles = {stall: int(spent[stall].sum()) for stall in STALLS}
    return tuple(
        CallStall(stall, count, count / total, gain_without(core, spent[stall], tile_bound, ports))
        for stall, count in sorted(cycles.items(), key=lambda stalled: -stalled[1])
        if count
    )


def gain_without(core: CoreCalls, cycles: Ints, tile_bound: TileBound | None, ports: tuple[Port, ...]) -> Gain | None:
    """Return what is to be gained without some cycles of the calls. None if a stream is known to set the pace.

    The ports' transfers between the first multiplying call and the last stay, so no more is promised than they allow.
    The interval is that of a ratio of sums over the periods from call to call.
    """
    if tile_bound is not None and tile_bound.port is not None:
        return None
    calls, multiplies = core.calls, core.kinds.work
    periods = np.append(calls.start[1:], calls.end[-1]) - calls.start
    needed = max((min(port.cycles_per_call or 0.0, port.busy_per_call or 0.0) for port in ports), default=0.0)
    rest = (periods - cycles).astype(np.float64)
    moving = np.where(multiplies, needed, 0.0)
    moving[np.flatnonzero(multiplies)[-1:]] = 0.0
    if rest.sum() < moving.sum():
        rest = moving
    if rest.sum() <= 0:
        return None
    interval = ratio_interval(periods.astype(np.float64), rest)
    return Gain(float(periods.sum() / rest.sum()), interval, len(calls))
