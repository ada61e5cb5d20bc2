"""Number types and backends to export for, and which of them go together."""

from __future__ import annotations

from typing import NamedTuple

from opscope.core.errors import UsageError, did_you_mean

XNNPACK, PORTABLE = "xnnpack", "portable"
BACKENDS = (XNNPACK, PORTABLE)
FP32, FP16, INT8, DYNAMIC_INT8, INT4_WEIGHTS = "fp32", "fp16", "int8", "dynamic-int8", "8da4w"
DTYPES = (FP32, FP16, INT8, DYNAMIC_INT8, INT4_WEIGHTS)
QUANTISED = (INT8, DYNAMIC_INT8, INT4_WEIGHTS)
DYNAMIC = (DYNAMIC_INT8, INT4_WEIGHTS)
"""Those whose activations are quantised at run time."""


class Choice(NamedTuple):
    """What a model is exported as."""

    # one of `DTYPES`; int8 is static, dynamic-int8 quantises activations at run time, and 8da4w has 4-bit weights
    # besides
    dtype: str
    backend: str = XNNPACK  # one of `BACKENDS`

    def stem(self, name: str) -> str:
        """Name of the exported files without their suffixes."""
        return f"{name}_{self.backend}_{self.dtype}"


def check_choice(choice: Choice) -> None:
    """Refuse what cannot be exported, before anything heavy is loaded."""
    check_dtype(choice.dtype)
    if choice.backend not in BACKENDS:
        raise UsageError(
            f"no backend {choice.backend!r}", where="--backend", hint=did_you_mean(choice.backend, BACKENDS)
        )
    if choice.backend == PORTABLE and choice.dtype in QUANTISED:
        hint = f"use --backend {XNNPACK} for {choice.dtype}, or --dtype {FP32} with the portable kernels"
        problem = f"the portable backend has no quantiser: {choice.dtype} is refused, its kernels compute floats"
        raise UsageError(problem, where="--dtype", hint=hint)


def check_dtype(dtype: str) -> None:
    """Refuse number types that cannot be exported."""
    if dtype not in DTYPES:
        raise UsageError(f"no number type {dtype!r}", where="--dtype", hint=did_you_mean(dtype, DTYPES))
