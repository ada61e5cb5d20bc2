"""Properties of a compiled model: those that opscope sets itself, and those that a user may."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

USUAL = {
    "PERFORMANCE_HINT": "LATENCY",
    "NUM_STREAMS": "1",
    # On a CPU with bfloat16 the plugin would compute a model in single precision with it.
    "INFERENCE_PRECISION_HINT": "f32",
    "ENABLE_CPU_PINNING": "NO",
    "ENABLE_HYPER_THREADING": "YES",
}
"""How a model is compiled when nobody says otherwise."""
_SWITCHES = ("YES", "NO")
_OTHERS: Mapping[str, tuple[str, ...]] = {
    "PERFORMANCE_HINT": ("LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT"),
    "EXECUTION_MODE_HINT": ("PERFORMANCE", "ACCURACY"),
    "INFERENCE_PRECISION_HINT": ("f32", "bf16", "f16", "dynamic"),
    "ENABLE_CPU_PINNING": _SWITCHES,
    "ENABLE_CPU_RESERVATION": _SWITCHES,
    "ENABLE_HYPER_THREADING": _SWITCHES,
    "ENABLE_TENSOR_PARALLEL": _SWITCHES,
    "CPU_DENORMALS_OPTIMIZATION": _SWITCHES,
    "SCHEDULING_CORE_TYPE": ("ANY_CORE", "PCORE_ONLY", "ECORE_ONLY"),
    "TBB_PARTITIONER": ("STATIC", "AUTO", "NONE"),
    "NUM_STREAMS": (),
    "CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE": (),
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": (),
    "KV_CACHE_PRECISION": (),
    "KEY_CACHE_PRECISION": (),
    "VALUE_CACHE_PRECISION": (),
    "KEY_CACHE_GROUP_SIZE": (),
    "VALUE_CACHE_GROUP_SIZE": (),
}
"""Properties that a user may set, as OpenVINO 2026.4 names them, with their values; empty: the plugin checks them."""


def properties(options: Mapping[str, str] | None) -> dict[str, str]:
    """How a model is compiled with these options."""
    given = dict(options or {})
    for name, value in given.items():
        if name not in _OTHERS:
            hint = did_you_mean(name, _OTHERS) or f"known: {', '.join(_OTHERS)}"
            raise UsageError(f"unknown property {name!r} of OpenVINO", where="session_options", hint=hint)
        allowed = _OTHERS[name]
        if allowed and value not in allowed:
            raise UsageError(f"{value!r} is not allowed; expected {', '.join(allowed)}", where=name)
    return {**USUAL, **given}
