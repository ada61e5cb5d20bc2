"""What each operator did, in the terms of the ceilings: which kernels, how many elements, how many bytes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from opscope.analyze.operator_facts import OperatorFacts, OperatorKey
from opscope.analyze.roofline import OperatorWork
from opscope.program.roofs import KernelClass, KernelUse, kernel_use, operator_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.analyze.operators import Operator

_TYPES = {
    "fp32": "f32",
    "float32": "f32",
    "fp16": "f16",
    "float16": "f16",
    "qint8": "qs8",
}
_PORTABLE = "portable"
_KERNELS = {
    "convolution": KernelClass.IGEMM,
    "depthwise": KernelClass.DWCONV,
    "linear": KernelClass.GEMM,
    "matmul": KernelClass.BMM,
}


def works(rows: Sequence[Operator], facts: Mapping[OperatorKey, OperatorFacts]) -> list[OperatorWork]:
    """The work of every operator whose cost is known; framework time has none."""
    return [_work(row, _facts(row, facts)) for row in rows if row.position is not None and row.bytes is not None]


def _facts(row: Operator, facts: Mapping[OperatorKey, OperatorFacts]) -> OperatorFacts:
    assert row.instruction is not None  # noqa: S101 - an operator has a place, or it has no cost either
    assert row.position is not None  # noqa: S101 - likewise
    return facts.get(OperatorKey(row.method, row.instruction, row.position), OperatorFacts())


def _work(row: Operator, facts: OperatorFacts) -> OperatorWork:
    use = _kernel(row)
    dtype = use.dtype if use else _TYPES.get(row.dtype or "")
    moved = None if row.bytes is None or row.weight_bytes is None else row.bytes - row.weight_bytes
    return OperatorWork(
        method=row.method,
        instruction=row.instruction,
        position=row.position,
        name=row.name,
        dtype=dtype,
        kernel=use.kernel if use else None,
        function=None if row.backend == _PORTABLE else operator_name(row.name),
        taps=facts.taps,
        macs=row.macs,
        flops=row.flops,
        elements=None if facts.elements is None else round(facts.elements * row.calls),
        activation_bytes=moved,
        weight_bytes=row.weight_bytes,
        calls=row.calls,
        time_ns=row.time_ns,
        uncertainty_ns=row.uncertainty_ns,
    )


def _kernel(row: Operator) -> KernelUse | None:
    """The kernels that ran; for a portable operator those that XNNPACK has for the same work and type."""
    if row.backend != _PORTABLE:
        rows = math.prod(row.shape[:-1]) if row.shape else None
        return kernel_use(row.name, rows)
    kernel, dtype = _KERNELS.get(row.kind), _TYPES.get(row.dtype or "")
    return KernelUse(dtype, kernel) if kernel and dtype else None
