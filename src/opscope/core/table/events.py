"""EventTable: a trace as one columnar table with its clock, call tree and warnings; allocations and logged values."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from opscope.core.errors import InvariantError
from opscope.core.table.places import chosen_self_times, self_times
from opscope.core.table.scope import Scope
from opscope.core.table.segment import SCOPES, TEXTS, Coded, Inferences, Segment, coded_from

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl
    from numpy.typing import NDArray
    from typing_extensions import Self

    from opscope.core.table.places import ChosenSelfTimes, SelfTimeKey, SelfTimes

    Values: TypeAlias = NDArray[Any] | Coded | pl.Series
    """A column: an array of numbers, coded text, or a Series."""


class Allocation(msgspec.Struct, frozen=True):
    """Memory taken from one of the runtime's allocators."""

    run: int  # block of the file, from 0
    allocator: str  # its name, or its number where the file names none
    size: int  # in bytes


class LoggedValue(msgspec.Struct, frozen=True):
    """A value that the runtime logged for debugging."""

    run: int  # block of the file, from 0
    name: str | None  # as recorded; null without
    chain: int  # of instructions
    instruction: int | None  # within the chain; null where none is given
    delegate_id: int | None  # integer identifier of the delegate; null without
    delegate_label: str | None  # textual identifier of the delegate; null without
    kind: str  # `null`, `int`, `bool`, `float`, `double`, `tensor`, `tensor_list`, `string` or `unknown`
    number: float | int | None  # the value of a number or truth value; null for all others
    shape: tuple[int, ...] | None  # sizes of a tensor; null for all others
    dtype: int | None  # number of the tensor's scalar type; null for all others
    offset: int | None  # where the tensor's data stand in the debug buffer; null for all others
    output: bool | None  # whether it is an output of the method; null where the file does not tell


class DelegateValue(msgspec.Struct, frozen=True):
    """A value that a delegate reported of a call, and that is no time on the clock of the call."""

    run: int  # block of the file, from 0
    instruction: int  # of the call; -1 where none is given
    name: str  # as recorded
    value: int  # in its unit
    unit: str  # `us`, `cycles`, `count`, `bytes`; `ns` for times of another clock, or that overlap others


class NamedKernel(msgspec.Struct, frozen=True):
    """The kernel that ran an event, as the trace names both."""

    event: str
    kernel: str


class SideEvents(msgspec.Struct, frozen=True):
    """Everything of a trace that has no place in the tree of its events."""

    allocations: tuple[Allocation, ...] = ()
    logged: tuple[LoggedValue, ...] = ()
    values: tuple[DelegateValue, ...] = ()
    kernels: tuple[NamedKernel, ...] = ()

    def plus(self, other: SideEvents) -> SideEvents:
        """Both together, in order."""
        return SideEvents(
            self.allocations + other.allocations,
            self.logged + other.logged,
            self.values + other.values,
            self.kernels + other.kernels,
        )


class Clock(str, enum.Enum):
    """Unit of every time in a table."""

    NS = "ns"
    CYCLES = "cycles"


class TraceWarning(msgspec.Struct, frozen=True):
    """Something a reader noticed that limits what the trace can tell.

    Attributes:
        code: stable identifier, lower case with underscores.
        message: what was noticed, with its extent.
        hint: what to do about it.
    """

    code: str
    message: str
    hint: str


