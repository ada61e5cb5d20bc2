"""Read ONNX Runtime's profiles: the JSON that ``SessionOptions.enable_profiling`` writes, a list of trace events.

Facts, measured with 1.10, 1.12, 1.15 and 1.31 on x86-64: a row is written when its event ends, so an event
stands after those that it encloses; starts and durations are truncated to whole microseconds; ``model_run``
encloses ``SequentialExecutor::Execute``, which encloses the nodes; a node with control flow encloses the
executor of its body, once for each iteration. Rows of fences (until 1.15) take no time. The parallel executor
runs nodes in other threads than the one that waits for them.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import msgspec
import numpy as np

from opscope.core.errors import EmptyTraceError, InvariantError, TraceFormatError
from opscope.core.grouping import grouped
from opscope.core.json import from_json
from opscope.core.table import Clock, EventTable, Scope, TraceWarning
from opscope.core.table.segment import coded_from
from opscope.core.units import counted_text, share_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from opscope.core.table.events import Values

_HEAD = re.compile(rb'(?:\xef\xbb\xbf)?\s*\[\s*\{\s*"cat"\s*:\s*"(?:Session|Node|Kernel|Api)"')
RUN, _EXECUTOR, _NODE = "model_run", "Executor::Execute", "_kernel_time"
_CPU = "CPUExecutionProvider"
_ASYNCHRONOUS = {f"{name}ExecutionProvider" for name in ("CUDA", "Dml", "ROCM", "MIGraphX", "Js", "WebGpu", "CANN")}
"""Providers whose nodes end as soon as their work is given to the device."""
_DEVICE, _WAITS = "device", "MemcpyToHost"
_SEARCHED = 1 << 22
_ROW = re.compile(rb'^\s*\[?\s*\{\s*"cat"\s*:\s*"(?:Session|Node)"', re.MULTILINE)
_MICROSECOND = 1_000
_LARGEST = 1 << 50
_ADDS_UP = 0.8
"""Share of a run below which its nodes do not account for it."""
_HINT = "rewrite it with SessionOptions.enable_profiling, and end it with InferenceSession.end_profiling()"


class ProfileArguments(msgspec.Struct, frozen=True):
    """Arguments of a node's row; a tensor is its element type with its sizes."""

    op_name: str = ""
    provider: str = ""
    parent: str = ""  # of a kernel of a device: the row of the node that started it
    input_type_shape: list[dict[str, list[int]]] = []
    output_type_shape: list[dict[str, list[int]]] = []


class ProfileRow(msgspec.Struct, frozen=True):
    """A row of the file; times in microseconds."""

    cat: str
    name: str
    ts: int
    dur: int = 0
    pid: int = 0
    tid: int = 0
    args: ProfileArguments = ProfileArguments()

    @property
    def end(self) -> int:
        """Time in microseconds at which the event ended."""
        return self.ts + self.dur

    @property
    def node(self) -> str | None:
        """Name of the node that the row belongs to; None for other rows."""
        return self.name.removesuffix(_NODE) if self.cat == "Node" and self.name.endswith(_NODE) else None

    @property
    def on_device(self) -> bool:
        """Return whether the row is a kernel that a device ran beside the thread of the run."""
        return self.cat == "Kernel"

    @property
    def executor(self) -> bool:
        """Return whether the event encloses the nodes of a graph."""
        return self.cat == "Session" and self.name.endswith(_EXECUTOR)

    @property
    def scope(self) -> Scope | None:
        """Scope of the event; None if the table has no scope for it."""
        if self.cat == "Node":
            taken = Scope.KERNEL if self.args.provider in {_CPU, ""} else Scope.DELEGATE_OP
            return taken if self.node is not None else None
        if self.cat != "Session":
            return None
        if self.name == RUN:
            return Scope.EXECUTE
        if self.executor:
            return Scope.OPERATOR_CALL
        if self.name.startswith("model_loading"):
            return Scope.LOAD
        return Scope.INIT if self.name == "session_initialization" else None


_MAY_ENCLOSE = {
    Scope.EXECUTE: frozenset({Scope.OPERATOR_CALL}),
    Scope.OPERATOR_CALL: frozenset({Scope.KERNEL, Scope.DELEGATE_OP}),
    Scope.KERNEL: frozenset({Scope.OPERATOR_CALL}),
    Scope.DELEGATE_OP: frozenset({Scope.OPERATOR_CALL}),
}


