"""Read ETDump, the trace format of ExecuTorch: a FlatBuffer with identifier ``ED00``.

Decoded column by column. What the file does not hold is not invented: the method's name, threads and device are
absent, and the start times of a delegate's operators are marked synthetic where they are laid end to end.

Source of the layout: ``devtools/etdump/etdump_schema_flatcc.fbs`` of ExecuTorch 1.5.1; the facts about events,
order and quantisation are measured, see docs/design/etdump.md.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from opscope.core.errors import EmptyTraceError, InvariantError, TraceFormatError
from opscope.core.table import Clock, Coded, EventTable, Scope, Segment, TraceWarning
from opscope.core.table.events import Allocation, DelegateValue, LoggedValue, SideEvents
from opscope.core.table.nesting import parents_from_levels
from opscope.core.table.scope import LEAVES
from opscope.core.table.segment import SCOPES, coded_from
from opscope.readers.flatbuffer import FlatBuffer, Tables
from opscope.readers.lifecycle import FRAMEWORK, PORTABLE, UNNAMED_DELEGATE, XNNPACK, delegate_by_names, is_xnnpack_name
from opscope.runtimes.executorch.delegate_events import DelegateRows, settle_delegate_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt
    from numpy.typing import NDArray

    from opscope.readers.flatbuffer import Ints

    Mask: TypeAlias = npt.NDArray[np.bool_]

# ValueType of the schema, in order.
_KINDS = ("null", "int", "bool", "float", "double", "tensor", "tensor_list", "string")
_NUMBER_SLOTS = {"int": (3, "<q"), "float": (4, "<f"), "double": (5, "<d"), "bool": (6, "<?")}
_TENSOR_SLOT, _OUTPUT_SLOT = 1, 7


def side_events(block: Tables, entries: Tables, owner: Ints, first_run: int) -> SideEvents:
    """Return the events without times in some blocks: allocations and logged values."""
    allocations, logged = (np.flatnonzero(entries.reference(slot) > 0) for slot in (1, 2))
    runs = owner + first_run
    return SideEvents(
        tuple(_read_allocations(block, entries, allocations, owner, first_run)),
        tuple(
            _read_logged_value(entries.buffer, int(at), int(runs[row]))
            for row, at in _rows_and_positions(entries, logged, 2)
        ),
    )


def _rows_and_positions(entries: Tables, rows: Ints, slot: int) -> list[tuple[int, int]]:
    return list(zip(rows.tolist(), entries.reference(slot)[rows].tolist(), strict=True))


def _read_allocations(block: Tables, entries: Tables, rows: Ints, owner: Ints, first_run: int) -> list[Allocation]:
    if not len(rows):
        return []
    events = Tables(entries.buffer, entries.reference(1)[rows])
    names = {run: _read_allocator_names(block.only(run)) for run in set(owner[rows].tolist())}
    columns = zip(owner[rows].tolist(), events.int32(0).tolist(), events.uint64(1).tolist(), strict=True)
    return [Allocation(run + first_run, names[run].get(number, str(number)), size) for run, number, size in columns]


def _read_allocator_names(block: Tables) -> dict[int, str]:
    at, _ = block.children(2)
    if not len(at):
        return {}
    codes, texts = Tables(block.buffer, at).strings(0)
    # Allocators are numbered from 1 in the order of the list, as ETDumpGen does.
    return {number: texts[code] for number, code in enumerate(codes.tolist(), 1) if code >= 0}


def _read_logged_value(buffer: FlatBuffer, at: int, run: int) -> LoggedValue:
    event = Tables(buffer, np.array([at]))
    value = _referred_table(event, 2)
    kind = "null" if value is None else _value_kind(value)
    tensor = _referred_table(value, _TENSOR_SLOT) if value is not None and kind == "tensor" else None
    return LoggedValue(
        run=run,
        name=_read_text(event, 5),
        chain=int(event.uint64(0)[0]),
        instruction=_read_identifier(event, 1),
        delegate_id=_read_identifier(event, 3),
        delegate_label=_read_text(event, 4),
        kind=kind,
        number=_read_number(value, kind) if value is not None else None,
        shape=_read_sizes(tensor) if tensor is not None else None,
        dtype=int(tensor.uint8(0)[0]) if tensor is not None else None,
        offset=int(_read_scalar(tensor, 3, "<q")) if tensor is not None else None,
        output=_read_is_output(value) if value is not None else None,
    )


def _referred_table(table: Tables, slot: int) -> Tables | None:
    at = table.reference(slot)
    return Tables(table.buffer, at) if at[0] else None


def _value_kind(value: Tables) -> str:
    number = int(value.uint8(0)[0])
    return _KINDS[number] if number < len(_KINDS) else "unknown"


def _read_identifier(event: Tables, slot: int) -> int | None:
    number = int(event.int32(slot, -1)[0])
    return None if number < 0 else number


def _read_text(event: Tables, slot: int) -> str | None:
    codes, texts = event.strings(slot)
    return texts[codes[0]] if codes[0] >= 0 else None


def _read_number(value: Tables, kind: str) -> float | int | None:
    if kind not in _NUMBER_SLOTS:
        return None
    slot, form = _NUMBER_SLOTS[kind]
    holder = _referred_table(value, slot)
    return None if holder is None else _read_scalar(holder, 0, form)


def _read_is_output(value: Tables) -> bool | None:
    holder = _referred_table(value, _OUTPUT_SLOT)
    return None if holder is None else bool(_read_scalar(holder, 0, "<?"))


def _read_scalar(table: Tables, slot: int, form: str) -> float | int:
    """Return a number in a table; 0, the schema's default, if it is absent."""
    at, size = int(table.field(slot)[0]), struct.calcsize(form)
    if not at:
        return 0
    if at + size > table.buffer.size:
        raise table.buffer.error("a number extends past the end of the file", at)
    number: float | int = struct.unpack(form, table.buffer.bytes[at : at + size].tobytes())[0]
    return number


