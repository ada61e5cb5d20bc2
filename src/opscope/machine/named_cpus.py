"""Processors that can be named without having one: their features as ``cpuinfo_isa`` has them.

The names are those of ``-march`` and ``-mcpu`` of GCC and Clang; the features are what these define for the name
(``gcc -march=NAME -dM -E -``; for Apple's and Arm's newest cores LLVM's ``AArch64Processors.td``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.core.errors import FeatureError, did_you_mean
from opscope.machine import isa
from opscope.machine.switch.switch import fields_here
from opscope.program.kernels.cpu import Cpu

if TYPE_CHECKING:
    from collections.abc import Collection

_SSE4 = ("sse4_1", "sse4_2")
_AVX2 = (*_SSE4, "avx", "avx2", "fma3", "f16c")
_AVX512 = (*_AVX2, "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl")
_VNNI = (*_AVX512, "avx512vnni")
_ARMV82 = ("atomics", "rdm", "fp16arith", "dot")
_ARMV86 = (*_ARMV82, "bf16", "i8mm", "jscvt", "fcma", "fhm")
_ARMV9 = (*_ARMV86, "sve", "sve2")

_X86_64: dict[str, tuple[str, ...]] = {
    "x86-64-v2": _SSE4,
    "x86-64-v3": _AVX2,
    "x86-64-v4": _AVX512,
    "alderlake": (*_AVX2, "avxvnni"),
    "skylake-avx512": _AVX512,
    "cascadelake": _VNNI,
    "icelake-server": _VNNI,
    "sapphirerapids": (*_VNNI, "avxvnni", "avx512bf16", "avx512fp16", "amx_tile", "amx_int8", "amx_bf16"),
    "znver3": _AVX2,
    "znver4": (*_VNNI, "avx512bf16"),
    "znver5": (*_VNNI, "avx512bf16", "avxvnni"),
}
_AARCH64: dict[str, tuple[str, ...]] = {
    "cortex-a53": (),
    "cortex-a72": (),
    "cortex-a76": _ARMV82,
    "cortex-a78": _ARMV82,
    "neoverse-n1": _ARMV82,
    "neoverse-v1": (*_ARMV86, "sve"),
    "neoverse-n2": _ARMV9,
    "neoverse-v2": _ARMV9,
    "apple-m1": (*_ARMV82, "jscvt", "fcma", "fhm"),
    "apple-m2": _ARMV86,
    "apple-m4": (*_ARMV86, "sme", "sme2"),
    "c1-ultra": (*_ARMV9, "sme", "sme2"),
}
NAMES = (*_X86_64, *_AARCH64)
"""Names of processors, those of x86-64 first."""


def cpu_by_name(name: str | None, bits: Collection[int] = ()) -> Cpu:
    """Return a processor: the named one, or this machine's for None.

    ``bits`` are the widths of a model's weights, which decide what `opscope profile` switches off; empty: not known.

    Raises:
        FeatureError: nothing is known of the name, or this machine's processor does not tell its features.
    """
    if name is None:
        arch, listed = fields_here()
        fields = frozenset(listed)
    elif name in NAMES:
        arch = "x86_64" if name in _X86_64 else "aarch64"
        fields = frozenset(_X86_64.get(name) or _AARCH64[name])
    else:
        raise FeatureError(f"no features are known of a CPU {name!r}", hint=did_you_mean(name, NAMES))
    groups = tuple(group.name for group in isa.present(arch, fields))
    ablated = isa.strongest(arch, fields, bits)
    return Cpu(
        name=name or "this CPU",
        arch=arch,
        fields=fields,
        groups=groups,
        ablated=ablated.name if ablated else None,
        ablated_fields=frozenset(ablated.fields) if ablated else frozenset(),
    )
