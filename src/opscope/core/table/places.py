"""Self time by place in the program: what every split of latency is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec
import numpy as np

from opscope.core.table import nesting
from opscope.core.table.scope import LEAVES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from opscope.core.table.nesting import Ints
    from opscope.core.table.segment import Segment

    Floats: TypeAlias = NDArray[np.float64]

FIRST_INNER = 1 << 20
"""Instructions from here on are of graphs that an operator runs, such as the body of a loop, where a reader numbers
them so: no program has as many of its own."""


class OperatorKey(NamedTuple):
    """Which operator, whatever it is called: method, instruction, and position within the instruction's call."""

    method: str
    instruction: int
    position: int


class Located(Protocol):
    """Something that is said of an operator, or of the framework's own time."""

    @property
    def method(self) -> str: ...  # noqa: D102 - as in OperatorKey
    @property
    def instruction(self) -> int | None: ...  # noqa: D102 - None for the framework's own time outside of instructions
    @property
    def position(self) -> int | None: ...  # noqa: D102 - None for the framework's own time


LocatedRow = TypeVar("LocatedRow", bound=Located)


def operator_key(row: Located) -> OperatorKey | None:
    """Return the operator that a row is about; None for the framework's own time."""
    if row.instruction is None or row.position is None:
        return None
    return OperatorKey(row.method, row.instruction, row.position)


def by_operator(rows: Iterable[LocatedRow]) -> dict[OperatorKey, LocatedRow]:
    """Return rows by their operators, without the framework's own time."""
    return {key: row for row in rows if (key := operator_key(row)) is not None}


class RecordedOperator(msgspec.Struct, frozen=True):
    """An operator as a trace has it, or the framework's own time.

    Attributes:
        method: the program's method.
        instruction: of its chain; null for the framework's own time outside of instructions.
        position: order among the events within the instruction's call; null for framework time.
        name: as recorded.
    """

    method: str
    instruction: int | None
    position: int | None
    name: str


class SelfTimeKey(NamedTuple):
    """A place in the program that self time is counted for: an operator, or a step of the framework."""

    method: str | None  # of the program; None where the trace does not tell
    instruction: int | None  # of its chain; None for framework time outside of instructions
    position: int | None  # order within the instruction's call; None for framework time
    framework: str | None  # name of the framework's step; None for operators
    chain: int | None  # of instructions; None for framework time outside of chains


class SelfTimes(NamedTuple):
    """What was spent at a place in the measured inferences of one process."""

    name: str  # the first name seen there
    backend: str | None  # who computed it; None for the framework
    events: int  # number of events
    self_time: int  # their self time
    unresolved: int  # how much longer they may have taken together, for durations that were cut off

    def plus(self, other: SelfTimes) -> SelfTimes:
        """Return both together, under the first name."""
        return SelfTimes(
            self.name,
            self.backend,
            self.events + other.events,
            self.self_time + other.self_time,
            self.unresolved + other.unresolved,
        )


def self_times(trace: Sequence[Segment], warmup: int) -> dict[SelfTimeKey, SelfTimes]:
    """Return the self times of one process's measured inferences by place, in program order of first appearance."""
    by_place: dict[SelfTimeKey, SelfTimes] = {}
    for segment in trace:
        for key, segment_times in _sum_segment(segment, warmup - segment.first_inference):
            known = by_place.get(key)
            by_place[key] = segment_times if known is None else known.plus(segment_times)
    return by_place


class ChosenSelfTimes(NamedTuple):
    """Self time at a place of one process in the chosen inferences in which anything ran there."""

    samples: Floats  # one for each of these inferences, in any order
    weight: float  # of these inferences together; all chosen ones of the process have 1

    def plus(self, other: ChosenSelfTimes) -> ChosenSelfTimes:
        """Join two parts of a process."""
        return ChosenSelfTimes(np.concatenate([self.samples, other.samples]), self.weight + other.weight)


def chosen_self_times(trace: Sequence[Segment], weights: Floats) -> dict[SelfTimeKey, ChosenSelfTimes]:
    """Return the self times of one process by place, of the inferences whose weight is above 0.

    ``weights``: one for each inference of the process, in the order of the trace, warm-up included.
    """
    by_place: dict[SelfTimeKey, ChosenSelfTimes] = {}
    for segment in trace:
        own_weights = weights[segment.first_inference : segment.first_inference + segment.inferences]
        for key, chosen in _chosen_of_segment(segment, own_weights.reshape(segment.repeats, -1)):
            known = by_place.get(key)
            by_place[key] = chosen if known is None else known.plus(chosen)
    return by_place


