"""What a 64-bit ELF library defines and what it calls, and what starts a program, from the tables in the file.

Source of the format: System V ABI, chapters 4 (sections) and 5 (symbols, program headers); the relocations are those
of the ABI of each processor. Table for unwinding: Linux Standard Base Core 5.0, chapter 10.6 (``.eh_frame`` and
``.eh_frame_hdr``), with the encodings of 10.5.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from opscope.core.errors import TraceFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

X86_64, AARCH64, X86, ARM = 62, 183, 3, 40
"""Machines, as a header names them."""
_MAGIC = b"\x7fELF"
_CLASS_64 = 2
_LITTLE_ENDIAN = 1
_MACHINE_AT, _HEADER, _LONGEST = 18, 64, 4096
_SHT_PROGBITS, _SHT_SYMTAB, _SHT_RELA, _SHT_DYNSYM = 1, 2, 4, 11
_SHF_EXECINSTR = 4
_FUNCTIONS = {2, 10}  # STT_FUNC, and STT_GNU_IFUNC, whose value is the function that chooses
_PT_INTERP, _PT_EH_FRAME = 3, 0x6474E550
# Version, and how the address of .eh_frame is written: pcrel|sdata4; all linkers write these.
_FRAME_HEADER = bytes((1, 0x1B))
_EXTENDED, _PC_RELATIVE = 0xFFFFFFFF, 0x10
# Number formats of pointers in the table for unwinding, signed and unsigned of the same size: DW_EH_PE_*.
_FORMATS = {0x00: "qQ", 0x02: "HH", 0x03: "II", 0x04: "QQ", 0x0A: "hH", 0x0B: "iI", 0x0C: "qQ"}
# Relocations through which a function is found by its name: R_*_JUMP_SLOT.
_JUMPS = {X86_64: 7, AARCH64: 1026}
_SYMBOL = struct.Struct("<IBBHQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_RELOCATION = struct.Struct("<QQq")
_SEGMENT = struct.Struct("<IIQQQQQQ")


class ElfSymbols(NamedTuple):
    """The dynamic symbols of a library."""

    machine: int  # that it is for
    defined: dict[str, int]  # size in bytes of every symbol that it exports, by name
    called: frozenset[str]  # functions that it calls through the table which the loader fills, its own among them
    functions: frozenset[str]  # names of exported functions
    undefined: frozenset[str]  # names that it takes from other libraries


class CodeSection(NamedTuple):
    """A part of a library that is executed."""

    address: int  # of its first byte, relative to where the library is loaded
    code: bytes  # its bytes


class ElfCode(NamedTuple):
    """What a library executes."""

    machine: int  # that it is for
    sections: list[CodeSection]  # in the order of their addresses
    # first byte of each function and the byte behind its last one, in order: those of its symbols that have a size, and
    # those of its table for unwinding, which stripped libraries keep. They may overlap
    functions: list[tuple[int, int]]


class _Section(NamedTuple):
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int

    def of(self, data: bytes) -> bytes:
        return data[self.offset : self.offset + self.size]


class _Symbol(NamedTuple):
    name: str
    kind: int
    defined: bool
    address: int
    size: int


def machine_of(file: Path) -> int | None:
    """The machine that a program or library is for, as its header names it; None when it is not an ELF file."""
    with file.open("rb") as opened:
        head = opened.read(_MACHINE_AT + 2)
    if head[: len(_MAGIC)] != _MAGIC or len(head) < _MACHINE_AT + 2:
        return None
    return int.from_bytes(head[_MACHINE_AT:], "little" if head[5] == _LITTLE_ENDIAN else "big")


def interpreter_of(file: Path) -> str | None:
    """The loader that a program asks for; empty for one that is linked statically.

    None when it is no 64-bit little-endian ELF file.
    """
    with file.open("rb") as opened:
        head = opened.read(_HEADER)
        if head[:4] != _MAGIC or head[4:6] != bytes((_CLASS_64, _LITTLE_ENDIAN)):
            return None
        try:
            return _read_interpreter(opened, head)
        except (struct.error, OverflowError, ValueError) as error:
            raise TraceFormatError(f"the ELF file is truncated or damaged: {error}", where=file) from None


def _read_interpreter(opened: BinaryIO, head: bytes) -> str:
    (table,), (size, count) = struct.unpack_from("<Q", head, 0x20), struct.unpack_from("<HH", head, 0x36)
    opened.seek(table)
    for kind, _, offset, _, _, length, *_ in [_SEGMENT.unpack_from(opened.read(size)) for _ in range(count)]:
        if kind == _PT_INTERP:
            opened.seek(offset)
            return opened.read(min(length, _LONGEST)).rstrip(b"\0").decode("utf-8", "replace")
    return ""


def symbol_size(library: Path, name: str) -> int | None:
    """Return the size in bytes of a dynamic symbol; None for a file that is no 64-bit ELF library or lacks it."""
    symbols = read_symbols(library.read_bytes(), library)
    return symbols.defined.get(name) if symbols else None


def read_symbols(data: bytes, where: Path) -> ElfSymbols | None:
    """Read the dynamic symbols in the bytes of a file; None if it is no 64-bit little-endian ELF file.

    Raises:
        TraceFormatError: the file is truncated or damaged.
    """
    if data[:4] != _MAGIC or data[4:6] != bytes((_CLASS_64, _LITTLE_ENDIAN)):
        return None
    try:
        (machine,) = struct.unpack_from("<H", data, 0x12)
        sections = list(_read_sections(data))
        symbols = _read_symbol_table(data, sections)
    except (struct.error, IndexError, OverflowError) as error:
        raise TraceFormatError(f"the ELF file is truncated or damaged: {error}", where=where) from None
    sizes = {symbol.name: symbol.size for symbol in symbols if symbol.defined}
    functions = frozenset(symbol.name for symbol in symbols if symbol.defined and symbol.kind in _FUNCTIONS)
    undefined = frozenset(symbol.name for symbol in symbols if not symbol.defined)
    return ElfSymbols(
        machine, sizes, _find_called_symbols(data, sections, symbols, _JUMPS.get(machine)), functions, undefined
    )


def read_code(data: bytes, where: Path) -> ElfCode | None:
    """Read the code in the bytes of a file; None if it is no 64-bit little-endian ELF file.

    Raises:
        TraceFormatError: the file is truncated or damaged.
    """
    if data[:4] != _MAGIC or data[4:6] != bytes((_CLASS_64, _LITTLE_ENDIAN)):
        return None
    try:
        (machine,) = struct.unpack_from("<H", data, 0x12)
        sections = list(_read_sections(data))
        code_sections = [entry for entry in sections if entry.kind == _SHT_PROGBITS and entry.flags & _SHF_EXECINSTR]
        symbols = [entry for kind in (_SHT_SYMTAB, _SHT_DYNSYM) for entry in _read_symbol_table(data, sections, kind)]
        function_symbols = [entry for entry in symbols if entry.defined and entry.kind in _FUNCTIONS and entry.size]
        functions = {(entry.address, entry.address + entry.size) for entry in function_symbols}
        functions.update(_read_unwinding_table(data, sections))
    except (struct.error, IndexError, OverflowError, ValueError) as error:
        raise TraceFormatError(f"the ELF file is truncated or damaged: {error}", where=where) from None
    if any(entry.offset + entry.size > len(data) for entry in code_sections) or sum(
        entry.size for entry in code_sections
    ) > len(data):
        raise TraceFormatError("ELF file truncated or damaged: its code overlaps or runs past the end", where=where)
    code = [
        CodeSection(entry.address, entry.of(data)) for entry in sorted(code_sections, key=lambda entry: entry.address)
    ]
    return ElfCode(machine, code, sorted(functions))


def _read_unwinding_table(data: bytes, sections: Sequence[_Section]) -> Iterator[tuple[int, int]]:
    """Yield the functions that the table for unwinding describes; nothing if there is no such table."""
    (table,), (size, count) = struct.unpack_from("<Q", data, 0x20), struct.unpack_from("<HH", data, 0x36)
    for number in range(count):
        kind, _, offset, address, *_ = _SEGMENT.unpack_from(data, table + number * size)
        if kind != _PT_EH_FRAME or data[offset : offset + 2] != _FRAME_HEADER:
            continue
        (distance,) = struct.unpack_from("<i", data, offset + 4)
        frames = address + 4 + distance
        section = next((candidate for candidate in sections if candidate.address == frames and candidate.offset), None)
        if section is not None:
            yield from _read_frame_entries(section.of(data), frames)
        return


def _read_frame_entries(table: bytes, address: int) -> Iterator[tuple[int, int]]:
    """Yield the functions of the entries of ``.eh_frame``; a shared entry before them says how they are written."""
    at, encodings = 0, dict[int, int]()
    while at + 8 <= len(table):
        (length,), begin = struct.unpack_from("<I", table, at), at + 4
        if not length:  # ends the part of one object file
            at = begin
            continue
        if length == _EXTENDED:
            (length,), begin = struct.unpack_from("<Q", table, begin), begin + 8
        (back,) = struct.unpack_from("<I", table, begin)
        if back:
            yield from _read_function_range(table, begin + 4, address, encodings.get(begin - back))
        else:
            encodings[at] = _read_address_encoding(table, begin + 4)
        at = begin + length


def _read_function_range(table: bytes, at: int, address: int, encoding: int | None) -> Iterator[tuple[int, int]]:
    """Yield the function of an entry; nothing if its address is not relative to where it is written."""
    if encoding is None or encoding & 0xF0 != _PC_RELATIVE or encoding & 0x0F not in _FORMATS:
        return
    distance, size = struct.unpack_from(f"<{_FORMATS[encoding & 0x0F]}", table, at)
    start = address + at + distance
    if size and start >= 0:
        yield start, start + size


def _read_address_encoding(table: bytes, at: int) -> int:
    """Return how the entries of a shared one write addresses (DW_EH_PE_*); 0, absolute, if it does not say."""
    version, end = table[at], table.index(0, at + 1)
    augmentation = table[at + 1 : end].decode("latin-1")
    if not augmentation.startswith("z"):
        return 0
    at = end + 1 + (2 if version == 4 else 0)  # noqa: PLR2004 - of DWARF, with the sizes of an address and a segment
    for _ in range(2):  # alignment of code and of data
        at = _skip_number(table, at)
    at = at + 1 if version == 1 else _skip_number(table, at)  # the register of the return address
    at = _skip_number(table, at)  # the length of what the letters say
    for letter in augmentation[1:]:
        if letter == "R":
            return table[at]
        if letter == "L":
            at += 1
        elif letter == "P":
            at += 1 + struct.calcsize("<" + _FORMATS.get(table[at] & 0x0F, "qQ")[0])
    return 0


def _skip_number(table: bytes, at: int) -> int:
    """Return the end of a number of variable length (LEB128)."""
    while table[at] & 0x80:
        at += 1
    return at + 1


def _read_sections(data: bytes) -> Iterator[_Section]:
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry_size, count = struct.unpack_from("<HH", data, 0x3A)
    for number in range(count):
        _, kind, flags, address, offset, size, link, *_ = _SECTION.unpack_from(data, table + number * entry_size)
        yield _Section(kind, flags, address, offset, size, link)


def _read_symbol_table(data: bytes, sections: Sequence[_Section], table_kind: int = _SHT_DYNSYM) -> list[_Symbol]:
    table_section = next((section for section in sections if section.kind == table_kind), None)
    if table_section is None:
        return []
    names, table = sections[table_section.link].of(data), table_section.of(data)
    complete = table[: len(table) // _SYMBOL.size * _SYMBOL.size]
    return [
        _Symbol(_read_name(names, name), info & 0xF, bool(section), address, size)
        for name, info, _, section, address, size in _SYMBOL.iter_unpack(complete)
    ]


def _read_name(names: bytes, at: int) -> str:
    end = names.find(b"\0", at)
    return names[at : end if end >= 0 else len(names)].decode("ascii", "replace")


def _find_called_symbols(
    data: bytes, sections: Sequence[_Section], symbols: Sequence[_Symbol], jump: int | None
) -> frozenset[str]:
    names = set()
    for section in sections:
        if section.kind != _SHT_RELA or jump is None:
            continue
        table = section.of(data)
        for _, info, _ in _RELOCATION.iter_unpack(table[: len(table) // _RELOCATION.size * _RELOCATION.size]):
            if info & 0xFFFFFFFF == jump and info >> 32 < len(symbols):
                names.add(symbols[info >> 32].name)
    return frozenset(names)
