"""Effects of an instruction: its class, the bytes that it loads and stores, the products that it can make.

Classes are those of counted work, see :data:`opscope.analysis.work.work.CLASSES`. 64-bit Arm is decoded by
Capstone, an
extra, which knows SVE, SME and SME2; what is read here is its assembly text. Vectors without a fixed length are
counted
whole, also where a predicate leaves lanes out. Source of what instructions do: Arm's Architecture Reference
Manual for
A-profile, with its supplement for SME.

x86-64 is decoded by iced-x86, an extra.
"""

from __future__ import annotations

import re
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from opscope.core.errors import MissingDependencyError
from opscope.core.install import install_command
from opscope.core.system.elf import read_code

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.core.system.elf import CodeSection


class Instruction(NamedTuple):
    """Effects of one execution of an instruction."""

    kind: str  # its class, of :data:`opscope.analysis.work.work.CLASSES`
    loaded: int = 0  # bytes
    stored: int = 0  # bytes
    products: int = 0  # multiply-accumulates that it holds: lanes of a fused one, factors of a dot product
    tile_products: int = 0  # of these, those that a matrix unit sums up in its own registers
    streaming: int = 0  # whether the processor enters the mode of its matrix unit: 1, else 0


UNKNOWN = Instruction("unknown")


_LONGEST = 15
_X86_FUSED = re.compile(r"VFN?M(ADD|SUB)\w*?(PS|PD|PH|SS|SD|SH)$")
_X86_DOT = {"VPMADDWD": 32, "PMADDWD": 32, "VPMADDUBSW": 16, "PMADDUBSW": 16, "VPDPBUSD": 32, "VPDPBUSDS": 32}
"""Integer dot products, with the bits of a result; each sums as many products as narrow factors fit into it."""
_FACTOR_BITS = {"VPMADDWD": 16, "PMADDWD": 16}
_STRING_BYTES = {"B": 1, "W": 2, "D": 4, "Q": 8}
_ELEMENT_BITS = {"S": 32, "D": 64, "H": 16}
_MOVES = re.compile(r"(V?MOV|V?LDDQU|V?BROADCAST|VPBROADCAST|V?PINSR|V?PEXTR|POP|PUSH|V?MASKMOV|V?PMASKMOV)")


class X86Instructions:
    """Instructions of ELF files by their addresses."""

    def __init__(self) -> None:
        try:
            iced_x86: Any = import_module("iced_x86")
        except ImportError:
            problem = "cannot decode instructions: iced-x86 is not installed"
            raise MissingDependencyError(problem, hint=install_command("count")) from None
        self._iced = iced_x86
        self._about = iced_x86.InstructionInfoFactory()
        self._names = {value: name for name, value in vars(iced_x86.Mnemonic).items() if isinstance(value, int)}
        self._known: dict[tuple[str, int], Instruction] = {}

    def at(self, file: str, address: int) -> Instruction:
        """Return the instruction at an address of a file; ``UNKNOWN`` where no file holds it."""
        key = file, address
        if key not in self._known:
            self._known[key] = self._decode_at(file, address)
        return self._known[key]

    def _decode_at(self, file: str, address: int) -> Instruction:
        """Return the instruction at an address of a file that was not asked for before."""
        section = next((part for part in _read_sections(file) if 0 <= address - part.address < len(part.code)), None)
        if section is None:
            return UNKNOWN
        offset = address - section.address
        return self.of(section.code[offset : offset + _LONGEST], address)

    def of(self, code: bytes, address: int = 0) -> Instruction:
        """Return the first instruction of some code."""
        decoded = self._iced.Decoder(64, code, ip=address).decode()
        return UNKNOWN if decoded.is_invalid else self._describe_decoded(decoded)

    def _describe_decoded(self, decoded: Any) -> Instruction:  # noqa: ANN401 - of the package
        """Return the effects of an instruction that iced-x86 decoded."""
        iced, name = self._iced, self._names.get(decoded.mnemonic, "")
        loaded = stored = 0
        for memory in self._about.info(decoded).used_memory():
            # Of a string instruction that is repeated, one repetition: each counts as an instruction.
            repeated = _STRING_BYTES[name[-1]] if decoded.is_string_instruction else 0
            size = iced.MemorySizeExt.size(memory.memory_size) or repeated
            loaded += size * (memory.access in _reading_accesses(iced))
            stored += size * (memory.access in _writing_accesses(iced))
        registers = [
            decoded.op_register(n) for n in range(decoded.op_count) if decoded.op_kind(n) == iced.OpKind.REGISTER
        ]
        width = max(
            (
                iced.RegisterExt.size(register) * 8
                for register in registers
                if iced.RegisterExt.is_vector_register(register)
            ),
            default=0,
        )
        kind, products = self._class_and_products(decoded, name, width, bool(loaded), bool(stored))
        return Instruction(kind, loaded, stored, products)

    def _class_and_products(self, decoded: Any, name: str, width: int, loads: bool, stores: bool) -> tuple[str, int]:  # noqa: ANN401
        """Return the class of an instruction, and the products that it holds."""
        if fused := _X86_FUSED.match(name):
            bits = _ELEMENT_BITS[fused[2][1]]
            return "multiply_add", width // bits if fused[2][0] == "P" else 1
        if name in _X86_DOT:
            return "dot_product", width // _FACTOR_BITS.get(name, 8)
        if name.startswith("TDP"):
            return "outer_product", 0
        if decoded.flow_control != self._iced.FlowControl.NEXT:
            return "branch", 0
        if _MOVES.match(name) and (loads or stores):
            return ("store" if stores and not loads else "load"), 0
        return ("vector" if width else "scalar"), 0


