"""Processors by their features, and the kernels that a runtime's rules choose for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


MACS_PER_CYCLE: dict[str, dict[int, int]] = {
    "SME2": {8: 500, 16: 250, 32: 250},
    "SME": {8: 500, 16: 250, 32: 250},
    "AMX": {8: 1024, 16: 512},
    "AVX-512 VNNI": {8: 128},
    "NEON i8mm": {8: 128},
    "AVX-512 FP16": {16: 64},
    "AVX-VNNI": {8: 64},
    "AVX-VNNI-INT8": {8: 64},
    "NEON dotprod": {8: 64},
    "AVX-512": {8: 64, 16: 32, 32: 32},
    "NEON fp16": {16: 32},
    "FMA3": {16: 16, 32: 16},
    "AVX2": {8: 32, 16: 16, 32: 16},
    "NEON": {8: 32, 16: 16, 32: 16},
    "AVX": {8: 16, 32: 8},
    "SSE4.1": {8: 16, 32: 4},
    "SSE2": {8: 16, 32: 4},
}
"""Peak multiply-accumulates per cycle of one core, by kernel and width of the data in bits; strongest kernel first.

Two vector units for x86-64 and four of 128 bits for Arm, of the widest cores of each kind (Intel's and Arm's
optimisation manuals: VPMADDWD and SSE's PMADDWD multiply 16 bits, VPDPBUSD and SDOT 8). SME: outer products of an Apple
M4 performance core at 4 GHz, measured by github.com/tzakharko/m4-sme-exploration (reports/02).
"""
_ORDER = list(MACS_PER_CYCLE)
_PARTS_OF_NAMES = (
    ("amx", "AMX"),
    ("vnni", "AVX-512 VNNI"),
    ("avx512", "AVX-512"),
    ("avx2", "AVX2"),
    ("avx", "AVX"),
    ("sse", "SSE4.1"),
)
"""Parts of the names that OpenVINO gives kernels, and the kernels with the same rates."""


class Cpu(NamedTuple):
    """A processor for which kernels are looked up."""

    name: str  # `this CPU`, or the public name of a processor
    arch: str  # `x86_64` or `aarch64`
    fields: frozenset[str]  # of cpuinfo_isa that are set
    groups: tuple[str, ...] = ()  # groups of features that it has, as --ablate names them, strongest first
    ablated: str | None = None  # the group that `opscope profile` switches off for the model; None: none helps it
    ablated_fields: frozenset[str] = frozenset()  # fields that are cleared with it

    @property
    def has_sme(self) -> bool:
        """Return whether the processor has SME, alone or as a part of SME2."""
        return "sme" in self.fields


class KernelRule(NamedTuple):
    """A kernel, and what a processor needs for it."""

    needed: tuple[str, ...]  # fields of cpuinfo_isa
    kernel: str  # by the instructions that multiply: `AVX-512 VNNI`


class KernelChoice(NamedTuple):
    """The kernels that an operator gets on a processor."""

    kernel: str  # with all features
    without: str  # with the ablated group switched off; the same where that changes nothing
    better: str | None = (
        None  # stronger kernel of the same width that other number types would get; None: there is none
    )
    advice: str | None = None  # how to get it


def choose_kernel(rules: Sequence[KernelRule], fields: Collection[str]) -> str | None:
    """Return the first kernel whose features are all there; None if a processor has no kernel for it."""
    return next((rule.kernel for rule in rules if all(field in fields for field in rule.needed)), None)


def choose_kernels(
    rules: Sequence[KernelRule], cpu: Cpu, strongest: Sequence[KernelRule] = (), advice: str = ""
) -> KernelChoice | None:
    """Return the kernels for an operator with and without the ablated group; None if the processor has none.

    ``strongest`` are the rules of the number types of the same width that get the strongest kernels, and ``advice``
    says how to export the model in these.
    """
    kernel = choose_kernel(rules, cpu.fields)
    if kernel is None:
        return None
    without = choose_kernel(rules, cpu.fields - cpu.ablated_fields) or kernel
    better = choose_kernel(strongest, cpu.fields)
    if better is None or _ORDER.index(better) >= _ORDER.index(kernel):
        return KernelChoice(kernel, without)
    return KernelChoice(kernel, without, better, advice)


_VECTORS = {
    "x86_64": [
        KernelRule(("avx512f",), "AVX-512"),
        KernelRule(("fma3",), "FMA3"),
        KernelRule(("avx",), "AVX"),
        KernelRule((), "SSE2"),
    ],
    "aarch64": [KernelRule((), "NEON")],
}


def vector_kernel(arch: str, fields: Collection[str]) -> str:
    """Return the kernel whose rates stand for work that is no matrix product: that of the widest vectors."""
    return choose_kernel(_VECTORS[arch], fields) or ""


def macs_per_cycle(kernel: str, bits: int | None, vector: str) -> int:
    """Return the peak rate of a kernel for data of a width.

    An unknown width counts as the widest that the kernel multiplies. ``vector`` is the kernel that stands for one
    whose name tells nothing.
    """
    known = kernel if kernel in MACS_PER_CYCLE else next((k for word, k in _PARTS_OF_NAMES if word in kernel), vector)
    rates = MACS_PER_CYCLE[known]
    return rates.get(bits or max(rates), rates[max(rates)])
