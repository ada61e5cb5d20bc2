"""The ``cpuid`` instructions of a library, found by following its functions from their starts.

The two bytes of the instruction stand inside others, too, in constants and in distances, and in tables between
functions. So a place counts only when it lies in a function, as the library's own symbols or its table for unwinding
say, and when the jumps of that function lead to an instruction that begins there.

Lengths of x86-64 instructions: enough to tell where each one begins, and nothing else.

Source: Intel's Software Developer's Manual, volume 2, chapter 2 (instruction format) and appendix A (opcode maps);
AMD's Architecture Programmer's Manual, volume 6, for XOP. What is not known is said to be no instruction, and is never
guessed: APX (REX2, and EVEX with map 4) is left out.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import FeatureError
from opscope.core.files import storage_errors
from opscope.core.system.elf import X86_64, read_code
from opscope.machine.isa import WITHOUT_SWITCH

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from opscope.core.system.elf import CodeSection


# Source of the opcodes: Intel's Software Developer's Manual, volume 2, appendix A.
_ESCAPE, _GROUP_5 = 0x0F, 0xFF  # _ESCAPE: to the map of two bytes
_SHORT_CONDITIONS = {*range(0x70, 0x80), *range(0xE0, 0xE4)}  # Jcc, LOOPcc, JRCXZ
_NEAR_CONDITIONS = range(0x80, 0x90)  # Jcc of the map of two bytes
_SHORT_JUMP, _NEAR_JUMP = 0xEB, 0xE9
_ENDS = {0xC2, 0xC3, 0xCA, 0xCB, 0xCF, 0xF4}  # returns, and HLT
_UNDEFINED = {0x0B, 0xB9, 0xFF}  # UD2, UD1 and UD0, of the map of two bytes
_INDIRECT_JUMPS, _INDIRECT_CALLS = {4, 5}, {2, 3}  # register in the ModRM of group 5
_NEAR_CALL = 0xE8
_INTO_REGISTER = {0x8B, 0x8D}  # MOV and LEA to the register in ModRM
_SET_EAX, _MOV, _CLEAR = {0x58, 0xB8}, 0x89, {0x29, 0x2B, 0x31, 0x33}  # POP and MOV to eax; SUB and XOR
_EAX = 0xC0  # ModRM that names eax alone
LONGEST = 15
"""Bytes of an instruction, at most."""
_OPERAND_SIZE, _ADDRESS_SIZE = 0x66, 0x67
_LEGACY = {_OPERAND_SIZE, _ADDRESS_SIZE, 0xF0, 0xF2, 0xF3, 0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65}
_REX, _REX_W, _REX_R, _REX_B = range(0x40, 0x50), 8, 4, 1
_MAP_2, _MAP_3 = 0x38, 0x3A
_VEX_2, _VEX_3, _EVEX, _XOP = 0xC5, 0xC4, 0x62, 0x8F
_XOP_MAPS = {8: 1, 9: 0, 10: 4}  # map: bytes of the immediate
_EVEX_MAPS, _VEX_MAPS = {1, 2, 3, 5, 6}, {1, 2, 3, 5}
_SIB, _NO_BASE, _REGISTER = 4, 5, 3


def follow_jumps(code: bytes, entries: Sequence[int], end: int) -> dict[int, int]:
    """Return the ends of all instructions that are reached, by their beginnings.

    Calls come back. Jumps whose target is not in the instruction, and unknown instructions, end a path.
    """
    waiting, first = list(entries), max(min(entries), 0)
    ends: dict[int, int] = {}
    while waiting:
        at = waiting.pop()
        if at in ends or not first <= at < end:
            continue
        length = length_at(code, at)
        if length is None or at + length > end:
            continue
        ends[at] = at + length
        waiting += _find_successors(code, at, at + length)
    return ends


def _find_successors(code: bytes, at: int, end: int) -> Iterator[int]:
    """Yield the addresses that an instruction leads to."""
    opcode_position = opcode_at(code, at)
    opcode = code[opcode_position]
    two = code[opcode_position + 1] if opcode == _ESCAPE else None
    near = opcode == _NEAR_JUMP or two in _NEAR_CONDITIONS
    jumps_always = opcode in {_SHORT_JUMP, _NEAR_JUMP}
    if near or opcode == _SHORT_JUMP or opcode in _SHORT_CONDITIONS:
        yield end + int.from_bytes(code[end - (4 if near else 1) : end], "little", signed=True)
    indirect = opcode == _GROUP_5 and code[opcode_position + 1] >> 3 & 7 in _INDIRECT_JUMPS
    if not (jumps_always or indirect or opcode in _ENDS or two in _UNDEFINED):
        yield end


CPUID = b"\x0f\xa2"


class CpuidSites(NamedTuple):
    """Positions at which a library executes ``cpuid``."""

    addresses: tuple[int, ...]  # relative to where the library is loaded, in order
    inside_others: int  # places where the same bytes stand inside another instruction
    outside: int  # places where they stand in no function that the library names: tables, or code that nothing proves


def cpuid_sites(library: Path) -> CpuidSites:
    """Return the ``cpuid`` instructions of a library."""
    with storage_errors(library):
        data = library.read_bytes()
    code = read_code(data, library)
    if code is None or code.machine != X86_64:
        raise FeatureError("this is not a library for x86-64", where=library, hint=WITHOUT_SWITCH)
    if not code.sections:
        problem = "the library has no section table, so code and data cannot be distinguished"
        raise FeatureError(problem, where=library, hint=WITHOUT_SWITCH)
    spans = _merge_functions(code.functions)
    sites = [_classify_candidates(section, spans, library) for section in code.sections]
    addresses = [address for found_sites in sites for address in found_sites.addresses]
    return CpuidSites(
        tuple(addresses),
        sum(found_sites.inside_others for found_sites in sites),
        sum(found_sites.outside for found_sites in sites),
    )


class _Span(NamedTuple):
    """Functions that overlap, such as one with several entries: one piece of code."""

    start: int
    end: int
    entries: list[int]


def _merge_functions(functions: Iterable[tuple[int, int]]) -> list[_Span]:
    """Return the pieces that functions make up, apart from each other and in order."""
    spans: list[_Span] = []
    for start, end in functions:
        if spans and start < spans[-1].end:
            spans[-1].entries.append(start)
            spans[-1] = spans[-1]._replace(end=max(end, spans[-1].end))
        else:
            spans.append(_Span(start, end, [start]))
    return spans


def _find_candidates(code: bytes) -> Iterator[int]:
    """Yield the positions of the instruction's bytes."""
    at = code.find(CPUID)
    while at >= 0:
        yield at
        at = code.find(CPUID, at + 1)


