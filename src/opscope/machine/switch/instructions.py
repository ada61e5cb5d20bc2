"""Lengths of x86-64 instructions: enough to tell where each one begins, and nothing else.

Source: Intel's Software Developer's Manual, volume 2, chapter 2 (instruction format) and appendix A (opcode maps);
AMD's Architecture Programmer's Manual, volume 6, for XOP. What is not known is said to be no instruction, and is never
guessed: APX (REX2, and EVEX with map 4) is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

LONGEST = 15
"""Bytes of an instruction, at most."""
_OPERAND_SIZE, _ADDRESS_SIZE = 0x66, 0x67
_LEGACY = {_OPERAND_SIZE, _ADDRESS_SIZE, 0xF0, 0xF2, 0xF3, 0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65}
_REX, _REX_W = range(0x40, 0x50), 8
_TWO_BYTES, _MAP_2, _MAP_3 = 0x0F, 0x38, 0x3A
_VEX_2, _VEX_3, _EVEX, _XOP = 0xC5, 0xC4, 0x62, 0x8F
_XOP_MAPS = {8: 1, 9: 0, 10: 4}  # map: bytes of the immediate
_EVEX_MAPS, _VEX_MAPS = {1, 2, 3, 5, 6}, {1, 2, 3, 5}
_SIB, _NO_BASE, _REGISTER = 4, 5, 3


def _codes(text: str) -> frozenset[int]:
    """Opcodes, as ``80-8f 90``."""
    found: set[int] = set()
    for word in text.split():
        first, _, last = word.partition("-")
        found.update(range(int(first, 16), int(last or first, 16) + 1))
    return frozenset(found)


class _Map(NamedTuple):
    """One opcode map."""

    invalid: frozenset[int]  # opcodes that are no instruction in 64-bit mode
    modrm: frozenset[int]  # those that are followed by a ModRM byte
    byte: frozenset[int]  # those with an immediate of one byte
    word: frozenset[int]  # those with one of two bytes
    full: frozenset[int]  # those with one of four bytes, two with an operand-size prefix
    relative: frozenset[int]  # those with a distance of four bytes


_ONE = _Map(
    invalid=_codes("06 07 0e 16 17 1e 1f 27 2f 37 3f 60 61 82 9a ce d4 d5 d6 ea"),
    modrm=_codes(
        "00-03 08-0b 10-13 18-1b 20-23 28-2b 30-33 38-3b 63 69 6b 80 81 83-8f c0 c1 c6 c7 d0-d3 d8-df f6 f7 fe ff"
    ),
    byte=_codes("04 0c 14 1c 24 2c 34 3c 6a 6b 70-80 83 a8 b0-b7 c0 c1 c6 cd e0-e7 eb"),
    word=_codes("c2 ca"),
    full=_codes("05 0d 15 1d 25 2d 35 3d 68 69 81 a9 c7"),
    relative=_codes("e8 e9"),
)
_TWO = _Map(
    invalid=_codes("04 0a 0c 24-27 36 39 3b-3f 7a 7b"),
    modrm=_codes("00-03 0d 0f-23 28-2f 40-76 78-7f 90-9f a3-a7 ab-c7 d0-ff"),
    byte=_codes("0f 70-73 a4 ac ba c2 c4-c6"),
    word=frozenset(),
    full=frozenset(),
    relative=_codes("80-8f"),
)
_MOVES, _MOV_IMMEDIATE, _ENTER, _ZERO_UPPER = range(0xA0, 0xA4), range(0xB8, 0xC0), 0xC8, 0x77
_CONTROL_REGISTERS, _EXTRACT = range(0x20, 0x24), 0x78
_TESTS = {0xF6: 1, 0xF7: 4}  # with an immediate when the register in ModRM is 0 or 1


class _Prefixes(NamedTuple):
    """What stands before the opcode."""

    end: int  # where the opcode begins
    seen: frozenset[int]  # legacy prefixes
    rex: int  # 0 without


def opcode_at(code: Sequence[int], at: int) -> int:
    """Where the opcode of an instruction stands, behind its legacy prefixes and REX."""
    return _prefixes(code, at).end


def length_at(code: Sequence[int], at: int) -> int | None:
    """Length in bytes of the instruction at a place; None when it is no known instruction, or the code ends in it."""
    try:
        end = _end(code, at)
    except IndexError:
        return None
    return end - at if end is not None and end <= len(code) and end - at <= LONGEST else None


def _prefixes(code: Sequence[int], at: int) -> _Prefixes:
    end = at
    while code[end] in _LEGACY:
        end += 1
    seen = frozenset(code[at:end])
    if code[end] in _REX:
        return _Prefixes(end + 1, seen, code[end])
    return _Prefixes(end, seen, 0)


def _end(code: Sequence[int], at: int) -> int | None:
    """Where an instruction ends; None for none that is known."""
    before = _prefixes(code, at)
    opcode, place = code[before.end], before.end + 1
    if opcode in {_VEX_2, _VEX_3, _EVEX} or (opcode == _XOP and code[place] & 0x1F in _XOP_MAPS):
        return None if before.rex else _extended(code, before.end)
    if opcode != _TWO_BYTES:
        return _plain(code, opcode, place, before, _ONE)
    opcode, place = code[place], place + 1
    if opcode in {_MAP_2, _MAP_3}:
        return _operand(code, place + 1) + (opcode == _MAP_3)
    if opcode in _CONTROL_REGISTERS:
        return place + 1  # their ModRM names registers, whatever its mode
    if opcode == _EXTRACT:
        return _operand(code, place) + (2 if before.seen & {_OPERAND_SIZE, 0xF2} else 0)
    return _plain(code, opcode, place, before, _TWO)


def _plain(code: Sequence[int], opcode: int, place: int, before: _Prefixes, known: _Map) -> int | None:
    """Where an instruction of the first two maps ends, from the byte behind its opcode on."""
    if opcode in known.invalid:
        return None
    wide = bool(before.rex & _REX_W)
    full = 2 if _OPERAND_SIZE in before.seen and not wide else 4
    if known is _ONE:
        if opcode in _MOVES:
            return place + (4 if _ADDRESS_SIZE in before.seen else 8)
        if opcode in _MOV_IMMEDIATE:
            return place + (8 if wide else full)
        if opcode == _ENTER:
            return place + 3
        if opcode in _TESTS:
            has = code[place] >> 3 & 7 in {0, 1}
            return _operand(code, place) + (min(_TESTS[opcode], full) if has else 0)
    end = _operand(code, place) if opcode in known.modrm else place
    size = (opcode in known.byte) + 2 * (opcode in known.word) + full * (opcode in known.full)
    return end + size + 4 * (opcode in known.relative)


def _extended(code: Sequence[int], at: int) -> int | None:
    """Where an instruction with a VEX, EVEX or XOP prefix ends."""
    kind = code[at]
    if kind == _VEX_2:
        number, place = 1, at + 2
    elif kind == _EVEX:
        number, place = code[at + 1] & 7, at + 4
    else:
        number, place = code[at + 1] & 0x1F, at + 3
    opcode = code[place]
    if kind == _XOP:
        return _operand(code, place + 1) + _XOP_MAPS[number]
    if number not in (_EVEX_MAPS if kind == _EVEX else _VEX_MAPS):
        return None
    if number == 1 and opcode == _ZERO_UPPER and kind != _EVEX:
        return place + 1
    immediate = number == 3 or (number == 1 and opcode in _TWO.byte)  # noqa: PLR2004 - the number of the map
    return _operand(code, place + 1) + immediate


def _operand(code: Sequence[int], place: int) -> int:
    """Where the ModRM byte at a place ends, with what it says follows it."""
    modrm = code[place]
    mode, operand, end = modrm >> 6, modrm & 7, place + 1
    if mode == _REGISTER:
        return end
    if operand == _SIB:
        operand, end = code[end] & 7, end + 1
    if mode == 0:
        return end + (4 if operand == _NO_BASE else 0)
    return end + (1 if mode == 1 else 4)
