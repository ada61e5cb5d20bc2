"""Names of kernels in a binary, of XNNPACK and of KleidiAI: what they compute, in which number types, by which ISA.

KleidiAI's names are built as follows (its documentation, "Micro-kernel variants", and the exported symbols of the
library in ExecuTorch 1.5.1)::

    kai_run_matmul_clamp_<result>_<data>_<weights>[_<tile>]_<isa>_<instruction>
    kai_run_{lhs,rhs}_[imatmul_|quant_]pack_[kxn_|nxk_]<packed>_<source>[_<more>]_<isa>

``kai_kernel_...`` is the assembly behind the ``kai_run_...`` of the same name; samples fall there.

Names of XNNPACK's microkernels are built as follows (XNNPACK's own generator scripts, as of the library in ExecuTorch
1.5.1)::

    name     = "xnn_" dtype {"_" dtype} "_" operator {"_" variant} "_ukernel" ["_" tile] "__" chain
    dtype    = letters that stand for a number type, its width, and "w" for weights: f32, qd8, qc4w, pqs8, x32, xx
    operator = first word that is no dtype: gemm, igemm, dwconv, vadd, transposec
    variant  = every word between operator and "ukernel": minmax, relu
    tile     = what one call computes, as the kernel family writes it: 7x16, 1x16c4, 9p8c, 3x3s2p1c3x4
    chain    = instruction sets and tuning, in the name's order: neonsme2, or avx512f and broadcast, or neon and u8

OpenVINO's plugin for CPUs names the kernel of each node (``impl_desc_type`` in ``onednn/iml_type_mapper.h``, 2026.4)::

    {jit|gemm|brgconv|brgemm|winograd|ref|reorder|acl}[_<what>][_<isa>][_<variant>]_<type>

``uni`` and ``mlas`` stand where the instruction set would: such a name tells none.

Some families write the tile as the first word of the chain (``xnn_x32_transposec_ukernel__4x4_sse``); it is the tile.
A name that does not follow the grammar is kept whole and marked as not parsed.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable


LONGEST_NAME = 256
_DTYPE = re.compile(r"(?:(?:bf|pf|f|pqs|qs|qu|qc|qb|qdu|qd|qp|x|s|u|i)\d+w?(?:acc)?|xx)\Z")
_NAME = re.compile(r"xnn_(?P<front>[a-z0-9]+(?:_[a-z0-9]+)*)_ukernel(?:_(?P<tile>[a-z0-9]+))?__(?P<chain>[a-z0-9_]+)\Z")
_TILE = re.compile(r"\d+x\d+[a-z0-9]*\Z")


class KernelName(msgspec.Struct, frozen=True):
    """Parts of a microkernel's name; all of them null or empty if the name does not follow the grammar."""

    whole: str  # the name as it was written
    parsed: bool  # whether it follows the grammar
    dtype: str | None = None  # number types, inputs before weights, joined by `_`: `f32`, `qd8_f32_qc8w`
    operator: str | None = None  # `gemm`, `igemm`, `vadd`
    variant: str | None = None  # `minmax`; null where the name has none
    tile: str | None = None  # `7x16`; null where the name has none
    isa_chain: tuple[str, ...] = ()  # instruction sets and tuning, as the name lists them

    @property
    def sme2(self) -> bool:
        """Return whether the kernel needs SME2."""
        return any("sme2" in word for word in self.isa_chain)

    @property
    def sme(self) -> bool:
        """Return whether the kernel needs SME or SME2."""
        return any("sme" in word for word in self.isa_chain)


def parse_kernel(name: str) -> KernelName:
    """Parse the name of a microkernel."""
    match = _NAME.match(name) if len(name) <= LONGEST_NAME else None
    words = match["front"].split("_") if match else []
    types = next((index for index, word in enumerate(words) if not _DTYPE.match(word)), len(words))
    if not match or not types or types == len(words):
        return KernelName(name, parsed=False)
    tile, chain = match["tile"], [word for word in match["chain"].split("_") if word]
    if tile is None and len(chain) > 1 and _TILE.match(chain[0]):
        tile, chain = chain[0], chain[1:]
    if not chain:
        return KernelName(name, parsed=False)
    return KernelName(
        whole=name,
        parsed=True,
        dtype="_".join(words[:types]),
        operator=words[types],
        variant="_".join(words[types + 1 :]) or None,
        tile=tile,
        isa_chain=tuple(chain),
    )


