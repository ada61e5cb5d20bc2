"""How often each instruction ran: in QEMU's logs, and in profiles of Callgrind.

The log of QEMU's user mode is that of ``-d in_asm,exec,nochain``. A block of instructions is printed when it is
translated (``IN:``, then a line for each instruction with its address and its word), and a line ``Trace`` whenever it
runs, with its address and the state that it was translated for. Source: QEMU 11.1, and ``accel/tcg/cpu-exec.c`` and
``target/arm/cpu.h`` there for that line and the state.

Callgrind writes profiles with ``--dump-instr=yes``. Source of the format: Valgrind's manual, "Callgrind Format
Specification". Addresses are those of the ELF file; one that begins with a sign follows the one before it.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import TraceFormatError
from opscope.core.system.memory import file_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path


_INSTRUCTION = re.compile(rb"0x([0-9a-f]+):\s+([0-9a-f]{8})\b")
_STATE = re.compile(rb"([0-9a-f]+)/([0-9a-f]+)/[0-9a-f]+/[0-9a-f]+\Z")
_VECTOR_AT, _STREAMING_AT, _TILE_AT, _LENGTH = 4, 22, 24, 0xF
_STEP_BITS = 128


class ExecutedBlock(NamedTuple):
    """Instructions that run one after the other."""

    address: int  # of the first one
    words: tuple[int, ...]
    state: int  # of the processor, as far as the translation depends on it

    @property
    def streaming(self) -> bool:
        """Whether the processor is in the mode of its matrix unit."""
        return bool(self.state >> _STREAMING_AT & 1)

    @property
    def vector_bits(self) -> int:
        """Length of a scalable vector, in that mode or outside of it."""
        return ((self.state >> _VECTOR_AT & _LENGTH) + 1) * _STEP_BITS

    @property
    def tile_bits(self) -> int:
        """Length of a row of a tile."""
        return ((self.state >> _TILE_AT & _LENGTH) + 1) * _STEP_BITS


class ExecutedParts(NamedTuple):
    """What a process executed, in parts."""

    parts: list[
        Counter[ExecutedBlock]
    ]  # how often each block ran before each mark since the one before, and after the last
    triggers: list[str]  # the mark that each part ended at, of all but the last one
    marks: frozenset[ExecutedBlock]  # blocks that hold a mark


def read_qemu_log(lines: Iterable[bytes], marks: Mapping[int, str]) -> ExecutedParts:
    """What a process executed.

    ``lines``: of the log; ``marks``: names by words of instructions that end a part. A block that holds one is of none.

    Raises TraceFormatError: a block ran that the log does not hold.
    """
    known: dict[bytes, ExecutedBlock] = {}
    translated: dict[int, tuple[int, ...]] = {}
    counts: Counter[bytes] = Counter()
    marked, triggers = dict[bytes, str](), list[str]()
    found, words, place = list[Counter[ExecutedBlock]](), list[int](), 0
    for line in lines:
        if line.startswith(b"Trace "):
            key = line[line.index(b"[") + 1 : line.index(b"]")]
            if key not in known:
                known[key] = _block(key, translated)
                if held := next((name for word, name in marks.items() if word in known[key].words), None):
                    marked[key] = held
            if key in marked:
                triggers.append(marked[key])
                found.append(_blocks(counts, known))
                counts = Counter()
            else:
                counts[key] += 1
        elif line.startswith(b"IN:"):
            words, place = [], 0
        elif match := _INSTRUCTION.match(line):
            place = place or int(match[1], 16)
            words.append(int(match[2], 16))
            translated[place] = tuple(words)
    return ExecutedParts([*found, _blocks(counts, known)], triggers, frozenset(known[key] for key in marked))


def _blocks(counts: Counter[bytes], known: dict[bytes, ExecutedBlock]) -> Counter[ExecutedBlock]:
    blocks: Counter[ExecutedBlock] = Counter()
    for key, times in counts.items():
        blocks[known[key]] += times
    return blocks


def _block(key: bytes, translated: dict[int, tuple[int, ...]]) -> ExecutedBlock:
    match = _STATE.match(key)
    if match is None or (address := int(match[2], 16)) not in translated:
        raise TraceFormatError(f"the QEMU log has no instructions for the block {key.decode('ascii', 'replace')}")
    return ExecutedBlock(address, translated[address], int(match[1], 16))


_OBJECT = re.compile(rb"(c?)ob=\((\d+)\)(?: (.+))?")
_COST = re.compile(rb"(0x[0-9a-f]+|[+-]\d+|\*) \S+ (\d+)")
_TOTAL = re.compile(rb"(?:summary|totals): (\d+)")


def read_callgrind(path: Path, names: dict[int, str]) -> Counter[tuple[str, int]]:
    """How often each instruction ran in a part of a process, by its file, `???` where there is none, and its address.

    ``path``: of the part; ``names``: of files by their numbers, which stand in the first part that has them; filled
    here.

    Raises TraceFormatError: what it states as its sum is another one.
    """
    found: Counter[tuple[str, int]] = Counter()
    file, address, skips, total = "???", 0, False, None
    for line in file_bytes(path).splitlines():
        if cost := _COST.match(line):
            if not skips:
                address = _address(cost[1], address)
                found[file, address] += int(cost[2])
            skips = False
        elif named := _OBJECT.match(line):
            number = int(named[2])
            if named[3]:
                names[number] = named[3].decode("utf-8", "replace")
            if not named[1]:  # else it is that of a function that is called
                file = names.get(number, "???")
        elif line.startswith(b"calls="):
            # The next line is what the call cost, which stands with the function that was called. Its address is not
            # what those that follow count from.
            skips = True
        elif total is None and (summed := _TOTAL.match(line)):
            total = int(summed[1])
    if total is not None and total != found.total():
        raise TraceFormatError(f"{found.total()} instructions are listed, but they add up to {total}", where=path)
    return found


def _address(text: bytes, last: int) -> int:
    if text == b"*":
        return last
    return int(text, 16) if text.startswith(b"0x") else last + int(text)
