"""The ``cpuid`` instructions of a library, found by decoding its functions.

The two bytes of the instruction stand inside others, too: in constants, in distances. So every place where they stand
is reached from the start of the function around it, one instruction after the other, and counts only when an
instruction begins there.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import FeatureError
from opscope.core.files import storage_errors
from opscope.core.system.elf import X86_64, read_code
from opscope.machine.layout import WITHOUT_SWITCH
from opscope.machine.switch.instructions import length_at, opcode_at

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from opscope.core.system.elf import CodeSection, ElfCode

CPUID = b"\x0f\xa2"


class CpuidSites(NamedTuple):
    """Where a library executes ``cpuid``.

    Attributes:
        addresses: relative to where the library is loaded, in order.
        inside_others: places where the same bytes stand inside another instruction.
    """

    addresses: tuple[int, ...]
    inside_others: int


def cpuid_sites(library: Path) -> CpuidSites:
    """The ``cpuid`` instructions of a library.

    Raises:
        FeatureError: it is no library for x86-64, or a part of it that could hold one cannot be decoded.
        TraceFormatError: it is damaged.
        StorageError: it cannot be read.
    """
    with storage_errors(library):
        data = library.read_bytes()
    code = read_code(data, library)
    if code is None or code.machine != X86_64:
        raise FeatureError("this is not a library for x86-64", where=library, hint=WITHOUT_SWITCH)
    if not code.sections:
        problem = "the library has no table of sections, so its code cannot be told from its data"
        raise FeatureError(problem, where=library, hint=WITHOUT_SWITCH)
    found: list[int] = []
    places = 0
    for section in code.sections:
        own = list(_places(section.code))
        places += len(own)
        found += _decided(section, own, code, library)
    return CpuidSites(tuple(found), places - len(found))


def _places(code: bytes) -> Iterator[int]:
    """Where the bytes of the instruction stand."""
    at = code.find(CPUID)
    while at >= 0:
        yield at
        at = code.find(CPUID, at + 1)


def _decided(section: CodeSection, places: list[int], known: ElfCode, where: Path) -> Iterator[int]:
    """Addresses of the places where an instruction begins.

    Decoding goes on from one place to the next, so that no part is decoded twice.
    """
    at = 0
    for place in places:
        at = max(at, _function(section, place, known))
        while at < place:
            length = length_at(section.code, at)
            if length is None:
                raise _undecided(section.address + at, section.address + place, where)
            if at + length > place:
                break
            at += length
        if at == place:
            yield section.address + place
        elif opcode_at(section.code, at) == place:
            raise _undecided(section.address + at, section.address + place, where)  # a cpuid with a prefix


def _function(section: CodeSection, place: int, known: ElfCode) -> int:
    """Where the function around a place begins, or the section."""
    number = bisect.bisect_right(known.functions, section.address + place)
    return max(known.functions[number - 1] - section.address, 0) if number else 0


def _undecided(at: int, place: int, where: Path) -> FeatureError:
    problem = f"it cannot be told whether the library executes cpuid at {place:#x}: no known instruction at {at:#x}"
    return FeatureError(problem, where=where, hint=WITHOUT_SWITCH)