@lru_cache(maxsize=64)
def _read_sections(file: str) -> tuple[CodeSection, ...]:
    """Return the code of a file, if it is one with code."""
    path = Path(file)
    if not path.is_file():
        return ()
    code = read_code(path.read_bytes(), path)
    return () if code is None else tuple(code.sections)


@lru_cache(maxsize=1)
def _reading_accesses(iced: Any) -> frozenset[int]:  # noqa: ANN401
    """Return the accesses of iced-x86 that read memory."""
    access = iced.OpAccess
    return frozenset((access.READ, access.COND_READ, access.READ_WRITE, access.READ_COND_WRITE))


@lru_cache(maxsize=1)
def _writing_accesses(iced: Any) -> frozenset[int]:  # noqa: ANN401
    """Return the accesses of iced-x86 that write memory."""
    access = iced.OpAccess
    return frozenset((access.WRITE, access.COND_WRITE, access.READ_WRITE, access.READ_COND_WRITE))


class VectorLengths(NamedTuple):
    """Lengths of vectors without a fixed one, in bits."""

    vector: int  # of Z registers, in the mode that the processor is in
    tile: int  # of a row of ZA


SVE_BITS, SME_BITS = 128, 512
"""Lengths unless others are asked for: those of most CPUs with SVE, and of Apple's and Arm's with SME."""
LENGTHS = (128, 256, 512, 1024, 2048)
_SIZES = {"b": 1, "h": 2, "s": 4, "d": 8, "q": 16}
_REGISTER_BYTES = {**_SIZES, "w": 4, "x": 8, "v": 16}
_OUTER = re.compile(r"(?:[fsub]|us|su|bf)mop[as]")
_FUSED = re.compile(
    r"(?:f|bf|[su]|us|su)?ml[as](?:l|ll|lb|lt|l2|lbb|lbt|ltb|ltt)?2?|fn?m(?:ad|sb|la|ls)|fn?m(?:add|sub)|m(?:ad|sb)"
)
_DOT = re.compile(r"(?:[suf]|us|su|bf)v?dot|(?:[suf]|us|su|bf)?mmla")
_MULTIPLIES = re.compile(rf"{_OUTER.pattern}|{_FUSED.pattern}|{_DOT.pattern}")
_BRANCH = re.compile(r"b|b\.\w+|bl|blr\w*|br\w*|ret\w*|cbn?z|tbn?z|bc\.\w+")
_LOAD = re.compile(r"ld(?!g\b)\w+")
_STORE = re.compile(r"st(?!g\b)\w+")
_ATOMIC = re.compile(r"(?:cas|swp|ldadd|ldclr|ldeor|ldset|lds?max|lds?min|ldumax|ldumin|rcw)\w*")
_ELEMENT = re.compile(r"(?:ld|st)(?:nt)?[1234](?:r|rq|ro)?s?([bhwdq])(?![a-z])")
_WORD = {**_SIZES, "w": 4}
_HALVED = re.compile(r"(?:ld|st)[a-z]*?(s?[bh]|sw)$")
_LIST = re.compile(r"\{([^}]*)\}(\[\d+\])?")
_NAMED = re.compile(r"(za|zt|[bhsdqvzpwx])(\d*)\w*?(?:\.(\d*)([bhsdq]))?(?![a-z])")
_VECTOR_OPERAND = re.compile(r"(?<![\w#])(?:[bhsdqvzp]\d+|pn\d+|za|zt0)")
_GROUP = re.compile(r"vgx([24])")
_RANGE = re.compile(r"\[w\d+, (\d+):(\d+)")
_SHOWN_AS = re.compile(r"\.(\d*)([bhsdq])")
_PAIRED = ("ldp", "ldnp", "stp", "stnp", "ldxp", "ldaxp", "stxp", "stlxp", "ldpsw")
_TABLE_BYTES = 64


