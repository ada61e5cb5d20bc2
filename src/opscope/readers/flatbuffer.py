"""FlatBuffers as arrays: every table at once, every access checked against the size of the buffer.

A FlatBuffer is a tree of tables linked by relative offsets. Here a set of tables is an array of byte positions, and
reading a field of all of them is one gather. Offsets come from the file and are never trusted: each gather checks
the smallest and the largest position, so a damaged file ends in a TraceFormatError and never in a wrong value.

Source of the encoding: FlatBuffers internals, https://flatbuffers.dev/internals/.

Vectors of numbers, floating point, texts and unions go through the same gathers. Vectors that share bytes could
make a small file describe huge values, so the vectors of one field may not be longer, taken together, than the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from opscope.core.errors import TraceFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]


_WORD = 4
_FEW_NAMES = 12
_LONGEST_TABULATED_NAME = 64  # words; longer names are rare and are decoded one by one


class FlatBuffer:
    """A buffer to read tables from.

    ``data``: the whole file; ``where``: name of the file, for errors; ``origin``: byte position of the root offset, 4
    when the buffer carries a size prefix.
    """

    def __init__(self, data: bytes | memoryview, where: str, origin: int = 0) -> None:
        self.size = len(data)
        self.where = where
        self.origin = origin
        padded = self.size + (-self.size) % _WORD
        raw = np.frombuffer(data, np.uint8)
        self.bytes = raw if padded == self.size else np.concatenate([raw, np.zeros(padded - self.size, np.uint8)])
        self.words: NDArray[np.uint32] = self.bytes.view("<u4")
        self._i32: NDArray[np.int32] = self.bytes.view("<i4")
        self._u16: NDArray[np.uint16] = self.bytes.view("<u2")

    def error(self, problem: str, offset: int | None = None) -> TraceFormatError:
        """Return an error that names this file."""
        hint = "the file is truncated or damaged: copy it again from the source"
        return TraceFormatError(problem, where=self.where, offset=offset, hint=hint)

    def root(self) -> Tables:
        """Return the root table."""
        return self.tables(self.follow(np.array([self.origin], np.int64)))

    def u32(self, at: Ints) -> Ints:
        """Return the unsigned 32-bit values at byte positions."""
        self._check_bounds(at, _WORD)
        words: Ints = self.words[at >> 2].astype(np.int64)
        return words

    def i32(self, at: Ints) -> Ints:
        """Return the signed 32-bit values at byte positions."""
        self._check_bounds(at, _WORD)
        words: Ints = self._i32[at >> 2].astype(np.int64)
        return words

    def u64(self, at: Ints) -> NDArray[np.uint64]:
        """Return the unsigned 64-bit values at positions; a size-prefixed buffer guarantees 4-byte alignment only."""
        self._check_bounds(at, 2 * _WORD)
        low: NDArray[np.uint64] = self.words[at >> 2].astype(np.uint64)
        high: NDArray[np.uint64] = self.words[(at >> 2) + 1].astype(np.uint64)
        value: NDArray[np.uint64] = low | (high << np.uint64(32))
        return value

    def u8(self, at: Ints) -> Ints:
        """Return the bytes at byte positions."""
        self._check_bounds(at, 1, align=1)
        return self.bytes[at].astype(np.int64)

    def follow(self, at: Ints) -> Ints:
        """Return the positions that the relative offsets at ``at`` point to."""
        return at + self.u32(at)

    def vector(self, at: Ints, width: int = _WORD) -> tuple[Ints, Ints]:
        """Return first element and length of vectors whose length field is at ``at``; the whole vector is inside."""
        count = self.u32(at)
        first = at + _WORD
        beyond = first + count * width > self.size
        if beyond.any():
            raise self.error("a vector extends past the end of the file", int(at[np.argmax(beyond)]))
        return first, count

    def tables(self, at: Ints) -> Tables:
        """Return the tables at these positions."""
        return Tables(self, at)

    def _check_bounds(self, at: Ints, width: int, align: int = _WORD) -> None:
        """Refuse positions outside the file, or not aligned."""
        if not len(at):
            return
        low, high = int(at.min()), int(at.max())
        if low < 0 or high + width > self.size:
            raise self.error("an offset points outside the file", low if low < 0 else high)
        if align > 1 and (at & (align - 1)).any():
            raise self.error("an offset is not aligned", int(at[np.argmax(at & (align - 1) != 0)]))

    def vtables(self, at: Ints) -> tuple[Ints, Ints]:
        """Return the distinct vtables of the tables at ``at`` and the number of each table's vtable."""
        start = at - self.i32(at)
        number: Ints
        if len(start) and (start == start[0]).all():
            distinct, number = start[:1], np.zeros(len(start), np.int64)
        else:
            first, number = _number_values(start)
            distinct = start[first]
        self._check_bounds(distinct, _WORD, align=2)
        size = self._u16[distinct >> 1].astype(np.int64)
        if ((size < _WORD) | (distinct + size > self.size)).any():
            raise self.error("a table has an impossible layout", int(distinct[0]))
        return distinct, number

    def table_end(self, at: Ints) -> Ints:
        """Return the first byte behind the fields of each table that lie in the table itself."""
        size: Ints = self._u16[((at - self.i32(at)) >> 1) + 1].astype(np.int64)
        return at + size

    def slots(self, vtable: int) -> Ints:
        """Return the offsets of a vtable's fields from the start of their table, 0 for absent ones."""
        size = int(self._u16[vtable >> 1])
        return self._u16[(vtable + _WORD) >> 1 : (vtable + size) >> 1].astype(np.int64)


