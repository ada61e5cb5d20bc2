"""Account of a tile's cycles: each cycle from first call to last counted once, in a call or between two.

Cycles in which events of a core were active are sets, which are made apart, so that none is counted twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from opscope.analysis.findings.message import Message, Severity
from opscope.npu.analysis.calls import is_unnamed
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
_OUTSIDE = 0.01
"""Share of the vector cycles between calls from which the calls do not enclose the work."""


def category_name(category: str) -> str:
    """Return a category of cycles in words: ``lock stall``."""
    return category.replace("_", " ")


class Cover(NamedTuple):
    """A set of cycles as spans in order of time that do not overlap."""

    start: Ints  # first cycle of each span; shape (spans,)
    end: Ints  # first cycle after it; shape (spans,)
    before: Ints  # cycles of the set before each span, and at last all of them; shape (spans + 1,)

    def within(self, starts: Ints, ends: Ints) -> Ints:
        """Count the cycles of the set in each of some spans of time."""
        return self._cycles_until(ends) - self._cycles_until(starts)

    def _cycles_until(self, time: Ints) -> Ints:
        if not len(self.start):
            return np.zeros(len(time), np.int64)
        position = np.searchsorted(self.start, time)
        rest: Ints = np.where(position > 0, np.maximum(self.end[position - 1] - time, 0), 0)
        return self.before[position] - rest


def cover(start: Ints, end: Ints) -> Cover:
    """Return the cycles of any spans; those in which several are active count once."""
    if (start[1:] < end[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], np.maximum.accumulate(end[order])
        first = np.flatnonzero(np.concatenate([[True], start[1:] > end[:-1]]))
        start, end = start[first], end[np.append(first[1:], len(end)) - 1]
    before = np.zeros(len(start) + 1, np.int64)
    np.cumsum(end - start, out=before[1:])
    return Cover(start, end, before)


def event_cover(tile: TileTrace, event: str) -> Cover | None:
    """Return the cycles in which an event was active. None if it was not traced."""
    spans = [slot.spans for slot in tile.slots if slot.name == event]
    if not spans:
        return None
    return cover(*(np.concatenate([getattr(slot_spans, edge) for slot_spans in spans]) for edge in ("start", "end")))


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
        """Return the cycles of a category, within calls and between them."""
        return int(getattr(self.in_call, category)) + int(getattr(self.between_calls, category))


class Activity(NamedTuple):
    """The cycles of each category that was traced, no cycle in two of them."""

    covers: Mapping[str, Cover]  # by category, in the order of `EVENTS`
    claims: Mapping[tuple[str, ...], Cover]  # what several claimed before it was made apart, by who did

    @property
    def missing(self) -> tuple[str, ...]:
        """Events that were not traced; their cycles count as other."""
        return tuple(event for category, event in EVENTS.items() if category not in self.covers)

    def split(self, starts: Ints, ends: Ints) -> dict[str, Ints]:
        """Split the cycles of spans by category; arrays of shape (spans,)."""
        none = np.zeros(len(starts), np.int64)
        counts = {
            category: self.covers[category].within(starts, ends) if category in self.covers else none
            for category in EVENTS
        }
        return {**counts, "other": ends - starts - sum(counts.values())}

    def split_each(self, starts: Sequence[int], ends: Sequence[int]) -> list[CycleSplit]:
        """Split the cycles of spans by category, span by span."""
        columns = self.split(np.array(starts, np.int64), np.array(ends, np.int64))
        rows = zip(*(column.tolist() for column in columns.values()), strict=True)
        return [CycleSplit(**dict(zip(columns, row, strict=True))) for row in rows]


def activity(tile: TileTrace) -> Activity:
    """Return the cycles of each category, made apart by a sweep over all begins and ends.

    Between two of them the same categories are active.
    """
    traced = {category: event_cover(tile, event) for category, event in EVENTS.items()}
    covers = {category: cycles for category, cycles in traced.items() if cycles is not None}
    if not covers:
        return Activity({}, {})
    bits = {category: 1 << number for number, category in enumerate(EVENTS)}
    times = np.unique(np.concatenate([edges for cycles in covers.values() for edges in (cycles.start, cycles.end)]))
    mask = np.zeros(max(len(times) - 1, 0), np.int64)
    for category, cycles in covers.items():
        begins, ended = (np.searchsorted(edges, times[:-1], side="right") for edges in (cycles.start, cycles.end))
        mask |= np.where(begins > ended, bits[category], 0)

    def cover_where(selected: NDArray[np.bool_]) -> Cover:
        return cover(times[:-1][selected], times[1:][selected])

    several = np.unique(mask[(mask & (mask - 1)) != 0]).tolist()
    return Activity(
        {category: cover_where(mask & -mask == bits[category]) for category in covers},
        {
            tuple(category for category, bit in bits.items() if claim & bit): cover_where(mask == claim)
            for claim in several
        },
    )


def sum_split(columns: Mapping[str, Ints]) -> CycleSplit:
    """Add up the cycles of all spans."""
    return CycleSplit(**{category: int(cycles.sum()) for category, cycles in columns.items()})


def account(active: Activity, calls: CallSpans) -> Cycles:
    """Account for every cycle from the start of the first call to the end of the last, each counted once."""
    window = active.split(calls.start[:1], calls.end[-1:])
    in_call = sum_split(active.split(calls.start, calls.end))
    between = {category: int(cycles.sum()) - getattr(in_call, category) for category, cycles in window.items()}
    return Cycles(in_call, CycleSplit(**between))


def claimed_twice(active: Activity, calls: CallSpans) -> dict[tuple[str, ...], int]:
    """Count the cycles of the window that several categories claim, by which do; they count for the first only."""
    window = calls.start[:1], calls.end[-1:]
    counts = {categories: int(cycles.within(*window).sum()) for categories, cycles in active.claims.items()}
    return {categories: count for categories, count in counts.items() if count}


def cycle_findings(
    tile: TileTrace, calls: CallSpans, active: Activity, cycles: Cycles, *, has_lost_calls: bool = False
) -> Iterator[Message]:
    """Report what limits an account of cycles. Where calls were lost, their work stands between the others."""
    if active.missing and not is_unnamed(tile):
        yield tile_finding(
            "cycle_events_missing",
            Severity.INFO,
            title=f"{', '.join(active.missing)} not traced: such cycles are counted as other",
            evidence=f"traced: {', '.join(slot.name[:40] for slot in tile.slots)}",
            where=place(tile),
            step="trace these too if other cycles are frequent",
        )
    claims = claimed_twice(active, calls)
    if claims:
        starts = [
            claim.start[(claim.end > calls.start[0]) & (claim.start < calls.end[-1])]
            for claim in active.claims.values()
        ]
        yield tile_finding(
            "cycles_claimed_twice",
            Severity.MEDIUM,
            title="mutually exclusive events overlap; their cycles count only for the first one",
            evidence="; ".join(
                f"{count:,} cycles of {' and '.join(EVENTS[category] for category in categories)}"
                for categories, count in claims.items()
            ),
            where=place(tile, f"cycle {int(np.concatenate(starts).min())}"),
            step="decode the raw words again: a lost packet or an event without an end causes this",
        )
    outside, vector = cycles.between_calls.vector, cycles.of("vector")
    if outside > _OUTSIDE * vector and not has_lost_calls:
        yield tile_finding(
            "vector_between_calls",
            Severity.MEDIUM,
            title="vector instructions run between calls: the calls do not cover all the work",
            evidence=f"{outside:,} of {vector:,} vector cycles",
            where=place(tile),
            step="call event0() before and event1() after all work of the kernel",
        )