def _classify_candidates(section: CodeSection, spans: Sequence[_Span], where: Path) -> CpuidSites:
    """Return the sites of a section. Every function is followed once, however many candidates it has."""
    addresses, inside_others, outside = list[int](), 0, 0
    span, instructions, linear = None, dict[int, int](), 0
    for candidate in _find_candidates(section.code):
        own_span = _find_span(spans, section.address + candidate)
        if own_span is None:
            outside += 1
            continue
        if own_span is not span:
            span, end = own_span, min(own_span.end - section.address, len(section.code))
            instructions = follow_jumps(section.code, [entry - section.address for entry in own_span.entries], end)
        holding = [at for at in range(candidate - LONGEST + 1, candidate + 1) if instructions.get(at, 0) > candidate]
        if not holding:
            linear = _find_holder(
                section, max(linear, _find_last_entry(own_span, section, candidate)), candidate, where
            )
            if linear == candidate:
                raise _doubt_error(section, candidate, "no jump of its function leads there", where)
        else:
            _check_certain(section, instructions, holding, candidate, where)
        for at in holding or [linear]:
            if at < candidate and opcode_at(section.code, at) == candidate:
                raise _doubt_error(section, candidate, "it has a prefix", where)
        if holding == [candidate]:
            addresses.append(section.address + candidate)
        else:
            inside_others += 1
    return CpuidSites(tuple(addresses), inside_others, outside)


def _check_certain(
    section: CodeSection, instructions: Mapping[int, int], holding: Sequence[int], address: int, where: Path
) -> None:
    """Refuse an address that two instructions hold, or that may be data although an instruction begins there."""
    if len(holding) > 1:
        raise _doubt_error(section, address, "two instructions overlap there", where)
    if holding[0] == address and _is_behind_call(section.code, instructions, address):
        raise _doubt_error(section, address, "a call stands before it that may not return, so it may be data", where)


def _is_behind_call(code: bytes, instructions: Mapping[int, int], address: int) -> bool:
    """Return whether the instructions before an address lead back to a call, and none of them sets eax.

    Code that asks the processor sets eax in between. Data may follow a call that does not return.
    """
    starts = {end: start for start, end in instructions.items()}
    while address in starts:
        start = starts[address]
        if _sets_eax(code, start) or address not in set(_find_successors(code, start, address)):
            return False
        if _is_call(code, start):
            return True
        address = start
    return False