def _read_sizes(tensor: Tables) -> tuple[int, ...]:
    first, count = (int(part[0]) for part in tensor.vector(1, 8))
    raw = tensor.buffer.bytes[first : first + 8 * count].tobytes()
    return struct.unpack(f"<{count}q", raw)


IDENTIFIER = b"ED00"
_PREFIX = 4
_HEADER = 8
_MICROSECOND = 1_000
_PIECE_BYTES = 1 << 22
# Lower levels are further out. Loading and inferences are outermost, every other step of the framework encloses
# operators, which are leaves.
_LEVELS = {Scope.EXECUTE: 0, Scope.LOAD: 0}
_STEP_LEVEL, _LEAF_LEVEL = 1, 2


class EtdumpReader:
    """Reads ETDump files, with or without size prefix."""

    name: ClassVar[str] = "etdump"
    suffixes: ClassVar[tuple[str, ...]] = (".etdump",)
    takes_views: ClassVar[bool] = True

    def sniff(self, head: bytes) -> bool:
        """Return whether a file starts like an ETDump."""
        return _find_root(head) is not None

    def read(self, data: bytes | memoryview, path: Path) -> EventTable:
        """Read all events. Raises TraceFormatError for a damaged file, EmptyTraceError for one without events."""
        if not len(data):
            raise EmptyTraceError("the file is empty", where=path, hint=_NO_TRACER)
        origin = _find_root(bytes(data[: _PREFIX + _HEADER]))
        if origin is None:
            raise TraceFormatError(
                "not an ETDump: the identifier ED00 is missing",
                where=path,
                offset=_HEADER,
                hint="give a file written by write_etdump_result_to_file or executor_runner --etdump_path",
            )
        buffer = FlatBuffer(data, str(path), origin)
        if buffer.origin:
            stated = int(buffer.u32(np.zeros(1, np.int64))[0]) + _PREFIX
            if stated > buffer.size:
                raise buffer.error(f"truncated: {stated:,} bytes were written, {buffer.size:,} are here", buffer.size)
        try:
            return _build_table(buffer)
        except InvariantError as error:
            raise TraceFormatError(error.problem, where=path, hint=_DAMAGED) from error

    def find_clock_problems(self, table: EventTable) -> list[TraceWarning]:
        """Return the warning that the times cannot be nanoseconds, or may not be; empty if nothing suggests it.

        Nothing does if a counter is about as fast as a nanosecond and no delegate tells what it ran on.
        """
        if problem := _find_impossible_recording(table):
            return [TraceWarning("impossible_times", problem, _GIVE_TICKS)]
        problem = _find_device_without_clock(table)
        return [TraceWarning("unknown_ticks", problem, _GIVE_TICKS)] if problem else []


_GIVE_TICKS = "give the runner's clock with --ticks, such as --ticks 200MHz"
_LEAST_RECORDING_NS = 30
_TICK_NAMES = ("EthosUBackend", "native_call_cortex_m::", "native_call_cadence::")


