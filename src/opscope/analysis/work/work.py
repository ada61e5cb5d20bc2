"""Exact work of a model: schema ``opscope.work/1``.

What each operator executes in one inference, counted and not timed: no noise touches it, and it is no time. Caches,
waiting for memory and the length of dependencies are not in it.

Tiles of a matrix unit hold more products than an operator needs: a tile sums up products of as many rows and columns as
a vector has sums, and kernels take several tiles together. Sizes are rounded up to them, channels to the factors that
an outer product takes at once, and a bias may be one more step. An explanation counts only if it gives the executed
products exactly.

The counts are those of a trace whose clock counted how often it was read: every time in its table is a number of reads,
and what was executed in an interval is what lies between two reads. So a table of times becomes one of instructions, or
of any other count, and is analysed like every other.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from opscope.analysis.operators.operators import UNKNOWN_METHOD
from opscope.core.errors import TraceFormatError
from opscope.core.table import Scope
from opscope.core.table.places import RecordedOperator, operator_key
from opscope.program.operators.kinds import Category

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.core.table import EventTable
    from opscope.core.table.nesting import Ints
    from opscope.core.table.places import OperatorKey
    from opscope.core.table.segment import Segment


_TILES = (1, 2, 4)
_FACTORS = (1, 2, 4)
_TAPS = (1, 3, 5, 7, 9, 15, 21, 25, 27, 35, 49, 81, 121)
_SUM_BITS = (32, 16)


class PaddedSize(msgspec.Struct, frozen=True):
    """Size that kernels round up.

    Attributes:
        name: what it counts: `output channels`, `rows`, `input channels`.
        needed: size that the model needs.
        executed: size that the kernel executes.
    """

    name: str
    needed: int
    executed: int


def padded_sizes(macs: int, capacity: int, shape: Sequence[int], axis: int, tile_bits: int) -> list[PaddedSize]:
    """Return sizes of a product or convolution that were rounded up; empty if no explanation is exact.

    Args:
        macs: multiply-accumulates that the model needs.
        capacity: products that the executed instructions hold.
        shape: shape of the output.
        axis: axis of the output's channels.
        tile_bits: length of a row of a tile.
    """
    numbers = prod(shape)
    if not numbers or macs % numbers or capacity <= macs:
        return []
    explanations = [
        [size for size in sizes if size.executed > size.needed]
        for sizes in _explain_capacity(macs // numbers, capacity, numbers // shape[axis], shape[axis], tile_bits)
    ]
    return min(explanations, key=lambda sizes: (len(sizes), sum(size.executed for size in sizes)), default=[])


def _explain_capacity(
    depth: int, capacity: int, rows: int, channels: int, tile_bits: int
) -> Iterator[list[PaddedSize]]:
    """Yield sizes that give the executed products exactly, a bias as one more step included."""
    taps = [tap for tap in _TAPS if depth % tap == 0]
    for bits, wide, high, taps_of_kernel, factor, bias in product(
        _SUM_BITS, _TILES, (0, *_TILES), taps, _FACTORS, (0, 1)
    ):
        lanes = tile_bits // bits
        columns = _round_up(channels, wide * lanes)
        lines = _round_up(rows, high * lanes) if high else rows
        inputs = _round_up(depth // taps_of_kernel, factor)
        if columns * lines * (taps_of_kernel * inputs + bias) == capacity:
            yield [
                PaddedSize("output channels", channels, columns),
                PaddedSize("rows", rows, lines),
                PaddedSize("input channels", depth // taps_of_kernel, inputs),
            ]


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


class CountedOperator(RecordedOperator, msgspec.Struct, frozen=True):
    """Work of an operator in one inference.

    Attributes:
        layer: layer that it belongs to; null if unknown.
        category: upper level of the taxonomy.
        kind: lower level.
        instructions: instructions that were executed.
        classes: instructions by class; they add up to ``instructions``.
        bytes_loaded: bytes loaded by all instructions.
        bytes_stored: bytes stored by all instructions.
        outer_products: outer products on tiles of a matrix unit.
        mac_capacity: multiply-accumulates that its multiply-add, dot product and outer product instructions hold.
        tile_capacity: part of ``mac_capacity`` that is summed up on tiles: outer products, and SME2's other products.
        streaming_starts: how often the processor enters the mode of its matrix unit.
        padded: sizes that were rounded up to whole tiles, where that explains ``tile_capacity`` exactly.
        macs: multiply-accumulates that the model needs; null if unknown.
        padding_macs: part of ``macs`` with zeros around the input of a convolution, which kernels may leave out; 0
            where it is not counted separately.
    """

    instruction: int
    position: int
    layer: str | None
    category: str
    kind: str
    instructions: int
    classes: dict[str, int]
    bytes_loaded: int
    bytes_stored: int
    outer_products: int
    mac_capacity: int
    macs: int | None
    padding_macs: int = 0
    tile_capacity: int = 0
    streaming_starts: int = 0
    padded: list[PaddedSize] = []

    @property
    def on_tiles(self) -> bool:
        """Return whether all of its multiply-accumulates are summed up on tiles."""
        return bool(self.macs) and self.tile_capacity == self.mac_capacity >= (self.macs or 0)

    @property
    def held_macs(self) -> int | None:
        """Multiply-accumulates in its multiplying instructions; None if it has none, or other code does some."""
        least = (self.macs or 0) - self.padding_macs
        if not self.macs or self.mac_capacity < least:
            return None
        return self.macs if self.mac_capacity >= self.macs else least


class RestWork(msgspec.Struct, frozen=True):
    """Instructions outside of operators, which may differ from run to run.

    Attributes:
        framework: within the inference, tracing included.
        before: loading and warm-up.
        after: writing results.
    """

    framework: int
    before: int
    after: int


class Work(msgspec.Struct, frozen=True, tag_field="schema", tag="opscope.work/1"):
    """Exact work of one inference of a model; of several methods, of one call of each.

    Attributes:
        model: path of the program.
        sha256: SHA-256 of the program.
        runtime: runtime that ran it, with its version.
        processor: processor that the counter shows programs.
        counter: what counted, with its version.
        inputs: inputs that were asked for or guessed; empty where all are as the program declares them.
        off: feature groups that were switched off.
        others: the same model with feature groups off, in the order asked for.
        operators: operators in the order in which they run.
        rest: what is no operator's.
        files: SHA-256 of the files of which instructions ran, by their names: libraries of the runtime and of the
            system, and the runner that was built here.
    """

    model: str
    sha256: str
    runtime: str
    processor: str
    counter: str
    inputs: list[str]
    off: list[str]
    operators: list[CountedOperator]
    rest: RestWork
    others: list[Work] = []
    files: dict[str, str] = {}

    @property
    def instructions(self) -> int:
        """Instructions of all operators."""
        return sum(operator.instructions for operator in self.operators)


CLASSES = ("multiply_add", "dot_product", "outer_product", "vector", "branch", "load", "store", "scalar", "unknown")
"""Classes of instructions; an instruction is of the first class that fits.

