"""Time by operator, category and backend: a split of end-to-end latency that adds up to it."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec
import polars as pl

from opscope.program.taxonomy import FRAMEWORK, Category, classify
from opscope.table import Scope

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opscope.table import EventTable

UNKNOWN_METHOD = "unknown"
FRAMEWORK_BACKEND = "framework"
KEY = ("method", "instruction", "position", "name")
_LEAVES = (Scope.DELEGATE_OP.value, Scope.KERNEL.value)


class Attribution(str, enum.Enum):
    """How it is known what an operator is."""

    EXACT = "exact"
    ALIGNED = "aligned"
    AMBIGUOUS = "ambiguous"
    NAME = "name"


class Operator(msgspec.Struct, frozen=True):
    """One operator of the program: (method, instruction, position), never its name.

    Attributes:
        method: the program's method.
        instruction: instruction of its chain; null for the framework's own time.
        position: order among the events within the instruction's call; null for framework time.
        name: as recorded.
        category: upper level of the taxonomy.
        kind: lower level.
        backend: the delegate's name, ``portable``, or ``framework``.
        calls: events per inference; more than one in loops.
        time_ns: mean self time per measured inference.
        share: of end-to-end latency.
        handles: debug handles of the nodes it computed; empty when the trace alone was read.
        module: the nn.Module it belongs to, null when not known.
        source: the line of Python that caused it, null when not known.
        attribution: how it is known what the operator is.
        macs: multiply-accumulates per inference, null when not known.
        bytes: least bytes moved per inference, null when not known.
        kernel: the microkernel, null when not known.
        uncertainty_ns: the true time lies in [time_ns, time_ns + uncertainty_ns): durations may be cut off.
    """

    method: str
    instruction: int | None
    position: int | None
    name: str
    category: Category
    kind: str
    backend: str
    calls: float
    time_ns: float
    share: float
    handles: list[int]
    module: str | None
    source: str | None
    attribution: Attribution
    macs: int | None
    bytes: int | None
    kernel: str | None
    uncertainty_ns: float


class CategoryTime(msgspec.Struct, frozen=True):
    """Mean self time per measured inference of all operators of a category."""

    category: Category
    time_ns: float
    share: float


class BackendTime(msgspec.Struct, frozen=True):
    """Mean self time per measured inference of all operators of a backend."""

    backend: str
    time_ns: float
    share: float


def operator_rows(frame: pl.DataFrame) -> pl.DataFrame:
    """Events with the key of the operator they belong to: ``KEY`` without the number of loop iterations.

    Args:
        frame: rows of an EventTable, inside inferences.

    Returns:
        The rows with ``method`` filled, and ``position`` null and ``name`` the framework's word for framework time;
        a leaf's name is left to the first event of its key.
    """
    leaf = pl.col("scope").is_in(_LEAVES)
    return frame.with_columns(
        pl.col("method").cast(pl.String).fill_null(UNKNOWN_METHOD),
        pl.when(leaf).then(pl.col("position")).alias("position"),
        pl.col("name").cast(pl.String),
        pl.when(leaf).then(None).otherwise(pl.col("name").cast(pl.String)).alias("framework_name"),
        pl.col("backend").cast(pl.String).fill_null(FRAMEWORK_BACKEND),
    )


GROUP = ("method", "instruction", "position", "framework_name")


def operators(table: EventTable) -> list[Operator]:
    """Every operator of the measured inferences, in program order; the sum of times is the mean latency.

    Empty when nothing was measured.
    """
    measured = table.measured()
    count = table.inferences().filter(~pl.col("warmup")).height
    if not count:
        return []
    total = int(measured["self_time"].sum())
    rows = (
        operator_rows(measured)
        .group_by(GROUP)
        .agg(
            pl.col("name").mode().sort().first(),
            pl.col("backend").first(),
            pl.len().alias("events"),
            pl.col("self_time").sum(),
            (pl.col("resolution") - 1).sum().alias("unresolved"),
        )
        .sort("method", "instruction", "position", "name", nulls_last=True)
    )
    return [_operator(row, count, total) for row in rows.iter_rows(named=True)]


def _operator(row: dict[str, int | str | None], count: int, total: int) -> Operator:
    values = msgspec.convert(row, _Row)
    operator_class = FRAMEWORK if values.framework_name is not None else classify(values.name)
    return Operator(
        method=values.method,
        instruction=values.instruction,
        position=values.position,
        name=values.name,
        category=operator_class.category,
        kind=operator_class.kind,
        backend=values.backend,
        calls=values.events / count,
        time_ns=values.self_time / count,
        share=values.self_time / total if total else 0.0,
        handles=[],
        module=None,
        source=None,
        attribution=Attribution.NAME,
        macs=None,
        bytes=None,
        kernel=None,
        uncertainty_ns=values.unresolved / count,
    )


class _Row(msgspec.Struct):
    method: str
    instruction: int | None
    position: int | None
    framework_name: str | None
    name: str
    backend: str
    events: int
    self_time: int
    unresolved: int


def categories(rows: Iterable[Operator]) -> list[CategoryTime]:
    """Time by category, all five of them, in the taxonomy's order."""
    listed = list(rows)
    return [CategoryTime(category, *_sums(o for o in listed if o.category is category)) for category in Category]


def backends(rows: Iterable[Operator]) -> list[BackendTime]:
    """Time by backend, longest first."""
    listed = list(rows)
    names = dict.fromkeys(operator.backend for operator in listed)
    found = [BackendTime(name, *_sums(o for o in listed if o.backend == name)) for name in names]
    return sorted(found, key=lambda backend: -backend.time_ns)


def _sums(rows: Iterable[Operator]) -> tuple[float, float]:
    listed = list(rows)
    return sum(o.time_ns for o in listed), sum(o.share for o in listed)