def _find_impossible_recording(table: EventTable) -> str | None:
    """Return the problem that kernel calls take hardly longer than their kernels; None if there is no such problem.

    Such a call reads the clock twice and writes an event within it. On x86-64 that took 109 ns or more, and 184 ns
    on average in the fastest of 56 traces.
    """
    spent = [
        segment.self_time()[:, segment.columns["scope"].equals(Scope.OPERATOR_CALL.value) & (segment.inference >= 0)]
        for trace in table.traces
        for segment in trace
    ]
    recording = np.concatenate([part.ravel() for part in spent])
    if not len(recording) or recording.mean() >= _LEAST_RECORDING_NS:
        return None
    return f"the times are not nanoseconds: no processor records a kernel in {recording.mean():.0f} ns"


def _find_device_without_clock(table: EventTable) -> str | None:
    """Return the problem that operators ran on devices whose runners count cycles; None if none did."""
    names = (name for trace in table.traces for segment in trace for name in segment.columns["name"].texts)
    if not any(part in name for name in names for part in _TICK_NAMES):
        return None
    return "the times may be cycles: runners of Ethos-U, Cortex-M and Cadence DSPs mostly count these"


_DAMAGED = "the file is damaged, or its events come from inconsistent clocks"
_NO_TRACER = (
    "the runtime was built without event tracing: use executorch 1.5 or newer, "
    "or build the runner with EXECUTORCH_ENABLE_EVENT_TRACER=ON"
)


def _find_root(head: bytes) -> int | None:
    """Return the position of the root offset: 4 after a size prefix, 0 without; None if the file is no ETDump."""
    if head[_HEADER : _HEADER + _PREFIX] == IDENTIFIER:
        return _PREFIX
    return 0 if head[_PREFIX:_HEADER] == IDENTIFIER else None


def _build_table(buffer: FlatBuffer) -> EventTable:
    blocks = Tables(buffer, buffer.root().children(1)[0])
    parts = list(_split_parts(buffer, blocks))
    if not sum(len(part.rows) for part in parts):
        raise EmptyTraceError("the trace holds no events", where=buffer.where, hint=_NO_TRACER)
    labels = {text for part in parts for text in part.label.texts}
    backend = delegate_by_names(labels, {text for part in parts for text in part.name.texts})
    marked = backend not in {XNNPACK, UNNAMED_DELEGATE}
    rounded = [part.is_xnnpack if marked else part.is_delegate for part in parts]
    quantised = any(rows.any() for rows in rounded) and all(map(_Part.is_in_microseconds, parts, rounded))
    settled = [part.segment(backend, quantised=quantised) for part in parts if len(part.rows)]
    segments = [segment for segment, _ in settled]
    values = tuple(value for _, own_values in settled for value in own_values)
    loads = sum(int(segment.columns["scope"].equals(Scope.LOAD.value).sum()) * segment.repeats for segment in segments)
    if loads > 1:
        segments = _number_methods(segments)
    table = EventTable.of_segments(
        segments, Clock.NS, _find_problems(parts, segments, loads, values, quantised=quantised)
    )
    sides = [part.side() for part in parts if part.skipped]
    if values:
        sides.append(SideEvents(values=values))
    return table if not sides else table.with_side(reduce(SideEvents.plus, sides))


def _split_parts(buffer: FlatBuffer, blocks: Tables) -> Iterator[_Part]:
    """Yield blocks in file order: runs of equal blocks as one part each, the blocks between them as others."""
    pending = 0
    for first, last, even in repeated_spans(blocks.at):
        repeated = _decode_repeats(buffer, blocks, first, last) if even else None
        if repeated is not None:
            yield from _decode_pieces(buffer, blocks, pending, first)
            yield repeated
            pending = last
    yield from _decode_pieces(buffer, blocks, pending, len(blocks))