class Arm64Instructions:
    """Instructions by their words, which need no file."""

    def __init__(self) -> None:
        try:
            capstone: Any = import_module("capstone")
        except ImportError:
            problem = "cannot decode 64-bit Arm instructions: capstone is not installed"
            raise MissingDependencyError(problem, hint=install_command("count")) from None
        if not hasattr(capstone, "CS_ARCH_AARCH64"):
            problem = f"capstone {capstone.__version__} does not support SME2: version 6 does"
            raise MissingDependencyError(problem, hint=install_command("count"))
        self._decoder = capstone.Cs(capstone.CS_ARCH_AARCH64, capstone.CS_MODE_ARM)
        self._known: dict[tuple[int, VectorLengths], Instruction] = {}

    def of(self, word: int, lengths: VectorLengths) -> Instruction:
        """Return the instruction of a word of 32 bits."""
        key = word, lengths
        if key not in self._known:
            disassembled = next(self._decoder.disasm_lite(word.to_bytes(4, "little"), 0), None)
            self._known[key] = described(disassembled[2], disassembled[3], lengths) if disassembled else UNKNOWN
        return self._known[key]


def described(name: str, operands: str, lengths: VectorLengths) -> Instruction:
    """Return an instruction by its text."""
    if name == "smstart":
        return Instruction("scalar", streaming=int("za" not in operands))
    is_vector = _VECTOR_OPERAND.search(operands) is not None
    return (
        _describe_multiplication(name, operands, lengths)
        if is_vector and _MULTIPLIES.fullmatch(name)
        else _describe_other(name, operands, lengths, "vector" if is_vector else "scalar")
    )


def _describe_multiplication(name: str, operands: str, lengths: VectorLengths) -> Instruction:
    """Return an instruction that multiplies, with its products."""
    is_outer = _OUTER.fullmatch(name) is not None
    kind = "outer_product" if is_outer else "dot_product" if _DOT.fullmatch(name) else "multiply_add"
    products = (_outer_products if is_outer else partial(_lane_products, name))(operands, lengths)
    return Instruction(kind, products=products, tile_products=products if operands.startswith("za") else 0)


def _describe_other(name: str, operands: str, lengths: VectorLengths, kind: str) -> Instruction:
    """Return an instruction that does not multiply: a branch, a load, a store or one of ``kind``."""
    if _BRANCH.fullmatch(name):
        return Instruction("branch")
    is_atomic = _ATOMIC.fullmatch(name) is not None
    loads, stores = is_atomic or _LOAD.fullmatch(name) is not None, is_atomic or _STORE.fullmatch(name) is not None
    if not loads and not stores:
        return Instruction(kind)
    moved = _bytes_of_atomic(name, operands) if is_atomic else _bytes_moved(name, operands, lengths)
    return Instruction("load" if loads else "store", moved * loads, moved * stores)


def _bytes_of_atomic(name: str, operands: str) -> int:
    """Return the bytes that an operation on memory reads and writes.

    Those of less than a register end with their size.
    """
    return _SIZES[name[-1]] if name[-1] in "bh" else _REGISTER_BYTES[operands[0]]


