"""Naming inferences by the order in which their methods were called, and keeping those of one method."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from opscope.table.segment import Coded, Segment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.table.events import EventTable


def named_by_calls(table: EventTable, calls: Sequence[str]) -> EventTable:
    """The table with every inference named by who called it.

    What an inference ran cannot tell two methods with the same instructions apart; the order of calls can.

    Args:
        table: of processes that called these methods over and over, beginning with the first.
        calls: names of methods, at least one.
    """
    traces = tuple(tuple(piece for segment in trace for piece in _named(segment, calls)) for trace in table.traces)
    return replace(table, traces=traces)


def _named(segment: Segment, calls: Sequence[str]) -> Iterator[Segment]:
    """The segment, cut where the methods of its repeats change."""
    each = len(segment.roots)
    if not each:
        yield segment
        return
    number = segment.first_inference + np.arange(segment.repeats)[:, None] * each + np.arange(each)
    order = number % len(calls)
    ends = np.flatnonzero((np.array(calls)[order[1:]] != np.array(calls)[order[:-1]]).any(axis=1)) + 1
    for rows in np.split(np.arange(segment.repeats), ends):
        names = [calls[at] for at in order[rows[0]]]
        yield _with_names(_part(segment, rows[0], rows[-1] + 1), names)


def _part(segment: Segment, first: int, end: int) -> Segment:
    """Some consecutive repeats of a segment."""
    return replace(
        segment,
        start=segment.start[first:end],
        duration=segment.duration[first:end],
        first_run=segment.first_run + first * segment.runs,
        first_inference=segment.first_inference + first * len(segment.roots),
    )


def _with_names(segment: Segment, names: Sequence[str]) -> Segment:
    """The segment with a name for the inferences of its template, in their order."""
    texts = tuple(dict.fromkeys(names))
    codes = np.array([*(texts.index(name) for name in names), -1], np.int64)
    return segment.with_columns(method=Coded(codes[segment.inference], texts))
