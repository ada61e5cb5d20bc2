"""Which instructions of a function are executed: those that its own jumps lead to.

Bytes between instructions (tables, padding) look like instructions when one is decoded behind the other. They are
never reached by going from the start of a function along its jumps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.machine.switch.instructions import length_at, opcode_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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

    Args:
        code: of the section.
        entries: where functions begin in it; at least one.
        end: of the functions; paths that leave them end, too.
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
