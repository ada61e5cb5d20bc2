"""Blocks of an ETDump that repeat byte for byte, but for their times.

The runtime writes each inference's block at a constant distance from the one before, with its own copies of all
strings. When a program does the same every time, two blocks differ in their timestamps and in the distance of each
table to its layout description, which stands once in the file. Where that is the case, one block is decoded, and
every other one is compared with it word by word; what is equal need not be decoded again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from opscope.readers.flatbuffer import FlatBuffer, Ints

_WORD = 4
_FEWEST = 4
_CHUNK_BYTES = 1 << 20
WORTH_BYTES = 1 << 20
"""Blocks of fewer bytes together are decoded faster than they are compared; measured by bench/decode.py, see
docs/design/etdump.md."""


class Footprint(NamedTuple):
    """Where one decoded block stands, in byte positions of the file."""

    low: int  # first byte that belongs to it
    high: int  # first byte behind it
    tables: Ints  # positions of all its tables, which begin with the distance to their layout
    starts: Ints  # positions of the events' start times
    ends: Ints  # positions of the events' end times
    fields: Ints  # positions of all other fields that are read
    spans: tuple[Ints, Ints]  # first byte and length of all strings and vectors that are read
    layouts: Ints  # positions of the tables' layout descriptions


def repeated_spans(at: Ints) -> Iterator[tuple[int, int, bool]]:
    """Split blocks into consecutive ones at a constant distance, where they are worth it, and the others.

    Yields:
        First block, the one behind the last, and whether they are enough of them at a constant distance.
    """
    step = np.diff(at)
    border = (np.flatnonzero(np.diff(step)) + 1).tolist()
    first = 0
    # A block fills the distance to the one before it, so those of one size begin behind the first of a stretch.
    for begin, end in zip([0, *border], [*border, len(step)], strict=True):
        if end - begin >= _FEWEST and abs(int(at[end] - at[begin])) >= WORTH_BYTES:
            if first < begin + 1:
                yield first, begin + 1, False
            first = end + 1
            yield begin + 1, first, True
    if first < len(at):
        yield first, len(at), False


def repeated_times(
    buffer: FlatBuffer, at: Ints, footprint: Footprint
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]] | None:
    """Start and end of every event of blocks that repeat the first of them, of shape (blocks, events) each.

    None when one of them differs in anything else.
    """
    step = int(at[1] - at[0])
    view = _windows(buffer, at, step, footprint)
    if view is None:
        return None
    words = (footprint.tables - footprint.low) >> 2
    start, end = ((positions - footprint.low) >> 2 for positions in (footprint.starts, footprint.ends))
    free = _free_words(footprint, view.shape[1])
    if free is None or _describes_layouts(footprint, at):
        return None
    times = np.empty((len(at), len(start)), np.uint64), np.empty((len(at), len(end)), np.uint64)
    template = view[0].copy()
    rows = max(1, _CHUNK_BYTES // (view.shape[1] * _WORD))
    for first in range(0, len(at), rows):
        chunk = view[first : first + rows]
        if not _repeats(chunk, template, free, words, step * np.arange(first, first + len(chunk))):
            return None
        for target, column in zip(times, (start, end), strict=True):
            target[first : first + rows] = chunk[:, column + 1]
            target[first : first + rows] <<= np.uint64(32)
            target[first : first + rows] |= chunk[:, column]
    return times


def _free_words(footprint: Footprint, count: int) -> NDArray[np.bool_] | None:
    """Words that may differ between blocks: times, and the distance of tables to their layouts.

    None when one of them is missing, is read as anything else too, or stands outside of the block: in a damaged file
    fields may share bytes, and then a word that may differ would also be one that must not.
    """
    times = [footprint.starts, footprint.starts + _WORD, footprint.ends, footprint.ends + _WORD]
    positions = np.concatenate([footprint.tables, *times])
    words = (positions - footprint.low) >> 2
    if not all(len(part) and part.min() > 0 for part in times) or words.min() < 0 or words.max() >= count:
        return None
    free = np.zeros(count, bool)
    free[words] = True
    fixed = _fixed_words(footprint, count)
    overlap = fixed is None or len(np.unique(words)) < len(words) or bool((free & fixed).any())
    return None if overlap else free


def _fixed_words(footprint: Footprint, count: int) -> NDArray[np.bool_] | None:
    """Words that are read and must be equal: other fields, strings and vectors; None when one is outside the block."""
    first, length = footprint.spans
    begin, end = (first - footprint.low) >> 2, ((first + length - 1 - footprint.low) >> 2) + 1
    fields = (footprint.fields - footprint.low) >> 2
    edges = np.concatenate([begin, end - 1, fields])
    if len(edges) and (edges.min() < 0 or edges.max() >= count):
        return None
    covered = np.zeros(count + 1, np.int64)
    np.add.at(covered, begin, 1)
    np.add.at(covered, end, -1)
    fixed: NDArray[np.bool_] = np.cumsum(covered)[:count] > 0
    fixed[fields] = True
    return fixed


def _describes_layouts(footprint: Footprint, at: Ints) -> bool:
    """Whether a layout description stands inside of the blocks, where it could differ between them."""
    low, high = (
        int(edge) + int(shift - at[0]) for edge, shift in ((footprint.low, at.min()), (footprint.high, at.max()))
    )
    return bool(((footprint.layouts >= low) & (footprint.layouts < high)).any())


def _windows(buffer: FlatBuffer, at: Ints, step: int, footprint: Footprint) -> NDArray[np.uint32] | None:
    """The blocks' words as rows of one array, without copying; None when they overlap or leave the file."""
    height = footprint.high - footprint.low
    ends = at[[0, -1]] + (footprint.low - int(at[0]))
    inside = ends.min() >= 0 and ends.max() + height <= buffer.size
    if step % _WORD or abs(step) < height or not inside:
        return None
    words = buffer.words[int(ends[0]) >> 2 :] if step > 0 else buffer.words[: (int(ends[0]) + height + 3) >> 2]
    first = 0 if step > 0 else int(ends[0]) >> 2
    shape = len(at), (height + _WORD - 1) >> 2
    windows: NDArray[np.uint32] = np.ndarray(shape, np.uint32, words, first * _WORD, (step, _WORD))
    return windows


def _repeats(
    chunk: NDArray[np.uint32], template: NDArray[np.uint32], free: NDArray[np.bool_], tables: Ints, moved: Ints
) -> bool:
    """Whether blocks equal the template outside of free words, and their tables point to the same layouts."""
    differs = np.bitwise_or.reduce(chunk ^ template, axis=0)
    if differs[~free].any():
        return False
    expected = template[tables].astype(np.int64) + moved[:, None]
    return bool((chunk[:, tables] == (expected & 0xFFFFFFFF)).all())
