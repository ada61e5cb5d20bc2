"""Where the cycles of a tile went: each cycle from first call to last counted once, in a call or between two."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from opscope.analyze.aie_findings import TileFinding

if TYPE_CHECKING:
    from opscope.analyze.aie_calls import Calls
    from opscope.table.nesting import Ints
    from opscope.table.tiles import TileTrace

EVENTS = {
    "lock_stall": "LOCK_STALL",
    "cascade_stall": "CASCADE_STALL",
    "stream_stall": "STREAM_STALL",
    "memory_stall": "MEMORY_STALL",
    "vector": "INSTR_VECTOR",
}
"""Event of each category. A cycle of which two slots tell belongs to the one that stands first here."""


class CycleSplit(msgspec.Struct, frozen=True):
    """Cycles by what the core did in them.

    Attributes:
        vector: it issued a vector instruction.
        memory_stall: it waited for its data memory.
        stream_stall: it waited for a stream.
        cascade_stall: it waited for the cascade.
        lock_stall: it waited for a lock.
        other: none of these was seen: scalar code, loads and stores, or an event that was not traced.
    """

    vector: int
    memory_stall: int
    stream_stall: int
    cascade_stall: int
    lock_stall: int
    other: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(msgspec.structs.astuple(self))


class SpanSplit(NamedTuple):
    """The same for several spans of time; arrays of shape (spans,)."""

    vector: Ints
    memory_stall: Ints
    stream_stall: Ints
    cascade_stall: Ints
    lock_stall: Ints
    other: Ints

    def total(self) -> CycleSplit:
        """All spans together."""
        return CycleSplit(*(int(own.sum()) for own in self))


class CycleAccount(msgspec.Struct, frozen=True):
    """The cycles from the start of the first call to the end of the last, each counted once.

    Attributes:
        window_cycles: how many; 0 without calls.
        in_call: those within calls.
        between_calls: those between them.
        overlapping: cycles that a second slot claims as well; they are counted for one of them only.
        missing: events that were not traced; their cycles are in ``other``.
        findings: what limits this.
    """

    window_cycles: int
    in_call: CycleSplit
    between_calls: CycleSplit
    overlapping: int = 0
    missing: tuple[str, ...] = ()
    findings: tuple[TileFinding, ...] = ()

    @property
    def unaccounted(self) -> int:
        """Cycles of the window in neither of the two; 0."""
        return self.window_cycles - self.in_call.total - self.between_calls.total


class _Cover(NamedTuple):
    """A set of cycles as spans that are apart and in order of time.

    Attributes:
        start: of each span.
        end: of each span.
        before: cycles of the set in all spans before; one longer than these.
    """

    start: Ints
    end: Ints
    before: Ints

    def until(self, time: Ints) -> Ints:
        """Cycles of the set before a time."""
        place = np.searchsorted(self.start, time, side="left")
        beyond = np.where(place > 0, np.maximum(self.end[place - 1] - time, 0), 0) if len(self.end) else 0
        return self.before[place] - beyond


def _cover(start: Ints, end: Ints) -> _Cover:
    if (start[1:] < end[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], np.maximum.accumulate(end[order])
        first = np.flatnonzero(np.concatenate([[True], start[1:] > end[:-1]]))
        start, end = start[first], end[np.append(first[1:], len(end)) - 1]
    return _Cover(start, end, np.concatenate([[0], np.cumsum(end - start)]))


def split_spans(tile: TileTrace, starts: Ints, ends: Ints) -> SpanSplit:
    """Cycles of spans of time by category; each cycle of a span is counted once.

    Args:
        tile: whose events tell.
        starts: first cycle of each span; shape (spans,).
        ends: first cycle after it, not smaller; shape (spans,).
    """
    found: dict[str, Ints] = {}
    known = np.zeros(len(starts), np.int64)
    taken_start, taken_end = np.empty(0, np.int64), np.empty(0, np.int64)
    for category, event in EVENTS.items():
        own = [slot.spans for slot in tile.slots if slot.name == event]
        taken_start = np.concatenate([taken_start, *(spans.start for spans in own)])
        taken_end = np.concatenate([taken_end, *(spans.end for spans in own)])
        cover = _cover(taken_start, taken_end)
        now = cover.until(ends) - cover.until(starts)
        found[category] = now - known
        known = now
    return SpanSplit(**found, other=ends - starts - known)


def account(tile: TileTrace, calls: Calls) -> CycleAccount:
    """Account for every cycle from the start of the first call to the end of the last."""
    missing = tuple(event for event in EVENTS.values() if tile.slot(event) is None)
    window = split_spans(tile, calls.start[:1], calls.end[-1:]).total()
    inside = split_spans(tile, calls.start, calls.end).total()
    pairs = zip(msgspec.structs.astuple(window), msgspec.structs.astuple(inside), strict=True)
    between = CycleSplit(*(whole - part for whole, part in pairs))
    return CycleAccount(window.total, inside, between, 0, missing)