def _is_call(code: bytes, address: int) -> bool:
    """Return whether the instruction at an address is a call."""
    position = opcode_at(code, address)
    indirect = code[position] == _GROUP_5 and code[position + 1] >> 3 & 7 in _INDIRECT_CALLS
    return indirect or code[position] == _NEAR_CALL


def _sets_eax(code: bytes, address: int) -> bool:
    """Return whether an instruction is one of those with which compilers set eax: mov, lea, pop, xor and sub."""
    prefixes = _read_prefixes(code, address)
    opcode, modrm = code[prefixes.end], code[prefixes.end + 1]
    if opcode in _INTO_REGISTER:
        return not (modrm >> 3 & 7 or prefixes.rex & _REX_R)
    is_set = opcode in _SET_EAX or (opcode == _MOV and modrm & 0xC7 == _EAX) or (opcode in _CLEAR and modrm == _EAX)
    return is_set and not prefixes.rex & _REX_B


def _find_span(spans: Sequence[_Span], address: int) -> _Span | None:
    """Return the functions that both bytes at an address lie in."""
    number = bisect.bisect_right(spans, address, key=lambda span: span.start)
    return spans[number - 1] if number and address + len(CPUID) <= spans[number - 1].end else None


def _find_last_entry(span: _Span, section: CodeSection, address: int) -> int:
    """Return the position in a section at which the last function begins that is not behind an address."""
    number = bisect.bisect_right(span.entries, section.address + address)
    return max(span.entries[number - 1] - section.address, 0)


def _find_holder(section: CodeSection, at: int, address: int, where: Path) -> int:
    """Return the start of the instruction that holds an address, when one is decoded behind the other."""
    while at < address:
        length = length_at(section.code, at)
        if length is None:
            raise _doubt_error(section, address, f"no known instruction at {section.address + at:#x}", where)
        if at + length > address:
            break
        at += length
    return at


def _doubt_error(section: CodeSection, address: int, reason: str, where: Path) -> FeatureError:
    """Return the error for an address at which it is unknown whether the library executes cpuid."""
    problem = f"unknown whether the library executes cpuid at {section.address + address:#x}: {reason}"
    return FeatureError(problem, where=where, hint=WITHOUT_SWITCH)


def _parse_opcodes(text: str) -> frozenset[int]:
    """Return opcodes, from a text as ``80-8f 90``."""
    codes: set[int] = set()
    for word in text.split():
        first, _, last = word.partition("-")
        codes.update(range(int(first, 16), int(last or first, 16) + 1))
    return frozenset(codes)


class _Map(NamedTuple):
    """One opcode map."""

    invalid: frozenset[int]  # opcodes that are no instruction in 64-bit mode
    modrm: frozenset[int]  # those that are followed by a ModRM byte
    byte: frozenset[int]  # those with an immediate of one byte
    word: frozenset[int]  # those with one of two bytes
    full: frozenset[int]  # those with one of four bytes, two with an operand-size prefix
    relative: frozenset[int]  # those with a distance of four bytes


_ONE = _Map(
    invalid=_parse_opcodes("06 07 0e 16 17 1e 1f 27 2f 37 3f 60 61 82 9a ce d4 d5 d6 ea"),
    modrm=_parse_opcodes(
        "00-03 08-0b 10-13 18-1b 20-23 28-2b 30-33 38-3b 63 69 6b 80 81 83-8f c0 c1 c6 c7 d0-d3 d8-df f6 f7 fe ff"
    ),
    byte=_parse_opcodes("04 0c 14 1c 24 2c 34 3c 6a 6b 70-80 83 a8 b0-b7 c0 c1 c6 cd e0-e7 eb"),
    word=_parse_opcodes("c2 ca"),
    full=_parse_opcodes("05 0d 15 1d 25 2d 35 3d 68 69 81 a9 c7"),
    relative=_parse_opcodes("e8 e9"),
)
_TWO = _Map(
    invalid=_parse_opcodes("04 0a 0c 24-27 36 39 3b-3f 7a 7b"),
    modrm=_parse_opcodes("00-03 0d 0f-23 28-2f 40-76 78-7f 90-9f a3-a7 ab-c7 d0-ff"),
    byte=_parse_opcodes("0f 70-73 a4 ac ba c2 c4-c6"),
    word=frozenset(),
    full=frozenset(),
    relative=_parse_opcodes("80-8f"),
)
_MOVES, _MOV_IMMEDIATE, _ENTER, _ZERO_UPPER = range(0xA0, 0xA4), range(0xB8, 0xC0), 0xC8, 0x77
_CONTROL_REGISTERS, _EXTRACT = range(0x20, 0x24), 0x78
_TESTS = {0xF6: 1, 0xF7: 4}  # with an immediate when the register in ModRM is 0 or 1


