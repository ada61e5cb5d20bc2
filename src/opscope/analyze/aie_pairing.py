"""The automaton that pairs the starts and ends of calls: which belong together, and which to nothing.

It has two states. Outside a call a start opens one; inside, an end closes it. A start inside a call replaces the one
that opened it, and an end outside closes nothing. In stream order a start therefore pairs with an end that follows it
directly, which is found for all events at once.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opscope.table.nesting import Ints
    from opscope.table.tiles import Spans

    Mask = NDArray[np.bool_]


class Marks(NamedTuple):
    """Starts and ends in stream order; arrays of shape (events,).

    Attributes:
        time: in cycles.
        is_end: whether it is an end.
        swapped: ends that the stream has behind a start in the same cycle, and that were put before it.
    """

    time: Ints
    is_end: Mask
    swapped: int


class Matched(NamedTuple):
    """What became of the marks; arrays of places among them, each ascending.

    Attributes:
        first: start of each call; its end is the next mark.
        backwards: starts whose end has a smaller time; neither is in a call.
        overlapping: starts of pairs that lie before calls which the stream has earlier; neither mark is in a call.
        loose: marks that no other pairs with.
        pairs: starts of all pairs, those that were given up included.
    """

    first: Ints
    backwards: Ints
    overlapping: Ints
    loose: Ints
    pairs: Ints


def marks_of(starts: Spans, ends: Spans) -> Marks:
    """Both slots in stream order.

    A unit reports all slots of a cycle at once, in the order of their numbers. When a call ends in the cycle in which
    the next one starts, the start may so stand first; inside a call the end is taken first.
    """
    order = np.argsort(np.concatenate([starts.begin_order, ends.begin_order]), kind="stable")
    time = np.concatenate([starts.start, ends.start])[order]
    is_end = order >= len(starts.start)
    swapped = _inside(time, is_end)
    is_end[swapped], is_end[swapped + 1] = True, False
    return Marks(time, is_end, len(swapped))


def _inside(time: Ints, is_end: Mask) -> Ints:
    """Starts with an end behind them in the same cycle that stand inside a call."""
    both = np.flatnonzero(~is_end[:-1] & is_end[1:] & (time[:-1] == time[1:]))
    if not len(both):
        return both
    goes_on = np.concatenate([[False], np.diff(both) == 2])  # noqa: PLR2004 - directly behind the pair before
    head = both[np.maximum.accumulate(np.where(goes_on, 0, np.arange(len(both))))]
    inside: Ints = both[(head > 0) & ~is_end[np.maximum(head - 1, 0)]]
    return inside


def matched(marks: Marks) -> Matched:
    """Put starts and ends together."""
    pairs = np.flatnonzero(~marks.is_end[:-1] & marks.is_end[1:])
    loose = np.ones(len(marks.time), bool)
    loose[pairs] = loose[pairs + 1] = False
    start, end = marks.time[pairs], marks.time[pairs + 1]
    forwards = end >= start
    first, backwards = pairs[forwards], pairs[~forwards]
    kept = _in_order(start[forwards], end[forwards])
    return Matched(first[kept], backwards, first[~kept], np.flatnonzero(loose), pairs)


def _in_order(start: Ints, end: Ints) -> Mask:
    """The most calls that follow each other in time as they do in the stream; the longest chain, end before start."""
    if not (start[1:] < end[:-1]).any():
        return np.ones(len(start), bool)
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for number, (begun, ended) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        length = bisect_right(ends, begun)
        before.append(last[length - 1] if length else -1)
        if length == len(ends):
            ends.append(ended)
            last.append(number)
        elif ended < ends[length]:
            ends[length], last[length] = ended, number
    return _chain(last, before)


def _chain(last: list[int], before: list[int]) -> Mask:
    kept = np.zeros(len(before), bool)
    number = last[-1] if last else -1
    while number >= 0:
        kept[number] = True
        number = before[number]
    return kept
