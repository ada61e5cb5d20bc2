"""What a 64-bit Mach-O library for one processor exports and takes from others.

Source of the format: ``mach-o/loader.h`` and ``mach-o/nlist.h`` of Apple's cctools.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ARM64 = 0x0100000C
_MAGIC = 0xFEEDFACF
_HEADER = struct.Struct("<IiiIIIII")
_SYMBOL = struct.Struct("<IBBHQ")
_SYMTAB, _SEGMENT, _LOADS, _RPATH, _BUILD = 0x02, 0x19, (0x0C, 0x80000018, 0x8000001F), 0x8000001C, 0x32
_DEBUG, _KIND, _PRIVATE, _EXTERNAL = 0xE0, 0x0E, 0x10, 0x01


class MachO(NamedTuple):
    """A library.

    Attributes:
        processor: that it is for, as its header names it.
        system: the oldest macOS that it is for: major and minor.
        paths: where it looks for others.
        exported: names of its symbols that others can use -> address.
        taken: name of a symbol of another library -> that library, as it names it.
        borders: addresses of all its symbols, and where its sections end: nothing else tells the size of a symbol.
    """

    processor: int
    system: tuple[int, int]
    paths: list[str]
    exported: dict[str, int]
    taken: dict[str, str]
    borders: list[int]

    def room(self, name: str) -> int:
        """Bytes from an exported symbol to the next one or to the end of its section: the most that it can have."""
        here = self.exported[name]
        return min(border for border in self.borders if border > here) - here


def read_mach_o(data: bytes) -> MachO:
    """The library in the bytes of a file; a ValueError or struct.error where it is none of this kind."""
    magic, processor, _, _, count, _, _, _ = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise ValueError(f"not a Mach-O file of 64 bits: {magic:#x}")
    libraries, paths, symbols, ends, system = [], [], [], [], (0, 0)
    for kind, body in _commands(data, count):
        if kind == _SYMTAB:
            symbols = list(_symbols(data, body))
        elif kind in _LOADS:
            libraries.append(_string(body, struct.unpack_from("<I", body, 8)[0]))
        elif kind == _RPATH:
            paths.append(_string(body, struct.unpack_from("<I", body, 8)[0]))
        elif kind == _SEGMENT:
            ends += [address + size for address, size in _sections(body)]
        elif kind == _BUILD:
            oldest = struct.unpack_from("<I", body, 12)[0]
            system = (oldest >> 16, oldest >> 8 & 0xFF)
    external = [row for row in symbols if row[1] & _EXTERNAL and not row[1] & (_DEBUG | _PRIVATE)]
    return MachO(
        processor,
        system,
        paths,
        {name: address for name, kind, _, address in external if kind & _KIND},
        {name: _library(libraries, order >> 8) for name, kind, order, _ in external if not kind & _KIND},
        sorted({*ends, *(address for _, kind, _, address in symbols if kind & _KIND and not kind & _DEBUG)}),
    )


def _library(libraries: list[str], ordinal: int) -> str:
    return libraries[ordinal - 1] if 0 < ordinal <= len(libraries) else f"ordinal {ordinal}"


def _commands(data: bytes, count: int) -> Iterator[tuple[int, bytes]]:
    at = _HEADER.size
    for _ in range(count):
        kind, size = struct.unpack_from("<II", data, at)
        if size < 8 or at + size > len(data):
            raise ValueError(f"a load command of {size} bytes at {at}")
        yield kind, data[at : at + size]
        at += size


def _sections(body: bytes) -> Iterator[tuple[int, int]]:
    """Address and size."""
    (count,) = struct.unpack_from("<I", body, 64)
    for number in range(count):
        yield struct.unpack_from("<QQ", body, 72 + 80 * number + 32)


def _symbols(data: bytes, body: bytes) -> Iterator[tuple[str, int, int, int]]:
    """Name, type, description and address."""
    first, count, names, length = struct.unpack_from("<IIII", body, 8)
    text = data[names : names + length]
    for at, kind, _, order, address in _SYMBOL.iter_unpack(data[first : first + count * _SYMBOL.size]):
        yield _string(text, at), kind, order, address


def _string(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode("utf-8")