def _decode_pieces(buffer: FlatBuffer, blocks: Tables, first: int, last: int) -> Iterator[_Part]:
    """Decode blocks the general way, as many at a time as stay in the processor's cache."""
    step = max(1, _PIECE_BYTES * len(blocks) // max(buffer.size, 1))
    for begin in range(first, last, step):
        yield _decode_blocks(buffer, blocks, begin, min(begin + step, last))


def _decode_repeats(buffer: FlatBuffer, blocks: Tables, first: int, last: int) -> _Part | None:
    """Decode blocks that all repeat the first of them; None if they do not."""
    template = _decode_blocks(buffer, blocks, first, first + 1)
    if template.skipped or not template.inferences or template.has_spans_or_values:
        return None
    times = repeated_times(buffer, blocks.at[first:last], template.footprint(blocks.only(first)))
    return None if times is None else replace(template, times=times)


def _decode_blocks(buffer: FlatBuffer, blocks: Tables, first: int, last: int) -> _Part:
    block = Tables(buffer, blocks.at[first:last])
    at, owner = block.children(3)
    events = Tables(buffer, at)
    profile = events.reference(0)
    rows = np.flatnonzero(profile > 0)
    return _Part(block, events, owner, Tables(buffer, profile[rows]), owner[rows], first, len(at) - len(rows))


@dataclass(frozen=True)
class _Part:
    """Consecutive blocks while they are decoded: their tables, and the times of blocks that repeat them."""

    block: Tables  # the blocks that were decoded
    entries: Tables  # their events
    owner: Ints  # the decoded block that each event stands in
    profile: Tables  # those events that carry times
    rows: Ints  # the decoded block that each of these stands in
    first_run: int  # number of the first block in the file
    skipped: int  # events without times
    # start and end of all repeats; None for one repeat
    times: tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]] | None = None

    @cached_property
    def name(self) -> Coded:
        """Names of events as recorded."""
        return Coded(*_with_tuple(self.profile.strings(0)))

    @cached_property
    def label(self) -> Coded:
        """Textual identifiers that delegates gave their events."""
        return Coded(*_with_tuple(self.profile.strings(4)))

    @cached_property
    def delegate_id(self) -> Ints:
        """Integer identifiers that delegates gave their events; -1 if absent."""
        return self.profile.int32(3, -1)

    @cached_property
    def is_delegate(self) -> Mask:
        """Mask of events that a delegate reported."""
        mask: Mask = (self.name.codes < 0) | (self.label.codes >= 0) | (self.delegate_id >= 0)
        return mask

    @cached_property
    def start_and_duration(self) -> tuple[Ints, Ints]:
        """Start and duration of every event in ns; shape (repeats, events)."""
        start, end = self.times or (self.profile.uint64(6)[None], self.profile.uint64(7)[None])
        if start.size and max(int(start.max()), int(end.max())) > np.iinfo(np.int64).max:
            raise self.profile.buffer.error("a time is larger than 2^63")
        return start.astype(np.int64), end.astype(np.int64) - start.astype(np.int64)

    @cached_property
    def is_xnnpack(self) -> Mask:
        """Mask of events of delegates with names like XNNPACK's operators."""
        texts = np.array([is_xnnpack_name(text) for text in (*self.label.texts, "")], bool)
        mask: Mask = self.is_delegate & texts[self.label.codes]
        return mask

    @property
    def has_spans_or_values(self) -> bool:
        """Return whether delegates report nested spans, or values that are no times: these differ by call."""
        segment, values = self.segment(UNNAMED_DELEGATE, quantised=False)
        above = np.where(segment.parent >= 0, segment.parent, 0)
        return bool(values) or bool((segment.is_leaf & (segment.parent >= 0) & segment.is_leaf[above]).any())

    def is_in_microseconds(self, rows: Mask) -> bool:
        """Return whether no duration of these events is finer than a microsecond."""
        return not (self.start_and_duration[1][:, rows] % _MICROSECOND).any()

    @cached_property
    def inferences(self) -> int:
        """Number of outermost events of inferences."""
        return int(self.name.equals("Method::execute").sum())

    def side(self) -> SideEvents:
        """Return the events without times."""
        return side_events(self.block, self.entries, self.owner, self.first_run)

    def footprint(self, block: Tables) -> Footprint:
        """Return the positions of the single decoded block in the file."""
        buffer, profile = self.profile.buffer, self.profile
        tables = np.concatenate([block.at, self.entries.at, profile.at])
        first, count = (np.concatenate(pair) for pair in zip(*self._text_spans(block), strict=True))
        ends = [buffer.table_end(tables), (first + count)[first > 0]]
        times = profile.field(6), profile.field(7)
        fields = [profile.field(slot) for slot in range(6)]
        fields += [self.entries.field(slot) for slot in range(3)] + [block.field(slot) for slot in range(4)]
        known = np.concatenate(fields)
        # The length of a vector or string stands in the word before it.
        spans = first[first > 0] - 4, count[first > 0] + 4
        low = int(min(tables.min(), *(position.min() for position in (first[first > 0], tables) if len(position))))
        low -= low % 4
        high = int(max(end.max() for end in ends if len(end)))
        return Footprint(low, high, tables, *times, known[known > 0], spans, tables - buffer.i32(tables))

    def _text_spans(self, block: Tables) -> Iterator[tuple[Ints, Ints]]:
        """Yield first byte and length of all strings and vectors that the block's tables point to."""
        yield block.vector(0, 1)
        yield block.vector(2, 1)
        first, count = block.vector(3)
        yield first, count * 4
        for slot in (0, 4, 5):
            yield self.profile.vector(slot, 1)

    def segment(self, backend: str, *, quantised: bool) -> tuple[Segment, tuple[DelegateValue, ...]]:
        """Return the part as a segment of a table, and the values of delegates that are no times of the segment."""
        scope, level = _scopes_and_levels(self.name, self.is_delegate)
        chain = self.profile.int32(1)
        start, duration = self.start_and_duration
        codes, texts = self.block.strings(0)
        block_names = Coded(np.where(codes < 0, len(texts), codes), (*texts, ""))
        parent = parents_from_levels(level, self.rows)
        call = scope.equals(Scope.DELEGATE_CALL.value)
        in_call = (level == _LEAF_LEVEL) & (parent >= 0) & call[parent]
        is_delegate = self.is_delegate | in_call
        names = _event_names(self.name, self.label, self.delegate_id)
        instruction = np.where(chain < 0, -1, self.profile.int32(2, -1))
        settled = settle_delegate_rows(DelegateRows(names, start[0], duration[0], parent, in_call))
        in_tree = np.ones(len(parent), bool)
        in_tree[list(settled.units)] = False
        values = tuple(
            DelegateValue(
                self.first_run + int(self.rows[row]),
                int(instruction[row]),
                names[row] or "",
                int(duration[0, row]),
                unit,
            )
            for row, unit in settled.units.items()
        )
        # A call without any row left in the tree is itself what the delegate did.
        unseen = call & ~np.isin(np.arange(len(parent)), settled.parent[in_tree & in_call])
        leaf = (level == _LEAF_LEVEL) | unseen
        scope = Coded(np.where(unseen | in_call, SCOPES.index(Scope.DELEGATE_OP.value), scope.codes), SCOPES)
        marked = backend not in {XNNPACK, UNNAMED_DELEGATE}
        cut = (self.is_xnnpack if marked else self.is_delegate) & quantised
        columns: dict[str, Any] = {
            "run": self.rows,
            "scope": scope,
            "name": names,
            "backend": _backends_of_events(backend, is_delegate | unseen, self.is_xnnpack & marked, leaf),
            "chain": chain,
            "instruction": instruction,
            "delegate_id": self.delegate_id,
            "delegate_label": self.label,
            "metadata": _read_metadata(self.profile),
            "block": Coded(block_names.codes[self.rows], block_names.texts),
            "bundled_input": self.block.int32(1, -1)[self.rows],
            "resolution": np.where(cut, _MICROSECOND, 1),
            # a delegate that reports durations only lays them end to end
            "synthetic_start": cut | (in_call & ~settled.measured & (backend != XNNPACK)),
            "parent": settled.parent,
        }
        return Segment.build(*_kept_rows(columns, start, duration, in_tree), self.first_run), values


