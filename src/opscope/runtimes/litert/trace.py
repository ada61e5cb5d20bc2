"""The trace of a LiteRT run: what the process recorded, and the table that is built of it.

Each inference is the call as the process's stopwatch saw it; below it are the events of LiteRT's profiler, and
below the call of a delegate its operators, which have whole microseconds and no start of their own.

Types of events (``tflite/core/api/profiler.h``): 1 general, 2 an operator of the graph, 4 a call of a delegate,
8 an operator as a delegate reports it, 16 instrumentation of the runtime, 32 telemetry, which has no durations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

import msgspec
import numpy as np

from opscope.core.errors import EmptyTraceError, InvariantError, TraceFormatError
from opscope.core.json import from_json
from opscope.core.table import Clock, EventTable, Scope, TraceWarning
from opscope.core.table.places import FIRST_INNER
from opscope.core.table.segment import coded_from
from opscope.readers.lifecycle import PORTABLE, XNNPACK

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from opscope.core.table.events import Values

SCHEMA = "opscope.litert-trace/1"
TRACE = "trace.litert.json"
"""Name of the trace's file in a bundle."""
OPERATOR, DELEGATE_CALL, DELEGATE_OP, TELEMETRY = 2, 4, 8, 32
INVOKE_TYPES = (1, 16)
MICRO = 1_000
INVOKE = "Invoke"
"""Name of the event of a graph that runs: the called one, and those that its operators run."""
COMPILED, INTERPRETER = "compiled", "interpreter"
_ROOTS = {COMPILED: "LiteRtRunCompiledModel", INTERPRETER: "Interpreter.Invoke"}
_DAMAGED = "the file was truncated or edited; run the model again"
_LONGEST = 1 << 53
_LATEST, _MOST = 1 << 62, 1 << 31
_SLACK = 2 * MICRO
_UNITS = (1, MICRO)


class EventRow(msgspec.Struct, frozen=True, array_like=True):
    """An event as the C API gives it, or as the calls of the Interpreter's operators were timed."""

    tag: str  # name
    type: int  # see the module
    start: int  # in the unit of the trace, on the clock of the process; 0 for operators of a delegate
    duration: int  # in the unit of the trace
    metadata1: int  # number of the operator; of a delegate's, in the delegate
    metadata2: int  # number of the subgraph
    source: int  # of the event


class LitertInference(msgspec.Struct, frozen=True):
    """One call of the model."""

    wall_ns: int  # how long it took, by the stopwatch of the process
    events: list[EventRow]  # that the profiler recorded, none left out
    start_ns: int | None = None  # when it began, on the clock of the events; null where it was not noted
    method: str | None = None  # the signature that was called; null: that of the trace


class LitertTrace(msgspec.Struct, frozen=True):
    """Records of a process."""

    schema: str  # name and version of this format
    runtime: str  # version of LiteRT
    delegate: str  # `xnnpack` or `none`
    method: str  # the signature that was called; the first of several
    inferences: list[LitertInference]  # in order, warm-up included
    unit_ns: int = MICRO  # nanoseconds that a start or a duration of an event counts; delegates count microseconds
    interface: str = COMPILED  # what ran it: `compiled`, the compiled-model API, or `interpreter`


class LitertTraceReader:
    """Reads what the process that runs .tflite models recorded."""

    name: ClassVar[str] = "litert-trace"
    suffixes: ClassVar[tuple[str, ...]] = (".litert.json",)

    def sniff(self, head: bytes) -> bool:
        """Return whether a file starts with the name of the format."""
        return bytes(head).startswith(f'{{"schema":"{SCHEMA}"'.encode())

    def read(self, data: bytes, path: Path) -> EventTable:
        """Read all events. Raises TraceFormatError if the trace is damaged, EmptyTraceError without inferences."""
        try:
            trace = from_json(bytes(data), LitertTrace)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise TraceFormatError(f"not a LiteRT trace: {error}", where=path, hint=_DAMAGED) from error
        if trace.schema != SCHEMA:
            raise TraceFormatError(f"its schema is {trace.schema!r}, not {SCHEMA}", where=path, hint=_DAMAGED)
        if trace.unit_ns not in _UNITS or trace.interface not in _ROOTS:
            problem = f"times in units of {trace.unit_ns} ns by {trace.interface!r} are not known"
            raise TraceFormatError(problem, where=path, hint=_DAMAGED)
        if not trace.inferences:
            raise EmptyTraceError("the trace has no inference", where=path, hint="the run failed; see its log")
        try:
            return _build_table(trace)
        except InvariantError as error:
            raise TraceFormatError(f"its events do not nest: {error.problem}", where=path, hint=_DAMAGED) from error