class Tables:
    """Tables of one type, as an array of positions.

    ``buffer``: where they stand; ``at``: their byte positions; shape (n,).
    """

    def __init__(self, buffer: FlatBuffer, at: Ints) -> None:
        self.buffer = buffer
        self.at = at
        distinct, self._number = buffer.vtables(at)
        self._slots = [buffer.slots(int(vtable)) for vtable in distinct]

    def __len__(self) -> int:
        return len(self.at)

    def field(self, slot: int) -> Ints:
        """Return the byte position of a field in each table, 0 where the table does not have it."""
        if len(self._slots) == 1:
            only_offset = int(self._slots[0][slot]) if slot < len(self._slots[0]) else 0
            return self.at + only_offset if only_offset else np.zeros_like(self.at)
        offsets = np.array([slots[slot] if slot < len(slots) else 0 for slots in self._slots], np.int64)
        offset = offsets[self._number]
        return np.where(offset > 0, self.at + offset, 0)

    def int32(self, slot: int, default: int = 0) -> Ints:
        """Return a signed 32-bit field."""
        return self._gather_field(slot, default, self.buffer.i32)

    def uint8(self, slot: int) -> Ints:
        """Return a byte field, also the type of a union."""
        return self._gather_field(slot, 0, self.buffer.u8)

    def uint64(self, slot: int) -> NDArray[np.uint64]:
        """Return an unsigned 64-bit field, 0 where absent."""
        position = self.field(slot)
        present = position > 0
        if present.all():
            return self.buffer.u64(position)
        out = np.zeros(len(position), np.uint64)
        out[present] = self.buffer.u64(position[present])
        return out

    def reference(self, slot: int) -> Ints:
        """Return the position that an offset field points to, 0 where absent."""
        return self._gather_field(slot, 0, self.buffer.follow)

    def vector(self, slot: int, width: int = _WORD) -> tuple[Ints, Ints]:
        """Return first element and length of a vector field; both 0 where absent."""
        at = self.reference(slot)
        first, count = np.zeros_like(at), np.zeros_like(at)
        present = at > 0
        first[present], count[present] = self.buffer.vector(at[present], width)
        return first, count

    def children(self, slot: int) -> tuple[Ints, Ints]:
        """Return the tables in a vector field of every table, flattened: their positions and the row of their owner."""
        first, count = self.vector(slot)
        total = int(count.sum())
        if total * _WORD > self.buffer.size:
            raise self.buffer.error("vectors overlap each other")
        owner = np.repeat(np.arange(len(count)), count)
        within = np.arange(total) - np.repeat(np.cumsum(count) - count, count)
        return self.buffer.follow(first[owner] + within * _WORD), owner

    def strings(self, slot: int) -> tuple[Ints, list[str]]:
        """Return a string field as codes into a list of distinct texts; code -1 where absent.

        Text that is not UTF-8 keeps its place with replacement characters.
        """
        return intern_strings(self.buffer, self.reference(slot))

    def only(self, row: int) -> Tables:
        """Return the table of one row."""
        return Tables(self.buffer, self.at[row : row + 1])

    def _gather_field(self, slot: int, default: int, read: _Reader) -> Ints:
        """Return a field of each table, or its default where absent."""
        position = self.field(slot)
        present = position > 0
        if present.all():
            return read(position)
        out = np.full(len(position), default, np.int64)
        out[present] = read(position[present])
        return out


