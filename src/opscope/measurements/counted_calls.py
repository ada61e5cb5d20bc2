"""What the evidence arm of a bundle counted, by the operators of a variant."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.kernels.kernel_join import copies_of, join_calls
from opscope.bundle.kernel_evidence import evidence_directory, evidence_of
from opscope.core.errors import OpscopeError
from opscope.core.table import TraceWarning
from opscope.core.table.places import operator_key
from opscope.program.kernels.symbols import parse_symbol
from opscope.readers.kernel_counts import read_kernel_counts
from opscope.readers.registry import read_trace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opscope.analysis.analysis import Analysis
    from opscope.analysis.kernels.kernel_join import JoinedCalls
    from opscope.analysis.operators.operators import Operator
    from opscope.bundle.bundle import Bundle
    from opscope.core.table.places import OperatorKey
    from opscope.program.kernels.calls import OperatorCalls
    from opscope.runtimes.side import Side


def joined_calls(bundle: Bundle, variant: str, analysis: Analysis) -> JoinedCalls | None:
    """Calls by operator, by the trace of the very process that was counted; None when nothing was counted."""
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
    """The analysis with the kernels that its operators called, where the bundle's evidence arm counted them.

    Evidence that cannot be used is said in a warning; nothing else of the analysis depends on it.
    """
    if side.bundle is None or side.variant is None:
        return analysis
    try:
        found = joined_calls(side.bundle, side.variant.name, analysis)
    except OpscopeError as error:
        return _warned(analysis, side.bundle.without_place(str(error)))
    if found is None or found.problem:
        return analysis if found is None else _warned(analysis, found.problem or "")
    rows = [_with_kernel(row, found.operators) for row in analysis.operators]
    return msgspec.structs.replace(analysis, operators=rows)


def _with_kernel(row: Operator, calls: Mapping[OperatorKey, OperatorCalls]) -> Operator:
    """An operator with the kernels that computed it; those that only laid data out are left out."""
    key = operator_key(row)
    own = calls.get(key) if key else None
    names = [name for name in own.calls if not _packs(name)] if own else []
    return msgspec.structs.replace(row, kernel=", ".join(names)) if names else row


def _packs(name: str) -> bool:
    symbol = parse_symbol(name)
    return symbol is not None and symbol.packs


def _warned(analysis: Analysis, problem: str) -> Analysis:
    warning = TraceWarning(
        "evidence_unusable",
        f"kernels called by operators are not shown: {problem}",
        "count them again: opscope kernels BUNDLE --count",
    )
    trace = msgspec.structs.replace(analysis.trace, warnings=[*analysis.trace.warnings, warning])
    return msgspec.structs.replace(analysis, trace=trace)
