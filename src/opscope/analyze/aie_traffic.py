"""What a tile's events take in its trace: the commands that a trace unit writes for them, and their bytes.

A trace unit in event-time mode writes a frame for each cycle in which any of its slots is active: which slots, and how
many cycles passed without any. A frame that equals the one before it is written as a repeat, so an event that stays
active costs little, and one that comes and goes costs a command each time. Padding and packet headers are not counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.table.tiles import SLOTS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opscope.table.nesting import Ints
    from opscope.table.tiles import Spans, TileTrace

_SYNC_CYCLES = 1 << 18
_MOST_REPEATS = (1 << 10) - 1
_MOST_CHANGES = 1 << 13
"""Changes of level that are looked at: the commands of a longer trace are estimated from its beginning."""


class Levels(NamedTuple):
    """Which slots of a tile were active when.

    Attributes:
        time: of each change, in cycles, ascending; shape (changes,).
        mask: slots that are active from there to the next change, one bit each; shape (changes,).
        share: of all spans of the trace that these are made of.
    """

    time: Ints
    mask: Ints
    share: float


class Traffic(NamedTuple):
    """Commands of a trace unit for a whole trace, and their bytes; estimated where :attr:`Levels.share` is below 1."""

    commands: int
    bytes: int


class _Frames(NamedTuple):
    """Frames in order, equal ones in a row as one: slots, idle cycles before, and how many."""

    mask: Ints
    idle: Ints
    times: Ints


def levels(tile: TileTrace) -> Levels:
    """The levels of all slots of a tile, as far as some :data:`_MOST_CHANGES` changes."""
    used = {slot.number: slot.spans for slot in tile.slots if len(slot.spans.start)}
    starts = np.concatenate([spans.start for spans in used.values()]) if used else np.empty(0, np.int64)
    most = _MOST_CHANGES // 2
    if len(starts) > most:
        last = np.partition(starts, most)[most]
        used = {number: _until(spans, int(last)) for number, spans in used.items()}
    ends = [np.concatenate([spans.start, spans.end]) for spans in used.values()]
    time = np.unique(np.concatenate(ends)) if ends else starts
    mask = np.zeros(len(time), np.int64)
    for number, spans in used.items():
        begun, ended = (np.searchsorted(time, own) for own in (spans.start, spans.end))
        change = np.bincount(begun, minlength=len(time)) - np.bincount(ended, minlength=len(time))
        mask |= (np.cumsum(change) > 0).astype(np.int64) << np.int64(number)
    seen = sum(len(spans.start) for spans in used.values())
    return Levels(time, mask, seen / len(starts) if len(starts) else 1.0)


def _until(spans: Spans, last: int) -> Spans:
    kept = spans.only(spans.start < last)
    return kept._replace(end=np.minimum(kept.end, last))


def traffic(seen: Levels, without: frozenset[int] = frozenset()) -> Traffic:
    """What the levels take.

    Args:
        seen: of a tile.
        without: slots that are taken as unused.
    """
    kept = sum(1 << number for number in range(SLOTS) if number not in without)
    start, end, mask = _segments(seen, kept)
    if not len(start):
        return Traffic(0, 0)
    idle = start - np.concatenate([[1], end[:-1]])
    frames = _frames(mask, idle % _SYNC_CYCLES, end - start)
    syncs = int((idle // _SYNC_CYCLES).sum())
    repeats = frames.times - 1
    rest = repeats % _MOST_REPEATS
    commands = len(frames.mask) + int((repeats // _MOST_REPEATS + (rest > 0)).sum())
    size = _frame_bytes(frames) + 2 * (repeats // _MOST_REPEATS) + np.where(rest >= 1 << 4, 2, rest > 0)
    return Traffic(round((commands + syncs) / seen.share), round((int(size.sum()) + syncs) / seen.share))


def _segments(seen: Levels, kept: int) -> tuple[Ints, Ints, Ints]:
    """Stretches in which the same slots are active: start, end and slots; those without any are left out."""
    mask = seen.mask & kept
    first = np.flatnonzero(np.concatenate([[True], mask[1:] != mask[:-1]])) if len(mask) else np.empty(0, np.int64)
    start, mask = seen.time[first], mask[first]
    end = np.append(start[1:], seen.time[-1:])
    used = (mask > 0) & (end > start)
    return start[used], end[used], mask[used]


def _frames(mask: Ints, idle: Ints, length: Ints) -> _Frames:
    """Each stretch as its first frame, and those that hold its level."""
    waits = idle > 0
    held = np.where(waits, length - 1, 0)
    pairs = _Frames(
        np.repeat(mask, 2),
        np.stack([idle, np.zeros_like(idle)], axis=1).ravel(),
        np.stack([np.where(waits, 1, length), held], axis=1).ravel(),
    )
    return _merged(_Frames(*(own[pairs.times > 0] for own in pairs)))


def _merged(frames: _Frames) -> _Frames:
    same = (frames.mask[1:] == frames.mask[:-1]) & (frames.idle[1:] == frames.idle[:-1])
    first = np.flatnonzero(np.concatenate([[True], ~same]))
    return _Frames(frames.mask[first], frames.idle[first], np.add.reduceat(frames.times, first))


def _frame_bytes(frames: _Frames) -> Ints:
    """Bytes of each frame: one slot takes one less than several, and idle cycles of 4, 10 or 18 bits one more each."""
    several: NDArray[np.bool_] = (frames.mask & (frames.mask - 1)) > 0
    return 1 + several.astype(np.int64) + (frames.idle >= 1 << 4) + (frames.idle >= 1 << 10)