class TraceRow(NamedTuple):
    """One row of the table; the parent is a row of the whole table, -1 for a call of the model."""

    run: int
    method: str
    scope: Scope
    name: str
    backend: str | None
    instruction: int
    chain: int
    delegate_id: int
    start: int
    duration: int
    parent: int
    synthetic: bool


def _build_table(trace: LitertTrace) -> EventTable:
    rows: list[TraceRow] = []
    clock = 0
    for number, inference in enumerate(trace.inferences):
        times = [inference.wall_ns, inference.start_ns or 0]
        times += [time for row in inference.events if row.type != TELEMETRY for time in (row.start, row.duration)]
        small = [value for row in inference.events for value in (row.type, row.source)]
        if any(not 0 <= time < _LONGEST for time in (*times, *small)):
            raise InvariantError(f"inference {number} has an impossible time or number")
        start = clock if inference.start_ns is None else inference.start_ns
        clock = start + inference.wall_ns
        if clock >= _LATEST:
            raise InvariantError(f"inference {number} ends at an impossible time")
        _append_inference(rows, trace, number, start)
    return EventTable.build(columns_of(rows, trace.unit_ns), Clock.NS, _find_problems(rows, trace.unit_ns))


def _append_inference(rows: list[TraceRow], trace: LitertTrace, run: int, start: int) -> None:
    """Append the rows of one inference, parents before their children.

    A call of a delegate has no event of its own: its operators stand among the operators of the graph, numbered
    from 0 in each part of the graph that the delegate took. The number of that part is their instruction. Graphs
    that an operator runs, as WHILE runs its body, lie in its event; their operators are numbered after those of any
    graph.
    """
    root, inference, name = len(rows), trace.inferences[run], _ROOTS[trace.interface]
    method = inference.method or trace.method
    rows.append(
        TraceRow(run, method, Scope.EXECUTE, name, None, -1, -1, -1, start, inference.wall_ns, -1, synthetic=False)
    )
    measured = inference.start_ns is not None
    stack, laid, graphs = [root], {root: start}, _Graphs()
    for event in inference.events:
        if event.type == TELEMETRY:
            continue
        inner = event.type == DELEGATE_OP
        if not measured:
            parent = stack[-1]
        elif event.type in {OPERATOR, DELEGATE_OP}:
            parent = graphs.enclosing(stack, rows, event)
        else:
            parent = _find_open_row(rows, stack, root, event.start * trace.unit_ns)
        times = event.start * trace.unit_ns if measured and not inner else None, event.duration * trace.unit_ns
        row = _row_in_parent(event, times, rows[parent], laid[parent], parent)
        row = row._replace(instruction=graphs.instruction(event, row.instruction), chain=0 if inner else row.chain)
        laid[parent] = max(laid[parent], row.start + row.duration)
        if row.scope is not Scope.DELEGATE_OP and (measured or row.scope is not Scope.KERNEL):
            stack.append(len(rows))
            laid[len(rows)] = row.start
            graphs.begin(event, len(rows))
        rows.append(row)


_STRIDE, _DELEGATED, _MOST_GRAPHS = 1 << 16, 1 << 15, 1 << 14


class _Graphs:
    """Graphs that run in an inference: which event is whose, and what parts of them a delegate took."""

    def __init__(self) -> None:
        self._parts: dict[int, _Part] = {}
        self._called: dict[int, int] = {}
        self._main: int | None = None  # the graph of the signature that is called; not known before it is invoked

    def begin(self, event: EventRow, row: int) -> None:
        """Return an event that others can lie in, as a row of the table."""
        if event.tag == INVOKE and event.type in INVOKE_TYPES:
            self._called[row] = self._graph_number(event)
            self._main = self._graph_number(event) if self._main is None else self._main
            self._parts.pop(self._graph_number(event), None)

    def enclosing(self, stack: list[int], rows: Sequence[TraceRow], event: EventRow) -> int:
        """Return the row that an operator lies in, by the graph that it names.

        Operators of a delegate have no start, and the start of any other may be after the end of its graph: both are
        truncated to whole microseconds.
        """
        depth = next(
            (at for at in reversed(range(len(stack))) if self._called.get(stack[at]) == self._graph_number(event)), None
        )
        if depth is not None:
            del stack[depth + 1 :]
        while rows[stack[-1]].scope is Scope.KERNEL:
            stack.pop()
        return stack[-1]

    def instruction(self, event: EventRow, instruction: int) -> int:
        """Return the number of an operator; for a delegate's operator, that of its part."""
        graph = self._graph_number(event)
        if event.type == DELEGATE_OP:
            part = self._parts.get(graph, _Part()).after(event)
            self._parts[graph] = part
            instruction = part.number
        if graph == (self._main or 0) or instruction < 0:
            return instruction
        delegated = _DELEGATED if event.type == DELEGATE_OP else 0
        return FIRST_INNER + graph * _STRIDE + delegated + min(instruction, _DELEGATED - 1)

    def _graph_number(self, event: EventRow) -> int:
        return event.metadata2 if 0 < event.metadata2 < _MOST_GRAPHS else 0