def _kept_rows(
    columns: dict[str, Any], start: Ints, duration: Ints, in_tree: Mask
) -> tuple[dict[str, Any], Ints, Ints]:
    """Return the columns and times of the rows that stay in the tree, with the numbers of their parents adjusted."""
    if in_tree.all():
        return columns, start, duration
    number = np.cumsum(in_tree) - 1
    parent = columns["parent"]
    columns = {**columns, "parent": np.where(parent >= 0, number[parent], -1)}
    in_tree_columns: dict[str, Any] = {}
    for name, column in columns.items():
        if isinstance(column, Coded):
            in_tree_columns[name] = Coded(column.codes[in_tree], column.texts)
        elif isinstance(column, tuple):
            in_tree_columns[name] = tuple(value for value, keep in zip(column, in_tree, strict=True) if keep)
        else:
            in_tree_columns[name] = column[in_tree]
    return in_tree_columns, start[:, in_tree], duration[:, in_tree]


def _with_tuple(coded: tuple[Ints, list[str]]) -> tuple[Ints, tuple[str, ...]]:
    return coded[0], tuple(coded[1])


def _scopes_and_levels(name: Coded, is_delegate: Mask) -> tuple[Coded, Ints]:
    """Return scope and nesting level of every event."""
    known = [FRAMEWORK.get(text, Scope.KERNEL) for text in name.texts] + [Scope.DELEGATE_OP]
    role = np.where(is_delegate, len(name.texts), name.codes)
    scopes = np.array([SCOPES.index(scope.value) for scope in known], np.int64)
    levels = np.array([_LEAF_LEVEL if s.value in LEAVES else _LEVELS.get(s, _STEP_LEVEL) for s in known], np.int64)
    return Coded(scopes[role], SCOPES), levels[role]


