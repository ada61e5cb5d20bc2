"""A trace whose clock counted how often it was read, and what was executed between two reads, put together.

Every time in the table is a number of reads. What was executed in an interval is what lies between two reads, so a
table of times becomes one of instructions, or of any other count, and is analysed like every other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from opscope.core.errors import TraceFormatError
from opscope.core.table.scope import Scope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.core.table import EventTable
    from opscope.core.table.nesting import Ints
    from opscope.core.table.segment import Segment

READ_NS = 1_000_000
"""What a read adds to the clock."""


class CountedReads:
    """The intervals of a trace as numbers of reads.

    Args:
        table: of the trace.

    Raises:
        TraceFormatError: a time is no number of reads, or the operators of a delegate do not fit into its call.
    """

    def __init__(self, table: EventTable) -> None:
        self._table = table
        self._intervals = [[_intervals(segment) for segment in trace] for trace in table.traces]

    @property
    def measured(self) -> tuple[int, int]:
        """First and last read of the inferences that are not set aside."""
        times = self._table.inference_times()
        first, last = times.start[~times.warmup], (times.start + times.duration)[~times.warmup]
        return int(first.min()) // READ_NS, int(last.max()) // READ_NS

    def counted(self, parts: Sequence[int] | Ints) -> EventTable:
        """The table with a count in place of every time.

        Args:
            parts: what was executed before each read, since the one before; shape (reads,).
        """
        before = np.concatenate([[0], np.cumsum(np.asarray(parts, np.int64))])
        traces = tuple(
            tuple(_counted(segment, reads, before) for segment, reads in zip(trace, own, strict=True))
            for trace, own in zip(self._table.traces, self._intervals, strict=True)
        )
        return replace(self._table, traces=traces)


def _counted(segment: Segment, reads: tuple[Ints, Ints], before: Ints) -> Segment:
    first, last = (before[np.minimum(side + 1, len(before) - 1)] for side in reads)
    return replace(segment, start=first, duration=last - first)


def _intervals(segment: Segment) -> tuple[Ints, Ints]:
    """First and last read of every event; shape (repeats, events) each."""
    if (segment.start % READ_NS).any() or (segment.duration % READ_NS).any():
        raise TraceFormatError("a time does not count clock reads: the trace was not written with the counted clock")
    start, length = segment.start // READ_NS, segment.duration // READ_NS
    for owner in np.flatnonzero(segment.columns["scope"].equals(Scope.DELEGATE_CALL.value)):
        own = np.flatnonzero((segment.parent == owner) & segment.columns["synthetic_start"])
        if len(own):
            start[:, own] = _within(start[:, owner], length[:, owner], length[:, own])
    return start, start + length


def _within(start: Ints, length: Ints, each: Ints) -> Ints:
    """Starts of a delegate's operators, of which durations alone are recorded; its last read ends the call."""
    lead = length - each.sum(axis=1) - 1
    if (lead < 0).any():
        raise TraceFormatError("the operators of a delegate take more clock reads than its call")
    found: Ints = (start + lead)[:, None] + np.cumsum(each, axis=1) - each
    return found
