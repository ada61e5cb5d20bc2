"""What all reports on the phases of a language model become: a table in which every repetition is a call."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.core.errors import EmptyTraceError, TraceFormatError
from opscope.core.table import Clock, EventTable, Scope, TraceWarning
from opscope.core.table.nesting import NO_PARENT
from opscope.core.table.segment import coded_from
from opscope.program.phases import PhaseKind, phase_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from opscope.core.table.events import CallWork, Values

MOST_TOKENS = 9_999_999
"""Of a call, and before it: what the name of a phase has digits for."""
_LONGEST = 1 << 53
_MOST_CALLS = 1 << 20
_COMPLETE = "keep the complete output"
_PROFILE = "profile the model with opscope, which times every token and splits it into operators"


class PhaseCall(NamedTuple):
    """A repetition of a phase, as a tool timed it."""

    method: str  # named by its phase: see `opscope.program.phases`
    ns: int  # how long it took
    work: CallWork | None = None  # what it is of; None where that is not told
    inside: tuple[tuple[str, int], ...] = ()  # parts of it that the tool tells, with their nanoseconds


class PhaseReport(NamedTuple):
    """What a tool left of a run."""

    tool: str  # in a sentence
    calls: Sequence[PhaseCall]  # in the order of the file
    loading: Sequence[tuple[str, int]] = ()  # what came before them, with its nanoseconds
    limits: Sequence[TraceWarning] = ()  # what the file cannot tell
    resolution: int = 1  # nanoseconds that its times count
    lines: bytes = b"\n"  # the file, where it is made of lines: its last one has an end


def table_of(report: PhaseReport, path: Path) -> EventTable:
    """The table of a report; a TraceFormatError where it has no calls, or a time that none can have."""
    if not report.calls:
        raise EmptyTraceError(f"{report.tool} has timed no phase", where=path, hint="keep its complete output")
    rows = [_Row(Scope.LOAD, name, None, ns, NO_PARENT, 0) for name, ns in report.loading]
    for call in report.calls:
        rows += _rows(call, len(rows))
    if (
        len(rows) > _MOST_CALLS
        or sum(row.ns for row in rows) > _LONGEST
        or not all(call.ns > 0 for call in report.calls)
    ):
        raise TraceFormatError("the report has an impossible time", where=path, hint="it was truncated or edited")
    columns = _columns(rows) | {"resolution": np.full(len(rows), report.resolution, np.int64)}
    work = {call.method: call.work for call in report.calls if call.work}
    return EventTable.build(columns, Clock.NS, _warnings(report)).with_work(work)


def _rows(call: PhaseCall, number: int) -> list[_Row]:
    """A call and its parts, which lie one behind the other."""
    begins = accumulate((ns for _, ns in call.inside), initial=0)
    parts = [
        _Row(Scope.CONTROL, name, call.method, ns, number, at)
        for (name, ns), at in zip(call.inside, begins, strict=False)
    ]
    return [_Row(Scope.EXECUTE, call.method, call.method, call.ns, NO_PARENT, 0), *parts]


class _Row(NamedTuple):
    scope: Scope
    name: str
    method: str | None
    ns: int
    parent: int
    at: int  # begin within its parent


def _columns(rows: Sequence[_Row]) -> dict[str, Values]:
    """Calls one behind the other: tools keep no times of their begin."""
    duration = np.array([row.ns for row in rows], np.int64)
    parent = np.array([row.parent for row in rows], np.int64)
    outermost = np.where(parent == NO_PARENT, duration, 0)
    begin = np.cumsum(outermost) - outermost
    return {
        "run": np.cumsum(parent == NO_PARENT) - 1,
        "scope": coded_from([row.scope.value for row in rows]),
        "name": coded_from([row.name for row in rows]),
        "method": coded_from([row.method for row in rows]),
        "start": np.where(parent == NO_PARENT, begin, begin[parent] + np.array([row.at for row in rows], np.int64)),
        "duration": duration,
        "parent": parent,
        "synthetic_start": np.ones(len(rows), np.bool_),
    }


def _warnings(report: PhaseReport) -> list[TraceWarning]:
    warnings = [
        TraceWarning("phases_only", f"{report.tool} times whole phases: no operators, layers or kernels", _PROFILE)
    ]
    phases = [phase_of(call.method) for call in report.calls]
    if any(one and one.kind is PhaseKind.DECODE and (one.tokens or 1) > 1 for one in phases):
        words = "a decode call is several tokens: times are of all of them, and rates are means over growing positions"
        warnings.append(TraceWarning("tokens_together", words, _PROFILE))
    if not report.lines.endswith(b"\n"):
        warnings.append(TraceWarning("truncated", "the last line has no end: the file may have been longer", _COMPLETE))
    return [*warnings, *report.limits]


def averages(tool: str, of: str) -> TraceWarning:
    """The note on a report that has no repetitions."""
    words = f"{tool} keeps an average over {of}: spread and intervals are unknown"
    return TraceWarning("averages_only", words, _PROFILE)