class _Event(NamedTuple):
    """A row with its scope and its position in the file."""

    row: ProfileRow  # of the file
    scope: Scope  # what it stands for
    written: int  # place of the row among those of its thread, in the order in which they ended


class _Tree(NamedTuple):
    """Events of the table, each after the one that encloses it."""

    events: list[_Event]  # roots and what they enclose
    parent: list[int]  # place of the enclosing event, -1 for roots
    lost: list[_Event]  # nodes and executors without a run that encloses them


class OnnxRuntimeProfileReader:
    """Reads profiles of ONNX Runtime. An inference is a ``model_run``: what ``InferenceSession.run`` takes."""

    name: ClassVar[str] = "onnxruntime-json"
    takes_views: ClassVar[bool] = True

    def sniff(self, head: bytes) -> bool:
        """Return whether a file starts with a row of a session."""
        return bool(_HEAD.match(head))

    def finds(self, data: bytes | memoryview) -> bool:
        """Return whether a text has rows of a session after other lines, as a log of both streams does."""
        return _ROW.search(bytes(data[:_SEARCHED])) is not None

    def read(self, data: bytes | memoryview, path: Path) -> EventTable:
        """Read the runs with their nodes, and the loading of the model.

        Raises TraceFormatError if the rows cannot be read or do not nest, EmptyTraceError if there is no run.
        """
        rows, unreadable = _read_rows(data, path)
        tree = _with_device_kernels(_build_tree(rows), [row for row in rows if row.on_device])
        if not any(event.scope is Scope.EXECUTE for event in tree.events):
            hint = "run the session before end_profiling(); a crashed process leaves an incomplete profile"
            raise EmptyTraceError(
                f"no model_run among its {counted_text(len(rows), 'row', ',')}", where=path, hint=hint
            )
        try:
            has_lost_rows = unreadable is not None and unreadable.rows > 0
            columns = _build_columns(tree, [None] * len(tree.events) if has_lost_rows else _session_names(tree))
            return EventTable.build(columns, Clock.NS, _find_problems(rows, tree, unreadable))
        except InvariantError as error:
            raise TraceFormatError(f"its rows do not nest: {error.problem}", where=path, hint=_HINT) from error


class _Unreadable(NamedTuple):
    """The unreadable parts of a file."""

    rows: int = 0  # rows that are lost among others
    is_cut: bool = False  # whether the file ends within a row or without its last bracket


def _read_rows(data: bytes | memoryview, path: Path) -> tuple[list[ProfileRow], _Unreadable | None]:
    """Return all rows; and what was lost, if the file is no valid JSON and was read line by line, else None."""
    unreadable: _Unreadable | None
    try:
        rows, unreadable = _decode_rows(data), None
    except _DAMAGE:
        rows, unreadable = _read_lines(bytes(data))
    if not rows:
        raise TraceFormatError("not an ONNX Runtime profile: no readable row", where=path, hint=_HINT)
    for number, row in enumerate(rows):
        if not (0 <= row.ts < _LARGEST and 0 <= row.dur < _LARGEST):
            problem = f"row {number:,} ({row.name[:40]!r}) has an impossible time: ts {row.ts}, dur {row.dur}"
            raise TraceFormatError(problem, where=path, hint=_HINT)
    return rows, unreadable


_DAMAGE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_PART = 1 << 23
"""Number of bytes that are decoded at once: rows take much memory until their repeated texts are shared."""


def _decode_rows(data: bytes | memoryview) -> list[ProfileRow]:
    """Return the rows of a JSON list, decoded part by part where each row ends a line, as ONNX Runtime writes it.

    Raises one of ``_DAMAGE`` if the file is no such list.
    """
    known = _KnownValues()
    rows: list[ProfileRow] = []
    try:
        for part in _split_rows(data):
            rows += map(known.share, from_json(part, list[ProfileRow]))
    except _DAMAGE:
        if len(data) <= _PART:
            raise
        rows = from_json(bytes(data), list[ProfileRow])  # JSON that another program laid out anew
    return rows


