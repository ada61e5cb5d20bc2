"""A trace whose clock counted how often it was read, and what was executed between two reads, put together.

Every time in the table is a number of reads. What was executed in an interval is what lies between two reads, so a
table of times becomes one of instructions, or of any other count, and is analysed like every other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.core.errors import TraceFormatError
from opscope.core.table import Scope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opscope.core.table import EventTable
    from opscope.core.table.nesting import Ints
    from opscope.core.table.segment import Segment

READ_NS = 1_000_000
"""What a read adds to the clock."""


class CountedMoments(NamedTuple):
    """How much had been executed at each read of the clock, and at the end; shape (reads + 1,) each.

    A profiler that writes a text before and after what it times of an operator does so between two reads: that is none
    of the operator's work.
    """

    at: Ints  # before the read
    behind: Ints  # once the first text behind the read had been written; as ``at`` without one before the next read
    ahead: Ints  # when the last text before the read began; as ``at`` without one since the last read


class CountedReads:
    """The intervals of a trace as numbers of reads.

    ``table``: of the trace; ``start``: what the clock read where the times of the trace count from.

    Raises TraceFormatError: a time is no number of reads, or the operators of a delegate do not fit into its call.
    """

    def __init__(self, table: EventTable, start: int = 0) -> None:
        self._table, self._start = table, start
        self._intervals = [[_intervals(segment, start) for segment in trace] for trace in table.traces]

    @property
    def measured(self) -> tuple[int, int]:
        """First and last read of the inferences that are not set aside."""
        times = self._table.inference_times()
        first, last = times.start[~times.warmup], (times.start + times.duration)[~times.warmup]
        return (int(first.min()) + self._start) // READ_NS, (int(last.max()) + self._start) // READ_NS

    def counted(self, moments: CountedMoments) -> EventTable:
        """The table with a count in place of every time."""
        traces = tuple(
            tuple(_counted(segment, reads, moments) for segment, reads in zip(trace, own, strict=True))
            for trace, own in zip(self._table.traces, self._intervals, strict=True)
        )
        return replace(self._table, traces=traces)


def _counted(segment: Segment, reads: tuple[Ints, Ints], moments: CountedMoments) -> Segment:
    kinds = segment.columns["scope"]
    operator = kinds.equals(Scope.KERNEL.value) | kinds.equals(Scope.DELEGATE_OP.value)
    starts, ends = (np.minimum(side, len(moments.at) - 1) for side in reads)
    first = np.where(operator, moments.behind[starts], moments.at[starts])
    last = np.where(operator, moments.ahead[ends], moments.at[ends])
    return replace(segment, start=first, duration=last - first)


def _intervals(segment: Segment, began: int) -> tuple[Ints, Ints]:
    """First and last read of every event; shape (repeats, events) each."""
    if ((segment.start + began) % READ_NS).any() or (segment.duration % READ_NS).any():
        raise TraceFormatError("a time does not count clock reads: the trace was not written with the counted clock")
    start, length = (segment.start + began) // READ_NS, segment.duration // READ_NS
    for run, owner in _unplaced(segment):
        start[:, run] = _within(segment, start, length, run, owner)
    return start, start + length


def _unplaced(segment: Segment) -> Iterator[tuple[Ints, int]]:
    """Operators of a delegate in a row, of which durations alone are recorded, and the row of the event around them."""
    synthetic = segment.columns["synthetic_start"]
    for owner in np.unique(segment.parent[synthetic]):
        children = np.flatnonzero(segment.parent == owner)
        ends = np.flatnonzero(np.diff(synthetic[children].astype(np.int64))) + 1
        yield from ((run, int(owner)) for run in np.split(children, ends) if synthetic[run[0]])


def _within(segment: Segment, start: Ints, length: Ints, run: Ints, owner: int) -> Ints:
    """Starts of such operators: between the events around them, of which the last read ends their delegate."""
    children = np.flatnonzero(segment.parent == owner)
    before, behind = children[children < run[0]], children[children > run[-1]]
    low = start[:, before[-1]] + length[:, before[-1]] if len(before) else start[:, owner]
    high = start[:, behind[0]] if len(behind) else start[:, owner] + length[:, owner]
    each = length[:, run]
    lead = high - low - each.sum(axis=1) - 1
    if (lead < 0).any():
        raise TraceFormatError("the operators of a delegate take more clock reads than its call")
    found: Ints = (low + lead)[:, None] + np.cumsum(each, axis=1) - each
    return found
