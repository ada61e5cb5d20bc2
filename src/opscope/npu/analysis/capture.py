"""Gaps in the capture of a tile: packets that were lost, repeated or swapped, and all behind a full buffer.

Packets of a trace have no sequence number, and their payload no checksum. What shows damage is framing, where the trace
is in raw words; starts and ends of calls that do not pair; iterations that lack calls; and vector cycles, which are
a constant of the kernel. From a loss on all times are too early by an unknown amount.

The buffer keeps the oldest events: when it is full, the newest are lost. What its slots take of it is estimated.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from opscope.analysis.findings.message import Message, Severity
from opscope.core.table.tiles import SLOTS
from opscope.core.units import counted_text, ratio_text, share_text
from opscope.npu.analysis.calls import END, START
from opscope.npu.analysis.findings import place, tile_finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.core.table.nesting import Ints
    from opscope.core.table.tiles import TileTrace
    from opscope.npu.analysis.iterations import CallGap, Iterations
    from opscope.npu.analysis.kinds import CoreCalls
    from opscope.npu.analysis.rates import TileRate

_NEAR = 2
"""Median periods within which several signs are of one loss."""
_SYNC_CYCLES = 1 << 18
_MOST_REPEATS = (1 << 10) - 1
_WORTH = 1.1
"""How much further the same buffer must reach for leaving a slot out to be worth it."""
_FAR = 10.0
"""How much further it must reach where it is not known how long the whole run is."""


class LostPackets(msgspec.Struct, frozen=True):
    """A place where packets of a tile were lost or damaged: times from there on are not sure.

    Attributes:
        cycle: where it is, or the earliest that it can be, in the tile's own time.
        last_cycle: the latest that it can be.
        why: what shows it.
        kind: ``lost`` where calls or words are missing, ``repeated`` where there are more calls than there can be,
            ``damaged`` where it is not known which.
        times_kept: whether later times are right all the same, as its iteration lasts as long as others.
    """

    cycle: int
    last_cycle: int
    why: str
    kind: str
    times_kept: bool = False

    @property
    def place(self) -> str:
        """The cycle of it, or the two that it lies between, in words."""
        if self.cycle == self.last_cycle:
            return f"at cycle {self.cycle:,}" if self.cycle else "at the start of the trace"
        return f"between cycles {self.cycle:,} and {self.last_cycle:,}"


def find_damage(core: CoreCalls, iterations: Iterations) -> tuple[tuple[LostPackets, ...], tuple[Message, ...]]:
    """Return the places where packets were lost, ascending, and findings on them."""
    tile, rows, gaps = core.tile, iterations.iterations, iterations.gaps if iterations.is_rare else ()
    bounds = [0, *(row.start for row in rows[1:]), tile.last]
    sure = [
        (begin, end)
        for row, begin, end in zip(rows, bounds, bounds[1:], strict=False)
        if row.has_sure_ends and not row.complete
    ]

    def mark_kept(lost: LostPackets) -> LostPackets:
        """Tell whether a loss lies in an iteration whose ends are sure, and took no words with it."""
        is_inside = any(begin <= lost.cycle and lost.last_cycle <= end for begin, end in sure)
        has_words = any(lost.cycle <= words.cycle <= lost.last_cycle for words in tile.lost)
        return msgspec.structs.replace(lost, times_kept=is_inside and not has_words)

    period = int(np.median(np.diff(core.calls.start))) if len(core.calls) > 1 else 0
    signs = [mark_kept(LostPackets(cycle, cycle, why, kind)) for cycle, why, kind in core.damage_signs]
    lost = tuple(map(mark_kept, _merge_signs(signs, gaps, _NEAR * period)))
    late = () if rows and rows[0].has_sure_ends else gaps
    missing = iterations.missing_calls if gaps else 0
    return lost, (*_report_lost_packets(tile, lost, missing), *_report_late_start(tile, late, lost))


def _merge_signs(signs: Sequence[LostPackets], gaps: Sequence[CallGap], near: int) -> list[LostPackets]:
    """Join the signs of one loss: those near each other, and iterations that lack calls with what is in them."""
    packets: list[LostPackets] = []
    for sign in sorted(signs, key=lambda sign: sign.cycle):
        last = packets[-1] if packets else sign
        if packets and sign.cycle - last.last_cycle <= near and sign.times_kept is last.times_kept:
            packets[-1] = LostPackets(
                last.cycle,
                max(last.last_cycle, sign.last_cycle),
                last.why if sign.why in last.why else f"{last.why}; {sign.why}",
                "lost" if "lost" in {last.kind, sign.kind} else last.kind,
            )
        else:
            packets.append(sign)
    lasts, apart = [lost.last_cycle for lost in packets], []
    for gap in gaps:
        kind, at = "lost" if gap.missing > 0 else "repeated", bisect_left(lasts, gap.cycle)
        if at < len(lasts) and packets[at].cycle <= gap.last_cycle:
            packets[at] = msgspec.structs.replace(packets[at], why=f"{packets[at].why}; {gap.why}", kind=kind)
        elif not gap.at_start:
            apart.append(LostPackets(gap.cycle, gap.last_cycle, gap.why, kind))
    return sorted(packets + apart, key=lambda lost: lost.cycle)


def _report_lost_packets(tile: TileTrace, lost: Sequence[LostPackets], missing: int) -> Iterator[Message]:
    unsure = [packets for packets in lost if not packets.times_kept]
    if not unsure:
        return
    first = unsure[0]
    loss = {"lost": "lost", "repeated": "repeated", "damaged": "lost, repeated or swapped"}[first.kind]
    more = f" and in {counted_text(len(unsure) - 1, 'more place', ',')}" if len(unsure) > 1 else ""
    count = f"; {counted_text(missing, 'working call')} missing before the end" if missing else ""
    step = "capture again, with fewer events or fewer tiles per stream, so no packet is dropped"
    if first.kind == "repeated":
        step = "capture again; if you assembled the buffer from parts, check that none is duplicated"
    yield tile_finding(
        "packets_lost",
        Severity.HIGH,
        title=f"packets were {loss} {first.place}{more}",
        evidence=f"{first.why}{count}; later times are {'too early' if first.kind == 'lost' else 'unreliable'}",
        where=place(tile, f"cycle {first.cycle}"),
        step=f"{step}; times after it are unreliable: do not compare this tile with others",
    )


def _report_late_start(tile: TileTrace, gaps: Sequence[CallGap], lost: Sequence[LostPackets]) -> Iterator[Message]:
    for gap in gaps:
        if gap.at_start and gap.missing > 0 and not any(packets.cycle <= gap.last_cycle for packets in lost):
            yield tile_finding(
                "calls_missing_at_start",
                Severity.MEDIUM,
                title="calls are missing at the start: packets were lost, or tracing began late",
                evidence=f"{gap.why}; {counted_text(gap.missing, 'working call')} missing",
                where=place(tile, f"cycle {gap.last_cycle}"),
                step="start tracing before the first call; if it was, capture again",
            )


class SlotCost(msgspec.Struct, frozen=True):
    """Share of the buffer that a slot takes.

    Attributes:
        slot: its number.
        event: its name.
        share: of the tile's bytes that would be saved without it.
        reach: how many times as long the trace could be without it.
    """

    slot: int
    event: str
    share: float
    reach: float


class Unslot(msgspec.Struct, frozen=True):
    """Events to leave out together.

    Attributes:
        events: their names, the one that saves most first.
        reach: how many times as long the trace could be without them.
        coverage: of the calls needed that it would then have, at most 1; null when not known.
    """

    events: tuple[str, ...]
    reach: float
    coverage: float | None


class TraceAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to make in the tracing of a tile. All are estimated from the events, not counted in the buffer.

    Attributes:
        cut: whether the trace ends before the work does; null when nothing tells.
        why: what says so.
        bytes: that the trace unit wrote; without padding and headers.
        slots: used ones, the dearest first.
        steps: leaving out one event, two, and so on, until the whole run fits; empty when it is not cut, or nothing
            that can be left out takes much.
    """

    cut: bool | None
    why: str
    bytes: int = 0
    slots: tuple[SlotCost, ...] = ()
    steps: tuple[Unslot, ...] = ()


