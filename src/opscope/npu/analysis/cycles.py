"""Where the cycles of a tile went: each cycle from first call to last counted once, in a call or between two.

Cycles in which events of a core were active are sets, which are made apart, so that none is counted twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from opscope.analysis.findings.message import Message, Severity
from opscope.npu.analysis.calls import unnamed
from opscope.npu.analysis.findings import place, tile_finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from opscope.core.table.nesting import Ints
    from opscope.core.table.tiles import TileTrace
    from opscope.npu.analysis.calls import CallSpans

EVENTS = {
    "lock_stall": "LOCK_STALL",
    "cascade_stall": "CASCADE_STALL",
    "stream_stall": "STREAM_STALL",
    "memory_stall": "MEMORY_STALL",
    "vector": "INSTR_VECTOR",
}
"""Event of each category. A cycle that several claim belongs to the first: a core that waits issues no instruction."""
STALLS = tuple(category for category in EVENTS if category != "vector")
"""Categories of cycles in which a core waits."""


def category_name(category: str) -> str:
    """A category of cycles in words: ``lock stall``."""
    return category.replace("_", " ")


class Cover(NamedTuple):
    """A set of cycles as spans in order of time that do not overlap."""

    start: Ints  # first cycle of each span; shape (spans,)
    end: Ints  # first cycle after it; shape (spans,)
    before: Ints  # cycles of the set before each span, and at last all of them; shape (spans + 1,)

    def within(self, starts: Ints, ends: Ints) -> Ints:
        """Cycles of the set in each of some spans of time."""
        return self._cycles_until(ends) - self._cycles_until(starts)

    def _cycles_until(self, time: Ints) -> Ints:
        if not len(self.start):
            return np.zeros(len(time), np.int64)
        place = np.searchsorted(self.start, time)
        rest: Ints = np.where(place > 0, np.maximum(self.end[place - 1] - time, 0), 0)
        return self.before[place] - rest


def cover(start: Ints, end: Ints) -> Cover:
    """The cycles of any spans; those in which several are active count once."""
    if (start[1:] < end[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], np.maximum.accumulate(end[order])
        first = np.flatnonzero(np.concatenate([[True], start[1:] > end[:-1]]))
        start, end = start[first], end[np.append(first[1:], len(end)) - 1]
    before = np.zeros(len(start) + 1, np.int64)
    np.cumsum(end - start, out=before[1:])
    return Cover(start, end, before)


def event_cover(tile: TileTrace, event: str) -> Cover | None:
    """The cycles in which an event was active; None when it was not traced."""
    own = [slot.spans for slot in tile.slots if slot.name == event]
    if not own:
        return None
    if len(own) == 1:
        return cover(own[0].start, own[0].end)
    return cover(np.concatenate([spans.start for spans in own]), np.concatenate([spans.end for spans in own]))


class Activity(NamedTuple):
    """The cycles of each category that was traced, no cycle in two of them."""

    covers: Mapping[str, Cover]  # by category, in the order of `EVENTS`
    claims: Mapping[tuple[str, ...], Cover]  # what several claimed before it was made apart, by who did

    @property
    def missing(self) -> tuple[str, ...]:
        """Events that were not traced; their cycles count as other."""
        return tuple(event for category, event in EVENTS.items() if category not in self.covers)


def activity(tile: TileTrace) -> Activity:
    """The cycles of each category, made apart."""
    found = {category: event_cover(tile, event) for category, event in EVENTS.items()}
    covers = {category: own for category, own in found.items() if own is not None}
    return _make_apart(covers) if covers else Activity({}, {})


def _make_apart(covers: Mapping[str, Cover]) -> Activity:
    """Sweep over all begins and ends: between two of them the same categories are active."""
    bits = {category: 1 << number for number, category in enumerate(EVENTS)}
    times = np.unique(np.concatenate([part for own in covers.values() for part in (own.start, own.end)]))
    mask = np.zeros(max(len(times) - 1, 0), np.int64)
    for category, own in covers.items():
        begun = np.searchsorted(own.start, times[:-1], side="right")
        ended = np.searchsorted(own.end, times[:-1], side="right")
        mask |= np.where(begun > ended, bits[category], 0)
    several = (mask & (mask - 1)) != 0
    first = mask & -mask
    parts = {category: _cover_where(times, first == bits[category]) for category in covers}
    claims = {
        tuple(category for category, bit in bits.items() if own & bit): _cover_where(times, mask == own)
        for own in np.unique(mask[several]).tolist()
    }
    return Activity(parts, claims)


def _cover_where(times: Ints, kept: NDArray[np.bool_]) -> Cover:
    return cover(times[:-1][kept], times[1:][kept])


_OUTSIDE = 0.01
"""Share of the vector cycles between calls from which the calls do not enclose the work."""


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
        """Cycles of every category."""
        return sum(msgspec.structs.astuple(self))


class Cycles(msgspec.Struct, frozen=True):
    """Cycles of the window by what the core did; together they are the window.

    Attributes:
        in_call: from the start of a call to its end.
        between_calls: from there to the next start.
    """

    in_call: CycleSplit
    between_calls: CycleSplit

    @property
    def window(self) -> int:
        """Cycles from the start of the first call to the end of the last; 0 without calls."""
        return self.in_call.total + self.between_calls.total

    def of(self, category: str) -> int:
        """Cycles of a category, within calls and between them."""
        return int(getattr(self.in_call, category)) + int(getattr(self.between_calls, category))


def split_by(known: Activity, starts: Ints, ends: Ints) -> dict[str, Ints]:
    """Split the cycles of spans by category, with the activity of the tile at hand; arrays of shape (spans,)."""
    none = np.zeros(len(starts), np.int64)
    found = {
        category: known.covers[category].within(starts, ends) if category in known.covers else none
        for category in EVENTS
    }
    return {**found, "other": ends - starts - sum(found.values())}


def together(spans: Mapping[str, Ints]) -> CycleSplit:
    """Cycles of all spans."""
    return CycleSplit(**{category: int(own.sum()) for category, own in spans.items()})


def split_each(known: Activity, starts: Sequence[int], ends: Sequence[int]) -> list[CycleSplit]:
    """Cycles of each span of time by category."""
    found = split_by(known, np.array(starts, np.int64), np.array(ends, np.int64))
    cycles = zip(*(own.tolist() for own in found.values()), strict=True)
    return [CycleSplit(**dict(zip(found, own, strict=True))) for own in cycles]


def account(tile: TileTrace, calls: CallSpans, known: Activity | None = None) -> Cycles:
    """Account for every cycle from the start of the first call to the end of the last, each counted once."""
    known = known or activity(tile)
    window = split_by(known, calls.start[:1], calls.end[-1:])
    inside = together(split_by(known, calls.start, calls.end))
    between = {category: int(own.sum()) - getattr(inside, category) for category, own in window.items()}
    return Cycles(inside, CycleSplit(**between))


def claimed_twice(calls: CallSpans, known: Activity) -> dict[tuple[str, ...], int]:
    """Cycles of the window that several categories claim, by which do; they are counted for the first of these only."""
    window = calls.start[:1], calls.end[-1:]
    each = {categories: int(own.within(*window).sum()) for categories, own in known.claims.items()}
    return {categories: cycles for categories, cycles in each.items() if cycles}


def cycle_findings(tile: TileTrace, calls: CallSpans, known: Activity, cycles: Cycles) -> Iterator[Message]:
    """Report what limits an account of cycles."""
    if known.missing and not unnamed(tile):
        traced = f"traced: {', '.join(slot.name[:40] for slot in tile.slots)}"
        yield tile_finding(
            "cycle_events_missing",
            Severity.INFO,
            title=f"{', '.join(known.missing)} not traced: such cycles are counted as other",
            evidence=traced,
            where=place(tile),
            step="trace these too if other cycles are frequent",
        )
    claimed = claimed_twice(calls, known)
    if claimed:
        starts = (own.start[(own.end > calls.start[0]) & (own.start < calls.end[-1])] for own in known.claims.values())
        yield tile_finding(
            "cycles_claimed_twice",
            Severity.MEDIUM,
            title="mutually exclusive events overlap; their cycles count only for the first one",
            evidence="; ".join(
                f"{count:,} cycles of {' and '.join(EVENTS[category] for category in categories)}"
                for categories, count in claimed.items()
            ),
            where=place(tile, f"cycle {int(np.concatenate(list(starts)).min())}"),
            step="decode the raw words again: a lost packet or an event without an end causes this",
        )
    outside, vector = cycles.between_calls.vector, cycles.of("vector")
    if outside > _OUTSIDE * vector:
        yield tile_finding(
            "vector_between_calls",
            Severity.MEDIUM,
            title="vector instructions run between calls: the calls do not cover all the work",
            evidence=f"{outside:,} of {vector:,} vector cycles",
            where=place(tile),
            step="call event0() before and event1() after all work of the kernel",
        )