if TYPE_CHECKING:
    from collections.abc import Callable

    _Reader: TypeAlias = Callable[[Ints], Ints]


def intern_strings(buffer: FlatBuffer, at: Ints) -> tuple[Ints, list[str]]:
    """Return the distinct strings at ``at`` (0: absent), and for each position its number, -1 for absent ones.

    A trace holds one copy of a name per event; they are compared without making a Python string of each. Strings of
    one length are compared as rows of words.
    """
    codes = np.full(len(at), -1, np.int64)
    present = np.flatnonzero(at > 0)
    first, length = buffer.vector(at[present], 1)
    texts: dict[str, int] = {}
    budget = buffer.size
    for size in np.unique(length).tolist():
        rows = present[length == size]
        starts = first[length == size]
        words = (size + _WORD - 1) // _WORD
        representative, number = _distinct_strings(buffer, starts, size, words)
        budget -= len(representative) * size
        if budget < 0:
            raise buffer.error("strings overlap each other", int(starts[0]))
        names = [bytes(buffer.bytes[p : p + size]).decode("utf-8", "replace") for p in representative.tolist()]
        known = np.array([texts.setdefault(name, len(texts)) for name in names], np.int64)
        codes[rows] = known[number]
    return codes, list(texts)


def _distinct_strings(buffer: FlatBuffer, starts: Ints, size: int, words: int) -> tuple[Ints, Ints]:
    """Return the positions of the distinct strings of one length, and the number of each string among them."""
    if words > _LONGEST_TABULATED_NAME:
        return _distinct_long(buffer, starts, size)
    table = np.zeros((len(starts), words), np.uint32)
    for word in range(words):
        table[:, word] = buffer.u32(starts + word * _WORD) if word < words - 1 else _last_word(buffer, starts, size)
    representative, number = _number_values(_hash_rows(table))
    if not np.array_equal(table[representative][number], table):  # two names share a hash: compare them in full
        _, representative, number = np.unique(table, axis=0, return_index=True, return_inverse=True)
    return starts[representative], number


def _number_values(hashes: NDArray[np.uint64] | Ints) -> tuple[Ints, Ints]:
    """Return the first row of each distinct value and each row's number; sorts only when there are many values."""
    number = np.full(len(hashes), -1, np.int64)
    unnumbered = np.arange(len(hashes))
    first: list[int] = []
    while len(unnumbered) and len(first) < _FEW_NAMES:
        same = hashes[unnumbered] == hashes[unnumbered[0]]
        number[unnumbered[same]] = len(first)
        first.append(int(unnumbered[0]))
        unnumbered = unnumbered[~same]
    if len(unnumbered):
        _, representative, inverse = np.unique(hashes, return_index=True, return_inverse=True)
        return representative, inverse
    return np.array(first, np.int64), number


