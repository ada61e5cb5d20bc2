"""Sets of cycles in which events of a core were active, made apart, so that each cycle is counted once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from opscope.core.table.nesting import Ints
    from opscope.core.table.tiles import TileTrace

EVENTS = {
    "lock_stall": "LOCK_STALL",
    "cascade_stall": "CASCADE_STALL",
    "stream_stall": "STREAM_STALL",
    "memory_stall": "MEMORY_STALL",
    "vector": "INSTR_VECTOR",
}
"""Event of each category. A cycle that several claim belongs to the first: a core that waits issues no instruction."""


class Cover(NamedTuple):
    """A set of cycles as spans in order of time that do not overlap."""

    start: Ints  # first cycle of each span; shape (spans,)
    end: Ints  # first cycle after it; shape (spans,)
    before: Ints  # cycles of the set before each span, and at last all of them; shape (spans + 1,)

    def within(self, starts: Ints, ends: Ints) -> Ints:
        """Cycles of the set in each of some spans of time."""
        return self._until(ends) - self._until(starts)

    def _until(self, time: Ints) -> Ints:
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
    if not _overlap(list(covers.values())):
        return Activity(covers, {})
    return _apart(covers)


def _overlap(covers: Sequence[Cover]) -> bool:
    for number, one in enumerate(covers):
        for other in covers[:number]:
            few, many = sorted((one, other), key=lambda own: len(own.start))
            before = np.searchsorted(many.start, few.end)
            if len(few.start) and ((before > 0) & (many.end[before - 1] > few.start)).any():
                return True
    return False


def _apart(covers: Mapping[str, Cover]) -> Activity:
    """Sweep over all begins and ends: between two of them the same categories are active."""
    bits = {category: 1 << number for number, category in enumerate(EVENTS)}
    times = np.unique(np.concatenate([part for own in covers.values() for part in (own.start, own.end)]))
    mask = np.zeros(len(times) - 1, np.int64)
    for category, own in covers.items():
        mask |= np.where(_active(own, times), bits[category], 0)
    several = (mask & (mask - 1)) != 0
    first = mask & -mask
    parts = {category: _stretches(times, first == bits[category]) for category in covers}
    claims = {
        tuple(category for category, bit in bits.items() if own & bit): _stretches(times, mask == own)
        for own in np.unique(mask[several]).tolist()
    }
    return Activity(parts, claims)


def _active(own: Cover, times: Ints) -> NDArray[np.bool_]:
    """Whether each stretch between two times is in the set, which begins and ends at such times only."""
    begun = np.searchsorted(own.start, times[:-1], side="right")
    ended = np.searchsorted(own.end, times[:-1], side="right")
    return begun > ended


def _stretches(times: Ints, kept: NDArray[np.bool_]) -> Cover:
    return cover(times[:-1][kept], times[1:][kept])