@dataclass(frozen=True)
class EventTable:
    """All events of one or more traces, in file order.

    The rows are kept as segments (``opscope.core.table.segment``); :attr:`frame` is the documented table made of them.

    Attributes:
        traces: the segments of each trace file, in file order; a file is a process.
        clock: unit of the time columns.
        warnings: what limits the table's meaning.
        warmup: inferences set aside in each process.
        side: what each trace holds besides events with times.
    """

    traces: tuple[tuple[Segment, ...], ...]
    clock: Clock
    warnings: tuple[TraceWarning, ...] = ()
    warmup: tuple[int, ...] = ()
    side: tuple[SideEvents, ...] = (SideEvents(),)

    @classmethod
    def build(cls, columns: Mapping[str, Values], clock: Clock, warnings: Sequence[TraceWarning] = ()) -> EventTable:
        """A table from what a reader found, with the tree columns derived and the invariants checked."""
        plain = {name: _convert_column(name, values) for name, values in columns.items()}
        start, duration = (plain.pop(name).reshape(1, -1) for name in ("start", "duration"))
        return cls.of_segments([Segment.build(plain, start, duration)], clock, warnings)

    @classmethod
    def of_segments(
        cls, segments: Sequence[Segment], clock: Clock, warnings: Sequence[TraceWarning] = ()
    ) -> EventTable:
        """A table of one trace from its segments, in file order; their inferences are numbered here."""
        numbered, inferences = [], 0
        for segment in segments:
            numbered.append(segment.numbered(inferences))
            inferences += segment.inferences
        return cls((tuple(numbered),), clock, tuple(warnings), (0,))

    @classmethod
    def concat(cls, tables: Sequence[EventTable]) -> EventTable:
        """Several tables as one: processes are numbered in order, warnings joined."""
        if len({table.clock for table in tables}) != 1:
            raise InvariantError("traces with different clocks, or none at all, cannot be combined")
        warnings = dict.fromkeys(warning for table in tables for warning in table.warnings)
        traces = tuple(trace for table in tables for trace in table.traces)
        warmup = tuple(count for table in tables for count in table.warmup)
        side = tuple(own for table in tables for own in table.side)
        return cls(traces, tables[0].clock, tuple(warnings), warmup, side)

    @property
    def processes(self) -> int:
        """Number of trace files in the table."""
        return len(self.traces)

    @property
    def events(self) -> int:
        """Number of rows."""
        return sum(segment.repeats * segment.events for trace in self.traces for segment in trace)

    @cached_property
    def frame(self) -> pl.DataFrame:
        """The rows; columns as in ``opscope.core.table.schema.COLUMNS``."""
        from opscope.core.table.schema import frame_of  # noqa: PLC0415 - an analysis needs no frame, nor polars

        return frame_of(self.traces, self.warmup)

    def inferences(self) -> pl.DataFrame:
        """The inferences: one row each, in order of process and inference.

        Columns: ``process``, ``inference``, ``warmup``, ``method``, ``start``, ``duration`` (the end-to-end latency).
        """
        from opscope.core.table.schema import inference_frame  # noqa: PLC0415 - likewise

        return inference_frame(self.inference_times())

    def inference_times(self) -> Inferences:
        """The inferences as arrays."""
        marked = zip(self.traces, self.warmup, strict=True)
        return joined_inferences([_list_inferences(p, trace, w) for p, (trace, w) in enumerate(marked)])

    def count_events(self) -> list[NDArray[np.int64]]:
        """Return the number of events of each inference, the call included, as one array for each process."""
        return [
            np.concatenate(
                [
                    np.tile(
                        np.bincount(segment.inference[segment.inference >= 0], minlength=len(segment.roots)),
                        segment.repeats,
                    )
                    for segment in trace
                ]
            )
            for trace in self.traces
        ]

    @cached_property
    def self_times(self) -> tuple[dict[SelfTimeKey, SelfTimes], ...]:
        """Return the self times of each process's measured inferences at every place."""
        return tuple(self_times(trace, warmup) for trace, warmup in zip(self.traces, self.warmup, strict=True))

    def chosen_self_times(self, weights: Sequence[NDArray[np.float64]]) -> list[dict[SelfTimeKey, ChosenSelfTimes]]:
        """Return the self times by place of each process's inferences whose weight is above 0."""
        return [
            chosen_self_times(trace, process_weights)
            for trace, process_weights in zip(self.traces, weights, strict=True)
        ]

    def with_warmup(self, count: int | Sequence[int]) -> Self:
        """Mark the first inferences of every process as warm-up."""
        counts = (count,) * self.processes if isinstance(count, int) else tuple(count)
        if len(counts) != self.processes:
            raise ValueError(f"{len(counts)} numbers for {self.processes} processes")
        return replace(self, warmup=counts)

    @property
    def holds_tiles(self) -> bool:
        """Return whether there are events of AI Engine tiles, which are in no inference."""
        return bool((self.frame["scope"] == Scope.TILE_EVENT.value).any())

    def with_method(self, name: str) -> Self:
        """Return the table with this method for every inference, if the program has only one."""
        traces = tuple(tuple(_with_method(segment, name) for segment in trace) for trace in self.traces)
        return replace(self, traces=traces)

    def with_inference_methods(self, names: Sequence[Sequence[str]]) -> EventTable:
        """Return the table with a method for every inference.

        Args:
            names: one list for each process, of one name for each of its inferences, in their order.
        """
        traces = [
            tuple(part for segment in trace for part in segment.split_by_method(own_names))
            for trace, own_names in zip(self.traces, names, strict=True)
        ]
        return replace(self, traces=tuple(traces))

    def with_method_names(self, names: Mapping[str | None, str]) -> EventTable:
        """Return the table with other names for methods; None is the method that the trace does not name."""
        traces = tuple(tuple(_rename_methods(segment, names) for segment in trace) for trace in self.traces)
        return replace(self, traces=traces)

    def with_delegate_calls_from(self, first: Mapping[str, int]) -> EventTable:
        """Return the table with delegate calls numbered as in the program, if the trace counts them from 0."""
        traces = tuple(tuple(_renumber_calls(segment, first) for segment in trace) for trace in self.traces)
        return replace(self, traces=traces)

    def with_instructions(
        self, numbers: Mapping[str, int], enclosed: Mapping[int, Mapping[str, int]], others_from: int
    ) -> EventTable:
        """Return the table with kernels numbered by their names instead of the order in which they ran.

        Kernels of the graphs that a kernel runs are numbered by the number of that kernel and their names.
        """
        traces = tuple(
            tuple(_number_kernels(segment, numbers, enclosed, others_from) for segment in trace)
            for trace in self.traces
        )
        return replace(self, traces=traces)

    def with_warnings(self, *more: TraceWarning) -> EventTable:
        """Return the table with further warnings."""
        return replace(self, warnings=tuple(dict.fromkeys((*self.warnings, *more))))

    def with_side(self, side: SideEvents) -> EventTable:
        """Return the table of one trace with what stands beside its events."""
        return replace(self, side=(side,))

    def with_processes(self, kept: Sequence[int]) -> Self:
        """Return the table with the events of some processes only, renumbered in the given order."""
        traces = tuple(self.traces[process] for process in kept)
        warmup = tuple(self.warmup[process] for process in kept)
        return replace(self, traces=traces, warmup=warmup, side=tuple(self.side[process] for process in kept))

    def measured(self) -> pl.DataFrame:
        """Return the rows of the inferences that count: no warm-up, no loading."""
        frame = self.frame
        return frame.filter(frame["inference"].is_not_null() & ~frame["warmup"])

    def loading(self) -> list[int | None]:
        """Return the time of loading methods in each process; None if the trace has no such event."""
        return [_sum_load_time(trace) for trace in self.traces]


