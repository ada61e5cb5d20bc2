"""EventTable: a trace as one columnar table with its clock, its call tree and its warnings."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
import polars as pl

from opscope.errors import InvariantError
from opscope.table import invariants, nesting
from opscope.table.schema import SCHEMA, Scope

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Values: TypeAlias = NDArray[Any] | pl.Series
    """A column: an array of numbers or a Series of text."""


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


@dataclass(frozen=True, slots=True)
class EventTable:
    """All events of one or more traces, one row an event, in file order.

    Attributes:
        frame: the rows; columns as in ``opscope.table.schema.COLUMNS``.
        clock: unit of the time columns.
        warnings: what limits the table's meaning.
    """

    frame: pl.DataFrame
    clock: Clock
    warnings: tuple[TraceWarning, ...] = ()

    @classmethod
    def build(cls, columns: Mapping[str, Values], clock: Clock, warnings: Sequence[TraceWarning] = ()) -> EventTable:
        """Derive the tree columns from what a reader found, check the invariants, and freeze the table.

        Args:
            columns: ``run``, ``scope``, ``name``, ``start``, ``duration`` and ``parent`` (row or -1) are required;
                ``resolution`` is 1, ``synthetic_start`` False and ``block`` empty unless given, all others absent
                (null or -1).
            clock: unit of ``start``, ``duration`` and ``resolution``.
            warnings: what the reader noticed.

        Raises:
            InvariantError: the events contradict each other.
        """
        parent = np.asarray(columns["parent"], np.int64)
        scope = pl.Series("scope", columns["scope"], dtype=SCHEMA["scope"])
        depth, root = nesting.depth_and_root(parent)
        duration = np.asarray(columns["duration"], np.int64)
        derived = {
            "process": np.zeros(len(parent), np.int32),
            "warmup": np.zeros(len(parent), bool),
            "inference": _inferences(scope, parent, root),
            "position": nesting.sibling_positions(parent),
            "self_time": nesting.self_times(duration, parent),
            "depth": depth,
        }
        table = cls(_frame({**_defaults(len(parent)), **columns, **derived}), clock, tuple(warnings))
        invariants.check(table.frame)
        return table

    @classmethod
    def concat(cls, tables: Sequence[EventTable]) -> EventTable:
        """Several traces as one table: ``process`` counts them, rows of parents are shifted, warnings joined.

        Raises:
            InvariantError: the tables have different clocks, or there is none.
        """
        if len({table.clock for table in tables}) != 1:
            raise InvariantError("traces with different clocks, or none at all, cannot be put together")
        shifted, rows, processes = [], 0, 0
        for table in tables:
            moved = pl.col("process") + pl.lit(processes, pl.Int32), pl.col("parent") + rows
            shifted.append(table.frame.with_columns(*moved))
            rows += table.frame.height
            processes += table.processes
        warnings = dict.fromkeys(warning for table in tables for warning in table.warnings)
        return cls(pl.concat(shifted, rechunk=True), tables[0].clock, tuple(warnings))

    @property
    def processes(self) -> int:
        """Number of trace files in the table."""
        return self.frame["process"].n_unique()

    def inferences(self) -> pl.DataFrame:
        """The inferences: one row each, in order of process and inference.

        Columns: ``process``, ``inference``, ``warmup``, ``method``, ``start``, ``duration`` (the end-to-end latency).
        """
        roots = self.frame.filter(pl.col("inference").is_not_null() & pl.col("parent").is_null())
        wanted = ["process", "inference", "warmup", "method", "start", "duration"]
        return roots.select(wanted).sort("process", "inference")

    def with_warmup(self, count: int | Sequence[int]) -> EventTable:
        """Mark the first inferences of every process as warm-up.

        Args:
            count: how many, the same for every process or one number per process.

        Raises:
            ValueError: there are not as many numbers as processes.
        """
        each = [count] * self.processes if isinstance(count, int) else list(count)
        if len(each) != self.processes:
            raise ValueError(f"{len(each)} numbers for {self.processes} processes")
        limit = pl.col("process").replace_strict(list(range(len(each))), each, return_dtype=pl.Int32)
        marked = (pl.col("inference") < limit).fill_null(value=False).alias("warmup")
        return replace(self, frame=self.frame.with_columns(marked))

    def with_method(self, name: str) -> EventTable:
        """Name the method of every inference, when the program says that there is only one."""
        named = pl.when(pl.col("inference").is_not_null()).then(pl.lit(name)).cast(pl.Categorical).alias("method")
        return replace(self, frame=self.frame.with_columns(named))

    def with_warnings(self, *more: TraceWarning) -> EventTable:
        """The same table with further warnings."""
        return replace(self, warnings=tuple(dict.fromkeys((*self.warnings, *more))))

    def with_processes(self, kept: Sequence[int]) -> EventTable:
        """Only the events of some processes, numbered anew in the given order."""
        parts = [replace(self, frame=self._process(process)) for process in kept]
        return replace(EventTable.concat(parts), warnings=self.warnings)

    def _process(self, process: int) -> pl.DataFrame:
        """Rows of one process as if it were the only one."""
        rows = self.frame.with_row_index("row").filter(pl.col("process") == process)
        first = pl.col("row").first().cast(pl.Int64)
        alone = pl.lit(0, pl.Int32).alias("process"), pl.col("parent") - first
        return rows.with_columns(*alone).drop("row")

    def measured(self) -> pl.DataFrame:
        """Rows of the inferences that count: not warm-up, not loading."""
        return self.frame.filter(pl.col("inference").is_not_null() & ~pl.col("warmup"))


def _defaults(count: int) -> dict[str, Values]:
    absent = np.full(count, -1, np.int64)
    return {
        "method": pl.Series([None] * count, dtype=pl.Categorical),
        "backend": pl.Series([None] * count, dtype=pl.Categorical),
        "chain": absent,
        "instruction": absent,
        "delegate_id": absent,
        "delegate_label": pl.Series([None] * count, dtype=pl.Categorical),
        "metadata": pl.Series([None] * count, dtype=pl.Binary),
        "block": pl.Series([""], dtype=pl.Categorical).new_from_index(0, count),
        "bundled_input": absent,
        "resolution": np.ones(count, np.int64),
        "synthetic_start": np.zeros(count, bool),
    }


_MINUS_ONE_IS_NULL = ("inference", "chain", "instruction", "position", "delegate_id", "bundled_input", "parent")


def _frame(columns: Mapping[str, Values]) -> pl.DataFrame:
    series = []
    for name, dtype in SCHEMA.items():
        values = columns[name]
        column = values.alias(name) if isinstance(values, pl.Series) else pl.Series(name, values)
        series.append(column.cast(dtype))
    absent = [pl.when(pl.col(name) >= 0).then(pl.col(name)).alias(name) for name in _MINUS_ONE_IS_NULL]
    return pl.DataFrame(series).with_columns(absent)


def _inferences(scope: pl.Series, parent: nesting.Ints, root: nesting.Ints) -> nesting.Ints:
    """Number of the inference each event belongs to, -1 outside of any."""
    is_root = (scope == Scope.EXECUTE.value).to_numpy() & (parent == nesting.NO_PARENT)
    number = np.where(is_root, np.cumsum(is_root) - 1, -1)
    return number[root]
