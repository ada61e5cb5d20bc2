"""Calls of methods: naming inferences by their order, and a table of calls that were not traced."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from opscope.core.table.events import Clock, EventTable
from opscope.core.table.nesting import NO_PARENT
from opscope.core.table.scope import Scope
from opscope.core.table.segment import Coded, Segment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.core.table.events import TraceWarning, Values


def named_by_calls(table: EventTable, calls: Sequence[str]) -> EventTable:
    """The table with every inference named by who called it.

    What an inference ran cannot tell two methods with the same instructions apart; the order of calls can.
    """
    traces = tuple(tuple(piece for segment in trace for piece in _named(segment, calls)) for trace in table.traces)
    return replace(table, traces=traces)


def table_of_calls(durations: Sequence[int], load_ns: int | None, warning: TraceWarning) -> EventTable:
    """A table in which every call of a process is one inference without anything inside."""
    loading = [] if load_ns is None else [load_ns]
    times = np.array([*loading, *durations], np.int64)
    kind = (np.arange(len(times)) >= len(loading)).astype(np.int64)
    columns: dict[str, Values] = {
        "run": np.arange(len(times)),
        "scope": Coded(kind, (Scope.LOAD.value, Scope.EXECUTE.value)),
        "name": Coded(kind, (LOADING, CALL)),
        "start": np.cumsum(times) - times,
        "duration": times,
        "parent": np.full(len(times), NO_PARENT),
        "synthetic_start": np.ones(len(times), np.bool_),
    }
    return EventTable.build(columns, Clock.NS, [warning])


CALLS_FORMAT = "calls"
"""In place of the name of a reader: durations of whole calls, from a runtime that writes no traces."""
LOADING, CALL = "loading of the program", "call of the method"


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