def _split_rows(data: bytes | memoryview) -> Iterator[bytes]:
    """Yield parts of a list of rows, each of them a list; they end where lines end."""
    start, size = 0, len(data)
    while start < size:
        end = min(start + _PART, size)
        while end < size and data[end - 1] != _LINE_END:
            beyond = bytes(data[end : end + _PART])
            end += beyond.find(_LINE_END) + 1 if _LINE_END in beyond else len(beyond)
        part = bytes(data[start:end]).strip()
        is_last = end == size
        yield b"".join((b"[" * bool(start), part if is_last else part.removesuffix(b","), b"]" * (not is_last)))
        start = end


_LINE_END = ord("\n")


class _KnownValues:
    """Texts and arguments of rows that were read, so that rows of one node share them."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._arguments: dict[tuple[str, str, str], ProfileArguments] = {}

    def share(self, row: ProfileRow) -> ProfileRow:
        """Replace what a row has in common with an earlier one of its node; return the row."""
        name = self._texts.setdefault(row.name, row.name)
        arguments = self._arguments.setdefault((name, row.args.provider, row.args.parent), row.args)
        msgspec.structs.force_setattr(row, "name", name)
        msgspec.structs.force_setattr(row, "cat", self._texts.setdefault(row.cat, row.cat))
        if arguments == row.args:
            msgspec.structs.force_setattr(row, "args", arguments)
        return row


_TRAILING_COMMA = re.compile(rb",\s*(?=[\]}])")
"""A comma that some releases write after the last shape of a list, which JSON does not allow."""


def _read_lines(data: bytes) -> tuple[list[ProfileRow], _Unreadable]:
    """Read every line that begins like a row; lines of a log around them are skipped."""
    rows: list[ProfileRow] = []
    unreadable, ends_unreadable, is_cut = 0, False, not data.rstrip().endswith(b"]")
    for line in data.splitlines():
        text = line.strip().removeprefix(b"\xef\xbb\xbf").removeprefix(b"[").lstrip().removesuffix(b"]").rstrip(b", ")
        if not text.startswith(b"{"):
            continue
        row = _read_row(text) or _read_row(_TRAILING_COMMA.sub(b"", text))
        ends_unreadable = row is None
        if row is None:
            unreadable += 1
        else:
            rows.append(row)
    return rows, _Unreadable(unreadable - (is_cut and unreadable > 0 and ends_unreadable), is_cut)


def _read_row(text: bytes) -> ProfileRow | None:
    """Return the row in a line; None if it cannot be read."""
    try:
        return from_json(text, ProfileRow)
    except _DAMAGE:
        return None


def _build_tree(rows: Sequence[ProfileRow]) -> _Tree:
    """Nest the rows of each thread into trees, and order the roots by their starts."""
    threads = grouped(rows, lambda row: (row.pid, row.tid))
    trees = [_thread_tree(profile_rows) for profile_rows in threads.values()]
    roots = sorted(
        (tree.events[position].row.ts, thread, position)
        for thread, tree in enumerate(trees)
        for position, parent in enumerate(tree.parent)
        if parent < 0
    )
    joined = _Tree([], [], [event for tree in trees for event in tree.lost])
    for _, thread, first in roots:
        _append_root(joined, trees[thread], first)
    return joined


def _with_device_kernels(tree: _Tree, kernels: Sequence[ProfileRow]) -> _Tree:
    """Put the kernels of a device below the runs in which they started: they are what such a run waits for.

    Kernels that do not fit into their run together with the CPU's work are put into the node that waits for them.
    If no node does, since several streams ran at once, they are left out.
    """
    runs = [number for number, event in enumerate(tree.events) if event.scope is Scope.EXECUTE]
    if not kernels or not runs:
        return tree
    providers = {event.row.name: event.row.args.provider for event in tree.events}
    starts = np.array([tree.events[number].row.ts for number in runs])
    started = grouped(kernels, lambda row: runs[max(0, int(np.searchsorted(starts, row.ts, side="right")) - 1)])
    on_cpu = Counter[int]()
    for event, parent in zip(tree.events, tree.parent, strict=True):
        on_cpu[parent] += event.row.dur
    joined = _Tree([], [], tree.lost)
    for number, parent in enumerate(tree.parent):
        if parent >= 0:
            continue
        root = len(joined.events)
        _append_root(joined, tree, number)
        run_kernels = started.get(number, [])
        spent = sum(row.dur for row in run_kernels)
        waiting = root if spent + on_cpu[number] <= tree.events[number].row.dur else _waiting_node(joined, root, spent)
        if waiting is None:
            continue
        for row in run_kernels:
            arguments = msgspec.structs.replace(row.args, provider=providers.get(row.args.parent) or _DEVICE)
            joined.events.append(_Event(msgspec.structs.replace(row, args=arguments), Scope.DELEGATE_OP, 0))
            joined.parent.append(waiting)
    return joined


def _waiting_node(tree: _Tree, root: int, duration: int) -> int | None:
    """Return the position of a node of the last run that copies from the device and waits at least this long."""
    nodes = [
        number
        for number in range(root, len(tree.events))
        if tree.events[number].row.args.op_name == _WAITS and tree.events[number].row.dur >= duration
    ]
    return max(nodes, key=lambda number: tree.events[number].row.dur, default=None)


def _append_root(joined: _Tree, tree: _Tree, first: int) -> None:
    """Append a root and the events below it to another tree."""
    offset = len(joined.events) - first
    for position in range(first, len(tree.events)):
        parent = tree.parent[position]
        if position > first and parent < 0:
            return
        joined.events.append(tree.events[position])
        joined.parent.append(-1 if parent < 0 else parent + offset)


def _thread_tree(rows: Sequence[ProfileRow]) -> _Tree:
    """Nest the events of one thread: each into the innermost event that contains it and may enclose it."""
    events = sorted(_scoped_events(rows), key=lambda event: (event.row.ts, -event.row.dur, -event.written))
    tree, stack = _Tree([], [], []), list[int]()
    for event in events:
        while stack and not _can_enclose(tree.events[stack[-1]], event):
            stack.pop()
        root = event.scope in {Scope.EXECUTE, Scope.LOAD, Scope.INIT}
        if not root and not stack:
            tree.lost.append(event)
            continue
        tree.parent.append(-1 if root else stack[-1])
        stack = [] if root else stack
        stack.append(len(tree.events))
        tree.events.append(event)
    return tree


def _scoped_events(rows: Sequence[ProfileRow]) -> Iterator[_Event]:
    """Yield the rows that have a scope, numbered in the order in which their events ended."""
    ends = [row.end for row in rows]
    in_order = all(after >= before - 1 for before, after in pairwise(ends))
    ordered = rows if in_order else sorted(rows, key=lambda row: (row.end, row.dur))
    for number, row in enumerate(ordered):
        if row.scope is not None:
            yield _Event(row, row.scope, number)


def _can_enclose(outer: _Event, inner: _Event) -> bool:
    """Return whether an event lies in another one; truncated ends may be a microsecond too early."""
    return (
        inner.scope in _MAY_ENCLOSE.get(outer.scope, frozenset())
        and inner.written < outer.written
        and inner.row.end <= outer.row.end + 1
        and inner.row.dur <= outer.row.dur
    )


def _build_columns(tree: _Tree, method: Sequence[str | None]) -> dict[str, Values]:
    """Return the columns of a table of the events, each with the method of its run."""
    count, scopes = len(tree.events), [event.scope for event in tree.events]
    instruction = np.array(_number_nodes(tree, method), np.int64)
    return {
        "run": np.cumsum([parent < 0 for parent in tree.parent]) - 1,
        "scope": coded_from([scope.value for scope in scopes]),
        "name": coded_from([_event_name(event) for event in tree.events]),
        "block": coded_from(_input_shapes(tree)),
        "backend": coded_from([event.row.args.provider or None for event in tree.events]),
        "method": coded_from(method),
        "chain": np.where(instruction < 0, -1, 0),
        "instruction": instruction,
        "start": np.array(_nested_starts(tree), np.int64) * _MICROSECOND,
        "duration": np.array([event.row.dur for event in tree.events], np.int64) * _MICROSECOND,
        "resolution": np.full(count, _MICROSECOND, np.int64),
        "parent": np.array(tree.parent, np.int64),
    }


def _event_name(event: _Event) -> str:
    """Return the type of a node and its name, ``Conv: /stem/Conv``; the row's name for other events."""
    if event.scope not in {Scope.KERNEL, Scope.DELEGATE_OP}:
        return event.row.name
    if event.row.on_device:
        arguments = event.row.args
        node = arguments.parent.removesuffix(_NODE) or event.row.name
        return f"{arguments.op_name or 'unknown'}: {node}, on the device"
    node = event.row.name.removesuffix(_NODE)
    return f"{event.row.args.op_name or 'unknown'}: {node}"


