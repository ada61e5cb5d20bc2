"""The trace of an OpenVINO run: its performance counters after each call, and the table that is built of them.

Facts, measured with 2026.4.1: a counter adds up the time of its node since the model was compiled, in whole
microseconds, and reports the average over all calls, including the first, truncated again. A node that took
less than a microsecond is reported as not run. So the time of one call is the difference of two sums, which is
off by as many units as there were calls. With the clock of :mod:`opscope.runtimes.openvino.recorder` a unit is
a nanosecond, and that does not matter; without it calls cannot be told apart, and each gets the average of all
but the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec
import numpy as np

from opscope.core.errors import EmptyTraceError, InvariantError, TraceFormatError
from opscope.core.json import from_json
from opscope.core.table import Clock, EventTable, Scope, TraceWarning
from opscope.core.table.segment import coded_from
from opscope.core.units import share_text

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from opscope.core.table.events import Values

SCHEMA = "opscope.openvino-trace/1"
TRACE = "trace.openvino.json"
"""Name of the trace's file in a bundle."""
BACKEND = "OpenVINO CPU"
"""Name of what runs the operators."""
_ROOT = "InferRequest.infer"
_UNITS = (1, 1_000)
_LATEST = 1 << 61
_MOST = 1 << 22
_ADDS_UP = 0.8
"""Share of a call below which its nodes do not account for it."""
_DAMAGED = "the file was truncated or edited; run the model again"


class TracedNode(msgspec.Struct, frozen=True, array_like=True):
    """A node that ran, as the counters describe it."""

    name: str  # in the graph that ran
    type: str  # of operator
    kernel: str  # that ran it: `brgconv_avx512_f32`


class TracedCall(msgspec.Struct, frozen=True):
    """One call of the model."""

    start_ns: int  # on the clock of the process
    wall_ns: int  # how long it took, by the stopwatch of the process
    averages: list[int]  # of each node, over all calls so far, in the unit of the trace


class OpenVinoTrace(msgspec.Struct, frozen=True):
    """Records of a process about its calls."""

    schema: str  # name and version of this format
    runtime: str  # version of OpenVINO
    method: str  # what the model's only function is called
    unit_ns: int  # nanoseconds that an average counts: 1, or 1,000 without a finer clock
    nodes: list[TracedNode]  # in the order in which they ran
    calls: list[TracedCall]  # in order, warm-up included


class OpenVinoTraceReader:
    """Reads what the process that runs models in OpenVINO recorded."""

    name: ClassVar[str] = "openvino-trace"
    suffixes: ClassVar[tuple[str, ...]] = (".openvino.json",)

    def sniff(self, head: bytes) -> bool:
        """Return whether a file starts with the name of the format."""
        return bytes(head).startswith(f'{{"schema":"{SCHEMA}"'.encode())

    def read(self, data: bytes, path: Path) -> EventTable:
        """Read the calls with their nodes.

        Raises TraceFormatError if the trace is damaged, EmptyTraceError without calls.
        """
        try:
            trace = from_json(bytes(data), OpenVinoTrace)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise TraceFormatError(f"not an OpenVINO trace: {error}", where=path, hint=_DAMAGED) from error
        if problem := _find_impossible_value(trace):
            raise TraceFormatError(problem, where=path, hint=_DAMAGED)
        if not trace.calls:
            raise EmptyTraceError("the trace has no inference", where=path, hint="the run failed; see its log")
        try:
            return _build_table(trace)
        except InvariantError as error:
            raise TraceFormatError(f"its events do not nest: {error.problem}", where=path, hint=_DAMAGED) from error


def _find_impossible_value(trace: OpenVinoTrace) -> str | None:
    """Return the first impossible value of a trace, as a sentence; None if it is sound."""
    if trace.schema != SCHEMA:
        return f"its schema is {trace.schema!r}, not {SCHEMA}"
    if trace.unit_ns not in _UNITS:
        return f"times in units of {trace.unit_ns} ns are not known"
    if any(len(call.averages) != len(trace.nodes) for call in trace.calls):
        return "a call has another number of nodes than the trace"
    if len(trace.calls) * (1 + len(trace.nodes)) > _MOST:
        return "it has more events than a run leaves"
    for number, call in enumerate(trace.calls):
        times = (
            call.start_ns,
            call.wall_ns,
            *(average * trace.unit_ns * len(trace.calls) for average in call.averages),
        )
        if any(not 0 <= time < _LATEST for time in times):
            return f"call {number} has an impossible time"
    return None