class _Part(NamedTuple):
    """A part of the graph that a delegate took, as far as its operators were seen."""

    number: int = -1
    last: int = -1

    def after(self, event: EventRow) -> _Part:
        """Return the part of the next operator: a new part if the numbers begin again."""
        begins = self.number < 0 or event.metadata1 <= self.last
        return _Part(self.number + begins, event.metadata1)


def _find_open_row(rows: Sequence[TraceRow], stack: list[int], root: int, start: int) -> int:
    """Return the innermost row that is still open at a time, and remove the ended ones from the stack."""
    while stack[-1] != root and start >= rows[stack[-1]].start + rows[stack[-1]].duration:
        stack.pop()
    return stack[-1]


def _row_in_parent(event: EventRow, times: tuple[int | None, int], parent: TraceRow, laid: int, at: int) -> TraceRow:
    """Return the row of an event, fitted into its parent: clocks of whole microseconds may be one off at its ends.

    ``times`` are its start, None if it was not measured, and its duration, in nanoseconds. ``laid`` is its start if
    it has none of its own. ``at`` is the row number of the parent.
    """
    began, duration = times
    first, last = parent.start, parent.start + parent.duration
    start = laid if began is None else min(max(began, first), last)
    if start + duration > last + _SLACK:
        raise InvariantError(f"the event {event.tag!r} ends after its parent")
    duration = min(duration, max(0, last - start))
    scope, backend = _KINDS.get(event.type, (Scope.CONTROL, None))
    number, graph = (
        value if event.type == OPERATOR and 0 <= value < _LONGEST else -1
        for value in (event.metadata1, event.metadata2)
    )
    delegate_id = event.metadata1 if event.type == DELEGATE_OP and 0 <= event.metadata1 < _LONGEST else -1
    name, synthetic = event.tag or "unnamed", began is None
    return TraceRow(
        parent.run,
        parent.method,
        scope,
        name,
        backend,
        number,
        graph,
        delegate_id,
        start,
        duration,
        at,
        synthetic=synthetic,
    )


_KINDS: dict[int, tuple[Scope, str | None]] = {
    OPERATOR: (Scope.KERNEL, PORTABLE),
    DELEGATE_CALL: (Scope.DELEGATE_CALL, XNNPACK),
    DELEGATE_OP: (Scope.DELEGATE_OP, XNNPACK),
}


def columns_of(rows: Sequence[TraceRow], unit_ns: int = MICRO) -> dict[str, Values]:
    """Return the columns of a table, with the resolution of each time in nanoseconds.

    ``unit_ns``: resolution of measured events; operators of a delegate have whole microseconds.
    """
    columns: dict[str, Values] = {
        name: np.array([getattr(row, name) for row in rows], np.int64)
        for name in ("run", "chain", "instruction", "delegate_id", "start", "duration", "parent")
    }
    units = [1 if row.parent < 0 else MICRO if row.scope is Scope.DELEGATE_OP else unit_ns for row in rows]
    return {
        **columns,
        "scope": coded_from([row.scope.value for row in rows]),
        "method": coded_from([row.method for row in rows]),
        "name": coded_from([row.name for row in rows]),
        "backend": coded_from([row.backend for row in rows]),
        "synthetic_start": np.array([row.synthetic for row in rows], bool),
        "resolution": np.array(units, np.int64),
    }


def _find_problems(rows: Sequence[TraceRow], unit_ns: int) -> list[TraceWarning]:
    if len(rows) == rows[-1].run + 1:
        message = "the profiler recorded no events inside model calls"
        return [TraceWarning("no_operators", message, "rerun with a tested LiteRT version")]
    if unit_ns == 1 and not any(row.scope is Scope.DELEGATE_OP for row in rows):
        return []
    who = "XNNPACK truncates durations of its operators" if unit_ns == 1 else "LiteRT truncates durations of operators"
    message = f"{who} to whole microseconds; delegate start times are not measured"
    return [TraceWarning("quantised_durations", message, "use means over many inferences, not single short operators")]