class KernelEntry(msgspec.Struct, frozen=True):
    """One kernel that the library registered."""

    kernel: KernelName  # its name and the parts of it
    category: str  # what the library registered it for, in the log's word: `gemm`, `binary`
    line: int  # number of the line in the log, from 1
    function: str | None = None  # of the library that wrote the line; null in the older form of the line
    source: str | None = None  # file and line of that function; null in the older form


class KernelLog(msgspec.Struct, frozen=True):
    """The kernels that a process of XNNPACK registered, in the order of its log.

    Registration is not execution: the library writes one line when it fills a table of kernels, once a process, for
    every tile size that it may choose from. How often a kernel was called, and whether at all, is not in a log.
    """

    entries: tuple[KernelEntry, ...]  # one for each line that names a kernel
    incomplete: tuple[int, ...] = ()  # numbers of lines that begin like one but are cut off or damaged
    evidence: Literal["registration"] = "registration"  # always `registration`

    def names(self) -> tuple[str, ...]:
        """Return the kernels, each once, in the order of the log."""
        return tuple(dict.fromkeys(entry.kernel.whole for entry in self.entries))


class IsaClass(str, enum.Enum):
    """The strongest instruction set that a kernel's name states; strongest first."""

    SME2 = "sme2"
    SME = "sme"
    SVE = "sve"
    I8MM = "i8mm"
    DOTPROD = "dotprod"
    BF16 = "bf16"
    FP16 = "fp16"
    NEON = "neon"
    AMX = "amx"
    AVX512 = "avx512"
    AVX2 = "avx2"
    AVX = "avx"
    SSE = "sse"
    OTHER = "other"
    SCALAR = "scalar"
    UNKNOWN = "unknown"


SME_FAMILY = (IsaClass.SME2, IsaClass.SME)
_OF_NEON = (IsaClass.I8MM, IsaClass.DOTPROD, IsaClass.BF16, IsaClass.FP16)
_NAMES = {
    IsaClass.AVX512: "AVX-512",
    IsaClass.OTHER: "another instruction set",
    IsaClass.SCALAR: "scalar",
    IsaClass.UNKNOWN: "instruction set unknown",
}


def isa_text(isa: IsaClass) -> str:
    """Return an instruction set as engineers write it; extensions of NEON follow the word NEON."""
    if isa in _OF_NEON:
        return f"NEON {isa.value}"
    return _NAMES.get(isa, isa.value.upper())


# A word of a name belongs to the first class whose pattern it matches. avx256skx and avx256vnni need AVX512VL.
_CLASSES: tuple[tuple[IsaClass, re.Pattern[str]], ...] = tuple(
    (isa, re.compile(pattern))
    for isa, pattern in (
        (IsaClass.SME2, r"(?:neon)?sme2"),
        (IsaClass.SME, r"(?:neon)?sme\Z"),
        (IsaClass.SVE, r"(?:neon)?sve"),
        (IsaClass.I8MM, r"(?:neon)?i8mm"),
        (IsaClass.DOTPROD, r"neondot|dotprod"),
        (IsaClass.BF16, r"neonbf16"),
        (IsaClass.FP16, r"neonfp16arith"),
        (IsaClass.NEON, r"neon|asm_aarch(?:32|64)_neon|aarch(?:32|64)"),
        (IsaClass.AMX, r"avx512amx|amx"),
        (IsaClass.AVX512, r"avx512|avx256|avx10"),
        (IsaClass.AVX2, r"avx2|avxvnni|fma3|f16c"),
        (IsaClass.AVX, r"avx"),
        (IsaClass.SSE, r"s?sse"),
        (IsaClass.OTHER, r"wasm|rvv|hvx|hexagon|vfp|armsimd32"),
        (IsaClass.SCALAR, r"scalar"),
    )
)
_KAI = re.compile(r"kai_(?:run|kernel)_(?P<rest>[a-z0-9_]+)\Z")
_MATMUL = re.compile(
    r"matmul_clamp_(?P<types>\w+?)_(?:(?P<tile>\d+(?:vl)?x\d+(?:vl)?(?:x\d+)?)_)?(?P<isa>(?:opt32_)?(?:sme|neon).*)\Z"
)
_PACK = re.compile(r"(?P<side>[lr]hs)_(?P<how>imatmul_|quant_)?pack_(?:kxn_|nxk_)?(?P<types>\w+)\Z")
_NODE_KERNEL = re.compile(
    r"(?P<operator>jit|gemm|brgconv|brgemm|winograd|ref|reorder|acl)(?P<middle>(?:_[a-z0-9]+)*)"
    r"_(?P<types>f32|bf16|f16|f64|[IiUu](?:8|16|32|64)|boolean)\Z"
)
_ASKING = ("_get_mr", "_get_nr")
"""Suffixes of functions that only return a kernel's tile."""
_TYPE = re.compile(r"(?P<type>bf16|f16|f32|qai8|qsi8|qs8|qau8|qsi4|qsu4|qs4|i32|x8|x16|x32)")
_FAMILIES = {
    "fp32": re.compile(r"p?f32"),
    "fp16": re.compile(r"p?f16"),
    "bf16": re.compile(r"p?bf16"),
    "int8": re.compile(r"p?q[a-z]*8|x8|s8|u8"),
    "int4": re.compile(r"q[a-z]*4"),
    "int2": re.compile(r"q[a-z]*2"),
}


