"""Kernels that each operator called: counts of the evidence arm matched with the trace of the counted process."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import msgspec
import polars as pl

from opscope.analysis.operators.operators import UNKNOWN_METHOD
from opscope.bundle.kernel_evidence import evidence_directory, evidence_of
from opscope.core.errors import OpscopeError
from opscope.core.table import TraceWarning
from opscope.core.table.places import OperatorKey, operator_key
from opscope.core.table.scope import Scope
from opscope.program.kernels.kernel_calls import sum_calls
from opscope.program.kernels.symbols import parse_symbol
from opscope.program.xnnpack.subgraph import CONCATENATE
from opscope.readers.kernels import read_kernel_counts
from opscope.readers.registry import read_trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.operators.operators import Operator
    from opscope.bundle.bundle import Bundle
    from opscope.core.table import EventTable
    from opscope.program.kernels.kernel_calls import KernelCalls, OperatorCalls
    from opscope.runtimes.side import Side


_BACKEND = "XNNPACK"


def join_calls(
    table: EventTable, calls: KernelCalls, copies: Mapping[OperatorKey, int] | None = None
) -> Mapping[OperatorKey, OperatorCalls] | str:
    """Return the calls of every operator of XNNPACK's delegates, or why they cannot be assigned.

    The counter numbers delegates by their first call and operators by their order in it; so does the trace, which has
    one event for a concatenation where XNNPACK runs one copy for each of its inputs. All numbers must agree, or nothing
    is assigned.
    """
    if calls.problem:
        return calls.problem
    traced, counted = _delegate_operators(table), list(calls.positions().values())
    parts = copies or {}
    sizes = [[parts.get(key, 1) for key in keys] for keys in traced]
    if [sum(delegate_sizes) for delegate_sizes in sizes] != [len(delegate_calls) for delegate_calls in counted]:
        text = "the trace has delegates of {} operators, the counter saw {}"
        totals = (
            [sum(delegate_sizes) for delegate_sizes in sizes],
            [len(delegate_calls) for delegate_calls in counted],
        )
        return text.format(*(", ".join(map(str, side)) or "none" for side in totals))
    joined = {}
    for keys, delegate_sizes, delegate_calls in zip(traced, sizes, counted, strict=True):
        following = iter(delegate_calls)
        for key, size in zip(keys, delegate_sizes, strict=True):
            joined[key] = _merge_calls(list(itertools.islice(following, size)))
    return joined


def _merge_calls(parts: Sequence[OperatorCalls]) -> OperatorCalls:
    """Merge the calls of the parts of one event."""
    first = parts[0]
    return msgspec.structs.replace(first, calls=sum_calls(part.calls for part in parts)) if len(parts) > 1 else first


def copies_of(operators: Iterable[Operator]) -> dict[OperatorKey, int]:
    """Return how many copies XNNPACK makes for each concatenation among attributed operators."""
    copies = {}
    for row in operators:
        counts = [int(kind.removeprefix(CONCATENATE)) for kind in row.computes if kind.startswith(CONCATENATE)]
        if counts and row.instruction is not None and row.position is not None:
            copies[OperatorKey(row.method, row.instruction, row.position)] = sum(counts)
    return copies


def _delegate_operators(table: EventTable) -> list[list[OperatorKey]]:
    """Return the operators of every delegate of the first inference, delegates by their first call."""
    frame = table.frame.with_row_index("row")
    events = frame.filter(
        (pl.col("scope") == Scope.DELEGATE_OP.value)
        & (pl.col("backend").cast(pl.String) == _BACKEND)
        & (pl.col("inference") == pl.col("inference").min())
    )
    begins = frame.select(pl.col("row").cast(pl.Int64).alias("parent"), pl.col("start").alias("begin"))
    rows = events.join(begins, on="parent", how="left").sort("begin", "position")
    delegates: dict[tuple[int, int], dict[int, OperatorKey]] = {}
    for row in rows.select("method", "chain", "instruction", "position").iter_rows():
        method, chain, instruction, position = row
        key = OperatorKey(str(method) if method is not None else UNKNOWN_METHOD, instruction, position)
        delegates.setdefault((chain, instruction), {}).setdefault(position, key)
    return [list(keys.values()) for keys in delegates.values()]


def joined_calls(bundle: Bundle, variant: str, analysis: Analysis) -> Mapping[OperatorKey, OperatorCalls] | str | None:
    """Return calls by operator, from the trace of the counted process itself; None if nothing was counted."""
    run = evidence_of(bundle, variant)
    if run is None or run.counts is None or run.trace is None:
        return None
    directory = evidence_directory(bundle, variant)
    table = read_trace(directory / run.trace).table
    methods = {row.method for row in analysis.operators}
    if len(methods) == 1:
        table = table.with_method(next(iter(methods)))
    return join_calls(table, read_kernel_counts(directory / run.counts), copies_of(analysis.operators))


def with_kernels(analysis: Analysis, side: Side) -> Analysis:
    """Return the analysis with the kernels that its operators called, if the evidence arm counted them.

    A warning says which evidence cannot be used; nothing else of the analysis depends on it.
    """
    if side.bundle is None or side.variant is None:
        return analysis
    try:
        calls = joined_calls(side.bundle, side.variant.name, analysis)
    except OpscopeError as error:
        return _add_warning(analysis, side.bundle.without_place(str(error)))
    if calls is None or isinstance(calls, str):
        return analysis if calls is None else _add_warning(analysis, calls)
    rows = [_with_kernel(row, calls) for row in analysis.operators]
    return msgspec.structs.replace(analysis, operators=rows)


def _with_kernel(row: Operator, calls: Mapping[OperatorKey, OperatorCalls]) -> Operator:
    """Return an operator with the kernels that computed it, without those that only laid data out."""
    key = operator_key(row)
    operator_calls = calls.get(key) if key else None
    names = [name for name in operator_calls.calls if not _only_packs(name)] if operator_calls else []
    return msgspec.structs.replace(row, kernel=", ".join(names)) if names else row


def _only_packs(name: str) -> bool:
    symbol = parse_symbol(name)
    return symbol is not None and symbol.packs


def _add_warning(analysis: Analysis, problem: str) -> Analysis:
    warning = TraceWarning(
        "evidence_unusable",
        f"kernels called by operators are not shown: {problem}",
        "count them again: opscope kernels BUNDLE --count",
    )
    trace = msgspec.structs.replace(analysis.trace, warnings=[*analysis.trace.warnings, warning])
    return msgspec.structs.replace(analysis, trace=trace)
