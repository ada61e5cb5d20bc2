"""Advice on tracing itself: did the buffer fill, which slots fill it, and what to leave out to see the whole run.

The buffer keeps the oldest events: when it is full, the newest are lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from opscope.analysis.findings.message import Message, Severity
from opscope.core.table.tiles import SLOTS
from opscope.core.units import ratio_text, share_text
from opscope.npu.analysis.calls import END, START
from opscope.npu.analysis.findings import place, tile_finding
from opscope.npu.analysis.ports import PORT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opscope.core.table.nesting import Ints
    from opscope.core.table.tiles import SlotTrace, TileTrace
    from opscope.npu.analysis.kinds import MacCalls
    from opscope.npu.analysis.rates import MacRate


_SYNC_CYCLES = 1 << 18
_MOST_REPEATS = (1 << 10) - 1
_MOST_CHANGES = 1 << 13
"""Changes of level that are looked at: the commands of a longer trace are estimated from its beginning."""


class Levels(NamedTuple):
    """Which slots of a tile were active when."""

    time: Ints  # of each change, in cycles, ascending; shape (changes,)
    mask: Ints  # slots that are active from there to the next change, one bit each; shape (changes,)
    share: float  # of all spans of the trace that these are made of


def levels(tile: TileTrace) -> Levels:
    """The levels of all slots of a tile, as far as some :data:`_MOST_CHANGES` changes."""
    used = {slot.number: slot.spans for slot in tile.slots if len(slot.spans.start)}
    starts = np.concatenate([spans.start for spans in used.values()]) if used else np.empty(0, np.int64)
    most = _MOST_CHANGES // 2
    if len(starts) > most:
        last = np.partition(starts, most)[most]
        used = {number: spans.only(spans.start < last) for number, spans in used.items()}
        used = {number: spans._replace(end=np.minimum(spans.end, last)) for number, spans in used.items()}
    ends = [np.concatenate([spans.start, spans.end]) for spans in used.values()]
    time = np.unique(np.concatenate(ends)) if ends else starts
    mask = np.zeros(len(time), np.int64)
    for number, spans in used.items():
        begun, ended = (np.searchsorted(time, own) for own in (spans.start, spans.end))
        change = np.bincount(begun, minlength=len(time)) - np.bincount(ended, minlength=len(time))
        mask |= (np.cumsum(change) > 0).astype(np.int64) << np.int64(number)
    seen = sum(len(spans.start) for spans in used.values())
    return Levels(time, mask, seen / len(starts) if len(starts) else 1.0)


def traffic(seen: Levels, without: frozenset[int] = frozenset()) -> tuple[int, int]:
    """Commands of a trace unit for a whole trace, and their bytes; estimated where :attr:`Levels.share` is below 1."""
    kept = sum(1 << number for number in range(SLOTS) if number not in without)
    start, end, mask = _level_segments(seen, kept)
    if not len(start):
        return 0, 0
    idle = start - np.concatenate([[1], end[:-1]])
    slots, waits, times = _level_frames(mask, idle % _SYNC_CYCLES, end - start)
    syncs = int((idle // _SYNC_CYCLES).sum())
    repeats = times - 1
    rest = repeats % _MOST_REPEATS
    commands = len(slots) + int((repeats // _MOST_REPEATS + (rest > 0)).sum())
    size = _frame_bytes(slots, waits) + 2 * (repeats // _MOST_REPEATS) + np.where(rest >= 1 << 4, 2, rest > 0)
    return round((commands + syncs) / seen.share), round((int(size.sum()) + syncs) / seen.share)


def _level_segments(seen: Levels, kept: int) -> tuple[Ints, Ints, Ints]:
    """Stretches in which the same slots are active: start, end and slots; those without any are left out."""
    mask = seen.mask & kept
    first = np.flatnonzero(np.concatenate([[True], mask[1:] != mask[:-1]])) if len(mask) else np.empty(0, np.int64)
    start, mask = seen.time[first], mask[first]
    end = np.append(start[1:], seen.time[-1:])
    used = (mask > 0) & (end > start)
    return start[used], end[used], mask[used]


def _level_frames(mask: Ints, idle: Ints, length: Ints) -> tuple[Ints, Ints, Ints]:
    """Divide each stretch into its first frame, and those that hold its level: slots, idle cycles, number.

    Equal frames in a row are one.
    """
    waits = idle > 0
    slots = np.repeat(mask, 2)
    before = np.stack([idle, np.zeros_like(idle)], axis=1).ravel()
    times = np.stack([np.where(waits, 1, length), np.where(waits, length - 1, 0)], axis=1).ravel()
    slots, before, times = slots[times > 0], before[times > 0], times[times > 0]
    same = (slots[1:] == slots[:-1]) & (before[1:] == before[:-1])
    first = np.flatnonzero(np.concatenate([[True], ~same]))
    return slots[first], before[first], np.add.reduceat(times, first)


def _frame_bytes(slots: Ints, idle: Ints) -> Ints:
    """Bytes of each frame: one slot takes one less than several, and idle cycles of 4, 10 or 18 bits one more each."""
    several: NDArray[np.bool_] = (slots & (slots - 1)) > 0
    return 1 + several.astype(np.int64) + (idle >= 1 << 4) + (idle >= 1 << 10)


_WORTH = 1.1
"""How much further the same buffer must reach for leaving a slot out to be worth it."""
_FAR = 10.0
"""How much further it must reach where it is not known how long the whole run is."""
_PACKET = 8 / 7
"""Words of a packet for each word of commands."""
_LOST = {
    "INSTR_VECTOR": "kinds of calls are distinguished by duration only, and vector cycles count as other",
    "MEMORY_STALL": "data memory stalls count as other",
    "STREAM_STALL": "stream stalls count as other",
    "CASCADE_STALL": "cascade stalls count as other",
    "LOCK_STALL": "lock stalls count as other",
}


class SlotCost(msgspec.Struct, frozen=True):
    """What a slot takes of the buffer.

    Attributes:
        slot: its number.
        event: its name.
        commands: that would be saved without it.
        bytes: likewise.
        share: of the tile's bytes.
        reach: how many times as long the trace could be without it.
        loses: what is not known without it; null when it must stay, as calls are found by it.
    """

    slot: int
    event: str
    commands: int
    bytes: int
    share: float
    reach: float
    loses: str | None


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
    """What to change in the tracing of a tile. All of it is estimated from the events, not counted in the buffer.

    Attributes:
        cut: whether the trace ends before the work does; null when nothing tells.
        why: what says so.
        coverage: of the calls needed; null when not known.
        commands: that the trace unit wrote.
        bytes: of these; without padding and headers.
        buffer_bytes: that a buffer would need for the whole run, packet headers included and padding left out; null
            without coverage.
        slots: used ones, the dearest first.
        steps: leaving out one event, two, and so on, until the whole run fits; empty when it is not cut, or nothing
            that can be left out takes much.
        findings: that it is cut, and what to do.
    """

    cut: bool | None
    why: str
    coverage: float | None
    commands: int
    bytes: int
    buffer_bytes: int | None
    slots: tuple[SlotCost, ...]
    steps: tuple[Unslot, ...]
    findings: tuple[Message, ...] = ()


def advise(
    tile: TileTrace,
    work: MacCalls | None = None,
    rate: MacRate | None = None,
    *,
    missing_calls: int = 0,
    lost: bool = False,
    alone: int = 0,
) -> TraceAdvice:
    """Advice on the tracing of a tile, in which calls may be missing before the end, packets lost, and marks alone."""
    seen = levels(tile)
    commands, size = traffic(seen)
    coverage = rate.coverage if rate else None
    cut, why = _is_cut(work, rate, missing_calls, lost=lost, alone=alone)
    used = [_slot_cost(slot, seen, commands, size) for slot in tile.slots if len(slot.spans.start)]
    costs = tuple(sorted(used, key=lambda cost: -cost.bytes))
    steps = () if cut is False or (cut and tile.room) else _reduction_steps(seen, size, costs, coverage)
    return TraceAdvice(
        cut=cut,
        why=why,
        coverage=coverage,
        commands=commands,
        bytes=size,
        buffer_bytes=round(size * _PACKET / coverage) if coverage else None,
        slots=costs,
        steps=steps,
        findings=(_report_cut_trace(tile, why, steps, costs),) if cut else (),
    )


def _is_cut(
    work: MacCalls | None, rate: MacRate | None, before: int, *, lost: bool, alone: int
) -> tuple[bool | None, str]:
    """Return whether a trace ends too early, and what says so; calls that are missing before the end do not."""
    coverage = rate.coverage if rate else None
    missing = 0 if rate is None or not coverage else (rate.calls_needed or 0) - rate.calls - before
    if alone and work is not None and work.begun and missing <= 1 + alone:
        return None, "its last call has no end, which may be lost like events of other calls"
    if rate is not None and coverage is not None and coverage < 1:
        seen = f"{rate.calls:,} of {rate.calls_needed:,} calls in the trace ({share_text(coverage)})"
        missing = (rate.calls_needed or 0) - rate.calls
        return _is_cut_with_missing(seen, missing, before, unsure=lost and not (work and work.begun))
    if work is not None and work.begun:
        return True, "the trace ends within a call"
    if coverage is not None:
        return False, "the trace has all calls that the product needs"
    return None, "the expected number of calls is unknown: give M, K, N, m, k, n, row and col"


def _is_cut_with_missing(seen: str, missing: int, before: int, *, unsure: bool) -> tuple[bool | None, str]:
    if before >= missing:
        return False, f"{seen}; the others are missing before its end"
    if before:
        return True, f"{seen}; {before:,} missing before its end"
    if unsure:
        return None, f"{seen}, and packets were lost, so its end may be missing"
    return True, seen


def _slot_cost(slot: SlotTrace, seen: Levels, commands: int, size: int) -> SlotCost:
    left, left_size = traffic(seen, frozenset({slot.number}))
    return SlotCost(
        slot=slot.number,
        event=slot.name,
        commands=commands - left,
        bytes=size - left_size,
        share=(size - left_size) / size if size else 0.0,
        reach=size / max(1, left_size),
        loses=_what_is_lost(slot.name),
    )


def _what_is_lost(event: str) -> str | None:
    if event in {START, END}:
        return None
    if event.startswith(PORT):
        return "the transfer cycles of this port were not measured"
    return _LOST.get(event, "this event is not seen")


def _reduction_steps(
    seen: Levels, size: int, costs: tuple[SlotCost, ...], coverage: float | None
) -> tuple[Unslot, ...]:
    """Leave out one after the other, each time the slot that helps most, until the whole run fits."""
    left = {cost.slot: cost.event for cost in costs if cost.loses is not None}
    reaches = {cost.slot: cost.reach for cost in costs}
    gone: dict[int, str] = {}
    steps: list[Unslot] = []
    while left and not (steps and _is_enough(steps[-1])):
        if gone:
            reaches = {slot: size / max(1, traffic(seen, frozenset({*gone, slot}))[1]) for slot in left}
        best = max(left, key=lambda slot: reaches[slot])
        if reaches[best] < _WORTH * (steps[-1].reach if steps else 1.0):
            break
        gone[best] = left.pop(best)
        reached = min(1.0, coverage * reaches[best]) if coverage is not None else None
        steps.append(Unslot(tuple(gone.values()), reaches[best], reached))
    return tuple(steps)


def _is_enough(step: Unslot) -> bool:
    return step.reach >= _FAR if step.coverage is None else step.coverage == 1


def _report_cut_trace(tile: TileTrace, why: str, steps: tuple[Unslot, ...], costs: tuple[SlotCost, ...]) -> Message:
    if tile.room:
        return tile_finding(
            "trace_cut",
            Severity.MEDIUM,
            title="the trace ends before the work, although its buffer had room",
            evidence=why,
            where=place(tile),
            step="tracing was stopped before the end, or the last packets were not flushed: look at the stop event",
        )
    dearest = ", ".join(f"{cost.event} {share_text(cost.share)}" for cost in costs[:3])
    return tile_finding(
        "trace_cut",
        Severity.MEDIUM,
        title="the trace ends before the work: the buffer was probably full",
        evidence=f"{why}; share of its bytes saved by dropping each event: {dearest}",
        where=place(tile),
        step=_tracing_step(steps),
    )


def _tracing_step(steps: tuple[Unslot, ...]) -> str:
    if not steps:
        return "give the trace a larger buffer, or trace fewer tiles or iterations"
    best = next((step for step in steps if step.coverage == 1), steps[0])
    whole = ", which is the whole run" if best.coverage == 1 else ""
    named = ", ".join(best.events)
    return (
        f"trace without {named}: the same buffer then reaches about {ratio_text(best.reach)} as far{whole}; or "
        "enlarge it"
    )
