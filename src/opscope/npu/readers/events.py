"""The commands of an AI Engine trace unit, decoded to spans one after the other.

A frame (Single or Multiple) names the slots that are active in one cycle, and how many cycles before it none was. The
slots of a frame stay active until the next frame: without idle cycles before it those that it names go on, with idle
cycles all end one cycle after the frame they began in. ``docs/design/aie.md`` lists the commands.
"""

from __future__ import annotations

from array import array
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.core.table.tiles import SLOTS, AddressedEvents, Spans, TraceMode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Words = NDArray[np.uint32]
    Mask = NDArray[np.bool_]

_WORD = 4
_SINGLE, _MULTIPLE, _REPEAT, _SYNC, _START, _NOTHING, _UNKNOWN = range(7)
_SYNC_CYCLES = 1 << 18
_MOST_FRAMES = 1 << 22
_FRAMES_A_WORD = 256


class _Command(NamedTuple):
    """Layout of one kind of command: the number is its last bits, the slots are before it."""

    kind: int
    length: int  # in bytes
    bits: int = 0  # of its number: idle cycles, repeats or the timer


_COMMANDS = {
    (0x00, 0x7F): _Command(_SINGLE, 1, 4),
    (0x80, 0x9F): _Command(_SINGLE, 2, 10),
    (0xA0, 0xBF): _Command(_SINGLE, 3, 18),
    (0xC0, 0xCF): _Command(_MULTIPLE, 2, 4),
    (0xD0, 0xD3): _Command(_MULTIPLE, 3, 10),
    (0xD4, 0xD7): _Command(_MULTIPLE, 4, 18),
    (0xD8, 0xDB): _Command(_REPEAT, 2, 10),
    (0xDC, 0xDF): _Command(_NOTHING, 4),
    (0xE0, 0xEF): _Command(_REPEAT, 1, 4),
    (0xF0, 0xF0): _Command(_START, 8, 56),
    (0xF4, 0xF4): _Command(_START, 8, 56),
    (0xFE, 0xFE): _Command(_NOTHING, 1),
    (0xFF, 0xFF): _Command(_SYNC, 1),
}
"""Commands by the lowest and highest value of their first byte."""
_LAYOUT = [
    next((command for (low, high), command in _COMMANDS.items() if low <= first <= high), _Command(_UNKNOWN, 1))
    for first in range(256)
]
_SLOTS_OF = [tuple(slot for slot in range(SLOTS) if mask >> slot & 1) for mask in range(256)]
_START_BITS, _ANY_START = 0xF8, 0xF0
_MODE_BITS = 3
_MODES = (TraceMode.EVENT_TIME, TraceMode.EVENT_PC, TraceMode.EXECUTION, TraceMode.UNKNOWN)
_START_WORDS = 2
_PC_FRAME, _PC_SLOTS_SHIFT, _PC_BITS = 0b110001, 18, (1 << 14) - 1
"""A word of EVENT_PC: six bits that name it, a mask of eight slots, and after four unused bits the program counter."""
PROBLEMS = {
    "commands_cut": "commands are truncated where words are missing; skipped",
    "commands_unknown": "bytes are not part of any command; skipped",
    "trace_restarted": "additional Start commands; time continues without them",
    "repeats_lost": "repeats have no frame before them; skipped",
    "repeats_of_idle": "repeats follow Event_Sync; the frame before it was used",
}
"""What can be wrong with the commands of a unit."""


def is_start(words: Words) -> bool:
    """Return whether words begin with a Start command, of any mode."""
    return len(words) > 0 and int(words[0]) >> 24 & _START_BITS == _ANY_START


def trace_mode(words: Words) -> TraceMode:
    """Return what a unit recorded, as its Start says; times where it has none."""
    return _MODES[int(words[0]) >> 24 & _MODE_BITS] if is_start(words) else TraceMode.EVENT_TIME


def decode_addresses(words: Words) -> AddressedEvents:
    """Return the events of a unit in EVENT_PC mode: each frame is a word; slots of one frame in ascending order."""
    rest = words[_START_WORDS:]
    frames = rest[rest >> np.uint32(26) == _PC_FRAME].astype(np.int64)
    is_active = frames[:, None] >> _PC_SLOTS_SHIFT >> np.arange(SLOTS) & 1
    frame, slot = np.nonzero(is_active)
    return AddressedEvents(slot, frames[frame] & _PC_BITS)


class TooManySpansError(ValueError):
    """Repeats stand for more spans than a trace of this size can hold."""


class UnitEvents(NamedTuple):
    """Events that the commands of one unit state."""

    spans: tuple[Spans, ...]  # of each of the eight slots
    last: int  # time after the last command
    start_timer: int | None  # of the first Start; None unless the unit begins with one
    problems: Counter[str]  # how often each of PROBLEMS occurs
    lost: list[int]  # time at each of the positions where words are missing
    has_start: bool  # whether the first command is Start, or there is none