def _outer_products(operands: str, lengths: VectorLengths) -> int:
    """Return the products of an outer product: a tile of sums, each of as many factors as fit into it."""
    sizes = [_SIZES[size] for _, size in _SHOWN_AS.findall(operands)]
    return (lengths.tile // (8 * sizes[0])) ** 2 * (sizes[0] // sizes[-1])


def _lane_products(name: str, operands: str, lengths: VectorLengths) -> int:
    """Return the products of an instruction that sums them up lane by lane, or in small matrices."""
    arrangements = _SHOWN_AS.findall(operands)
    if not arrangements or operands[0] not in "vz":
        return 1  # of one number, as fmadd s0, s1, s2, s3
    (count, made), (_, read) = arrangements[0], arrangements[1]
    if operands.startswith("za"):
        bits = lengths.tile * _count_vectors(operands)
    else:
        bits = int(count) * 8 * _SIZES[made] if count else lengths.vector
    if name.endswith("mmla"):
        return bits // _QUARTER_BITS * _IN_MATRICES.get((made, read), 0)
    return bits // (8 * _SIZES[made]) * (_SIZES[made] // _SIZES[read] if "dot" in name else 1)


_QUARTER_BITS = 128
_IN_MATRICES = {("s", "b"): 32, ("s", "h"): 16, ("s", "s"): 8, ("d", "d"): 4}
"""Products of 128 bits of matrices, by the numbers that are made and those that are multiplied."""


def _count_vectors(operands: str) -> int:
    """Return how many vectors of ZA an instruction adds to, of an operand such as ``za.s[w8, 0:1, vgx4]``."""
    group, many = _GROUP.search(operands), _RANGE.search(operands)
    return (int(group[1]) if group else 1) * (int(many[2]) - int(many[1]) + 1 if many else 1)


def _bytes_moved(name: str, operands: str, lengths: VectorLengths) -> int:
    """Return the bytes that a load or a store moves."""
    if listed := _LIST.match(operands):
        return _bytes_of_list(name, listed[1], lengths, is_element=listed[2] is not None)
    if name in _PAIRED:
        first = operands.split(", ")[1 if name.startswith(("stxp", "stlxp")) else 0]
        return 2 * (4 if name == "ldpsw" else _bytes_of_register(first, lengths))
    values = operands.split(", ")
    value = values[1] if name.startswith(("stxr", "stlxr")) and len(values) > 1 else values[0]
    if halved := _HALVED.match(name):
        return {"b": 1, "h": 2, "w": 4}[halved[1][-1]]
    return _bytes_of_register(value, lengths)


def _bytes_of_register(name: str, lengths: VectorLengths) -> int:
    """Return the bytes of a register."""
    if name.startswith("za"):
        return lengths.tile // 8
    if name.startswith("zt"):
        return _TABLE_BYTES
    if name.startswith("z"):
        return lengths.vector // 8
    if name.startswith("p"):
        return lengths.vector // 64
    return _REGISTER_BYTES.get(name[0], 8)


def _bytes_of_list(name: str, text: str, lengths: VectorLengths, *, is_element: bool) -> int:
    """Return the bytes of a list of registers, as ``z0.s - z3.s``.

    Of one element of each, where an index follows it.
    """
    registers = _list_registers(text)
    first = _NAMED.match(text.strip())
    if first is None or first[4] is None:
        return len(registers) * _bytes_of_register(text.strip(), lengths)
    size = _SIZES[first[4]]
    if first[1] == "v":
        vector_bytes = int(first[3] or 1) * size
        return len(registers) * (size if is_element or re.fullmatch(r"ld[1234]r", name) else vector_bytes)
    match = _ELEMENT.match(name)
    element_bytes = _WORD[match[1]] if match else size
    if re.match(r"ld1r[qo]", name):
        return 16 if name[4] == "q" else 32
    if re.match(r"ld1rs?[bhwd]", name):
        return element_bytes
    bits = lengths.tile if first[1] == "za" else lengths.vector
    return len(registers) * (bits // 8 // size) * element_bytes


def _list_registers(text: str) -> Sequence[int]:
    """Return the numbers of the registers in a list."""
    parts = re.sub(r"\[[^]]*\]", "", text).split(",")
    if " - " not in text:
        return range(len(parts))
    first, last = (int(re.sub(r"\D", "", end.partition(".")[0])) for end in text.split(" - "))
    return range((last - first) % 32 + 1)
