"""Counts of executed instructions: from QEMU's logs, and from profiles of Callgrind.

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
        """Return whether the processor is in the mode of its matrix unit."""
        return bool(self.state >> _STREAMING_AT & 1)

    @property
    def vector_bits(self) -> int:
        """Return the length of a scalable vector, in that mode or outside of it."""
        return ((self.state >> _VECTOR_AT & _LENGTH) + 1) * _STEP_BITS

    @property
    def tile_bits(self) -> int:
        """Return the length of a row of a tile."""
        return ((self.state >> _TILE_AT & _LENGTH) + 1) * _STEP_BITS


class ExecutedParts(NamedTuple):
    """Parts of the execution of a process."""

    parts: list[
        Counter[ExecutedBlock]
    ]  # how often each block ran before each mark since the one before, and after the last
    triggers: list[str]  # the mark that each part ended at, of all but the last one
    marks: frozenset[ExecutedBlock]  # blocks that hold a mark


def read_qemu_log(lines: Iterable[bytes], marks: Mapping[int, str]) -> ExecutedParts:
    """Return the blocks that a process executed, in parts.

    ``lines``: of the log; ``marks``: names by words of instructions that end a part. A block that holds one is of
    none.

    Raises TraceFormatError: a block ran that the log does not hold.
    """
    known: dict[bytes, ExecutedBlock] = {}
    translated: dict[int, tuple[int, ...]] = {}
    counts: Counter[bytes] = Counter()
    marked, triggers = dict[bytes, str](), list[str]()
    parts, words, start = list[Counter[ExecutedBlock]](), list[int](), 0
    for line in lines:
        if line.startswith(b"Trace "):
            key = line[line.index(b"[") + 1 : line.index(b"]")]
            if key not in known:
                known[key] = _find_block(key, translated)
                if mark := next((name for word, name in marks.items() if word in known[key].words), None):
                    marked[key] = mark
            if key in marked:
                triggers.append(marked[key])
                parts.append(_counted_blocks(counts, known))
                counts = Counter()
            else:
                counts[key] += 1
        elif line.startswith(b"IN:"):
            words, start = [], 0
        elif match := _INSTRUCTION.match(line):
            start = start or int(match[1], 16)
            words.append(int(match[2], 16))
            translated[start] = tuple(words)
    return ExecutedParts([*parts, _counted_blocks(counts, known)], triggers, frozenset(known[key] for key in marked))


def _counted_blocks(counts: Counter[bytes], known: dict[bytes, ExecutedBlock]) -> Counter[ExecutedBlock]:
    """Return how often each block ran."""
    blocks: Counter[ExecutedBlock] = Counter()
    for key, times in counts.items():
        blocks[known[key]] += times
    return blocks


def _find_block(key: bytes, translated: dict[int, tuple[int, ...]]) -> ExecutedBlock:
    """Return the block of a line of the log; raise an error where the log does not have it."""
    match = _STATE.match(key)
    if match is None or (address := int(match[2], 16)) not in translated:
        raise TraceFormatError(f"the QEMU log has no instructions for the block {key.decode('ascii', 'replace')}")
    return ExecutedBlock(address, translated[address], int(match[1], 16))


_OBJECT = re.compile(rb"(c?)ob=\((\d+)\)(?: (.+))?")
_COST = re.compile(rb"(0x[0-9a-f]+|[+-]\d+|\*) \S+ (\d+)")
_TOTAL = re.compile(rb"(?:summary|totals): (\d+)")


def read_callgrind(path: Path, names: dict[int, str]) -> Counter[tuple[str, int]]:
    """Return how often each instruction of a part ran, by its file, `???` where there is none, and its address.

    ``path``: of the part; ``names``: of files by their numbers, which the first part that has them tells; filled
    here.

    Raises TraceFormatError: its stated sum is another one.
    """
    counts: Counter[tuple[str, int]] = Counter()
    file, address, skips, total = "???", 0, False, None
    for line in file_bytes(path).splitlines():
        if cost := _COST.match(line):
            if not skips:
                address = _next_address(cost[1], address)
                counts[file, address] += int(cost[2])
            skips = False
        elif object_line := _OBJECT.match(line):
            number = int(object_line[2])
            if object_line[3]:
                names[number] = object_line[3].decode("utf-8", "replace")
            if not object_line[1]:  # else it is that of a function that is called
                file = names.get(number, "???")
        elif line.startswith(b"calls="):
            # The next line is what the call cost, which stands with the function that was called. Its address is not
            # what those that follow count from.
            skips = True
        elif total is None and (summed := _TOTAL.match(line)):
            total = int(summed[1])
    if total is not None and total != counts.total():
        raise TraceFormatError(f"{counts.total()} instructions are listed, but they add up to {total}", where=path)
    return counts


def _next_address(text: bytes, last: int) -> int:
    """Return an address, which may be relative to the one before."""
    if text == b"*":
        return last
    return int(text, 16) if text.startswith(b"0x") else last + int(text)
