"""Cost of each delegate call and of what stands between delegates, and the certainty of the attribution."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from opscope.analysis.operators.headline import TimeShare
from opscope.analysis.operators.operators import PORTABLE_BACKEND, sums
from opscope.core.grouping import grouped
from opscope.core.table.places import RecordedOperator
from opscope.program.ceilings import KernelClass, KernelUse, kernel_use
from opscope.program.operators.kinds import Attribution
from opscope.program.partition.verdicts import Cause

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opscope.analysis.operators.operators import Operator
    from opscope.core.table import EventTable
    from opscope.program.partition.verdicts import PortableReason


_NODE_BACKENDS = ("ExecutionProvider", "OpenVINO CPU", "OpenVINO GPU", "OpenVINO NPU")
NODE_TYPES = {"float": "f32", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "qs8", "uint8": "qs8"}
"""Number types in the events of nodes, by the names that ceilings use."""
_NODE_KERNELS = {
    "depthwise": KernelClass.DWCONV,
    "deconvolution": KernelClass.SUBCONV,
    "linear": KernelClass.GEMM,
    "convolution": KernelClass.CONV,
    "matmul": KernelClass.GEMM,
}


def delegated_kernels(row: Operator) -> KernelUse | None:
    """Return number type and kernel class of a delegate's operator or a node; None if it has no products."""
    if is_node(row):
        kernel, dtype = _NODE_KERNELS.get(row.kind), NODE_TYPES.get(row.dtype or "")
        if not kernel or not dtype:
            return None
        if kernel is KernelClass.GEMM and not row.weight_bytes:
            kernel = KernelClass.BMM
        elif kernel is KernelClass.GEMM and row.shape and math.prod(row.shape[:-1]) == 1:
            kernel = KernelClass.GEMV
        return KernelUse(dtype, kernel)
    return kernel_use(row.name, math.prod(row.shape[:-1]) if row.shape else None)


class DelegateCall(msgspec.Struct, frozen=True):
    """Call of a delegate: which one, how many events, and how they were attributed.

    Attributes:
        method: the program's method.
        instruction: instruction of its chain.
        delegate: number among the delegates of the method; null without the program.
        backend: the delegate's name.
        events: operators that it reports.
        nodes: nodes of its payload; null when it cannot be read.
        profile: the instruction set whose replay foretold its events; null when none did.
        problem: why the attribution is not exact; null when it is.
    """

    method: str
    instruction: int
    delegate: int | None
    backend: str
    events: int
    nodes: int | None
    profile: str | None
    problem: str | None


class DelegateTime(DelegateCall, frozen=True):
    """Call of a delegate, in time per inference.

    Attributes:
        operators_ns: time of its operators together.
        boundary_ns: time of the call without its operators: entering, leaving, and writing the trace.
        time_ns: both; null where only the share is known.
        share: share of the headline.
    """

    operators_ns: float | None
    boundary_ns: float | None
    time_ns: float | None
    share: float


class Coverage(msgspec.Struct, frozen=True):
    """Time and number of delegates' operators by how they are known."""

    attribution: Attribution
    operators: int
    time_ns: float | None
    share_of_delegates: float


class LayoutTime(RecordedOperator, frozen=True):
    """Move or conversion of data that the model did not ask for, in time per inference.

    Attributes:
        cause: who added it: ``partitioner``, ``runtime`` or ``exporter``.
        before: the layers whose output is changed, or what the delegate is given.
        after: the layers that want it changed, or who gets it from the delegate.
        time_ns: per inference; null where only the share is known.
        share: share of the headline.
        uncertainty_ns: so much of a traced inference may have been cut off its duration.
        bytes: least bytes moved per inference, null if unknown.
    """

    cause: str
    before: list[str]
    after: list[str]
    time_ns: float | None
    share: float
    uncertainty_ns: float
    bytes: int | None


class PortableTime(TimeShare, frozen=True):
    """Operator that no delegate took.

    Attributes:
        method: the program's method.
        instruction: instruction of its chain.
        name: name as recorded.
        module: module that it belongs to; null if unknown.
        cause: sort of the reason; null when that cannot be known.
        reason: why it was not delegated, in words; null if unknown.
        evidence: what the program shows; null where the name is all it takes.
        rule: the file of ExecuTorch that the rule is from; null when the reason is not known.
    """

    method: str
    instruction: int | None
    name: str
    module: str | None
    cause: str | None
    reason: str | None
    evidence: str | None
    rule: str | None


class DelegateFigure(msgspec.Struct, frozen=True):
    """Value that a delegate reports in a unit or on a clock of its own: no part of the latency's split.

    Attributes:
        instruction: instruction of the call in its chain; null where the trace gives none.
        name: name as recorded.
        unit: ``us``, ``cycles``, ``count`` or ``bytes``; ``ns`` for times of another clock.
        reported: how often it was reported, warm-up included.
        mean: mean of all reported values, in the unit.
    """

    instruction: int | None
    name: str
    unit: str
    reported: int
    mean: float


