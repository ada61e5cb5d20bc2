"""Which operator called which kernels: counts of a process held against the trace of the same process."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from opscope.analysis.operators.operators import UNKNOWN_METHOD
from opscope.core.table.places import OperatorKey
from opscope.core.table.scope import Scope

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opscope.core.table import EventTable
    from opscope.program.kernels.calls import KernelCalls, OperatorCalls

_BACKEND = "XNNPACK"


class JoinedCalls(NamedTuple):
    """Calls by operator.

    Attributes:
        operators: calls of every operator of XNNPACK's delegates; empty when they cannot be told apart.
        problem: why they cannot; None when they can.
    """

    operators: Mapping[OperatorKey, OperatorCalls]
    problem: str | None


def join_calls(table: EventTable, calls: KernelCalls) -> JoinedCalls:
    """Give the calls of a process to the operators of its trace.

    The counter numbers delegates by their first call and operators by their order in it; so does the trace. All
    numbers must agree, or nothing is given.

    Args:
        table: the trace of the process that was counted.
        calls: what the counter left.
    """
    if calls.problem:
        return JoinedCalls({}, calls.problem)
    traced, counted = _delegates(table), list(calls.positions().values())
    if [len(places) for places in traced] != [len(own) for own in counted]:
        told = "the trace has delegates of {} operators, the counter saw {}"
        sizes = (", ".join(str(len(own)) for own in side) or "none" for side in (traced, counted))
        return JoinedCalls({}, told.format(*sizes))
    joined = {
        place: own
        for places, each in zip(traced, counted, strict=True)
        for place, own in zip(places, each, strict=True)
    }
    return JoinedCalls(joined, None)


def _delegates(table: EventTable) -> list[list[OperatorKey]]:
    """Operators of every delegate of the first inference, delegates in the order of their first calls."""
    frame = table.frame.with_row_index("row")
    own = frame.filter(
        (pl.col("scope") == Scope.DELEGATE_OP.value)
        & (pl.col("backend").cast(pl.String) == _BACKEND)
        & (pl.col("inference") == pl.col("inference").min())
    )
    begins = frame.select(pl.col("row").cast(pl.Int64).alias("parent"), pl.col("start").alias("begin"))
    rows = own.join(begins, on="parent", how="left").sort("begin", "position")
    found: dict[tuple[int, int], dict[int, OperatorKey]] = {}
    for row in rows.select("method", "chain", "instruction", "position").iter_rows():
        method, chain, instruction, position = row
        place = OperatorKey(str(method) if method is not None else UNKNOWN_METHOD, instruction, position)
        found.setdefault((chain, instruction), {}).setdefault(position, place)
    return [list(places.values()) for places in found.values()]
