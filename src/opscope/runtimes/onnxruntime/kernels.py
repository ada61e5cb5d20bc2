"""Which of MLAS's kernels of products a CPU gets: by its features, when ONNX Runtime is loaded.

Source: ``onnxruntime/core/mlas/lib/platform.cpp``, 1.23 to 1.32. On x86-64 the instructions that ran were held against
this table on CPUs with and without each group of features.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import TypeAlias

    _Rule: TypeAlias = "tuple[tuple[str, ...], str]"

_FMA3 = ("avx2", "fma3")
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl", *_FMA3)
_VNNI = ("avx512vnni", *_AVX512)
_SSE: Sequence[_Rule] = [((), "SSE2")]
_SIGNED: Sequence[_Rule] = [(("avx_vnni_int8", *_FMA3), "AVX-VNNI-INT8"), *_SSE]
_UNSIGNED: Sequence[_Rule] = [
    (("avx_vnni_int8", *_FMA3), "AVX-VNNI-INT8"),
    (_AVX512, "AVX-512"),
    (_FMA3, "AVX2"),
    *_SSE,
]
_MIXED: Sequence[_Rule] = [
    (_VNNI, "AVX-512 VNNI"),
    (_AVX512, "AVX-512"),
    (("avxvnni", *_FMA3), "AVX-VNNI"),
    (_FMA3, "AVX2"),
    *_SSE,
]
_FLOAT: Sequence[_Rule] = [(("avx512f", *_FMA3), "AVX-512"), (_FMA3, "FMA3"), (("avx",), "AVX"), *_SSE]
_AMX: _Rule = (("amx_tile", "amx_int8", *_FMA3), "AMX")
_DOT: Sequence[_Rule] = [(("i8mm",), "i8mm"), (("dot",), "dot product"), ((), "NEON")]
_NEON: Sequence[_Rule] = [((), "NEON")]

_PRODUCTS: Mapping[str, Mapping[tuple[str, str], Sequence[_Rule]]] = {
    "x86_64": {
        ("float", "float"): _FLOAT,
        ("uint8", "int8"): [_AMX, *_MIXED],
        ("uint8", "uint8"): _UNSIGNED,
        ("int8", "int8"): _SIGNED,
    },
    "aarch64": {
        ("float", "float"): [(("sme",), "SME (KleidiAI)"), *_NEON],
        ("uint8", "int8"): _DOT,
        ("uint8", "uint8"): _DOT,
        ("int8", "int8"): _DOT,
    },
}
"""Of matrix products by their number types, the strongest first: the features that a kernel needs, and its name."""
_CONVOLUTIONS: Mapping[str, Mapping[tuple[str, str], Sequence[_Rule]]] = {
    "x86_64": {("float", "float"): _FLOAT, ("uint8", "int8"): _MIXED, ("uint8", "uint8"): _UNSIGNED},
    "aarch64": {},
}


def kernel_of(arch: str, fields: Collection[str], types: tuple[str, str], *, convolution: bool) -> str | None:
    """The instructions that MLAS's kernel of a product uses; None where that is not known.

    Args:
        arch: of the CPU.
        fields: of ``cpuinfo_isa`` that are set.
        types: of data and weights, as the profile names them.
        convolution: not a matrix product.
    """
    rules = (_CONVOLUTIONS if convolution else _PRODUCTS).get(arch, {}).get(types, ())
    return next((name for needed, name in rules if all(field in fields for field in needed)), None)