class _Prefixes(NamedTuple):
    """Prefixes of an instruction, before its opcode."""

    end: int  # where the opcode begins
    seen: frozenset[int]  # legacy prefixes
    rex: int  # 0 without


def opcode_at(code: Sequence[int], at: int) -> int:
    """Return the position of an instruction's opcode, behind its legacy prefixes and REX."""
    return _read_prefixes(code, at).end


def length_at(code: Sequence[int], at: int) -> int | None:
    """Return the length in bytes of an instruction; None when it is not known, or the code ends in it."""
    try:
        end = _find_end(code, at)
    except IndexError:
        return None
    return end - at if end is not None and end <= len(code) and end - at <= LONGEST else None


def _read_prefixes(code: Sequence[int], at: int) -> _Prefixes:
    """Return the prefixes of an instruction."""
    end = at
    while code[end] in _LEGACY:
        end += 1
    seen = frozenset(code[at:end])
    if code[end] in _REX:
        return _Prefixes(end + 1, seen, code[end])
    return _Prefixes(end, seen, 0)


def _find_end(code: Sequence[int], at: int) -> int | None:
    """Return the end of an instruction; None for none that is known."""
    before = _read_prefixes(code, at)
    opcode, position = code[before.end], before.end + 1
    if opcode in {_VEX_2, _VEX_3, _EVEX} or (opcode == _XOP and code[position] & 0x1F in _XOP_MAPS):
        return None if before.rex else _find_extended_end(code, before.end)
    if opcode != _ESCAPE:
        return _find_plain_end(code, opcode, position, before, _ONE)
    opcode, position = code[position], position + 1
    if opcode in {_MAP_2, _MAP_3}:
        return _find_operand_end(code, position + 1) + (opcode == _MAP_3)
    if opcode in _CONTROL_REGISTERS:
        return position + 1  # their ModRM names registers, whatever its mode
    if opcode == _EXTRACT:
        return _find_operand_end(code, position) + (2 if before.seen & {_OPERAND_SIZE, 0xF2} else 0)
    return _find_plain_end(code, opcode, position, before, _TWO)


def _find_plain_end(code: Sequence[int], opcode: int, position: int, before: _Prefixes, known: _Map) -> int | None:
    """Return the end of an instruction of the first two maps, from the byte behind its opcode on."""
    if opcode in known.invalid:
        return None
    wide = bool(before.rex & _REX_W)
    full = 2 if _OPERAND_SIZE in before.seen and not wide else 4
    if known is _ONE:
        if opcode in _MOVES:
            return position + (4 if _ADDRESS_SIZE in before.seen else 8)
        if opcode in _MOV_IMMEDIATE:
            return position + (8 if wide else full)
        if opcode == _ENTER:
            return position + 3
        if opcode in _TESTS:
            has = code[position] >> 3 & 7 in {0, 1}
            return _find_operand_end(code, position) + (min(_TESTS[opcode], full) if has else 0)
    end = _find_operand_end(code, position) if opcode in known.modrm else position
    size = (opcode in known.byte) + 2 * (opcode in known.word) + full * (opcode in known.full)
    return end + size + 4 * (opcode in known.relative)


def _find_extended_end(code: Sequence[int], at: int) -> int | None:
    """Return the end of an instruction with a VEX, EVEX or XOP prefix."""
    kind = code[at]
    if kind == _VEX_2:
        number, position = 1, at + 2
    elif kind == _EVEX:
        number, position = code[at + 1] & 7, at + 4
    else:
        number, position = code[at + 1] & 0x1F, at + 3
    opcode = code[position]
    if kind == _XOP:
        return _find_operand_end(code, position + 1) + _XOP_MAPS[number]
    if number not in (_EVEX_MAPS if kind == _EVEX else _VEX_MAPS):
        return None
    if number == 1 and opcode == _ZERO_UPPER and kind != _EVEX:
        return position + 1
    immediate = number == 3 or (number == 1 and opcode in _TWO.byte)  # noqa: PLR2004 - the number of the map
    return _find_operand_end(code, position + 1) + immediate


def _find_operand_end(code: Sequence[int], position: int) -> int:
    """Return the end of the operands that a ModRM byte names."""
    modrm = code[position]
    mode, operand, end = modrm >> 6, modrm & 7, position + 1
    if mode == _REGISTER:
        return end
    if operand == _SIB:
        operand, end = code[end] & 7, end + 1
    if mode == 0:
        return end + (4 if operand == _NO_BASE else 0)
    return end + (1 if mode == 1 else 4)