UNKNOWN_END = (None, "the expected number of calls is unknown: give M, K, N, m, k, n, row and col")
"""Whether a trace ends before the work does, and what says so, where nothing does."""


def advise(tile: TileTrace, end: tuple[bool | None, str] = UNKNOWN_END, coverage: float | None = None) -> TraceAdvice:
    """Estimate what to leave out of a trace.

    Args:
        tile: the trace of a unit.
        end: whether it ends before the work does, and what says so.
        coverage: part of the calls of the whole run that it has.
    """
    cut, why = end
    levels = _find_levels(tile)
    size = _trace_bytes(levels)
    costs = []
    for slot in tile.slots:
        if len(slot.spans.start):
            rest = _trace_bytes(levels, frozenset({slot.number}))
            costs.append(SlotCost(slot.number, slot.name, (size - rest) / size if size else 0.0, size / max(1, rest)))
    costs.sort(key=lambda cost: cost.share, reverse=True)
    steps = () if cut is False or (cut and tile.room) else _reduction_steps(levels, size, costs, coverage)
    return TraceAdvice(cut=cut, why=why, bytes=size, slots=tuple(costs), steps=steps)


def find_end(core: CoreCalls, rate: TileRate, iterations: Iterations, *, has_losses: bool) -> tuple[bool | None, str]:
    """Return whether a trace ends before the work, and what says so; calls that are missing before the end do not."""
    number, unpaired, gone = len(core.work), len(core.pairing.unpaired), iterations.missing_calls
    needed = rate.calls_needed if rate.coverage is not None else None
    missing = 0 if needed is None else needed - number
    end: tuple[bool | None, str] = UNKNOWN_END
    if unpaired and core.has_begun_call and missing - gone <= 1 + unpaired:
        end = None, "its last call has no end, which may be lost like events of other calls"
    elif needed is not None and missing > 0:
        end = True, f"{number:,} of {needed:,} calls in the trace ({share_text(number / needed)})"
        if gone >= missing:
            end = False, f"{end[1]}; the others are missing before its end"
        elif gone:
            end = True, f"{end[1]}; {gone:,} missing before its end"
        elif has_losses and not core.has_begun_call:
            end = None, f"{end[1]}, and packets were lost, so its end may be missing"
    elif core.has_begun_call:
        end = True, "the trace ends within a call"
    elif needed is not None:
        end = False, "the trace has all calls that the product needs"
    return end