def delegate_figures(table: EventTable) -> list[DelegateFigure]:
    """Return the values of delegates that are no times on the clock of their calls, in the order of the trace."""
    values = [value for side in table.side for value in side.values]
    groups = grouped(values, lambda value: (value.instruction, value.name, value.unit))
    return [
        DelegateFigure(
            None if instruction < 0 else instruction,
            name,
            unit,
            len(reported),
            sum(value.value for value in reported) / len(reported),
        )
        for (instruction, name, unit), reported in groups.items()
    ]


def portable_times(rows: Iterable[Operator], reasons: Mapping[tuple[str, int], PortableReason]) -> list[PortableTime]:
    """Return the operators that no delegate took, longest first."""
    times = [_portable_time(row, reasons.get((row.method, row.instruction or 0))) for row in rows if is_portable(row)]
    return sorted(times, key=lambda row: -row.share)


def is_portable(row: Operator) -> bool:
    """Return whether the runtime's own kernels computed an operator."""
    return row.backend == PORTABLE_BACKEND


def _portable_time(row: Operator, reason: PortableReason | None) -> PortableTime:
    known = reason if reason and reason.cause is not Cause.NOT_KNOWN else None
    return PortableTime(
        method=row.method,
        instruction=row.instruction,
        name=row.name,
        module=row.module,
        time_ns=row.time_ns,
        share=row.share,
        cause=known.cause.value if known else None,
        reason=known.text if known else None,
        evidence=known.evidence if known else None,
        rule=known.source if known else None,
    )


def delegate_times(rows: Sequence[Operator], calls: Sequence[DelegateCall] = ()) -> list[DelegateTime]:
    """Return every delegate call of the trace, in program order."""
    known = {(call.method, call.instruction): call for call in calls}
    within = (row for row in rows if row.instruction is not None)
    groups = grouped(within, lambda row: (row.method, row.instruction or 0))
    calls_or_none = (_delegate_time(*key, operators, known.get(key)) for key, operators in groups.items())
    return [call for call in calls_or_none if call is not None]


def coverage(rows: Iterable[Operator]) -> list[Coverage]:
    """Return the time of delegates' operators by how they are known, the most certain first."""
    operators = [row for row in rows if is_delegated(row)]
    total = sum(row.share for row in operators)
    coverages = []
    for attribution in Attribution:
        some = [row for row in operators if row.attribution is attribution]
        if some:
            own_time = sums(some)
            coverages.append(
                Coverage(attribution, len(some), own_time.time_ns, own_time.share / total if total else 0.0)
            )
    return coverages


def attributed_share(rows: Sequence[Coverage]) -> float:
    """Return the share of delegate time whose nodes are known; 1 if nothing ran in a delegate."""
    known = (Attribution.EXACT, Attribution.ALIGNED)
    return sum(row.share_of_delegates for row in rows if row.attribution in known) if rows else 1.0


def layout_times(rows: Iterable[Operator]) -> list[LayoutTime]:
    """Return moves and conversions that the model did not ask for, longest first."""
    times = [
        LayoutTime(
            method=row.method,
            instruction=row.instruction,
            position=row.position,
            name=row.name,
            cause=row.change.cause,
            before=row.change.before,
            after=row.change.after,
            time_ns=row.time_ns,
            share=row.share,
            uncertainty_ns=row.uncertainty_ns,
            bytes=row.bytes,
        )
        for row in rows
        if row.change is not None
    ]
    return sorted(times, key=lambda row: -row.share)


def is_delegated(row: Operator) -> bool:
    """Return whether a delegate computed an operator."""
    return row.position is not None and row.backend != PORTABLE_BACKEND


def is_node(row: Operator) -> bool:
    """Return whether ONNX Runtime or OpenVINO ran an operator as a node: nothing delegates there."""
    return row.backend.endswith(_NODE_BACKENDS)


def _delegate_time(
    method: str, instruction: int, rows: Sequence[Operator], call: DelegateCall | None
) -> DelegateTime | None:
    operators = [row for row in rows if is_delegated(row)]
    border = [row for row in rows if row.name == "DELEGATE_CALL" and row.position is None]
    if not operators and not border:
        return None
    if call is None:
        call = DelegateCall(
            method,
            instruction,
            None,
            operators[0].backend if operators else "unknown",
            len(operators),
            None,
            None,
            None,
        )
    return DelegateTime(
        **{**msgspec.structs.asdict(call), "events": len(operators)},
        operators_ns=sums(operators).time_ns,
        boundary_ns=sums(border).time_ns,
        **msgspec.structs.asdict(sums([*operators, *border])),
    )
