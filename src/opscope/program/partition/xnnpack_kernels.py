"""Look up the kernels that XNNPACK gives a processor for products, by number types.

Source: ``src/configs/gemm-config.c``, ``dwconv-config.c`` and ``hardware-config.c`` of XNNPACK 92a7ad50, which
executorch 1.5.1 contains; for data quantised at run time ``convert_gemm_to_qduint8`` in ``src/subgraph.c``,
which takes the stronger of two kernels. XNNPACK asks for GFNI beside AMX and AVX-VNNI: all processors with
these have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.program.kernels.cpu import KernelChoice, KernelRule, choose_kernels
from opscope.program.partition.verdicts import Form, SmeSupport

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.program.kernels.cpu import Cpu
    from opscope.program.partition.verdicts import Eligibility

_SKX = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
_SSE2 = KernelRule((), "SSE2")
_SSE41 = KernelRule(("sse4_1",), "SSE4.1")
_AVX = KernelRule(("avx",), "AVX")
_AVX2 = KernelRule(("avx2",), "AVX2")
_FMA3 = KernelRule(("fma3",), "FMA3")
_AVX512 = KernelRule(_SKX, "AVX-512")
_AVX_VNNI = KernelRule(("avx2", "avxvnni"), "AVX-VNNI")
_VNNI = KernelRule((*_SKX, "avx512vnni"), "AVX-512 VNNI")
_AMX = KernelRule((*_SKX, "avx512vnni", "amx_int8"), "AMX")
_NEON = KernelRule((), "NEON")
_NEON_FP16 = KernelRule(("fp16arith",), "NEON fp16")
_DOTPROD = KernelRule(("dot",), "NEON dotprod")
_I8MM = KernelRule(("i8mm",), "NEON i8mm")
_SME = (KernelRule(("sme", "sme2"), "SME2"), KernelRule(("sme",), "SME"))

_STATIC_INT8 = [_AMX, _VNNI, _AVX_VNNI, _AVX512, _AVX2, _AVX, _SSE41, _SSE2]
_UNSIGNED_INT8 = [_AVX512, _AVX2, _AVX, _SSE41, _SSE2]
_FP32 = [KernelRule(("avx512f",), "AVX-512"), _FMA3, _AVX, _SSE2]
_ARM_INT8 = [_I8MM, _DOTPROD, _NEON]

_PRODUCTS: Mapping[str, Mapping[tuple[str, str], Sequence[KernelRule]]] = {
    "x86_64": {
        ("fp32", "fp32 fp16"): _FP32,
        ("fp32", "qcint8 qcint4"): [_AVX512, _AVX2, _FMA3, _AVX, _SSE41],
        ("fp16", "*"): [KernelRule(("avx512fp16",), "AVX-512 FP16"), _AVX512, _AVX2],
        ("qdint8", "qcint8 qint8"): [_AMX, _VNNI, _AVX_VNNI, _AVX512, _AVX2, _SSE41, _SSE2],
        ("qdint8", "qcint4"): [_AMX, _VNNI, _AVX_VNNI, _AVX512, _AVX2, _SSE2],
        ("qdint8", "qbint4"): [_VNNI, _AVX2, _AVX, _SSE41, _SSE2],
        ("qint8", "qcint8 qint8"): _STATIC_INT8,
        ("qint8", "qcint4"): [_VNNI, _AVX_VNNI, _AVX512, _AVX2, _AVX, _SSE2],
        ("quint8", "*"): _UNSIGNED_INT8,
    },
    "aarch64": {
        ("fp32", "*"): [_NEON],
        ("fp16", "*"): [_NEON_FP16],
        ("qdint8", "*"): _ARM_INT8,
        ("qint8", "*"): _ARM_INT8,
        ("quint8", "*"): [_NEON],
    },
}
"""Kernels of matrix products and convolutions by the types of data and weights, the strongest first; without SME."""
_DEPTHWISE: Mapping[str, Mapping[tuple[str, str], Sequence[KernelRule]]] = {
    "x86_64": {
        ("fp32", "*"): _FP32,
        ("fp16", "*"): [_FMA3],
        ("qint8", "*"): _UNSIGNED_INT8,
        ("quint8", "*"): _UNSIGNED_INT8,
    },
    "aarch64": {("fp32", "*"): [_NEON], ("fp16", "*"): [_NEON_FP16], ("qint8", "*"): [_NEON], ("quint8", "*"): [_NEON]},
}
_SIGNED = "quantise as signed int8 with a weight scale per channel"


def xnnpack_kernels(eligibility: Eligibility, types: Sequence[str], cpu: Cpu) -> KernelChoice | None:
    """Return the kernels that XNNPACK gives a processor for a node; None where that is not known.

    ``types`` are the number types of data and weights, as the graph of the delegate names them.
    """
    if eligibility.form is Form.ATTENTION or len(types) < len(("data", "weights")):
        return None
    depthwise = eligibility.form is Form.DEPTHWISE
    rules = _matching_rules((_DEPTHWISE if depthwise else _PRODUCTS)[cpu.arch], *types[:2])
    if cpu.has_sme and eligibility.verdict is SmeSupport.UNKNOWN:
        return None
    if eligibility.verdict is SmeSupport.ELIGIBLE:
        rules = [*_SME, *rules]
    is_unsigned = types[0] == "quint8" and not depthwise
    strongest = _matching_rules(_PRODUCTS[cpu.arch], "qint8", "qcint8") if is_unsigned else ()
    return choose_kernels(rules, cpu, strongest, _SIGNED)


def _matching_rules(
    table: Mapping[tuple[str, str], Sequence[KernelRule]], data: str, weights: str
) -> Sequence[KernelRule]:
    """Return the rules for a pair of number types; none if the table does not have the pair."""
    for (data_type, weight_types), rules in table.items():
        if data == data_type and (weight_types == "*" or weights in weight_types.split()):
            return rules
    return ()
