"""The event-time commands of an AI Engine trace unit, decoded to spans for all commands at once.

A frame (Single or Multiple) names the slots that are active in one cycle, and how many cycles before it none was. The
slots of a frame stay active until the next frame: without idle cycles before it those that it names go on, with idle
cycles all end one cycle after the frame they began in. ``docs/design/aie.md`` lists the commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from opscope.table.tiles import SLOTS, Spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opscope.table.nesting import Ints

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
    """How one kind of command is laid out; the first byte is the most significant of a 32-bit value.

    Attributes:
        first: lowest first byte.
        last: highest first byte.
        kind: what it does.
        length: in bytes.
        shift: of the number in it: idle cycles or repeats.
        bits: of that number.
        slots: shift of the slot mask; -1 without one.
        slot: shift of a single slot's number within the first byte; -1 without one.
    """

    first: int
    last: int
    kind: int
    length: int
    shift: int = 0
    bits: int = 0
    slots: int = -1
    slot: int = -1


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
    shift: Words
    bits: Words
    slots_shift: Words
    slots_bits: Words
    slot: Words


def _layout() -> _Layout:
    numbers = [np.zeros(256, np.uint32) for _ in range(5)]
    table = _Layout(np.full(256, _UNKNOWN, np.uint8), np.ones(256, np.uint8), *numbers)
    for command in _COMMANDS:
        own = slice(command.first, command.last + 1)
        table.kind[own], table.length[own] = command.kind, command.length
        table.shift[own], table.bits[own] = command.shift, (1 << command.bits) - 1
        if command.slots >= 0:
            table.slots_shift[own], table.slots_bits[own] = command.slots, (1 << SLOTS) - 1
        if command.slot >= 0:
            table.slot[own] = [1 << (first >> command.slot & 7) for first in range(command.first, command.last + 1)]
    return table


_LAYOUT = _layout()
_SET_BITS = np.array([mask.bit_count() for mask in range(256)], np.int64)


class UnitEvents(NamedTuple):
    """What the commands of one unit say.

    Attributes:
        spans: of each of the eight slots.
        last: time after the last command.
        start_timer: of the first Start; None without one.
        restarts: further Starts.
        cut: commands of which bytes are missing.
        unknown: bytes that begin no command.
        repeats_lost: repeats without a frame before them.
        repeats_of_idle: repeats that stand behind an Event_Sync.
    """

    spans: tuple[Spans, ...]
    last: int
    start_timer: int | None
    restarts: int
    cut: int
    unknown: int
    repeats_lost: int
    repeats_of_idle: int


class TooManySpansError(ValueError):
    """Repeats stand for more spans than a trace of this size can hold."""


def decode_events(words: Words, lost_before: Mask) -> UnitEvents:
    """The spans of one unit.

    Args:
        words: its payload in order; shape (words,).
        lost_before: words before which something is missing: commands do not continue across; shape (words,).

    Raises:
        TooManySpansError: repeats stand for more spans than is plausible.
    """
    data = np.concatenate([words.astype(">u4").view(np.uint8), np.zeros(_WORD, np.uint8)])
    at, cut = _commands(data[:-_WORD].reshape(-1, _WORD), lost_before)
    first = data[at]
    kind = _LAYOUT.kind[first]
    starts = at[kind == _START]
    timer = int.from_bytes(data[starts[0] + 1 : starts[0] + 8].tobytes(), "big") if len(starts) else None
    timed = kind <= _SYNC
    steps = _steps(data, at[timed], first[timed], kind[timed])
    frames = _replayed(steps, max(_MOST_SPANS, _SPANS_A_WORD * len(words)))
    return UnitEvents(
        spans=tuple(_spans(frames, slot) for slot in range(SLOTS)),
        last=frames.last,
        start_timer=timer,
        restarts=max(0, len(starts) - 1),
        cut=cut,
        unknown=int((kind == _UNKNOWN).sum()),
        repeats_lost=steps.repeats_lost,
        repeats_of_idle=steps.repeats_of_idle,
    )


def _commands(data: Bytes, lost_before: Mask) -> tuple[Ints, int]:
    """First byte of every whole command, and how many are cut off; ``data`` has shape (words, 4).

    In captures no command but Start crosses into the next word, so all words can be divided at once; the few behind
    one that does are divided again, with the bytes that it takes of them.
    """
    length = np.take(_LAYOUT.length, data.T)
    begins, beyond = _divided(length, np.zeros(len(data), np.uint8))
    taken = np.zeros(len(data), np.uint8)
    given = np.where(lost_before[1:], 0, beyond[:-1])
    for _ in range(_ROUNDS):
        changed = np.flatnonzero(given != taken[1:]) + 1
        if not len(changed):
            break
        taken[changed] = given[changed - 1]
        begins[:, changed], beyond[changed] = _divided(length[:, changed], taken[changed])
        given = np.where(lost_before[1:], 0, beyond[:-1])
    else:
        begins, beyond = _divided(length, _taken_in_order(length, lost_before))
    at = np.flatnonzero(np.ascontiguousarray(begins.T).ravel())
    if not beyond.any():
        return at, 0
    ends = np.concatenate([np.flatnonzero(lost_before), [len(data)]]) * _WORD
    over = at + length.T.ravel()[at] > ends[np.searchsorted(ends, at, side="right")]
    return at[~over], int(over.sum())


def _divided(length: Bytes, taken: Bytes) -> tuple[Mask, Bytes]:
    """Where commands begin in each word, and how many bytes its last one takes of the next.

    Args:
        length: of the command that each byte would begin; shape (4, words).
        taken: bytes that belong to a command of the word before; shape (words,).
    """
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


class _Steps(NamedTuple):
    """Commands that take time, in order.

    Attributes:
        mask: slots that are active at the end of a step; of a repeat, those of the frame it repeats.
        idle: cycles before that in which none is; likewise.
        times: how often it happens, frames once; None without repeats.
        held: cycles by which it only prolongs the frame before; 0 for all but repeats of frames without idle cycles;
            None without repeats.
        repeats_lost: repeats that were left out, since nothing is before them.
        repeats_of_idle: repeats directly behind an Event_Sync.
    """

    mask: Bytes
    idle: Ints
    times: Ints | None
    held: Ints | None
    repeats_lost: int
    repeats_of_idle: int


def _steps(data: Bytes, at: Ints, first: NDArray[np.integer[Any]], kind: Bytes) -> _Steps:
    value = np.ndarray((len(data) - _WORD + 1,), ">u4", data, 0, (1,))[at].astype(np.uint32)
    first = first.astype(np.intp)
    number = (value >> _LAYOUT.shift[first] & _LAYOUT.bits[first]).astype(np.int64)
    mask = (_LAYOUT.slot[first] | value >> _LAYOUT.slots_shift[first] & _LAYOUT.slots_bits[first]).astype(np.uint8)
    number[kind == _SYNC] = _SYNC_CYCLES
    repeats = np.flatnonzero(kind == _REPEAT)
    if not len(repeats):
        return _Steps(mask, number, None, None, 0, 0)
    frames = np.flatnonzero(kind == _FRAME)
    place = np.searchsorted(frames, repeats) - 1
    lost = place < 0
    if lost.any():
        repeats, place = repeats[~lost], place[~lost]
    of_idle = _behind_sync(kind, repeats, frames[place])
    count, idle = number[repeats], number[frames[place]]
    times, held = np.ones(len(at), np.int64), np.zeros(len(at), np.int64)
    times[kind == _REPEAT] = 0
    times[repeats] = np.where(idle == 0, count > 0, count)
    held[repeats] = np.where(idle == 0, count, 0)
    number[repeats], mask[repeats] = idle, mask[frames[place]]
    if times.all():
        return _Steps(mask, number, times, held, 0, of_idle)
    kept = np.flatnonzero(times)
    return _Steps(mask[kept], number[kept], times[kept], held[kept], int(lost.sum()), of_idle)


def _behind_sync(kind: Bytes, repeats: Ints, frames: Ints) -> int:
    """Repeats between which and the frame before them there is an Event_Sync."""
    syncs = np.flatnonzero(kind == _SYNC)
    if not len(syncs):
        return 0
    return int((np.searchsorted(syncs, repeats) > np.searchsorted(syncs, frames)).sum())


class _Frames(NamedTuple):
    """Frames with their times, those of repeats written out.

    Attributes:
        closes: slots that end, at ``close``.
        opens: slots that begin, at ``open``.
        close: time of the ends.
        open: time of the begins.
        order: of the first end among all ends and begins.
        last: time after everything.
    """

    closes: Bytes
    opens: Bytes
    close: Ints
    open: Ints
    order: Ints
    last: int


def _replayed(steps: _Steps, most: int) -> _Frames:
    mask, idle = steps.mask, steps.idle
    if steps.held is None or steps.times is None:
        time = np.cumsum(idle + 1)
    else:
        held = steps.held
        if (steps.times > 1).any():
            if int(steps.times.sum()) > most:
                raise TooManySpansError(f"its repeats stand for more than {most:,} frames")
            row = np.repeat(np.arange(len(mask)), steps.times)
            mask, idle, held = mask[row], idle[row], held[row]
        time = np.cumsum(np.where(held > 0, held, idle + 1))
        frames = np.flatnonzero(held == 0)
        mask, idle, time, last = mask[frames], idle[frames], time[frames], int(time[-1]) if len(time) else 0
    if steps.held is None:
        last = int(time[-1]) if len(time) else 0
    active = np.concatenate([np.zeros(1, np.uint8), mask])[:-1]
    apart = idle > 0
    closes = np.where(apart, active, active & ~mask)
    opens = np.where(apart, mask, mask & ~active)
    count = _SET_BITS[closes] + _SET_BITS[opens]
    return _Frames(closes, opens, time - idle, time, np.cumsum(count) - count, last)


def _spans(frames: _Frames, slot: int) -> Spans:
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