Fused vector multiply-adds; integer dot products; tiles; other vector arithmetic; jumps, calls and returns; plain loads
and stores of any register; all other instructions; and code that no file holds.
"""
INSTRUCTIONS, LOADED, STORED, PRODUCTS = "instructions", "bytes_loaded", "bytes_stored", "mac_capacity"
TILE_PRODUCTS, STREAMING = "tile_capacity", "streaming_starts"


def operators_of(
    analysis: Analysis,
    tables: Mapping[str, EventTable],
    classes: list[str],
    padding: Mapping[OperatorKey, int],
    tile_bits: int | None,
    channels_last: bool,
) -> list[CountedOperator]:
    """Return the operators of an analysis with their counts.

    Args:
        analysis: analysis of the table of instructions; one measured inference of each method is counted.
        tables: table of each count, by its name: the names above, and the classes of instructions.
        classes: classes of instructions, in the order of the result.
        padding: multiply-accumulates with zeros around an input, of one call of an operator.
        tile_bits: length of a row of a tile; None without a matrix unit.
        channels_last: whether the last size of a convolution's output is that of its channels, else the second.
    """
    counts = {name: _counts_by_operator(table) for name, table in tables.items()}
    operators = []
    for operator in analysis.operators:
        key = operator_key(operator)
        if key is None or operator.kind == "framework":
            continue
        counts_of_operator = {
            name: table.get((key.method, key.instruction, key.position), 0) for name, table in counts.items()
        }
        # what an analysis knows is per call of any method, and counted is a call of its own
        share = analysis.calls_share(operator.method) if len(analysis.methods) > 1 else 1.0
        calls, macs = operator.calls / share, None if operator.macs is None else round(operator.macs / share)
        by_class = {name: counts_of_operator[name] for name in classes if counts_of_operator[name]}
        counted = CountedOperator(
            method=operator.method,
            instruction=key.instruction,
            position=key.position,
            name=operator.name,
            layer=operator.module,
            category=operator.category.value,
            kind=operator.kind,
            instructions=counts_of_operator[INSTRUCTIONS],
            classes=by_class,
            bytes_loaded=counts_of_operator[LOADED],
            bytes_stored=counts_of_operator[STORED],
            outer_products=counts_of_operator["outer_product"],
            mac_capacity=counts_of_operator[PRODUCTS],
            macs=macs,
            tile_capacity=counts_of_operator[TILE_PRODUCTS],
            streaming_starts=counts_of_operator[STREAMING],
            padding_macs=round(padding.get(key, 0) * calls) if macs else 0,
        )
        if tile_bits and counted.on_tiles and macs and operator.shape and calls == 1:
            axis = -1 if channels_last or operator.category is not Category.CONVOLUTION else 1
            sizes = padded_sizes(macs, counted.tile_capacity, operator.shape, axis, tile_bits)
            counted = msgspec.structs.replace(counted, padded=sizes)
        operators.append(counted)
    return sorted(
        operators,
        key=lambda operator_counts: (operator_counts.method, operator_counts.instruction, operator_counts.position),
    )


def _counts_by_operator(table: EventTable) -> dict[tuple[str, int, int], int]:
    """Return the counts of the measured inference by method, instruction and position."""
    (self_times,) = table.self_times
    return {
        (UNKNOWN_METHOD if key.method is None else key.method, key.instruction, key.position): spent.self_time
        for key, spent in self_times.items()
        if key.instruction is not None and key.position is not None
    }


READ_NS = 1_000_000
"""Time in ns that a read adds to the clock."""


class CountedMoments(NamedTuple):
    """Amount executed at each read of the clock, and at the end; shape (reads + 1,) each.

    A profiler that writes a text before and after what it times of an operator does so between two reads: that is none
    of the operator's work.
    """

    at: Ints  # before the read
    behind: Ints  # once the first text behind the read had been written; as ``at`` without one before the next read
    ahead: Ints  # when the last text before the read began; as ``at`` without one since the last read


class CountedReads:
    """Intervals of a trace as numbers of reads.

    ``table``: of the trace; ``start``: what the clock read where the times of the trace count from.

    Raises TraceFormatError: a time is no number of reads, or the operators of a delegate do not fit into its call.
    """

    def __init__(self, table: EventTable, start: int = 0) -> None:
        self._table, self._start = table, start
        self._intervals = [[_read_intervals(segment, start) for segment in trace] for trace in table.traces]

    @property
    def measured(self) -> tuple[int, int]:
        """First and last read of the inferences that are not set aside."""
        times = self._table.inference_times()
        first, last = times.start[~times.warmup], (times.start + times.duration)[~times.warmup]
        return (int(first.min()) + self._start) // READ_NS, (int(last.max()) + self._start) // READ_NS

    def count_events(self, moments: CountedMoments) -> EventTable:
        """Return the table with a count in place of every time."""
        traces = tuple(
            tuple(_count_segment(segment, reads, moments) for segment, reads in zip(trace, intervals, strict=True))
            for trace, intervals in zip(self._table.traces, self._intervals, strict=True)
        )
        return replace(self._table, traces=traces)


def _count_segment(segment: Segment, reads: tuple[Ints, Ints], moments: CountedMoments) -> Segment:
    kinds = segment.columns["scope"]
    operator = kinds.equals(Scope.KERNEL.value) | kinds.equals(Scope.DELEGATE_OP.value)
    starts, ends = (np.minimum(side, len(moments.at) - 1) for side in reads)
    first = np.where(operator, moments.behind[starts], moments.at[starts])
    last = np.where(operator, moments.ahead[ends], moments.at[ends])
    return replace(segment, start=first, duration=last - first)


def _read_intervals(segment: Segment, began: int) -> tuple[Ints, Ints]:
    """Return the first and last read of every event; shape (repeats, events) each."""
    if ((segment.start + began) % READ_NS).any() or (segment.duration % READ_NS).any():
        raise TraceFormatError("a time does not count clock reads: the trace was not written with the counted clock")
    start, length = (segment.start + began) // READ_NS, segment.duration // READ_NS
    for run, owner in _runs_without_start(segment):
        start[:, run] = _place_run(segment, start, length, run, owner)
    return start, start + length


def _runs_without_start(segment: Segment) -> Iterator[tuple[Ints, int]]:
    """Yield runs of a delegate's operators with durations only, and the row of the event around them."""
    synthetic = segment.columns["synthetic_start"]
    for owner in np.unique(segment.parent[synthetic]):
        children = np.flatnonzero(segment.parent == owner)
        ends = np.flatnonzero(np.diff(synthetic[children].astype(np.int64))) + 1
        yield from ((run, int(owner)) for run in np.split(children, ends) if synthetic[run[0]])


def _place_run(segment: Segment, start: Ints, length: Ints, run: Ints, owner: int) -> Ints:
    """Return starts of a run of operators between the events around it; the last read ends their delegate."""
    children = np.flatnonzero(segment.parent == owner)
    before, behind = children[children < run[0]], children[children > run[-1]]
    low = start[:, before[-1]] + length[:, before[-1]] if len(before) else start[:, owner]
    high = start[:, behind[0]] if len(behind) else start[:, owner] + length[:, owner]
    lengths = length[:, run]
    lead = high - low - lengths.sum(axis=1) - 1
    if (lead < 0).any():
        raise TraceFormatError("the operators of a delegate take more clock reads than its call")
    starts: Ints = (low + lead)[:, None] + np.cumsum(lengths, axis=1) - lengths
    return starts