def _build_table(trace: OpenVinoTrace) -> EventTable:
    times = _node_times(trace)
    count, width = len(trace.calls), len(trace.nodes)
    walls = np.array([call.wall_ns for call in trace.calls], np.int64)
    starts = np.array([call.start_ns for call in trace.calls], np.int64)
    ends = starts[:, None] + np.cumsum(times, axis=1) if width else np.zeros((count, 0), np.int64)
    durations = np.concatenate([walls[:, None], times], axis=1)
    roots = np.arange(count, dtype=np.int64)[:, None] * (1 + width)
    parents = np.concatenate([np.full((count, 1), -1), np.repeat(roots, width, axis=1)], axis=1)
    order = np.concatenate([[-1], np.arange(width)])
    names = [_ROOT, *(f"{node.type}: {node.name}" for node in trace.nodes)]
    scopes = [Scope.EXECUTE.value, *[Scope.KERNEL.value] * width]
    columns: dict[str, Values] = {
        "run": np.repeat(np.arange(count), 1 + width),
        "scope": coded_from(scopes * count),
        "name": coded_from(names * count),
        "backend": coded_from([None, *[BACKEND] * width] * count),
        "method": coded_from([trace.method] * (count * (1 + width))),
        "chain": np.tile(np.where(order < 0, -1, 0), count),
        "instruction": np.tile(order, count),
        "start": np.concatenate([starts[:, None], ends - times], axis=1).ravel(),
        "duration": durations.ravel(),
        "resolution": np.tile(np.where(order < 0, 1, trace.unit_ns), count),
        "parent": parents.ravel(),
        "synthetic_start": np.tile(order >= 0, count),
    }
    return EventTable.build(columns, Clock.NS, _find_problems(trace, times, walls))


def _node_times(trace: OpenVinoTrace) -> NDArray[np.int64]:
    """Return the time of each node in each call, in ns; shape (calls, nodes)."""
    averages = np.array([call.averages for call in trace.calls], np.int64).reshape(len(trace.calls), len(trace.nodes))
    sums = averages * trace.unit_ns * np.arange(1, len(trace.calls) + 1)[:, None]
    times = np.diff(sums, axis=0, prepend=0)
    if trace.unit_ns > 1 and len(times) > 1:
        times[1:] = (sums[-1] - sums[0]) // (len(times) - 1)
    return _limit_to_calls(np.maximum(times, 0), np.array([call.wall_ns for call in trace.calls], np.int64))


def _limit_to_calls(times: NDArray[np.int64], walls: NDArray[np.int64]) -> NDArray[np.int64]:
    """Scale down the node times of calls whose nodes took longer than the call: sums are off by some units."""
    spent = times.sum(axis=1)
    share = np.minimum(1.0, walls / np.maximum(spent, 1))
    return np.where((spent > walls)[:, None], (times * share[:, None]).astype(np.int64), times)


def _find_problems(trace: OpenVinoTrace, times: NDArray[np.int64], walls: NDArray[np.int64]) -> list[TraceWarning]:
    warnings = []
    if trace.unit_ns > 1:
        text = "OpenVINO tells averages in whole microseconds: every inference but the first has the same node times"
        hint = "install a C++ compiler, with which every inference is timed"
        warnings.append(TraceWarning("averages_only", text, hint))
    share = float(np.median(times.sum(axis=1) / np.maximum(walls, 1)))
    if share < _ADDS_UP:
        message = f"the nodes account for {share_text(share)} of an inference: the rest is runtime and caller"
        hint = "do not use shares of such a short run; measure it without profiling"
        warnings.append(TraceWarning("nodes_do_not_add_up", message, hint))
    return warnings