def _event_names(name: Coded, label: Coded, delegate_id: Ints) -> Coded:
    """Return for each event its name, else the delegate's text identifier, else its number."""
    unnamed = (name.codes < 0) & (label.codes < 0)
    numbered = np.unique(delegate_id[unnamed])
    code = np.where(name.codes >= 0, name.codes, len(name.texts) + label.codes)
    code[unnamed] = len(name.texts) + len(label.texts) + np.searchsorted(numbered, delegate_id[unnamed])
    return Coded(code, (*name.texts, *label.texts, *(f"delegate operator {number}" for number in numbered.tolist())))


def _backends_of_events(delegate: str, is_delegate: Mask, is_xnnpack: Mask, leaf: Mask) -> Coded:
    """Return the backend of each event: the delegate, portable for the runtime's own kernels, none for the framework.

    ``is_xnnpack``: events of XNNPACK if other delegates ran, too.
    """
    codes = np.where(is_xnnpack, 2, np.where(is_delegate, 0, 1))
    return Coded(np.where(leaf, codes, -1), (delegate, PORTABLE, XNNPACK) if is_xnnpack.any() else (delegate, PORTABLE))


def _read_metadata(profile: Tables) -> tuple[bytes | None, ...]:
    """Return the metadata that delegates attached to their events; None for empty vectors, which XNNPACK writes."""
    first, count = profile.vector(5, 1)
    attached: list[bytes | None] = [None] * len(first)
    raw, remaining_bytes = profile.buffer.bytes, profile.buffer.size
    for row in np.flatnonzero(count).tolist():
        remaining_bytes -= int(count[row])
        if remaining_bytes < 0:
            raise profile.buffer.error("event metadata overlaps", int(first[row]))
        attached[row] = raw[int(first[row]) : int(first[row] + count[row])].tobytes()
    return tuple(attached)


def _number_methods(segments: list[Segment]) -> list[Segment]:
    """Name methods by what their inferences run: the file does not record which method it was.

    Blocks with the same sequence of instructions and names belong to one method, numbered by first appearance.
    """
    known: dict[int, int] = {}
    with_methods = []
    for segment in segments:
        name = segment.columns["name"]
        prints = np.array([zlib.crc32(text.encode()) for text in name.texts], np.uint64)[name.codes]
        blocks = _block_signatures(segment.columns["run"], segment.columns["instruction"], prints)
        is_inference = segment.inference >= 0
        used = np.isin(np.arange(len(blocks)), segment.columns["run"][is_inference])
        numbers = np.array([known.setdefault(b, len(known)) if u else -1 for b, u in zip(blocks, used, strict=True)])
        methods = [
            f"method {n}" if i else None for n, i in zip(numbers[segment.columns["run"]], is_inference, strict=True)
        ]
        with_methods.append(segment.with_columns(method=coded_from(methods)))
    return with_methods


def _block_signatures(run: Ints, instruction: Ints, name: npt.NDArray[np.uint64]) -> list[int]:
    """Return a number for each block that depends on the sequence of its instructions and names."""
    position = (np.arange(len(run)) - np.searchsorted(run, run, side="left") + 1).astype(np.uint64)
    mixed = (instruction.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) ^ (name * np.uint64(0x100000001B3))
    total = np.zeros(int(run.max()) + 1, np.uint64)
    np.add.at(total, run, (mixed + np.uint64(1)) * (position * np.uint64(0xC2B2AE3D27D4EB4F) + np.uint64(1)))
    return [int(value) for value in total]