def _nested_starts(tree: _Tree) -> list[int]:
    """Return starts in microseconds, moved into the enclosing event where truncation moved them out of it."""
    starts: list[int] = []
    for event, parent in zip(tree.events, tree.parent, strict=True):
        start = event.row.ts
        if parent >= 0:
            outer = tree.events[parent].row
            start = max(starts[parent], min(start, starts[parent] + outer.dur - event.row.dur))
        starts.append(start)
    return starts


def _input_shapes(tree: _Tree) -> list[str | None]:
    """Return for each event the input shapes of its run, if the runs of a session had different ones.

    The shapes are those of the first node whose shapes differ between runs.
    """
    nodes: dict[int, list[str]] = {}
    runs: list[int] = []
    for number, (event, parent) in enumerate(zip(tree.events, tree.parent, strict=True)):
        runs.append(number if parent < 0 else runs[parent])
        if event.row.node is not None:
            shapes = [
                f"{'x'.join(map(str, sizes))}"
                for typed_shape in event.row.args.input_type_shape
                for sizes in typed_shape.values()
            ]
            nodes.setdefault(runs[-1], []).append(" and ".join(shapes))
    if len({len(shapes) for shapes in nodes.values()}) != 1:
        return [None] * len(runs)
    differing = next((shapes for shapes in zip(*nodes.values(), strict=True) if len(set(shapes)) > 1), ())
    labels = dict(zip(nodes, (f"input {shapes}" for shapes in differing), strict=False))
    return [labels.get(run) for run in runs]


