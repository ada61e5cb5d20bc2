"""Many records of one layout at once: tools write all records alike, byte for byte, but for names and numbers.

The scanner takes the layout from a record that was read in general, and finds the records that follow by the bytes that
each starts with. A record counts only when every one of its bytes is what the layout says, and when the record
before it ends where it starts. All others are read in general, so the result is the same by construction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from opscope.errors import TraceFormatError
from opscope.read.aie_json_events import EventColumns
from opscope.read.aie_json_layout import WORD, Layout, layout_of
from opscope.read.aie_json_text import CutOffError, Position, gather_stretch, likely_start

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opscope.read.aie_json_events import Gathered
    from opscope.read.aie_json_text import Values
    from opscope.table.nesting import Ints

    Mask = NDArray[np.bool_]
    Words = NDArray[np.uint64]

_CHUNK = 1 << 19
_LONGEST_NAME = 64
_MOST_PIDS = 1 << 12
_MOST_TIDS = 16
_MOST_SLOTS = 1 << 13
_WORTH_A_LAYOUT = 16
_MOST_LAYOUTS = 32
_UNKNOWN = -1
_NOWHERE = np.zeros(0, np.int64)


class _Found(NamedTuple):
    """Records that have a layout; arrays of one length.

    Attributes:
        row: place among the records that were looked at.
        code: of the slot.
        time: in cycles.
        begin: whether the slot became active.
    """

    row: Ints
    code: NDArray[np.int32]
    time: Ints
    begin: Mask


_NONE = _Found(np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(0, bool))


class _Names:
    """Slots by process and number, and their names as bytes, for comparing many records at once."""

    def __init__(self) -> None:
        self.code = np.full(_MOST_PIDS * _MOST_TIDS, _UNKNOWN, np.int32)
        self.length: Ints = np.zeros(0, np.int64)
        self._names: list[bytes] = []
        self._tables: dict[tuple[int, bytes, bytes], tuple[Words, Words]] = {}

    def update(self, gathered: Gathered) -> None:
        """Take over the slots that are new; of two names on one slot, the later one."""
        new = list(gathered.slots.items())[len(self._names) :]
        for (pid, tid, name), code in new:
            plain = name.isascii() and name.isprintable() and not set(name) & {'"', "\\"}
            self._names.append(name.encode("ascii") if plain and len(name) <= _LONGEST_NAME else b"")
            if 0 <= pid < _MOST_PIDS and 0 <= tid < _MOST_TIDS:
                self.code[pid * _MOST_TIDS + tid] = code
        if new:
            self.length = np.array([len(name) for name in self._names], np.int64)
            self._tables.clear()

    def heads(self, layout: Layout) -> tuple[Words, Words]:
        """Expected bytes of a record up to the end of its name, and which of them count, for every slot.

        Shape (words, slots) each, so that one word of all slots stands together.
        """
        key = layout.front, layout.head.value, layout.head.mask
        if key not in self._tables:
            width = -(-(layout.front + int(self.length.max(initial=0))) // WORD) * WORD
            values, masks = np.zeros((2, len(self._names), width), np.uint8)
            values[:, : layout.front] = np.frombuffer(layout.head.value, np.uint8)
            masks[:, : layout.front] = np.frombuffer(layout.head.mask, np.uint8)
            for row, name in enumerate(self._names):
                values[row, layout.front : layout.front + len(name)] = np.frombuffer(name, np.uint8)
                masks[row, layout.front : layout.front + len(name)] = 255
            both = (np.ascontiguousarray(part.view(np.uint64).T) for part in (values, masks))
            value, mask = both
            self._tables[key] = value, mask
        return self._tables[key]


class Scanner:
    """Reads chunks of a list whose records have a known layout.

    Args:
        values: bytes of the file.
        into: where events go.
    """

    def __init__(self, values: Values, into: Gathered) -> None:
        self._values, self._into = values, into
        self._bytes = np.frombuffer(values.data, np.uint8)
        self._names = _Names()
        self._layout: Layout | None = None
        self._layouts: dict[Layout, Layout] = {}

    @property
    def ready(self) -> bool:
        """Whether a layout is known, and no more slots than can be compared at once."""
        return self._layout is not None and len(self._into.slots) <= _MOST_SLOTS

    def learn(self, at: int) -> None:
        """Take the layout of the record that starts at a byte, when it is an event."""
        try:
            value, end = self._values.value(self._values.after_space(at))
        except (CutOffError, TraceFormatError):  # told when it is read
            return
        if isinstance(value, dict) and value.get("ph") in {"B", "E"}:
            self._layout = layout_of(bytes(self._values.data[at : self._values.after_separator(end)]))

    def chunk(self, at: int) -> Position:
        """Read elements from one start on, about a chunk of them, at least one.

        Raises:
            TraceFormatError: naming the byte.
        """
        self._names.update(self._into)
        starts, ends = self._records(at, self._layout) if self._layout else (_NOWHERE, _NOWHERE)
        found = self._matched(starts, ends)
        return self._taken(at, starts, ends, found)

    def _records(self, at: int, layout: Layout) -> tuple[Ints, Ints]:
        """Where records of a layout can start and end in the next chunk."""
        chunk = self._bytes[at : at + _CHUNK]
        possible = len(chunk) - WORD + 1
        if possible <= 0:
            return _NOWHERE, _NOWHERE
        hits = np.flatnonzero(chunk[layout.mark : layout.mark + possible] == layout.opening[layout.mark])
        width = len(layout.opening)
        words = np.ndarray((possible,), "<u8", chunk, 0, (1,))[hits] << np.uint64(8 * (WORD - width))
        starts = hits[words == int.from_bytes(layout.opening.rjust(WORD, b"\0"), "little")] + at
        return starts[:-1], starts[1:]

    def _matched(self, starts: Ints, ends: Ints) -> list[_Found]:
        """What matches layouts: first the one that matched last, then that of the record in the middle of the rest."""
        left: Ints = np.arange(len(starts))
        found: list[_Found] = []
        layout = self._layout
        for tries in range(_MOST_LAYOUTS):
            if layout is None or not len(left):
                break
            own = self._compared(layout, starts[left], ends[left])
            if len(own.row):
                found.append(own._replace(row=left[own.row]))
                self._layout = layout
                left = left[:0] if len(own.row) == len(left) else np.delete(left, own.row)
            worth = len(left) >= _WORTH_A_LAYOUT and (not tries or len(own.row) >= _WORTH_A_LAYOUT)
            layout = self._like(starts[left], ends[left]) if worth else None
        return found

    def _like(self, starts: Ints, ends: Ints) -> Layout | None:
        """The layout of the record in the middle of some, when it starts in the same way."""
        middle = len(starts) // 2
        layout = layout_of(bytes(self._values.data[int(starts[middle]) : int(ends[middle])]))
        if layout is None or self._layout is None or layout.opening != self._layout.opening:
            return None
        return self._layouts.setdefault(layout, layout)

    def _compared(self, layout: Layout, starts: Ints, ends: Ints) -> _Found:
        """The records that have a layout, every byte of them compared."""
        length = ends - starts - layout.front - layout.back
        tail, head = layout.tail_width, len(self._names.heads(layout)[0]) * WORD
        possible = (length > 0) & (length <= _LONGEST_NAME)
        if len(ends) and (ends[0] < tail or starts[-1] + head > len(self._bytes)):
            possible &= (ends >= tail) & (starts + head <= len(self._bytes))
        rows_kept = None if possible.all() else np.flatnonzero(possible)
        if rows_kept is not None:
            starts, ends, length = starts[rows_kept], ends[rows_kept], length[rows_kept]
        if not len(starts) or not len(self._names.length):
            return _NONE
        rows = self._rows(tail, ends - tail)
        front = self._rows(head, starts)
        fields = layout.read(front, rows)
        place = fields.pid * _MOST_TIDS + fields.tid
        good = fields.good & (fields.tid < _MOST_TIDS) & (place < len(self._names.code))
        place[~good] = 0
        code = self._names.code[place]
        good &= code != _UNKNOWN
        code[~good] = 0
        good &= self._names.length[code] == length
        good &= self._heads_differ(layout, front, code) == 0
        kept = slice(None) if good.all() else np.flatnonzero(good)
        row = np.arange(len(good)) if rows_kept is None else rows_kept
        return _Found(row[kept], code[kept], fields.time[kept], fields.begin[kept])

    def _heads_differ(self, layout: Layout, front: Words, code: NDArray[np.int32]) -> Words:
        """Bits in which the bytes up to the end of the name differ from what is expected of the slot."""
        value, mask = self._names.heads(layout)
        same = layout.front // WORD
        differs = np.zeros(len(code), np.uint64)
        for column in range(len(value)):
            if column < same:  # before the name, so the same for all slots
                differs |= (front[:, column] & mask[column, 0]) ^ value[column, 0]
            else:
                differs |= (front[:, column] & mask[column][code]) ^ value[column][code]
        return differs

    def _rows(self, width: int, at: Ints) -> Words:
        """So many bytes from each place on, as words; shape (places, width / 8)."""
        every: NDArray[np.void] = np.ndarray((len(self._bytes) - width + 1,), f"V{width}", self._bytes, 0, (1,))
        rows: Words = every[at].view(np.uint64).reshape(len(at), width // WORD)
        return rows

    def _taken(self, at: int, starts: Ints, ends: Ints, found: list[_Found]) -> Position:
        """Events of the chunk in order: runs of records that match as they are, all between in general."""
        columns = self._in_order(found, len(starts))
        matching = columns.code != _UNKNOWN
        hits, misses = np.flatnonzero(matching), np.flatnonzero(~matching)
        position, begun = Position(at), at
        while not (position.closed or position.cut):
            row = _at_or_after(starts, position.at)
            if row >= len(starts):
                break
            if starts[row] == position.at and matching[row]:
                stop = _first_from(misses, row, len(starts))
                self._into.add_columns(columns.rows(row, stop))
                position = Position(int(ends[stop - 1]))
            else:
                following = _first_from(hits, row, len(starts) - 1)
                end = max(int(starts[following]), position.at + 1)
                position = gather_stretch(self._values, position.at, end, self._into)
        if position.at == begun and not (position.closed or position.cut):
            end = likely_start(self._values, begun)
            return gather_stretch(self._values, begun, end, self._into)
        return position

    @staticmethod
    def _in_order(found: list[_Found], count: int) -> EventColumns:
        if len(found) == 1 and len(found[0].row) == count:
            return EventColumns(found[0].code, found[0].time, found[0].begin)
        code = np.full(count, _UNKNOWN, np.int32)
        time, begin = np.zeros(count, np.int64), np.zeros(count, bool)
        for part in found:
            code[part.row], time[part.row], begin[part.row] = part.code, part.time, part.begin
        return EventColumns(code, time, begin)


def _at_or_after(starts: Ints, at: int) -> int:
    """The first record that starts at a byte or behind it."""
    return int(np.searchsorted(starts, at))


def _first_from(rows: Ints, row: int, otherwise: int) -> int:
    """The first of some rows from one on."""
    place = int(np.searchsorted(rows, row))
    return int(rows[place]) if place < len(rows) else otherwise