def decode_events(words: Words, lost_before: Mask, lost_at: Iterable[int] = ()) -> UnitEvents:
    """Decode the spans of one unit.

    Args:
        words: its payload.
        lost_before: whether something is missing before each word, so that no command goes on there.
        lost_at: positions among the words, ascending, whose times are asked for.
    """
    data, decoder = words.astype(">u4").tobytes(), _Decoder(max(_MOST_FRAMES, _FRAMES_A_WORD * len(words)))
    at, positions, lost = 0, [position * _WORD for position in lost_at], list[int]()
    for end in (*(np.flatnonzero(lost_before) * _WORD).tolist(), len(data)):
        while at < end:
            while len(lost) < len(positions) and positions[len(lost)] <= at:
                lost.append(decoder.time)
            command = _LAYOUT[data[at]]
            if at + command.length > end:
                decoder.problems["commands_cut"] += 1
                break
            decoder.apply(command, int.from_bytes(data[at : at + command.length], "big"))
            at += command.length
        at = end
    lost += [decoder.time] * (len(positions) - len(lost))
    timers, has_start = decoder.timers, decoder.has_start is not False
    decoder.problems["trace_restarted"] = max(0, len(timers) - 1)
    timer = timers[0] if timers and has_start else None
    return UnitEvents(decoder.spans(), decoder.time, timer, decoder.problems, lost, has_start)


class _Edges(NamedTuple):
    """Begins or ends of one slot in stream order."""

    time: array[int]
    order: array[int]  # position among all begins and ends

    def add_series(self, count: int, time: tuple[int, int], order: tuple[int, int]) -> None:
        """Add many at once; times and orders are a first value and a step."""
        steps = np.arange(count, dtype=np.int64)
        self.time.frombytes((time[0] + time[1] * steps).tobytes())
        self.order.frombytes((order[0] + order[1] * steps).tobytes())


class _Decoder:
    """The state of a trace unit from command to command."""

    def __init__(self, most_frames: int) -> None:
        self.time, self.problems, self.timers = 0, Counter[str](), list[int]()
        self.has_start: bool | None = None  # whether the first command is Start; None before it
        self._active, self._order = 0, 0
        self._frame: tuple[int, int] | None = None  # slots and idle cycles of the last frame
        self._is_behind_sync = False
        self._most_frames, self._replayed = most_frames, 0
        self._begins, self._ends = ([_Edges(array("q"), array("q")) for _ in range(SLOTS)] for _ in range(2))

    def apply(self, command: _Command, value: int) -> None:
        """Apply one command."""
        number, slots = value & (1 << command.bits) - 1, value >> command.bits
        if command.kind == _SINGLE:
            self._take_frame(1 << (slots & SLOTS - 1), number)
        elif command.kind == _MULTIPLE:
            self._take_frame(slots & (1 << SLOTS) - 1, number)
        elif command.kind == _REPEAT:
            self._repeat_frame(number)
        elif command.kind == _SYNC:
            self._advance_frame(0, _SYNC_CYCLES - 1)
            self._is_behind_sync = True
        elif command.kind == _START:
            self.timers.append(number)
        elif command.kind == _UNKNOWN:
            self.problems["commands_unknown"] += 1
        if self.has_start is None and command.kind not in (_NOTHING, _UNKNOWN):
            self.has_start = command.kind == _START

    def spans(self) -> tuple[Spans, ...]:
        """Return the spans of each slot; one without an end lasts to the last time."""
        slots = []
        for begins, ends in zip(self._begins, self._ends, strict=True):
            start, begin_order, end, end_order = (np.array(column, np.int64) for column in (*begins, *ends))
            is_open = np.zeros(len(start), bool)
            if len(end) < len(start):
                is_open[-1] = True
                end = np.append(end, max(self.time, int(start[-1])))
                end_order = np.append(end_order, -1)
            slots.append(Spans(start, end, is_open, begin_order, end_order))
        return tuple(slots)

    def _take_frame(self, mask: int, idle: int) -> None:
        self._advance_frame(mask, idle)
        self._frame, self._is_behind_sync = (mask, idle), False

    def _advance_frame(self, mask: int, idle: int) -> None:
        """Take a frame's cycles: what is no longer active ends, then what is newly active begins."""
        still_active = 0 if idle else self._active & mask
        self._add_edges(self._ends, self._active ^ still_active, self.time + 1)
        self.time += idle + 1
        self._add_edges(self._begins, mask ^ still_active, self.time)
        self._active = mask

    def _add_edges(self, edges: list[_Edges], mask: int, time: int) -> None:
        for slot in _SLOTS_OF[mask]:
            edges[slot].time.append(time)
            edges[slot].order.append(self._order)
            self._order += 1

    def _repeat_frame(self, count: int) -> None:
        """Hold the level of a frame without idle cycles; let any other happen again."""
        if self._frame is None:
            self.problems["repeats_lost"] += 1
            return
        self.problems["repeats_of_idle"] += self._is_behind_sync
        mask, idle = self._frame
        if not idle:
            self.time += count
            return
        if not count:
            return
        self._replayed += count
        if self._replayed > self._most_frames:
            raise TooManySpansError(f"its repeats represent more than {self._most_frames:,} frames")
        self._advance_frame(mask, idle)
        slots, period, rest = _SLOTS_OF[mask], idle + 1, count - 1
        for edges, delay, first in ((self._ends, 1, 0), (self._begins, period, len(slots))):
            for rank, slot in enumerate(slots):
                begin, order = self.time + delay, self._order + first + rank
                edges[slot].add_series(rest, (begin, period), (order, 2 * len(slots)))
        self.time += rest * period
        self._order += rest * 2 * len(slots)