def joined_inferences(parts: Sequence[Inferences]) -> Inferences:
    """Return the inferences of several processes, one after the other."""
    return Inferences(
        process=np.concatenate([part.process for part in parts]),
        inference=np.concatenate([part.inference for part in parts]),
        warmup=np.concatenate([part.warmup for part in parts]),
        start=np.concatenate([part.start for part in parts]),
        duration=np.concatenate([part.duration for part in parts]),
        method=_join_coded([part.method for part in parts]),
    )


def _join_coded(columns: Sequence[Coded]) -> Coded:
    """Return columns of text, one after the other."""
    texts = tuple(dict.fromkeys(text for column in columns for text in column.texts))
    numbers = [np.array([*(texts.index(text) for text in column.texts), -1], np.int64) for column in columns]
    return Coded(np.concatenate([lookup[column.codes] for lookup, column in zip(numbers, columns, strict=True)]), texts)


def _list_inferences(process: int, trace: Sequence[Segment], warmup: int) -> Inferences:
    start = np.concatenate([segment.start[:, segment.roots].ravel() for segment in trace])
    duration = np.concatenate([segment.duration[:, segment.roots].ravel() for segment in trace])
    methods = ((segment.columns["method"], segment) for segment in trace)
    method = _join_coded([Coded(np.tile(coded.codes[s.roots], s.repeats), coded.texts) for coded, s in methods])
    number = np.arange(len(start))
    return Inferences(np.full(len(start), process), number, number < warmup, start, duration, method)


