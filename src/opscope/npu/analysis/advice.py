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

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.core.table.nesting import Ints
    from opscope.core.table.tiles import TileTrace
    from opscope.npu.analysis.kinds import MacCalls
    from opscope.npu.analysis.rates import TileRate

_SYNC_CYCLES = 1 << 18
_MOST_REPEATS = (1 << 10) - 1
_WORTH = 1.1
"""How much further the same buffer must reach for leaving a slot out to be worth it."""
_FAR = 10.0
"""How much further it must reach where it is not known how long the whole run is."""


class SlotCost(msgspec.Struct, frozen=True):
    """What a slot takes of the buffer.

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
    """What to change in the tracing of a tile. All of it is estimated from the events, not counted in the buffer.

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


class Damage(NamedTuple):
    """What a trace lacks before its end, which says nothing about the end."""

    missing_calls: int = 0
    has_losses: bool = False  # whether packets were lost
    unpaired_marks: int = 0  # starts and ends of calls between others that are in none


def advise(
    tile: TileTrace, work: MacCalls | None = None, rate: TileRate | None = None, damage: Damage | None = None
) -> TraceAdvice:
    """Estimate whether the buffer of a tile filled, and what to leave out."""
    levels = _find_levels(tile)
    size, coverage = _trace_bytes(levels), rate.coverage if rate else None
    cut, why = _is_cut(work, rate, damage or Damage())
    costs = [_slot_cost(slot.number, slot.name, levels, size) for slot in tile.slots if len(slot.spans.start)]
    costs.sort(key=lambda cost: cost.share, reverse=True)
    steps = () if cut is False or (cut and tile.room) else _reduction_steps(levels, size, costs, coverage)
    return TraceAdvice(cut=cut, why=why, bytes=size, slots=tuple(costs), steps=steps)


def _is_cut(work: MacCalls | None, rate: TileRate | None, damage: Damage) -> tuple[bool | None, str]:
    """Return whether a trace ends too early, and what says so; calls that are missing before the end do not."""
    is_begun = work is not None and work.begun > 0
    needed = rate.calls_needed if rate and rate.coverage is not None else None
    missing = 0 if work is None or needed is None else needed - work.number
    if damage.unpaired_marks and is_begun and missing - damage.missing_calls <= 1 + damage.unpaired_marks:
        return None, "its last call has no end, which may be lost like events of other calls"
    if work is not None and needed is not None and missing > 0:
        seen = f"{work.number:,} of {needed:,} calls in the trace ({share_text(work.number / needed)})"
        return _is_cut_with_missing(seen, missing, damage, is_unsure=damage.has_losses and not is_begun)
    if is_begun:
        return True, "the trace ends within a call"
    if needed is not None:
        return False, "the trace has all calls that the product needs"
    return None, "the expected number of calls is unknown: give M, K, N, m, k, n, row and col"


def _is_cut_with_missing(seen: str, missing: int, damage: Damage, *, is_unsure: bool) -> tuple[bool | None, str]:
    if damage.missing_calls >= missing:
        return False, f"{seen}; the others are missing before its end"
    if damage.missing_calls:
        return True, f"{seen}; {damage.missing_calls:,} missing before its end"
    if is_unsure:
        return None, f"{seen}, and packets were lost, so its end may be missing"
    return True, seen


class _Levels(NamedTuple):
    """Which slots of a tile were active when."""

    time: Ints  # of each change, in cycles, ascending; shape (changes,)
    mask: Ints  # slots that are active from there to the next change, one bit each; shape (changes,)


def _find_levels(tile: TileTrace) -> _Levels:
    used = {slot.number: slot.spans for slot in tile.slots if len(slot.spans.start)}
    edges = [np.empty(0, np.int64), *(edge for spans in used.values() for edge in (spans.start, spans.end))]
    time = np.unique(np.concatenate(edges))
    mask = np.zeros(len(time), np.int64)
    for number, spans in used.items():
        begun, ended = (np.searchsorted(time, own) for own in (spans.start, spans.end))
        change = np.bincount(begun, minlength=len(time)) - np.bincount(ended, minlength=len(time))
        mask |= (np.cumsum(change) > 0).astype(np.int64) << np.int64(number)
    return _Levels(time, mask)


