"""What an instruction of x86-64 does: its class, the bytes that it loads and stores, the products that it can make.

Decoded by iced-x86, an extra. Classes are those of counted work, see
:data:`opscope.analysis.work.work.CLASSES`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opscope.core.errors import MissingDependencyError
from opscope.core.install import install_command
from opscope.core.system.elf import read_code
from opscope.machine.instruction import UNKNOWN, Instruction

if TYPE_CHECKING:
    from opscope.core.system.elf import CodeSection

_LONGEST = 15
_FUSED = re.compile(r"VFN?M(ADD|SUB)\w*?(PS|PD|PH|SS|SD|SH)$")
_DOT = {"VPMADDWD": 32, "PMADDWD": 32, "VPMADDUBSW": 16, "PMADDUBSW": 16, "VPDPBUSD": 32, "VPDPBUSDS": 32}
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
        """The instruction at an address of a file; ``UNKNOWN`` where no file holds it."""
        key = file, address
        if key not in self._known:
            self._known[key] = self._decoded(file, address)
        return self._known[key]

    def _decoded(self, file: str, address: int) -> Instruction:
        section = next((one for one in _sections(file) if 0 <= address - one.address < len(one.code)), None)
        if section is None:
            return UNKNOWN
        place = address - section.address
        return self.of(section.code[place : place + _LONGEST], address)

    def of(self, code: bytes, address: int = 0) -> Instruction:
        """The first instruction of some code."""
        found = self._iced.Decoder(64, code, ip=address).decode()
        return UNKNOWN if found.is_invalid else self._described(found)

    def _described(self, found: Any) -> Instruction:  # noqa: ANN401 - of the package
        iced, name = self._iced, self._names.get(found.mnemonic, "")
        loaded = stored = 0
        for memory in self._about.info(found).used_memory():
            # Of a string instruction that is repeated, one repetition: each counts as an instruction.
            repeated = _STRING_BYTES[name[-1]] if found.is_string_instruction else 0
            size = iced.MemorySizeExt.size(memory.memory_size) or repeated
            loaded += size * (memory.access in _reads(iced))
            stored += size * (memory.access in _writes(iced))
        registers = [found.op_register(n) for n in range(found.op_count) if found.op_kind(n) == iced.OpKind.REGISTER]
        width = max((iced.RegisterExt.size(one) * 8 for one in registers if _is_vector(iced, one)), default=0)
        kind, products = self._kind(found, name, width, bool(loaded), bool(stored))
        return Instruction(kind, loaded, stored, products)

    def _kind(self, found: Any, name: str, width: int, loads: bool, stores: bool) -> tuple[str, int]:  # noqa: ANN401
        """Its class, and the products that it holds."""
        if fused := _FUSED.match(name):
            bits = _ELEMENT_BITS[fused[2][1]]
            return "multiply_add", width // bits if fused[2][0] == "P" else 1
        if name in _DOT:
            return "dot_product", width // _FACTOR_BITS.get(name, 8)
        if name.startswith("TDP"):
            return "outer_product", 0
        if found.flow_control != self._iced.FlowControl.NEXT:
            return "branch", 0
        if _MOVES.match(name) and (loads or stores):
            return ("store" if stores and not loads else "load"), 0
        return ("vector" if width else "scalar"), 0


@lru_cache(maxsize=64)
def _sections(file: str) -> tuple[CodeSection, ...]:
    path = Path(file)
    if not path.is_file():
        return ()
    code = read_code(path.read_bytes(), path)
    return () if code is None else tuple(code.sections)


@lru_cache(maxsize=1)
def _reads(iced: Any) -> frozenset[int]:  # noqa: ANN401
    access = iced.OpAccess
    return frozenset((access.READ, access.COND_READ, access.READ_WRITE, access.READ_COND_WRITE))


@lru_cache(maxsize=1)
def _writes(iced: Any) -> frozenset[int]:  # noqa: ANN401
    access = iced.OpAccess
    return frozenset((access.WRITE, access.COND_WRITE, access.READ_WRITE, access.READ_COND_WRITE))


def _is_vector(iced: Any, register: int) -> bool:  # noqa: ANN401
    return bool(iced.RegisterExt.is_vector_register(register))
