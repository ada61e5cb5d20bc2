"""Kernel calls of a tile: INSTR_EVENT_0 and INSTR_EVENT_1 paired in stream order, with all that does not pair named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from opscope.analyze.aie_anomalies import anomalies, findings_of
from opscope.analyze.aie_findings import TileFinding, place
from opscope.analyze.aie_pairing import marks_of, matched
from opscope.analyze.findings import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opscope.analyze.aie_pairing import Marks
    from opscope.table.nesting import Ints
    from opscope.table.tiles import SlotTrace, TileTrace

START = "INSTR_EVENT_0"
"""Event that the kernel raises at the start of a call, by event0()."""
END = "INSTR_EVENT_1"
"""Event at the end of a call, by event1()."""
_TRACE_BOTH = f"give {START} and {END} a slot each, and call event0() and event1() around the kernel"


@dataclass(frozen=True)
class Calls:
    """Calls in order of time, none overlapping another; arrays of shape (calls,), in cycles.

    Attributes:
        start: begin of INSTR_EVENT_0.
        end: begin of INSTR_EVENT_1, not smaller.
    """

    start: Ints
    end: Ints

    @property
    def durations(self) -> Ints:
        """From start to end; shape (calls,)."""
        return self.end - self.start

    def __len__(self) -> int:
        return len(self.start)


class Pairing(msgspec.Struct, frozen=True):
    """What became of the starts and ends; 2 * paired + dropped is their number.

    Attributes:
        calls: those that paired.
        paired: number of calls.
        dropped: starts and ends that belong to no call.
        ambiguous: calls among the paired whose start or end may be another one, which was dropped; they last from the
            last start to the first end.
        findings: one for each anomaly, with its place; many of one kind are counted together from the 21st on.
    """

    calls: Calls
    paired: int
    dropped: int
    ambiguous: int
    findings: tuple[TileFinding, ...] = ()


def pair_calls(tile: TileTrace) -> Pairing:
    """Pair the starts and ends of calls in stream order; nothing is repaired, and all that is left out is named."""
    start, end = _slot(tile, START), _slot(tile, END)
    if start is None or end is None:
        return _without_calls(tile, start or end)
    marks = marks_of(start.spans, end.spans)
    found = matched(marks)
    calls = Calls(marks.time[found.first], marks.time[found.first + 1])
    listed = anomalies(marks, found)
    return Pairing(
        calls=calls,
        paired=len(calls),
        dropped=len(marks.time) - 2 * len(calls),
        ambiguous=listed.ambiguous,
        findings=(*findings_of(tile, marks, found, listed), *_remarks(tile, (start, end), marks, calls)),
    )


def _slot(tile: TileTrace, event: str) -> SlotTrace | None:
    """The slot with most of an event."""
    return max(
        (slot for slot in tile.slots if slot.name == event), key=lambda slot: len(slot.spans.start), default=None
    )


def _without_calls(tile: TileTrace, only: SlotTrace | None) -> Pairing:
    none = np.empty(0, np.int64)
    missing = " and ".join(event for event in (START, END) if tile.slot(event) is None)
    title = f"no calls can be told: {missing} was not traced"
    traced = ", ".join(slot.name[:40] for slot in tile.slots) or "nothing"
    found = TileFinding("calls_not_traced", Severity.HIGH, title, f"traced: {traced}", place(tile), _TRACE_BOTH)
    return Pairing(Calls(none, none), 0, len(only.spans.start) if only else 0, 0, (found,))


def _remarks(tile: TileTrace, slots: tuple[SlotTrace, SlotTrace], marks: Marks, calls: Calls) -> Iterator[TileFinding]:
    """What is odd about the starts and ends as a whole."""
    if not len(calls):
        seen = f"{len(slots[0].spans.start):,} starts and {len(slots[1].spans.start):,} ends"
        title = "no start of a call has an end"
        yield TileFinding("calls_none", Severity.HIGH, title, seen, place(tile), _TRACE_BOTH)
    for slot in slots:
        yield from _held(tile, slot)
        yield from _second_slot(tile, slot)
    if marks.swapped:
        title = "calls end in the cycle in which the next one starts"
        seen = f"{marks.swapped:,} times; the end was taken first"
        yield TileFinding("call_end_meets_start", Severity.INFO, title, seen, place(tile), "nothing to do")
    empty = np.flatnonzero(calls.durations == 0)
    if len(empty):
        where = place(tile, f"call {empty[0] + 1}", f"cycle {calls.start[empty[0]]}")
        title = "calls start and end in the same cycle"
        yield TileFinding("call_without_cycles", Severity.MEDIUM, title, f"{len(empty):,} calls", where, _TRACE_BOTH)


def _held(tile: TileTrace, slot: SlotTrace) -> Iterator[TileFinding]:
    held = np.flatnonzero((slot.spans.end - slot.spans.start > 1) & ~slot.spans.open)
    if len(held):
        where = place(tile, f"cycle {slot.spans.start[held[0]]}")
        title = f"{slot.name} lasts longer than a cycle: it was raised in consecutive cycles"
        seen = f"{len(held):,} times; the first cycle counts"
        yield TileFinding("call_event_held", Severity.INFO, title, seen, where, "raise it once a call")


def _second_slot(tile: TileTrace, slot: SlotTrace) -> Iterator[TileFinding]:
    others = [s for s in tile.slots if s.name == slot.name and s is not slot and len(s.spans.start)]
    if others:
        numbers = ", ".join(str(other.number) for other in others)
        title = f"{slot.name} has more than one slot"
        seen = f"slot {slot.number} has most of them and counts; slots {numbers} do not"
        yield TileFinding("call_event_repeated", Severity.INFO, title, seen, place(tile), "free the other slots")