class KernelSymbol(msgspec.Struct, frozen=True):
    """Facts in the name of a kernel."""

    name: str  # of the kernel; assembly under the name of the function that calls it
    library: str  # `KleidiAI` or `XNNPACK`
    operator: str  # `matmul`, `lhs_pack`, `gemm`, `vadd`
    types: str  # number types as the name writes them, joined by `_`
    tile: str | None  # what one call computes; null where the name has none
    isa: IsaClass  # the instruction set that it needs

    @property
    def families(self) -> tuple[str, ...]:
        """Families of its number types, such as ``int8``."""
        words = self.types.split("_")
        return tuple(name for name, form in _FAMILIES.items() if any(form.match(word) for word in words))

    @property
    def packs(self) -> bool:
        """Return whether it only lays out data for another kernel."""
        return "pack" in self.operator


def parse_symbol(name: str) -> KernelSymbol | None:
    """Parse the name of a kernel; None if it is the name of something else."""
    if len(name) > LONGEST_NAME:
        return None
    match, node = _KAI.match(name), _NODE_KERNEL.match(name)
    if node:
        isa = isa_of(node["middle"].split("_"))
        return KernelSymbol(name, "OpenVINO", node["operator"], node["types"].lower(), None, isa)
    return _parse_kleidi_symbol(match["rest"]) if match else _parse_xnnpack_symbol(name)


def _parse_kleidi_symbol(rest: str) -> KernelSymbol | None:
    name = f"kai_run_{rest}"
    product, pack = _MATMUL.match(rest), _PACK.match(rest)
    if product:
        isa = isa_of(product["isa"].split("_"))
        return KernelSymbol(name, "KleidiAI", "matmul", _join_types(product["types"]), product["tile"], isa)
    if pack:
        words = pack["types"].split("_")
        operator = f"{pack['side']}_{pack['how'] or ''}pack"
        return KernelSymbol(name, "KleidiAI", operator, _join_types("_".join(words[:2])), None, isa_of(words))
    return None


def _join_types(text: str) -> str:
    matches = (_TYPE.match(word) for word in text.split("_"))
    return "_".join(match["type"] for match in matches if match)


def _parse_xnnpack_symbol(name: str) -> KernelSymbol | None:
    kernel = parse_kernel(name)
    if not kernel.parsed or name.endswith(_ASKING):
        return None
    return KernelSymbol(
        name, "XNNPACK", kernel.operator or "", kernel.dtype or "", kernel.tile, isa_of(kernel.isa_chain)
    )


def isa_of(words: Iterable[str]) -> IsaClass:
    """Return the strongest instruction set that the words of a name state; ``unknown`` if they state none."""
    isas = {isa for isa in map(_isa_of_word, words) if isa}
    return next((isa for isa in IsaClass if isa in isas), IsaClass.UNKNOWN)


def _isa_of_word(word: str) -> IsaClass | None:
    return next((isa for isa, form in _CLASSES if form.match(word)), None)