def _hash_rows(table: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each row; FNV-1a over words with a shift to mix the upper half back in."""
    value = np.full(len(table), 0xCBF29CE484222325, np.uint64)
    for column in table.T:
        value = (value ^ column) * np.uint64(0x100000001B3)
        value ^= value >> np.uint64(29)
    return value


def _last_word(buffer: FlatBuffer, starts: Ints, size: int) -> NDArray[np.uint32]:
    """Return the last, partly filled word of strings of one length, the bytes beyond their end cleared."""
    tail = (size - 1) % _WORD + 1
    word = np.zeros(len(starts), np.uint32)
    for byte in range(tail):
        word |= buffer.u8(starts + size - tail + byte).astype(np.uint32) << np.uint32(8 * byte)
    return word


def _distinct_long(buffer: FlatBuffer, starts: Ints, size: int) -> tuple[Ints, Ints]:
    """Return the distinct positions of long strings, which are not compared."""
    distinct, number = np.unique(starts, return_inverse=True)
    if len(distinct) * size > buffer.size:
        raise buffer.error("strings overlap each other")
    return distinct, number


T = TypeVar("T")


@dataclass(frozen=True)
class Number(Generic[T]):
    """Encoding of a number: its width in bytes, how many are read, and what an absent field means."""

    width: int
    read: Callable[[FlatBuffer, Ints], NDArray[np.generic]]
    absent: T


def _read_u16(buffer: FlatBuffer, at: Ints) -> Ints:
    """Return the unsigned 16-bit values at byte positions."""
    return buffer.u8(at) | (buffer.u8(at + 1) << 8)


UINT8 = Number[int](1, lambda buffer, at: buffer.u8(at), 0)
BOOL = Number[bool](1, lambda buffer, at: buffer.u8(at) != 0, absent=False)
UINT16 = Number[int](2, _read_u16, 0)
UINT32 = Number[int](4, lambda buffer, at: buffer.u32(at), 0)
INT32 = Number[int](4, lambda buffer, at: buffer.i32(at), 0)
UINT64 = Number[int](8, lambda buffer, at: buffer.u64(at), 0)
INT64 = Number[int](8, lambda buffer, at: buffer.u64(at).view(np.int64), 0)
FLOAT32 = Number[float](4, lambda buffer, at: buffer.u32(at).astype(np.uint32).view(np.float32), 0.0)
FLOAT64 = Number[float](8, lambda buffer, at: buffer.u64(at).view(np.float64), 0.0)


def numbers(tables: Tables, slot: int, number: Number[T]) -> list[T]:
    """Return a number of each table."""
    position = tables.field(slot)
    out = [number.absent] * len(tables)
    present = np.flatnonzero(position)
    values: list[T] = number.read(tables.buffer, position[present]).tolist()
    for row, value in zip(present.tolist(), values, strict=True):
        out[row] = value
    return out


def vectors(tables: Tables, slot: int, number: Number[T]) -> list[tuple[T, ...]]:
    """Return a vector of numbers of each table, empty where absent."""
    first, count = tables.vector(slot, number.width)
    if int(count.sum()) * number.width > tables.buffer.size:
        raise tables.buffer.error("vectors overlap each other")
    owner = np.repeat(np.arange(len(count)), count)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    values: list[T] = number.read(tables.buffer, first[owner] + within * number.width).tolist()
    return grouped(values, owner, len(tables))


def lengths(tables: Tables, slot: int) -> list[int]:
    """Return the length of a vector of each table, without reading it; 0 where absent."""
    lengths: list[int] = tables.vector(slot)[1].tolist()
    return lengths


def texts(tables: Tables, slot: int) -> list[str]:
    """Return a text of each table, empty where absent."""
    codes, distinct = tables.strings(slot)
    return [distinct[code] if code >= 0 else "" for code in codes.tolist()]


def nested(tables: Tables, slot: int) -> tuple[Tables, Ints]:
    """Return the tables in a vector of each table, and the row of the owner of each, ascending."""
    at, owner = tables.children(slot)
    return Tables(tables.buffer, at), owner


def referred(tables: Tables, slot: int) -> tuple[Tables, list[int]]:
    """Return the table that each row refers to, and the rows that do."""
    at = tables.reference(slot)
    rows = np.flatnonzero(at)
    return Tables(tables.buffer, at[rows]), rows.tolist()


class Member(NamedTuple):
    """The rows whose union holds one type of table, and those tables."""

    number: int
    rows: list[int]
    tables: Tables


def union(tables: Tables, slot: int) -> list[Member]:
    """Return the members of a union by type, absent ones (type 0) left out.

    ``slot`` is its type, the next its table.
    """
    types, at = tables.uint8(slot), tables.reference(slot + 1)
    empty = (types > 0) & (at == 0)
    if empty.any():
        raise tables.buffer.error("a declared table is missing", int(tables.at[np.argmax(empty)]))
    rows_by_type = [(number, np.flatnonzero(types == number)) for number in np.unique(types[types > 0]).tolist()]
    return [Member(number, rows.tolist(), Tables(tables.buffer, at[rows])) for number, rows in rows_by_type]


def grouped(items: Sequence[T], owner: Ints, owners: int) -> list[tuple[T, ...]]:
    """Return items by their owner, whose numbers ascend."""
    ends = np.cumsum(np.bincount(owner, minlength=owners)).tolist()
    starts = [0, *ends][:-1]
    return [tuple(items[start:end]) for start, end in zip(starts, ends, strict=True)]
