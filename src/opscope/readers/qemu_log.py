"""The log of QEMU's user mode with ``-d in_asm,exec,nochain``: which blocks of instructions ran, in order.

A block is printed when it is translated (``IN:``, then a line for each instruction with its address and its word), and
a line ``Trace`` whenever it runs, with its address and the state that it was translated for. Source: QEMU 11.1, and
``accel/tcg/cpu-exec.c`` and ``target/arm/cpu.h`` there for that line and the state.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import TraceFormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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

    Args:
        lines: of the log.
        marks: names by words of instructions that end a part. A block that holds one is of none.

    Raises:
        TraceFormatError: a block ran that the log does not hold.
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
        elif told := _INSTRUCTION.match(line):
            place = place or int(told[1], 16)
            words.append(int(told[2], 16))
            translated[place] = tuple(words)
    return ExecutedParts([*found, _blocks(counts, known)], triggers, frozenset(known[key] for key in marked))


def _blocks(counts: Counter[bytes], known: dict[bytes, ExecutedBlock]) -> Counter[ExecutedBlock]:
    found: Counter[ExecutedBlock] = Counter()
    for key, times in counts.items():
        found[known[key]] += times
    return found


def _block(key: bytes, translated: dict[int, tuple[int, ...]]) -> ExecutedBlock:
    told = _STATE.match(key)
    if told is None or (address := int(told[2], 16)) not in translated:
        raise TraceFormatError(f"the QEMU log has no instructions for the block {key.decode('ascii', 'replace')}")
    return ExecutedBlock(address, translated[address], int(told[1], 16))
