"""Whether two variants computed the same: a fast wrong result is not a result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from opscope.core.units import counted_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]

# Largest difference that rounding explains, relative to the largest value of the output. Kernels for half precision
# accumulate differently (4.9e-4 against 9.0e-3 from float64 was measured), single precision agrees to 1e-7 times the
# depth of the network; quantised models may differ by a step where a value lies on a rounding border.
TOLERANCES = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 6e-2, "int8": 2e-2}
DEFAULT_TOLERANCE = 2e-2


class OutputAgreement(msgspec.Struct, frozen=True):
    """Comparison of the outputs of two variants on the same inputs.

    Attributes:
        agree: shapes are equal, all values finite, and the error within the tolerance.
        max_abs_error: largest absolute difference, null when shapes differ or values are not finite.
        max_rel_error: the same relative to the largest magnitude of the baseline's output.
        tolerance: limit for ``max_rel_error``.
        problem: why they do not agree, null when they do.
    """

    agree: bool
    max_abs_error: float | None
    max_rel_error: float | None
    tolerance: float
    problem: str | None


def compare_outputs(
    baseline: Sequence[Array], candidate: Sequence[Array], dtype: str | None, limit: float | None = None
) -> OutputAgreement:
    """Compare all outputs of one inference."""
    tolerance = TOLERANCES.get(dtype or "", DEFAULT_TOLERANCE) if limit is None else limit
    problem = _structural_problem(baseline, candidate)
    if problem:
        return OutputAgreement(
            agree=False, max_abs_error=None, max_rel_error=None, tolerance=tolerance, problem=problem
        )
    pairs = [_errors(b, c) for b, c in zip(baseline, candidate, strict=True) if b.size]
    absolute = max((error for error, _ in pairs), default=0.0)
    relative = max((error for _, error in pairs), default=0.0)
    agree = relative <= tolerance
    problem = None if agree else f"relative error {relative:.2g} is above the tolerance {tolerance:.2g}"
    return OutputAgreement(agree, absolute, relative, tolerance, problem)


def _structural_problem(baseline: Sequence[Array], candidate: Sequence[Array]) -> str | None:
    shapes = [[array.shape for array in side] for side in (baseline, candidate)]
    if shapes[0] != shapes[1]:
        return f"shapes differ: {shapes[0]} and {shapes[1]}"
    for side, arrays in (("baseline", baseline), ("candidate", candidate)):
        wrong = sum(int((~np.isfinite(array.astype(np.float64))).sum()) for array in arrays)
        if wrong:
            return f"the {side}'s output has {counted_text(wrong, 'non-finite value', ',')}"
    return None


def _errors(baseline: Array, candidate: Array) -> tuple[float, float]:
    reference = baseline.astype(np.float64)
    absolute = float(np.abs(reference - candidate.astype(np.float64)).max())
    scale = float(np.abs(reference).max())
    return absolute, absolute / scale if scale else absolute


def identical(outputs: OutputAgreement | None) -> bool | None:
    """Whether two variants computed the very same numbers; None where that was not compared."""
    return None if outputs is None else outputs.agree and outputs.max_abs_error == 0.0
