"""The ``cpuid`` instructions of a library, found by following its functions from their starts.

The two bytes of the instruction stand inside others, too, in constants and in distances, and in tables between
functions. So a place counts only when it lies in a function, as the library's own symbols or its table for unwinding
say, and when the jumps of that function lead to an instruction that begins there.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import FeatureError
from opscope.core.files import storage_errors
from opscope.core.system.elf import X86_64, read_code
from opscope.machine.layout import WITHOUT_SWITCH
from opscope.machine.switch.instructions import LONGEST, length_at, opcode_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from opscope.core.system.elf import CodeSection, FunctionRange

# Source of the opcodes: Intel's Software Developer's Manual, volume 2, appendix A.
_TWO_BYTES, _GROUP_5 = 0x0F, 0xFF
_SHORT_CONDITIONS = {*range(0x70, 0x80), *range(0xE0, 0xE4)}  # Jcc, LOOPcc, JRCXZ
_NEAR_CONDITIONS = range(0x80, 0x90)  # Jcc of the map of two bytes
_SHORT_JUMP, _NEAR_JUMP = 0xEB, 0xE9
_ENDS = {0xC2, 0xC3, 0xCA, 0xCB, 0xCF, 0xF4}  # returns, and HLT
_UNDEFINED = {0x0B, 0xB9, 0xFF}  # UD2, UD1 and UD0, of the map of two bytes
_INDIRECT_JUMPS = {4, 5}  # register in the ModRM of group 5


def reached(code: bytes, entries: Sequence[int], end: int) -> dict[int, int]:
    """Where each instruction begins that is reached, and where it ends.

    Calls come back. Jumps whose target is not in the instruction, and unknown instructions, end a path.
    """
    waiting, first = list(entries), max(min(entries), 0)
    found: dict[int, int] = {}
    while waiting:
        at = waiting.pop()
        if at in found or not first <= at < end:
            continue
        length = length_at(code, at)
        if length is None or at + length > end:
            continue
        found[at] = at + length
        waiting += _next(code, at, at + length)
    return found


def _next(code: bytes, at: int, end: int) -> Iterator[int]:
    """Where an instruction leads."""
    place = opcode_at(code, at)
    opcode = code[place]
    two = code[place + 1] if opcode == _TWO_BYTES else None
    near = opcode == _NEAR_JUMP or two in _NEAR_CONDITIONS
    jumps_always = opcode in {_SHORT_JUMP, _NEAR_JUMP}
    if near or opcode == _SHORT_JUMP or opcode in _SHORT_CONDITIONS:
        yield end + int.from_bytes(code[end - (4 if near else 1) : end], "little", signed=True)
    indirect = opcode == _GROUP_5 and code[place + 1] >> 3 & 7 in _INDIRECT_JUMPS
    if not (jumps_always or indirect or opcode in _ENDS or two in _UNDEFINED):
        yield end


CPUID = b"\x0f\xa2"


class CpuidSites(NamedTuple):
    """Where a library executes ``cpuid``."""

    addresses: tuple[int, ...]  # relative to where the library is loaded, in order
    inside_others: int  # places where the same bytes stand inside another instruction
    outside: int  # places where they stand in no function that the library names: tables, or code that nothing proves


def cpuid_sites(library: Path) -> CpuidSites:
    """The ``cpuid`` instructions of a library."""
    with storage_errors(library):
        data = library.read_bytes()
    code = read_code(data, library)
    if code is None or code.machine != X86_64:
        raise FeatureError("this is not a library for x86-64", where=library, hint=WITHOUT_SWITCH)
    if not code.sections:
        problem = "the library has no table of sections, so its code cannot be told from its data"
        raise FeatureError(problem, where=library, hint=WITHOUT_SWITCH)
    spans = _spans(code.functions)
    told = [_decided(section, spans, library) for section in code.sections]
    addresses = [address for one in told for address in one.addresses]
    return CpuidSites(tuple(addresses), sum(one.inside_others for one in told), sum(one.outside for one in told))


class _Span(NamedTuple):
    """Functions that overlap, such as one with several entries: one piece of code."""

    start: int
    end: int
    entries: list[int]


def _spans(functions: Iterable[FunctionRange]) -> list[_Span]:
    """The pieces that functions make up, apart from each other and in order."""
    spans: list[_Span] = []
    for start, end in functions:
        if spans and start < spans[-1].end:
            spans[-1].entries.append(start)
            spans[-1] = spans[-1]._replace(end=max(end, spans[-1].end))
        else:
            spans.append(_Span(start, end, [start]))
    return spans


def _places(code: bytes) -> Iterator[int]:
    """Where the bytes of the instruction stand."""
    at = code.find(CPUID)
    while at >= 0:
        yield at
        at = code.find(CPUID, at + 1)


def _decided(section: CodeSection, spans: Sequence[_Span], where: Path) -> CpuidSites:
    """The sites of a section. Every function is followed once, however many places it has."""
    found, inside, outside = list[int](), 0, 0
    span, instructions, linear = None, dict[int, int](), 0
    for place in _places(section.code):
        own = _around(spans, section.address + place)
        if own is None:
            outside += 1
            continue
        if own is not span:
            span, end = own, min(own.end - section.address, len(section.code))
            instructions = reached(section.code, [entry - section.address for entry in own.entries], end)
        holding = [at for at in range(place - LONGEST + 1, place + 1) if instructions.get(at, 0) > place]
        if not holding:
            linear = _passed(section, max(linear, _start(own, section, place)), place, where)
            if linear == place:
                raise _undecided(section, place, "no jump of its function leads there", where)
        elif len(holding) > 1:
            raise _undecided(section, place, "two instructions overlap there", where)
        for at in holding or [linear]:
            if at < place and opcode_at(section.code, at) == place:
                raise _undecided(section, place, "it has a prefix", where)
        if holding == [place]:
            found.append(section.address + place)
        else:
            inside += 1
    return CpuidSites(tuple(found), inside, outside)


def _around(spans: Sequence[_Span], address: int) -> _Span | None:
    """The functions that both bytes at an address lie in."""
    number = bisect.bisect_right(spans, address, key=lambda span: span.start)
    return spans[number - 1] if number and address + len(CPUID) <= spans[number - 1].end else None


def _start(span: _Span, section: CodeSection, place: int) -> int:
    """Where in a section the last function begins that is not behind a place."""
    number = bisect.bisect_right(span.entries, section.address + place)
    return max(span.entries[number - 1] - section.address, 0)


def _passed(section: CodeSection, at: int, place: int, where: Path) -> int:
    """Where the instruction that holds a place begins, when one is decoded behind the other."""
    while at < place:
        length = length_at(section.code, at)
        if length is None:
            raise _undecided(section, place, f"no known instruction at {section.address + at:#x}", where)
        if at + length > place:
            break
        at += length
    return at


def _undecided(section: CodeSection, place: int, reason: str, where: Path) -> FeatureError:
    problem = f"it cannot be told whether the library executes cpuid at {section.address + place:#x}: {reason}"
    return FeatureError(problem, where=where, hint=WITHOUT_SWITCH)