def _session_names(tree: _Tree) -> list[str | None]:
    """Return the name of each event's session; None if the file has runs of only one.

    Sessions are told apart by their nodes: a session always runs the same ones.
    """
    depth_first = _run_nodes(tree)
    numbers = {nodes: number for number, nodes in enumerate(dict.fromkeys(depth_first.values()), 1)}
    if len(numbers) < 2:  # noqa: PLR2004 - one session needs no name
        return [None] * len(tree.events)
    methods: list[str | None] = []
    for position, parent in enumerate(tree.parent):
        session = f"session {numbers[depth_first[position]]}" if position in depth_first else None
        methods.append(session if parent < 0 else methods[parent])
    return methods


def _run_nodes(tree: _Tree) -> dict[int, tuple[str, ...]]:
    """Return the names of the nodes of each run, by position of the run; nodes inside control flow are left out."""
    node_names: dict[int, list[str]] = {}
    for position, (event, parent) in enumerate(zip(tree.events, tree.parent, strict=True)):
        if event.scope is Scope.EXECUTE:
            node_names[position] = []
        elif parent >= 0 and tree.parent[parent] in node_names:
            node_names[tree.parent[parent]].append(_event_name(event))
    return {position: tuple(names) for position, names in node_names.items()}


def _number_nodes(tree: _Tree, method: Sequence[str | None]) -> list[int]:
    """Number each node of each graph, in the order of first appearance; executors have the number of their node."""
    numbers: dict[tuple[object, ...], int] = {}
    seen, counts = Counter[object](), Counter[str | None]()
    paths: list[tuple[object, ...]] = []
    for position, (event, parent) in enumerate(zip(tree.events, tree.parent, strict=True)):
        if parent < 0:
            paths.append(())
        elif event.scope is Scope.OPERATOR_CALL:
            paths.append(paths[parent])
        else:
            # Nodes without a name have the same one; how many came before tells them apart.
            again = parent, _event_name(event)
            path = (*paths[parent], (method[position], _event_name(event), seen[again]))
            seen[again] += 1
            paths.append(path)
            if path not in numbers:
                numbers[path] = counts[method[position]]
                counts[method[position]] += 1
    return [numbers.get(path, -1) for path in paths]