class _Levels(NamedTuple):
    """Times at which the slots of a tile were active."""

    time: Ints  # of each change, in cycles, ascending; shape (changes,)
    mask: Ints  # slots that are active from there to the next change, one bit each; shape (changes,)


def _find_levels(tile: TileTrace) -> _Levels:
    used = {slot.number: slot.spans for slot in tile.slots if len(slot.spans.start)}
    edges = [np.empty(0, np.int64), *(edge for spans in used.values() for edge in (spans.start, spans.end))]
    time = np.unique(np.concatenate(edges))
    mask = np.zeros(len(time), np.int64)
    for number, spans in used.items():
        begins, ended = (np.searchsorted(time, edge) for edge in (spans.start, spans.end))
        change = np.bincount(begins, minlength=len(time)) - np.bincount(ended, minlength=len(time))
        mask |= (np.cumsum(change) > 0).astype(np.int64) << np.int64(number)
    return _Levels(time, mask)


def _trace_bytes(levels: _Levels, without: frozenset[int] = frozenset()) -> int:
    """Return the bytes of commands that a trace unit writes, without some slots.

    Each stretch in which the same slots are active is a first frame and those that hold its level. Equal frames in
    a row are a frame and repeats of at most 1,023. A frame of one slot takes one byte less than one of several, and
    idle cycles of 4, 10 or 18 bits one more each.
    """
    mask = levels.mask & sum(1 << number for number in range(SLOTS) if number not in without)
    first = np.flatnonzero(np.diff(mask, prepend=-1))
    start, mask = levels.time[first], mask[first]
    end = np.append(start[1:], levels.time[-1:])
    is_used = (mask > 0) & (end > start)
    start, end, mask = start[is_used], end[is_used], mask[is_used]
    if not len(start):
        return 0
    idle = start - np.concatenate([[1], end[:-1]])
    slots, waits, times = _equal_frames(mask, idle % _SYNC_CYCLES, end - start)
    frames = 1 + ((slots & (slots - 1)) > 0) + (waits >= 1 << 4) + (waits >= 1 << 10)
    full, rest = np.divmod(times - 1, _MOST_REPEATS)
    repeats = 2 * full + np.where(rest >= 1 << 4, 2, rest > 0)
    return int(frames.sum() + repeats.sum() + (idle // _SYNC_CYCLES).sum())


def _equal_frames(mask: Ints, idle: Ints, length: Ints) -> tuple[Ints, Ints, Ints]:
    """Divide each stretch into its first frame and those that hold its level; equal ones in a row are one.

    Returns:
        Slots, idle cycles before, and number of each.
    """
    slots = np.repeat(mask, 2)
    before = np.stack([idle, np.zeros_like(idle)], axis=1).ravel()
    times = np.stack([np.where(idle > 0, 1, length), np.where(idle > 0, length - 1, 0)], axis=1).ravel()
    slots, before, times = slots[times > 0], before[times > 0], times[times > 0]
    is_same = (slots[1:] == slots[:-1]) & (before[1:] == before[:-1])
    first = np.flatnonzero(np.concatenate([[True], ~is_same]))
    return slots[first], before[first], np.add.reduceat(times, first)


def _reduction_steps(
    levels: _Levels, size: int, costs: Sequence[SlotCost], coverage: float | None
) -> tuple[Unslot, ...]:
    """Leave out one slot after the other, each time the one that helps most, until the whole run fits.

    The events by which calls are found stay.
    """
    rest = {cost.slot: cost.event for cost in costs if cost.event not in {START, END}}
    gone: dict[int, str] = {}
    steps: list[Unslot] = []
    while rest:
        reaches = {slot: size / max(1, _trace_bytes(levels, frozenset({*gone, slot}))) for slot in rest}
        best = max(rest, key=lambda slot: reaches[slot])
        if reaches[best] < _WORTH * (steps[-1].reach if steps else 1.0):
            break
        gone[best] = rest.pop(best)
        reached = min(1.0, coverage * reaches[best]) if coverage is not None else None
        steps.append(Unslot(tuple(gone.values()), reaches[best], reached))
        if reached == 1 or (reached is None and reaches[best] >= _FAR):
            break
    return tuple(steps)


def report_cut_trace(tile: TileTrace, advice: TraceAdvice) -> Iterator[Message]:
    """Report that a trace ends before the work, and what to do."""
    if not advice.cut:
        return
    title, evidence = "the trace ends before the work, although its buffer had room", advice.why
    step = "tracing was stopped before the end, or the last packets were not flushed: look at the stop event"
    if not tile.room:
        dearest = ", ".join(f"{cost.event} {share_text(cost.share)}" for cost in advice.slots[:3])
        title = "the trace ends before the work: the buffer was probably full"
        evidence = f"{advice.why}; share of its bytes saved by dropping each event: {dearest}"
        step = "give the trace a larger buffer, or trace fewer tiles or iterations"
        if advice.steps:
            best = next((step for step in advice.steps if step.coverage == 1), advice.steps[0])
            reach = f"{ratio_text(best.reach)} as far{', which is the whole run' if best.coverage == 1 else ''}"
            step = f"trace without {', '.join(best.events)}: the same buffer then reaches about {reach}; or enlarge it"
    yield tile_finding("trace_cut", Severity.MEDIUM, title=title, evidence=evidence, where=place(tile), step=step)