def _values_warning(values: Sequence[DelegateValue]) -> TraceWarning | None:
    if not values:
        return None
    units = ", ".join(sorted({value.unit for value in values}))
    message = f"{len(values):,} values of delegates in units or on clocks of their own ({units}) are outside the split"
    return TraceWarning("delegate_values", message, "their table lists them; the calls they belong to are whole")


def _find_problems(
    parts: list[_Part], segments: list[Segment], loads: int, values: Sequence[DelegateValue], *, quantised: bool
) -> list[TraceWarning]:
    operators = max((int(np.bincount(part.rows[part.is_delegate]).max(initial=0)) for part in parts), default=0)
    lost = sum(_count_unfinished_events(segment) for segment in segments)
    warnings = [
        _skipped_events_warning(sum(part.skipped for part in parts)),
        _quantisation_warning(operators if quantised else 0),
        _several_methods_warning(loads),
        _unfinished_warning(lost),
        _values_warning(values),
    ]
    return [warning for warning in warnings if warning is not None]


def _skipped_events_warning(count: int) -> TraceWarning | None:
    if not count:
        return None
    message = f"{count:,} allocation or debug events have no time and stay outside the table"
    return TraceWarning("events_beside", message, "latency and split are not affected; see EventTable.side")


def _quantisation_warning(count: int) -> TraceWarning | None:
    if not count:
        return None
    message = (
        f"the delegate truncates operator durations to whole microseconds: up to {count} µs per inference are counted "
        "as framework time; start times are not measured"
    )
    return TraceWarning("quantised_durations", message, "use means over many inferences, not single short operators")


def _several_methods_warning(loads: int) -> TraceWarning | None:
    if loads < 2:  # noqa: PLR2004 - one method is the usual case
        return None
    message = f"{loads} methods were loaded; inferences are distinguished by what they run, not by name"
    return TraceWarning("several_methods", message, "use the figures per method; the latency over all calls mixes them")


def _count_unfinished_events(segment: Segment) -> int:
    """Count the events of a segment that belong to no inference although they are not part of loading."""
    scope = segment.columns["scope"]
    loading = scope.equals(Scope.LOAD.value) | scope.equals(Scope.INIT.value)
    return int(((segment.inference < 0) & ~loading).sum()) * segment.repeats


def _unfinished_warning(lost: int) -> TraceWarning | None:
    if not lost:
        return None
    message = f"{lost:,} event{'s' if lost > 1 else ''} outside any inference: the run ended during one"
    return TraceWarning("unfinished_inference", message, "they stay in the table but are not counted")


_WORD = 4
_FEWEST = 4
_CHUNK_BYTES = 1 << 20
WORTH_BYTES = 1 << 20
"""Size in bytes below which blocks are decoded faster than compared; measured by bench/decode.py, see

docs/design/etdump.md.
"""


class Footprint(NamedTuple):
    """Byte positions of one decoded block in the file."""

    low: int  # first byte that belongs to it
    high: int  # first byte behind it
    tables: Ints  # positions of all its tables, which begin with the distance to their layout
    starts: Ints  # positions of the events' start times
    ends: Ints  # positions of the events' end times
    fields: Ints  # positions of all other fields that are read
    spans: tuple[Ints, Ints]  # first byte and length of all strings and vectors that are read
    layouts: Ints  # positions of the tables' layout descriptions


def repeated_spans(at: Ints) -> Iterator[tuple[int, int, bool]]:
    """Split blocks into runs at a constant distance that are worth comparing, and the blocks between them.

    Yields the first block, the one after the last, and whether it is such a run.
    """
    step = np.diff(at)
    border = (np.flatnonzero(np.diff(step)) + 1).tolist()
    first = 0
    # A block fills the distance to the one before it, so those of one size begin behind the first of a stretch.
    for begin, end in zip([0, *border], [*border, len(step)], strict=True):
        if end - begin >= _FEWEST and abs(int(at[end] - at[begin])) >= WORTH_BYTES:
            if first < begin + 1:
                yield first, begin + 1, False
            first = end + 1
            yield begin + 1, first, True
    if first < len(at):
        yield first, len(at), False


