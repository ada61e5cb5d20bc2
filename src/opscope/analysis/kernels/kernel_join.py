"""Which operator called which kernels: counts of a process held against the trace of the same process."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import polars as pl

from opscope.analysis.operators.operators import UNKNOWN_METHOD
from opscope.core.table.places import OperatorKey
from opscope.core.table.scope import Scope
from opscope.program.kernels.calls import added
from opscope.program.xnnpack.subgraph import CONCATENATE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opscope.analysis.operators.operators import Operator
    from opscope.core.table import EventTable
    from opscope.program.kernels.calls import KernelCalls, OperatorCalls

_BACKEND = "XNNPACK"


class JoinedCalls(NamedTuple):
    """Calls by operator."""

    # calls of every operator of XNNPACK's delegates; empty when they cannot be distinguished
    operators: Mapping[OperatorKey, OperatorCalls]
    problem: str | None  # why they cannot; None when they can


def join_calls(table: EventTable, calls: KernelCalls, copies: Mapping[OperatorKey, int] | None = None) -> JoinedCalls:
    """Give the calls of a process to the operators of its trace.

    The counter numbers delegates by their first call and operators by their order in it; so does the trace, which has
    one event for a concatenation where XNNPACK runs one copy for each of its inputs. All numbers must agree, or nothing
    is given.
    """
    if calls.problem:
        return JoinedCalls({}, calls.problem)
    traced, counted = _delegates(table), list(calls.positions().values())
    parts = copies or {}
    sizes = [[parts.get(place, 1) for place in places] for places in traced]
    if [sum(own) for own in sizes] != [len(own) for own in counted]:
        told = "the trace has delegates of {} operators, the counter saw {}"
        totals = [sum(own) for own in sizes], [len(own) for own in counted]
        return JoinedCalls({}, told.format(*(", ".join(map(str, side)) or "none" for side in totals)))
    joined = {}
    for places, own, each in zip(traced, sizes, counted, strict=True):
        following = iter(each)
        for place, size in zip(places, own, strict=True):
            joined[place] = _together(list(itertools.islice(following, size)))
    return JoinedCalls(joined, None)


def _together(parts: Sequence[OperatorCalls]) -> OperatorCalls:
    """The calls of one event."""
    first = parts[0]
    return msgspec.structs.replace(first, calls=added(part.calls for part in parts)) if len(parts) > 1 else first


def copies_of(operators: Iterable[Operator]) -> dict[OperatorKey, int]:
    """How many copies XNNPACK makes for each concatenation among operators that are attributed to a program's nodes."""
    found = {}
    for row in operators:
        counts = [int(kind.removeprefix(CONCATENATE)) for kind in row.computes if kind.startswith(CONCATENATE)]
        if counts and row.instruction is not None and row.position is not None:
            found[OperatorKey(row.method, row.instruction, row.position)] = sum(counts)
    return found


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