def _chosen_of_segment(segment: Segment, weights: Floats) -> Iterator[tuple[SelfTimeKey, ChosenSelfTimes]]:
    """Yield the chosen self times of a segment's places; weights are (repeats, inferences of the template)."""
    repeats, roots = np.flatnonzero(weights.any(axis=1)), np.any(weights, axis=0)
    if not len(repeats):
        return
    rows = np.flatnonzero((segment.inference >= 0) & np.take(roots, segment.inference))
    if not len(rows):
        return
    group, first = _number_places(segment, rows)
    # Sums over the rows of a place in one inference of the template: a column for each such pair, by place.
    pair = group * weights.shape[1] + segment.inference[rows]
    order = np.argsort(pair, kind="stable")
    begins = np.flatnonzero(np.diff(pair[order], prepend=-1))
    self_time = nesting.self_times(segment.duration[repeats], segment.parent)[:, rows[order]]
    sums = np.add.reduceat(self_time, begins, axis=1)
    column_place, column_inference = np.divmod(pair[order[begins]], weights.shape[1])
    column_weights = weights[repeats][:, column_inference]
    bounds = np.searchsorted(column_place, np.arange(len(first) + 1))
    for number, row in enumerate(rows[first].tolist()):
        columns = slice(bounds[number], bounds[number + 1])
        own_weights = column_weights[:, columns]
        samples = sums[:, columns][own_weights > 0].astype(np.float64)
        if len(samples):
            yield _read_place(segment, row), ChosenSelfTimes(samples, float(own_weights.sum()))


def _sum_segment(segment: Segment, warmup: int) -> Iterator[tuple[SelfTimeKey, SelfTimes]]:
    """Yield the self times of one segment's places; its first ``warmup`` inferences are excluded."""
    root_count = len(segment.roots)
    if not root_count:
        return
    is_repeated = segment.repeats > 1
    # Repeated templates hold one inference each, so whole repeats are set aside; else single inferences are.
    skipped = max(0, warmup) if is_repeated and root_count == 1 else 0
    rows = np.flatnonzero(segment.inference >= (0 if skipped or is_repeated else max(0, warmup)))
    repeats = segment.repeats - skipped
    if repeats <= 0 or not len(rows):
        return
    group, first = _number_places(segment, rows)
    count = np.bincount(group) * repeats
    unresolved = np.zeros(len(first), np.int64)
    np.add.at(unresolved, group, (segment.columns["resolution"][rows] - 1) * repeats)
    own_times = segment.self_time(slice(skipped, None))[:, rows].sum(axis=0)
    totals = np.zeros(len(first), np.int64)
    np.add.at(totals, group, own_times)
    for number, row in enumerate(rows[first].tolist()):
        name, backend = segment.columns["name"][row], segment.columns["backend"][row]
        spent = SelfTimes(name, backend, int(count[number]), int(totals[number]), int(unresolved[number]))
        yield _read_place(segment, row), spent


def _number_places(segment: Segment, rows: Ints) -> tuple[Ints, Ints]:
    """Return the number of each row's place, in order of first appearance, and the first row of each place."""
    columns = segment.columns
    leaf = segment.is_leaf
    keys = np.stack(
        [
            columns["method"].codes[rows],
            columns["chain"][rows],
            columns["instruction"][rows],
            np.where(leaf, segment.call_position, -1)[rows],
            np.where(leaf, -1, columns["name"].codes)[rows],
        ]
    )
    low = keys.min(axis=1)
    size = keys.max(axis=1) - low + 1
    mixed = np.zeros(len(rows), np.int64)
    if np.prod(size.astype(np.float64)) < float(1 << 62):
        for key, base, width in zip(keys, low, size, strict=True):
            mixed = mixed * width + (key - base)
        _, first, number = np.unique(mixed, return_index=True, return_inverse=True)
    else:
        _, first, number = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    return rank[number.ravel()], np.sort(first)


def _read_place(segment: Segment, row: int) -> SelfTimeKey:
    columns = segment.columns
    leaf = columns["scope"][row] in LEAVES
    codes = columns["instruction"][row], segment.call_position[row], columns["chain"][row]
    numbers = (int(value) for value in codes)
    instruction, position, chain = (None if value < 0 else value for value in numbers)
    return SelfTimeKey(
        method=columns["method"][row],
        instruction=instruction,
        position=position if leaf else None,
        framework=None if leaf else columns["name"][row],
        chain=chain,
    )