def repeated_times(
    buffer: FlatBuffer, at: Ints, footprint: Footprint
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]] | None:
    """Return start and end of every event of blocks that repeat the first of them, of shape (blocks, events) each.

    None if one of them differs in anything else.
    """
    step = int(at[1] - at[0])
    view = _view_windows(buffer, at, step, footprint)
    if view is None:
        return None
    words = (footprint.tables - footprint.low) >> 2
    start, end = ((positions - footprint.low) >> 2 for positions in (footprint.starts, footprint.ends))
    free = _free_words(footprint, view.shape[1])
    if free is None or _describes_layouts(footprint, at):
        return None
    times = np.empty((len(at), len(start)), np.uint64), np.empty((len(at), len(end)), np.uint64)
    template = view[0].copy()
    rows = max(1, _CHUNK_BYTES // (view.shape[1] * _WORD))
    for first in range(0, len(at), rows):
        chunk = view[first : first + rows]
        if not _repeat_template(chunk, template, free, words, step * np.arange(first, first + len(chunk))):
            return None
        for target, column in zip(times, (start, end), strict=True):
            target[first : first + rows] = chunk[:, column + 1]
            target[first : first + rows] <<= np.uint64(32)
            target[first : first + rows] |= chunk[:, column]
    return times


def _free_words(footprint: Footprint, count: int) -> NDArray[np.bool_] | None:
    """Return the mask of words that may differ between blocks: times, and the distance of tables to their layouts.

    None if one of them is missing, is also read as anything else, or is outside of the block: in a damaged file
    fields may share bytes, and then a word that may differ would also be one that must not.
    """
    times = [footprint.starts, footprint.starts + _WORD, footprint.ends, footprint.ends + _WORD]
    positions = np.concatenate([footprint.tables, *times])
    words = (positions - footprint.low) >> 2
    if not all(len(part) and part.min() > 0 for part in times) or words.min() < 0 or words.max() >= count:
        return None
    free = np.zeros(count, bool)
    free[words] = True
    fixed = _fixed_words(footprint, count)
    overlap = fixed is None or len(np.unique(words)) < len(words) or bool((free & fixed).any())
    return None if overlap else free


def _fixed_words(footprint: Footprint, count: int) -> NDArray[np.bool_] | None:
    """Return the mask of words that must be equal: other fields, strings and vectors.

    None if one is outside the block.
    """
    first, length = footprint.spans
    begin, end = (first - footprint.low) >> 2, ((first + length - 1 - footprint.low) >> 2) + 1
    fields = (footprint.fields - footprint.low) >> 2
    edges = np.concatenate([begin, end - 1, fields])
    if len(edges) and (edges.min() < 0 or edges.max() >= count):
        return None
    covered = np.zeros(count + 1, np.int64)
    np.add.at(covered, begin, 1)
    np.add.at(covered, end, -1)
    fixed: NDArray[np.bool_] = np.cumsum(covered)[:count] > 0
    fixed[fields] = True
    return fixed


def _describes_layouts(footprint: Footprint, at: Ints) -> bool:
    """Return whether a layout description lies inside of the blocks, where it could differ between them."""
    low, high = (
        int(edge) + int(shift - at[0]) for edge, shift in ((footprint.low, at.min()), (footprint.high, at.max()))
    )
    return bool(((footprint.layouts >= low) & (footprint.layouts < high)).any())


def _view_windows(buffer: FlatBuffer, at: Ints, step: int, footprint: Footprint) -> NDArray[np.uint32] | None:
    """Return the blocks' words as rows of one array, without copying; None if they overlap or leave the file."""
    height = footprint.high - footprint.low
    ends = at[[0, -1]] + (footprint.low - int(at[0]))
    is_in_file = ends.min() >= 0 and ends.max() + height <= buffer.size
    if step % _WORD or abs(step) < height or not is_in_file:
        return None
    words = buffer.words[int(ends[0]) >> 2 :] if step > 0 else buffer.words[: (int(ends[0]) + height + 3) >> 2]
    first = 0 if step > 0 else int(ends[0]) >> 2
    shape = len(at), (height + _WORD - 1) >> 2
    windows: NDArray[np.uint32] = np.ndarray(shape, np.uint32, words, first * _WORD, (step, _WORD))
    return windows


def _repeat_template(
    chunk: NDArray[np.uint32], template: NDArray[np.uint32], free: NDArray[np.bool_], tables: Ints, moved: Ints
) -> bool:
    """Return whether blocks equal the template outside of free words, and their tables point to the same layouts."""
    differs = np.bitwise_or.reduce(chunk ^ template, axis=0)
    if differs[~free].any():
        return False
    expected = template[tables].astype(np.int64) + moved[:, None]
    return bool((chunk[:, tables] == (expected & 0xFFFFFFFF)).all())
