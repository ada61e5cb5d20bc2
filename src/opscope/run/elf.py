"""The size of an exported symbol, from an ELF library's dynamic symbol table."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MAGIC = b"\x7fELF"
_CLASS_64 = 2
_LITTLE_ENDIAN = 1
_SHT_DYNSYM = 11
_SYMBOL = struct.Struct("<IBBHQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")


class _Section(NamedTuple):
    kind: int
    offset: int
    size: int
    link: int


def symbol_size(library: Path, name: str) -> int | None:
    """Size in bytes of a dynamic symbol, None when the file is no 64-bit ELF library or does not define it.

    Source of the format: System V ABI, chapters 4 (sections) and 5 (symbols).
    """
    data = library.read_bytes()
    if data[:4] != _MAGIC or data[4] != _CLASS_64 or data[5] != _LITTLE_ENDIAN:
        return None
    sections = list(_sections(data))
    for section in sections:
        if section.kind == _SHT_DYNSYM and section.link < len(sections):
            names = sections[section.link]
            return _find(data[section.offset : section.offset + section.size], data[names.offset :], name.encode())
    return None


def _sections(data: bytes) -> Iterator[_Section]:
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry_size, count = struct.unpack_from("<HH", data, 0x3A)
    for number in range(count):
        _, kind, _, _, offset, size, link, *_ = _SECTION.unpack_from(data, table + number * entry_size)
        yield _Section(kind, offset, size, link)


def _find(symbols: bytes, names: bytes, wanted: bytes) -> int | None:
    for name, _, _, section, _, size in _SYMBOL.iter_unpack(symbols):
        if section and names[name : name + len(wanted) + 1] == wanted + b"\0":
            return int(size)
    return None
