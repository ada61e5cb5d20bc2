"""What operators did, as the roofline asks for it: their work, and which class of kernels ran them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.analysis.operators.delegates import NODE_TYPES, delegated_kernels, is_node
from opscope.analysis.operators.operator_facts import OperatorFacts
from opscope.analysis.operators.operators import PORTABLE_BACKEND
from opscope.analysis.roofline.operator_ceiling import OperatorWork
from opscope.core.table.places import by_operator
from opscope.program.ceilings.ceilings import KernelClass, KernelUse, operator_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.analysis.operators.operators import Operator
    from opscope.core.table.places import OperatorKey

_TYPES = {
    "fp32": "f32",
    "float32": "f32",
    "fp16": "f16",
    "float16": "f16",
    "qint8": "qs8",
}
_KERNELS = {
    "convolution": KernelClass.IGEMM,
    "depthwise": KernelClass.DWCONV,
    "deconvolution": KernelClass.SUBCONV,
    "linear": KernelClass.GEMM,
    "matmul": KernelClass.BMM,
}


def operator_work(rows: Sequence[Operator], facts: Mapping[OperatorKey, OperatorFacts]) -> list[OperatorWork]:
    """The work of every operator whose cost is known; framework time has none."""
    known = by_operator(row for row in rows if row.bytes is not None)
    return [_work(row, facts.get(key, OperatorFacts())) for key, row in known.items()]


def _work(row: Operator, facts: OperatorFacts) -> OperatorWork:
    use = _kernel(row)
    dtype = use.dtype if use else (NODE_TYPES if is_node(row) else _TYPES).get(row.dtype or "")
    moved = None if row.bytes is None or row.weight_bytes is None else row.bytes - row.weight_bytes
    return OperatorWork(
        method=row.method,
        instruction=row.instruction,
        position=row.position,
        name=row.name,
        dtype=dtype,
        kernel=use.kernel if use else None,
        function=_function(row),
        taps=facts.taps,
        macs=row.macs,
        flops=row.flops,
        elements=None if facts.elements is None else round(facts.elements * row.calls),
        activation_bytes=moved,
        weight_bytes=row.weight_bytes,
        calls=row.calls,
        time_ns=row.shown_ns,
        uncertainty_ns=row.uncertainty_ns,
        portable=row.backend == PORTABLE_BACKEND,
        channels=row.shape[-1] if row.shape else None,
    )


def _kernel(row: Operator) -> KernelUse | None:
    """The kernels that ran; for a portable operator those that XNNPACK has for the same work and type."""
    if row.backend != PORTABLE_BACKEND:
        return delegated_kernels(row)
    kernel, dtype = _KERNELS.get(row.kind), _TYPES.get(row.dtype or "")
    return KernelUse(dtype, kernel) if kernel and dtype else None


def _function(row: Operator) -> str | None:
    """What XNNPACK calls the operator, or the type of a node; None for a portable one."""
    if is_node(row):
        return row.name.partition(": ")[0]
    return None if row.backend == PORTABLE_BACKEND else operator_name(row.name)