def _rename_methods(segment: Segment, names: Mapping[str | None, str]) -> Segment:
    method = segment.columns["method"]
    renamed = tuple(names.get(text, text) for text in method.texts)
    codes = method.codes
    if None in names:
        codes = np.where((codes < 0) & (segment.inference >= 0), len(renamed), codes)
        renamed = (*renamed, names[None])
    # Two texts may have become one; a text has one code.
    texts = tuple(dict.fromkeys(renamed))
    lookup = np.array([texts.index(text) for text in renamed] or [0])
    return segment.with_columns(method=Coded(np.where(codes < 0, -1, lookup[codes]), texts))


def _renumber_calls(segment: Segment, first: Mapping[str, int]) -> Segment:
    method, instruction = segment.columns["method"], segment.columns["instruction"]
    inner = segment.columns["scope"].equals(Scope.DELEGATE_OP.value)
    offset = np.array([*(first.get(name, 0) for name in method.texts), 0], np.int64)[method.codes]
    return segment.with_columns(instruction=np.where(inner, instruction + offset, instruction))


def _number_kernels(
    segment: Segment, numbers: Mapping[str, int], enclosed: Mapping[int, Mapping[str, int]], others_from: int
) -> Segment:
    name, scope, before = (segment.columns[column] for column in ("name", "scope", "instruction"))
    parent = segment.parent
    kernel = scope.equals(Scope.KERNEL.value) | scope.equals(Scope.DELEGATE_OP.value)
    above = np.where(parent >= 0, parent, 0)
    # Below the inference itself, or below the call that runs its graph.
    caller = np.where(parent[above] < 0, above, parent[above])
    outermost = kernel & (parent >= 0) & scope.equals(Scope.EXECUTE.value)[caller]
    number = np.where(outermost, _by_name(name, numbers), -1)
    # Kernels inside of others: of each that is numbered in the round before, those that its graphs run.
    inner, waiting = kernel & ~outermost & (parent >= 0), set(number[number >= 0].tolist()) & enclosed.keys()
    while waiting:
        numbered: set[int] = set()
        for owner in waiting:
            ran = inner & (number[above[above]] == owner)
            number = np.where(ran, _by_name(name, enclosed[owner]), number)
            numbered |= set(number[ran].tolist())
        waiting = numbered & enclosed.keys()
    after = np.where(number >= 0, number, np.where(before >= 0, before + others_from, before))
    # The calls that run the graphs of a kernel are its own.
    is_inner_call = ~kernel & (parent >= 0) & kernel[above]
    return segment.with_columns(instruction=np.where(is_inner_call, after[above], after))


def _by_name(name: Coded, known: Mapping[str, int]) -> NDArray[np.int64]:
    return np.array([*(known.get(text, -1) for text in name.texts), -1], np.int64)[name.codes]


def _with_method(segment: Segment, name: str) -> Segment:
    return segment.with_columns(method=Coded(np.where(segment.inference >= 0, 0, -1), (name,)))


def _sum_load_time(trace: Sequence[Segment]) -> int | None:
    total = None
    for segment in trace:
        rows = np.flatnonzero(segment.columns["scope"].equals(Scope.LOAD.value) & (segment.parent < 0))
        if len(rows):
            total = (total or 0) + int(segment.duration[:, rows].sum())
    return total


def _convert_column(name: str, values: Values) -> Any:  # noqa: ANN401 - an array, coded text or a tuple, by the column's name
    """Return a column as segments keep it; a Series becomes an array, coded text or a tuple of bytes."""
    if isinstance(values, Coded | np.ndarray) or name not in {*TEXTS, "metadata"}:
        return _convert_numbers(values)
    listed = list(values)
    if name == "metadata":
        return tuple(listed)
    if name == "scope":
        return Coded(np.array([SCOPES.index(value) for value in listed], np.int64), SCOPES)
    return coded_from(listed)


def _convert_numbers(values: Any) -> Any:  # noqa: ANN401 - likewise
    if isinstance(values, Coded | np.ndarray):
        return values
    if hasattr(values, "fill_null"):
        values = values.fill_null(-1)
    return np.asarray(values)