def _find_problems(rows: Sequence[ProfileRow], tree: _Tree, unreadable: _Unreadable | None) -> list[TraceWarning]:
    truncated = "start times and durations are truncated to whole microseconds"
    return [
        *_warn_of_truncation(unreadable),
        TraceWarning("quantised_durations", truncated, "use means over many inferences, not single short operators"),
        *_warn_of_lost_nodes(tree),
        *_warn_of_other_rows(rows, tree),
        *_warn_of_concurrent_runs(tree),
        *_warn_of_unaccounted_time(tree),
    ]


def _warn_of_truncation(unreadable: _Unreadable | None) -> list[TraceWarning]:
    warnings = []
    if unreadable and unreadable.rows:
        message = f"{counted_text(unreadable.rows, 'row', ',')} of the file cannot be read: the split would lack them"
        warnings.append(TraceWarning("rows_lost", message, _HINT))
    if unreadable and unreadable.is_cut:
        message = "the file was truncated: the runs that are complete were read"
        warnings.append(TraceWarning("truncated", message, _HINT))
    return warnings


def _warn_of_lost_nodes(tree: _Tree) -> list[TraceWarning]:
    lost = [event for event in tree.lost if event.scope is not Scope.OPERATOR_CALL]
    if not lost:
        return []
    runs = [event.row for event in tree.events if event.scope is Scope.EXECUTE]
    beside = sum(any(run.ts <= event.row.ts <= run.end for run in runs) for event in lost[:1_000])
    if beside:
        message = (
            f"{counted_text(len(lost), 'node', ',')} outside the thread of the run (ORT_PARALLEL): times may overlap"
        )
        hint = "they are excluded from the split; profile with ExecutionMode.ORT_SEQUENTIAL"
        return [TraceWarning("parallel_nodes", message, hint)]
    message = f"{counted_text(len(lost), 'node', ',')} outside any run"
    return [TraceWarning("unfinished_inference", message, "the run did not end; they are not counted")]


def _warn_of_other_rows(rows: Sequence[ProfileRow], tree: _Tree) -> list[TraceWarning]:
    placed = Counter(event.row.cat for event in tree.events)
    counts = Counter(row.cat for row in rows if row.cat not in {"Session", "Node"}) - placed
    if not counts:
        return []
    listed = ", ".join(f"{count:,} {name[:40]}" for name, count in sorted(counts.items()))
    hint = "they run alongside the nodes that started them and are excluded from the split"
    return [TraceWarning("device_rows", f"accelerator rows are excluded: {listed}", hint)]


def _warn_of_concurrent_runs(tree: _Tree) -> list[TraceWarning]:
    runs = sorted((event.row.ts, event.row.end) for event in tree.events if event.scope is Scope.EXECUTE)
    beside = sum(start < end for (_, end), (start, _) in pairwise(runs))
    if not beside:
        return []
    message = f"{beside:,} of {len(runs):,} runs overlapped the previous one: they slowed each other down"
    return [TraceWarning("concurrent_runs", message, "call the session from one thread to measure its latency")]


def _warn_of_unaccounted_time(tree: _Tree) -> list[TraceWarning]:
    """Warn if nodes and device kernels account for too little of the runs."""
    if any(event.row.on_device for event in tree.events):
        return []
    spent = dict.fromkeys((position for position, event in enumerate(tree.events) if event.scope is Scope.EXECUTE), 0)
    for event, parent in zip(tree.events, tree.parent, strict=True):
        outer = tree.parent[parent] if parent >= 0 else -1
        if outer in spent and event.scope is not Scope.OPERATOR_CALL:
            spent[outer] += event.row.dur
    shares = [time / tree.events[position].row.dur for position, time in spent.items() if tree.events[position].row.dur]
    share = statistics.median(shares) if shares else 1.0
    if share >= _ADDS_UP or not any(spent.values()):
        return []
    devices = sorted({event.row.args.provider for event in tree.events} & _ASYNCHRONOUS)
    if devices:
        message = (
            f"the nodes account for {share_text(share)} of a run: they only start work on {', '.join(devices)}, and "
            "the rest is waiting for the device"
        )
        hint = "its kernels are not in this profile: use the profiler of the device, or a build that records them"
        return [TraceWarning("nodes_do_not_add_up", message, hint)]
    message = f"the nodes account for {share_text(share)} of a run: the rest is runtime and profiling overhead"
    hint = "do not use shares of such a short run; measure it without profiling"
    return [TraceWarning("nodes_do_not_add_up", message, hint)]
