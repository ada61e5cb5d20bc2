"""Segments: blocks of a trace that share one structure, stored once, with their times as matrices.

The inferences of a model mostly run the same events in the same order. Such a run of inferences is one template of
events and two matrices of times; a file without that regularity is one segment with one repeat. Either way the tree,
the self times and the invariants are computed on arrays.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from opscope.core.errors import InvariantError
from opscope.core.table import nesting
from opscope.core.table.scope import LEAVES, Scope

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from opscope.core.table.nesting import Ints

    Column: TypeAlias = "NDArray[Any] | Coded"

NULL = -1
TEXTS = ("scope", "name", "backend", "method", "delegate_label", "block")
SCOPES = tuple(scope.value for scope in Scope)


@dataclass(frozen=True)
class Coded:
    """A column of text: row i holds ``texts[codes[i]]``, or nothing where the code is -1."""

    codes: Ints
    texts: tuple[str, ...]

    @classmethod
    def constant(cls, text: str | None, count: int) -> Coded:
        """Return a column with one text in every row."""
        return cls(np.full(count, NULL if text is None else 0, np.int64), () if text is None else (text,))

    def __getitem__(self, row: int) -> str | None:
        code = int(self.codes[row])
        return None if code == NULL else self.texts[code]

    def equals(self, text: str) -> NDArray[np.bool_]:
        """Return a mask of the rows that hold this text."""
        codes = [code for code, known in enumerate(self.texts) if known == text]
        return np.isin(self.codes, codes)


@dataclass(frozen=True)
class Segment:
    """Consecutive blocks with the same events, one row an event of the template."""

    # the template; arrays of numbers (-1 for null), ``Coded`` texts, flags, and ``metadata`` as a tuple of bytes or
    # None. ``parent`` counts rows of the template, ``run`` blocks from the segment's first
    columns: Mapping[str, Any]
    start: Ints  # start of every event; shape (repeats, events)
    duration: Ints  # duration of every event; shape (repeats, events)
    first_run: int = 0  # number of the first block in its file
    first_inference: int = 0  # number of inferences of the process before this segment

    @classmethod
    def build(cls, columns: Mapping[str, Column], start: Ints, duration: Ints, first_run: int = 0) -> Segment:
        """Complete a template with defaults and check what must hold."""
        segment = cls({**_default_columns(start.shape[1]), **columns}, start, duration, first_run)
        _check_nesting(segment)
        return segment

    @property
    def repeats(self) -> int:
        """Return how often the template occurs."""
        return int(self.start.shape[0])

    @property
    def events(self) -> int:
        """Return the number of events of the template."""
        return int(self.start.shape[1])

    @property
    def runs(self) -> int:
        """Return the number of blocks of the template."""
        run = self.columns["run"]
        return int(run.max()) + 1 if len(run) else 0

    @property
    def parent(self) -> Ints:
        """Return the row of the enclosing event in the template, -1 for roots."""
        parent: Ints = self.columns["parent"]
        return parent

    @cached_property
    def _tree(self) -> tuple[Ints, Ints]:
        return nesting.depth_and_root(self.parent)

    @property
    def depth(self) -> Ints:
        """Return the number of enclosing events."""
        return self._tree[0]

    @cached_property
    def position(self) -> Ints:
        """Return the order among the events of the same parent; -1 for roots."""
        return nesting.sibling_positions(self.parent, self.depth)

    @cached_property
    def call_position(self) -> Ints:
        """Order among the events of the same parent and instruction; -1 for roots.

        Where one event encloses those of many instructions, as in runtimes that record no calls, this is what two runs
        have in common that make them in another order.
        """
        parent, instruction, depth = self.parent, self.columns["instruction"], self.depth
        above = np.where(parent >= 0, parent, 0)
        inner = self.is_leaf & (parent >= 0) & self.is_leaf[above]
        if inner.any():  # spans of a delegate that lie in each other are all counted within the call
            while (deeper := inner & inner[above]).any():
                above = np.where(deeper, above[above], above)
            parent = np.where(inner, parent[above], parent)
            depth = nesting.depth_and_root(parent)[0]
            above = np.where(parent >= 0, parent, 0)
        if not ((parent >= 0) & (instruction != instruction[above])).any():
            return nesting.sibling_positions(parent, depth) if inner.any() else self.position
        size = int(instruction.max(initial=0)) + 2
        return nesting.sibling_positions(np.where(parent >= 0, parent * size + instruction + 1, parent), depth)

    @cached_property
    def is_leaf(self) -> NDArray[np.bool_]:
        """Return which events do work, as kernels and operators of delegates do; shape (events,)."""
        scopes = self.columns["scope"]
        return np.isin(scopes.codes, [scopes.texts.index(scope) for scope in LEAVES if scope in scopes.texts])

    @cached_property
    def roots(self) -> Ints:
        """Rows of the template that are inferences, in order."""
        execute = self.columns["scope"].equals(Scope.EXECUTE.value)
        return np.flatnonzero(execute & (self.parent == nesting.NO_PARENT))

    @cached_property
    def inference(self) -> Ints:
        """Inference within the template that each event belongs to; -1 outside of any."""
        number = np.full(self.events, NULL, np.int64)
        number[self.roots] = np.arange(len(self.roots))
        return number[self._tree[1]]

    @property
    def inferences(self) -> int:
        """Inferences in all repeats."""
        return len(self.roots) * self.repeats

    def self_time(self, repeats: slice = slice(None)) -> Ints:
        """Duration minus the durations of direct children; shape (repeats, events)."""
        return nesting.self_times(self.duration[repeats], self.parent)

    def numbered(self, first_inference: int) -> Segment:
        """The segment behind so many inferences of its process."""
        return replace(self, first_inference=first_inference)

    def split_by_method(self, names: Sequence[str]) -> list[Segment]:
        """Return the segment as one or more, in which all repeats call the same methods.

        Args:
            names: the method of each inference of the process, of those before the segment too.
        """
        calls = len(self.roots)
        method_names = names[self.first_inference : self.first_inference + self.inferences]
        rows = [tuple(method_names[calls * repeat : calls * (repeat + 1)]) for repeat in range(self.repeats)]
        borders = [0, *(n for n in range(1, self.repeats) if rows[n] != rows[n - 1]), self.repeats]
        parts = []
        for first, last in itertools.pairwise(borders):
            texts = [rows[first][number] if number >= 0 else None for number in self.inference.tolist()]
            part = replace(
                self,
                start=self.start[first:last],
                duration=self.duration[first:last],
                first_run=self.first_run + first * self.runs,
                first_inference=self.first_inference + first * calls,
            )
            parts.append(part.with_columns(method=coded_from(texts)))
        return parts

    def with_columns(self, **columns: Column) -> Segment:
        """Return the segment with other columns in its template."""
        return replace(self, columns={**self.columns, **columns})


def _default_columns(count: int) -> dict[str, Column | tuple[None, ...]]:
    absent = np.full(count, NULL, np.int64)
    nothing = Coded.constant(None, count)
    return {
        "chain": absent,
        "instruction": absent,
        "delegate_id": absent,
        "bundled_input": absent,
        "resolution": np.ones(count, np.int64),
        "synthetic_start": np.zeros(count, bool),
        "backend": nothing,
        "method": nothing,
        "delegate_label": nothing,
        "block": Coded.constant("", count),
        "metadata": (None,) * count,
    }


def _check_nesting(segment: Segment) -> None:
    """Raise InvariantError if durations are negative, or children do not fit into their parent.

    That self times add up to their root follows from the tree; children whose starts were not measured are exempt
    from lying inside their parent's interval, not from fitting in.
    """
    _ = segment.depth  # raises when the parents form a circle
    _refuse_rows(segment, segment.duration < 0, "ends before it starts")
    _refuse_rows(segment, segment.self_time() < 0, "is shorter than the events inside it together")
    nested = np.flatnonzero((segment.parent != nesting.NO_PARENT) & ~segment.columns["synthetic_start"])
    outer = segment.parent[nested]
    start, end = segment.start[:, nested], segment.start[:, nested] + segment.duration[:, nested]
    outside = (start < segment.start[:, outer]) | (end > segment.start[:, outer] + segment.duration[:, outer])
    _refuse_rows(segment, outside, "is outside its parent", nested)


def _refuse_rows(segment: Segment, broken: NDArray[np.bool_], problem: str, rows: Ints | None = None) -> None:
    if not broken.any():
        return
    repeat, column = (int(index) for index in np.argwhere(broken)[0])
    row = column if rows is None else int(rows[column])
    block = segment.first_run + repeat * segment.runs + int(segment.columns["run"][row])
    raise InvariantError(f"event {row} ({segment.columns['name'][row]}, block {block}) {problem}")


def coded_from(values: Sequence[str | None]) -> Coded:
    """Return a column of text from its values."""
    texts: dict[str, int] = {}
    codes = [NULL if value is None else texts.setdefault(value, len(texts)) for value in values]
    return Coded(np.array(codes, np.int64), tuple(texts))


class Inferences(NamedTuple):
    """The inferences of a table as arrays, in order of process and inference; shape (inferences,) each."""

    process: Ints  # which trace file
    inference: Ints  # number within the process
    warmup: NDArray[np.bool_]  # whether it is set aside
    start: Ints  # of Method::execute
    duration: Ints  # of Method::execute, the end-to-end latency
    method: Coded  # of the program; nothing where the trace does not tell