def _trace_bytes(levels: _Levels, without: frozenset[int] = frozenset()) -> int:
    """Return the bytes of commands that a trace unit writes, without some slots.

    Equal frames in a row are a frame and repeats of at most 1,023. A frame of one slot takes one byte less than one of
    several, and idle cycles of 4, 10 or 18 bits one more each.
    """
    kept = sum(1 << number for number in range(SLOTS) if number not in without)
    start, end, mask = _active_stretches(levels, kept)
    if not len(start):
        return 0
    idle = start - np.concatenate([[1], end[:-1]])
    slots, waits, times = _equal_frames(mask, idle % _SYNC_CYCLES, end - start)
    frames = 1 + ((slots & (slots - 1)) > 0) + (waits >= 1 << 4) + (waits >= 1 << 10)
    full, rest = np.divmod(times - 1, _MOST_REPEATS)
    repeats = 2 * full + np.where(rest >= 1 << 4, 2, rest > 0)
    return int(frames.sum() + repeats.sum() + (idle // _SYNC_CYCLES).sum())


def _active_stretches(levels: _Levels, kept: int) -> tuple[Ints, Ints, Ints]:
    """Return stretches in which the same slots are active: start, end and slots; without those in which none is."""
    mask = levels.mask & kept
    first = np.flatnonzero(np.diff(mask, prepend=-1))
    start, mask = levels.time[first], mask[first]
    end = np.append(start[1:], levels.time[-1:])
    is_used = (mask > 0) & (end > start)
    return start[is_used], end[is_used], mask[is_used]


def _equal_frames(mask: Ints, idle: Ints, length: Ints) -> tuple[Ints, Ints, Ints]:
    """Divide each stretch into its first frame and those that hold its level; equal ones in a row are one.

    Returns:
        Slots, idle cycles before, and number of each.
    """
    waits = idle > 0
    slots = np.repeat(mask, 2)
    before = np.stack([idle, np.zeros_like(idle)], axis=1).ravel()
    times = np.stack([np.where(waits, 1, length), np.where(waits, length - 1, 0)], axis=1).ravel()
    slots, before, times = slots[times > 0], before[times > 0], times[times > 0]
    is_same = (slots[1:] == slots[:-1]) & (before[1:] == before[:-1])
    first = np.flatnonzero(np.concatenate([[True], ~is_same]))
    return slots[first], before[first], np.add.reduceat(times, first)


def _slot_cost(number: int, event: str, levels: _Levels, size: int) -> SlotCost:
    left = _trace_bytes(levels, frozenset({number}))
    return SlotCost(number, event, (size - left) / size if size else 0.0, size / max(1, left))


def _reduction_steps(
    levels: _Levels, size: int, costs: Sequence[SlotCost], coverage: float | None
) -> tuple[Unslot, ...]:
    """Leave out one after the other, each time the slot that helps most, until the whole run fits.

    The events by which calls are found stay.
    """
    left = {cost.slot: cost.event for cost in costs if cost.event not in {START, END}}
    gone: dict[int, str] = {}
    steps: list[Unslot] = []
    while left and not (steps and _is_enough(steps[-1])):
        reaches = {slot: size / max(1, _trace_bytes(levels, frozenset({*gone, slot}))) for slot in left}
        best = max(left, key=lambda slot: reaches[slot])
        if reaches[best] < _WORTH * (steps[-1].reach if steps else 1.0):
            break
        gone[best] = left.pop(best)
        reached = min(1.0, coverage * reaches[best]) if coverage is not None else None
        steps.append(Unslot(tuple(gone.values()), reaches[best], reached))
    return tuple(steps)


def _is_enough(step: Unslot) -> bool:
    return step.reach >= _FAR if step.coverage is None else step.coverage == 1


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
        step = _tracing_step(advice.steps)
    yield tile_finding("trace_cut", Severity.MEDIUM, title=title, evidence=evidence, where=place(tile), step=step)


def _tracing_step(steps: Sequence[Unslot]) -> str:
    if not steps:
        return "give the trace a larger buffer, or trace fewer tiles or iterations"
    best = next((step for step in steps if step.coverage == 1), steps[0])
    whole = ", which is the whole run" if best.coverage == 1 else ""
    named = ", ".join(best.events)
    return (
        f"trace without {named}: the same buffer then reaches about {ratio_text(best.reach)} as far{whole}; or "
        "enlarge it"
    )
