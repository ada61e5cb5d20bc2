"""The event-time commands of an AI Engine trace unit, decoded to spans for all commands at once.

A frame (Single or Multiple) names the slots that are active in one cycle, and how many cycles before it none was. The
slots of a frame stay active until the next frame: without idle cycles before it those that it names go on, with idle
cycles all end one cycle after the frame they began in. ``docs/design/aie.md`` lists the commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.core.table.tiles import SLOTS, AddressedEvents, Spans, TraceMode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opscope.core.table.nesting import Ints

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.uint32]
    Mask = NDArray[np.bool_]

_WORD = 4
_FRAME, _REPEAT, _SYNC, _START, _NOTHING, _UNKNOWN = range(6)
_SYNC_CYCLES = (1 << 18) - 1
_MOST_SPANS = 1 << 22
_SPANS_A_WORD = 256
_ROUNDS = 4


class _Command(NamedTuple):
    """How one kind of command is laid out; the first byte is the most significant of a 32-bit value."""

    first: int  # lowest first byte
    last: int  # highest first byte
    kind: int  # what it does
    length: int  # in bytes
    shift: int = 0  # of the number in it: idle cycles or repeats
    bits: int = 0  # of that number
    slots: int = -1  # shift of the slot mask; -1 without one
    slot: int = -1  # shift of a single slot's number within the first byte; -1 without one


_COMMANDS = (
    _Command(0x00, 0x7F, _FRAME, 1, 24, 4, slot=4),
    _Command(0x80, 0x9F, _FRAME, 2, 16, 10, slot=2),
    _Command(0xA0, 0xBF, _FRAME, 3, 8, 18, slot=2),
    _Command(0xC0, 0xCF, _FRAME, 2, 16, 4, slots=20),
    _Command(0xD0, 0xD3, _FRAME, 3, 8, 10, slots=18),
    _Command(0xD4, 0xD7, _FRAME, 4, 0, 18, slots=18),
    _Command(0xD8, 0xDB, _REPEAT, 2, 16, 10),
    _Command(0xDC, 0xDF, _NOTHING, 4),
    _Command(0xE0, 0xEF, _REPEAT, 1, 24, 4),
    _Command(0xF0, 0xF0, _START, 8),
    _Command(0xF4, 0xF4, _START, 8),
    _Command(0xFE, 0xFE, _NOTHING, 1),
    _Command(0xFF, 0xFF, _SYNC, 1),
)


class _Layout(NamedTuple):
    """The commands by their first byte; arrays of 256."""

    kind: Bytes
    length: Bytes
    is_frame: Mask
    shift: Words
    bits: Words
    slots_shift: Words
    slots_bits: Words
    slot: Words
    more: Words


def _command_layout() -> _Layout:
    numbers = [np.zeros(256, np.uint32) for _ in range(6)]
    table = _Layout(np.full(256, _UNKNOWN, np.uint8), np.ones(256, np.uint8), np.zeros(256, bool), *numbers)
    for command in _COMMANDS:
        own = slice(command.first, command.last + 1)
        table.kind[own], table.length[own] = command.kind, command.length
        table.shift[own], table.bits[own] = command.shift, (1 << command.bits) - 1
        if command.slots >= 0:
            table.slots_shift[own], table.slots_bits[own] = command.slots, (1 << SLOTS) - 1
        if command.slot >= 0:
            table.slot[own] = [1 << (first >> command.slot & 7) for first in range(command.first, command.last + 1)]
    table.is_frame[:] = (table.kind == _FRAME) | (table.kind == _SYNC)
    table.more[table.kind == _SYNC] = _SYNC_CYCLES
    return table


_LAYOUT = _command_layout()
_SET_BITS = np.array([mask.bit_count() for mask in range(256)], np.int64)


class UnitEvents(NamedTuple):
    """What the commands of one unit say."""

    spans: tuple[Spans, ...]  # of each of the eight slots
    last: int  # time after the last command
    start_timer: int | None  # of the first Start; None without one
    restarts: int  # further Starts
    cut: int  # commands of which bytes are missing
    unknown: int  # bytes that begin no command
    repeats_lost: int  # repeats without a frame before them
    repeats_of_idle: int  # repeats that stand behind an Event_Sync
    lost: tuple[int, ...] = ()  # time at each of the places where words are missing
    begun: bool = True  # whether the first command is Start, or there is none


_START_BITS, _ANY_START = 0xF8, 0xF0
_MODE_BITS = 3
_MODES = (TraceMode.EVENT_TIME, TraceMode.EVENT_PC, TraceMode.EXECUTION, TraceMode.UNKNOWN)
_START_WORDS = 2
_PC_FRAME, _PC_SLOTS_SHIFT, _PC_BITS = 0b110001, 18, (1 << 14) - 1
"""A word of EVENT_PC: six bits that name it, a mask of eight slots, and after four unused bits the program counter."""


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


_NOWHERE = np.empty(0, np.int64)


def decode_events(words: Words, lost_before: Mask, lost_at: Ints = _NOWHERE) -> UnitEvents:
    """The spans of one unit."""
    data = np.concatenate([words.astype(">u4").view(np.uint8), np.zeros(_WORD, np.uint8)])
    at, cut = _find_commands(data[:-_WORD].reshape(-1, _WORD), lost_before)
    first = data[at]
    kind = _LAYOUT.kind[first]
    starts = at[kind == _START]
    timer = int.from_bytes(data[starts[0] + 1 : starts[0] + 8].tobytes(), "big") if len(starts) else None
    repeats = _find_repeats(kind)
    steps = _decode_steps(data, at, first)
    lost = _times_at(at, steps, repeats, lost_at * _WORD)
    meant = kind[(kind != _NOTHING) & (kind != _UNKNOWN)]
    frames = _time_frames(_apply_repeats(steps, repeats, max(_MOST_SPANS, _SPANS_A_WORD * len(words))))
    return UnitEvents(
        spans=tuple(_slot_spans(frames, slot) for slot in range(SLOTS)),
        last=frames.last,
        start_timer=timer,
        restarts=max(0, len(starts) - 1),
        cut=cut,
        unknown=int((kind == _UNKNOWN).sum()),
        repeats_lost=len(repeats.lost),
        repeats_of_idle=repeats.of_idle,
        lost=tuple(lost.tolist()),
        begun=not len(meant) or int(meant[0]) == _START,
    )


def _times_at(at: Ints, steps: _Steps, repeats: _Repeats, places: Ints) -> Ints:
    """Time at bytes of the payload, after the commands before them."""
    spent = steps.cycles.copy()
    spent[repeats.lost] = 0
    again = steps.idle[repeats.frame] > 0
    spent[repeats.at[again]] = steps.idle[repeats.at[again]] * steps.cycles[repeats.frame[again]]
    time = np.concatenate([[0], np.cumsum(spent)])
    found: Ints = time[np.searchsorted(at, places)]
    return found


def _find_commands(data: Bytes, lost_before: Mask) -> tuple[Ints, int]:
    """First byte of every whole command, and how many are cut off; ``data`` has shape (words, 4).

    In captures no command but Start crosses into the next word, so all words can be divided at once; the few behind
    one that does are divided again, with the bytes that it takes of them.
    """
    length = np.take(_LAYOUT.length, data.T)
    begins, beyond = _divide_words(length, np.zeros(len(data), np.uint8))
    taken = np.zeros(len(data), np.uint8)
    given = np.where(lost_before[1:], 0, beyond[:-1])
    for _ in range(_ROUNDS):
        changed = np.flatnonzero(given != taken[1:]) + 1
        if not len(changed):
            break
        taken[changed] = given[changed - 1]
        begins[:, changed], beyond[changed] = _divide_words(length[:, changed], taken[changed])
        given = np.where(lost_before[1:], 0, beyond[:-1])
    else:
        begins, beyond = _divide_words(length, _taken_in_order(length, lost_before))
    at = np.flatnonzero(np.ascontiguousarray(begins.T).ravel())
    if not beyond.any():
        return at, 0
    ends = np.concatenate([np.flatnonzero(lost_before), [len(data)]]) * _WORD
    over = at + length.T.ravel()[at] > ends[np.searchsorted(ends, at, side="right")]
    return at[~over], int(over.sum())


def _divide_words(length: Bytes, taken: Bytes) -> tuple[Mask, Bytes]:
    """Return where commands begin in each word, and how many bytes its last one takes of the next."""
    begins = np.empty(length.shape, bool)
    beyond = np.where(taken > _WORD, taken - np.uint8(_WORD), np.uint8(0))
    for byte in range(_WORD):
        begins[byte] = taken == byte
        for before in range(byte):
            begins[byte] |= begins[before] & (length[before] == byte - before)
        room = np.uint8(_WORD - byte)
        beyond |= np.where(begins[byte] & (length[byte] > room), length[byte] - room, np.uint8(0))
    return begins, beyond


def _taken_in_order(length: Bytes, lost_before: Mask) -> Bytes:
    """Bytes of each word that belong to a command of the word before, found word after word."""
    lengths, found, taken = length.T.tobytes(), bytearray(len(lost_before)), 0
    for word, lost in enumerate(lost_before.tolist()):
        taken = 0 if lost else taken
        found[word] = taken
        while taken < _WORD:
            taken += lengths[_WORD * word + taken]
        taken -= _WORD
    return np.frombuffer(found, np.uint8)


class _Repeats(NamedTuple):
    """The repeats among the commands; places in the list of commands."""

    at: Ints  # of each repeat
    frame: Ints  # of the frame that it repeats
    lost: Ints  # of repeats without a frame before them
    of_idle: int  # repeats between which and their frame there is an Event_Sync


def _find_repeats(kind: Bytes) -> _Repeats:
    at = np.flatnonzero(kind == _REPEAT)
    frame = at - 1
    far = np.flatnonzero((frame < 0) | (kind[frame] != _FRAME))
    if len(far):
        frames = np.concatenate([[-1], np.flatnonzero(kind == _FRAME)])
        frame[far] = frames[np.searchsorted(frames, at[far]) - 1]
    lost = frame < 0
    syncs = np.concatenate([[-1], np.flatnonzero(kind == _SYNC)])
    sync = syncs[np.searchsorted(syncs, at[far]) - 1]
    of_idle = int(((sync > frame[far]) & ~lost[far]).sum())
    return _Repeats(at[~lost], frame[~lost], at[lost], of_idle)


class _Steps(NamedTuple):
    """Commands in order; arrays of one length."""

    mask: Bytes  # slots that are active at the end of a frame
    idle: Ints  # cycles before that in which none is
    cycles: Ints  # by which the time goes on
    is_frame: Mask  # whether it is a frame, as Event_Sync is one that names no slot; others only take time, or nothing


def _decode_steps(data: Bytes, at: Ints, first: Bytes) -> _Steps:
    """Decode every command on its own; a repeat takes as many cycles as it counts."""
    value = np.ndarray((len(data) - _WORD + 1,), ">u4", data, 0, (1,))[at].astype(np.uint32)
    byte = first.astype(np.intp)
    number = (value >> _LAYOUT.shift[byte] & _LAYOUT.bits[byte]).astype(np.int64)
    number += _LAYOUT.more[byte]
    mask = (_LAYOUT.slot[byte] | value >> _LAYOUT.slots_shift[byte] & _LAYOUT.slots_bits[byte]).astype(np.uint8)
    is_frame = _LAYOUT.is_frame[byte]
    return _Steps(mask, number, number + is_frame, is_frame)


def _apply_repeats(steps: _Steps, repeats: _Repeats, most: int) -> _Steps:
    """Commands with what repeats mean: a frame without idle cycles goes on, any other happens again."""
    steps.cycles[repeats.lost] = 0
    again = np.flatnonzero(steps.idle[repeats.frame])
    if not len(again):
        return steps
    at, frame = repeats.at[again], repeats.frame[again]
    times = np.ones(len(steps.mask), np.int64)
    times[at] = steps.idle[at]
    if int(times.sum()) > most:
        raise TooManySpansError(f"its repeats represent more than {most:,} frames")
    row = np.arange(len(times))
    row[at] = frame
    row = np.repeat(row, times)
    return _Steps(steps.mask[row], steps.idle[row], steps.cycles[row], steps.is_frame[row])


class _Frames(NamedTuple):
    """Frames with their times, those of repeats written out."""

    closes: Bytes  # slots that end, at `close`
    opens: Bytes  # slots that begin, at `open`
    close: Ints  # time of the ends
    open: Ints  # time of the begins
    order: Ints  # of the first end among all ends and begins
    last: int  # time after everything


def _time_frames(steps: _Steps) -> _Frames:
    time = np.cumsum(steps.cycles)
    last = int(time[-1]) if len(time) else 0
    frames = np.flatnonzero(steps.is_frame)
    mask, idle, time = steps.mask[frames], steps.idle[frames], time[frames]
    active = np.concatenate([np.zeros(1, np.uint8), mask])[:-1]
    kept = (active & mask) * (idle == 0)
    closes, opens = active ^ kept, mask ^ kept
    count = _SET_BITS[closes] + _SET_BITS[opens]
    return _Frames(closes, opens, time - idle, time, np.cumsum(count) - count, last)


def _slot_spans(frames: _Frames, slot: int) -> Spans:
    below = (1 << slot) - 1
    begins, ends = (np.flatnonzero((mask >> slot & 1).view(bool)) for mask in (frames.opens, frames.closes))
    start, end = frames.open[begins], frames.close[ends]
    begun = frames.order[begins] + _SET_BITS[frames.closes[begins]] + _SET_BITS[frames.opens[begins] & below]
    ended = frames.order[ends] + _SET_BITS[frames.closes[ends] & below]
    unfinished = np.zeros(len(start), bool)
    if len(end) < len(start):
        unfinished[-1] = True
        end = np.append(end, max(frames.last, int(start[-1])))
        ended = np.append(ended, -1)
    return Spans(start, end, unfinished, begun, ended)
