"""Fields of FlatBuffer tables beyond the basic ones: vectors of numbers, floating point, texts, unions.

Everything here goes through the checked gathers of :mod:`opscope.readers.flatbuffer`. Vectors that share bytes could
make a small file describe huge values, so the vectors of one field may not be longer, taken together, than the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import numpy as np

from opscope.readers.flatbuffer import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from opscope.readers.flatbuffer import FlatBuffer, Ints

T = TypeVar("T")


@dataclass(frozen=True)
class Number(Generic[T]):
    """How a number is stored: its width in bytes, how many are read, and what an absent field means."""

    width: int
    read: Callable[[FlatBuffer, Ints], NDArray[np.generic]]
    absent: T


def _u16(buffer: FlatBuffer, at: Ints) -> Ints:
    return buffer.u8(at) | (buffer.u8(at + 1) << 8)


UINT8 = Number[int](1, lambda buffer, at: buffer.u8(at), 0)
BOOL = Number[bool](1, lambda buffer, at: buffer.u8(at) != 0, absent=False)
UINT16 = Number[int](2, _u16, 0)
UINT32 = Number[int](4, lambda buffer, at: buffer.u32(at), 0)
INT32 = Number[int](4, lambda buffer, at: buffer.i32(at), 0)
UINT64 = Number[int](8, lambda buffer, at: buffer.u64(at), 0)
INT64 = Number[int](8, lambda buffer, at: buffer.u64(at).view(np.int64), 0)
FLOAT32 = Number[float](4, lambda buffer, at: buffer.u32(at).astype(np.uint32).view(np.float32), 0.0)
FLOAT64 = Number[float](8, lambda buffer, at: buffer.u64(at).view(np.float64), 0.0)


def numbers(tables: Tables, slot: int, number: Number[T]) -> list[T]:
    """A number of each table."""
    position = tables.field(slot)
    out = [number.absent] * len(tables)
    there = np.flatnonzero(position)
    values: list[T] = number.read(tables.buffer, position[there]).tolist()
    for row, value in zip(there.tolist(), values, strict=True):
        out[row] = value
    return out


def vectors(tables: Tables, slot: int, number: Number[T]) -> list[tuple[T, ...]]:
    """A vector of numbers of each table, empty where absent."""
    first, count = tables.vector(slot, number.width)
    if int(count.sum()) * number.width > tables.buffer.size:
        raise tables.buffer.error("vectors overlap each other")
    owner = np.repeat(np.arange(len(count)), count)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    values: list[T] = number.read(tables.buffer, first[owner] + within * number.width).tolist()
    return grouped(values, owner, len(tables))


def lengths(tables: Tables, slot: int) -> list[int]:
    """Length of a vector of each table, without reading it; 0 where absent."""
    lengths: list[int] = tables.vector(slot)[1].tolist()
    return lengths


def texts(tables: Tables, slot: int) -> list[str]:
    """A text of each table, empty where absent."""
    codes, distinct = tables.strings(slot)
    return [distinct[code] if code >= 0 else "" for code in codes.tolist()]


def text_vectors(tables: Tables, slot: int, inner: int) -> list[tuple[str, ...]]:
    """For each table, a text of each table in one of its vectors."""
    children, owner = nested(tables, slot)
    return grouped(texts(children, inner), owner, len(tables))


def nested(tables: Tables, slot: int) -> tuple[Tables, Ints]:
    """The tables in a vector of each table, and the row of the owner of each, ascending."""
    at, owner = tables.children(slot)
    return Tables(tables.buffer, at), owner


def referred(tables: Tables, slot: int) -> tuple[Tables, list[int]]:
    """The table that each row refers to, and the rows that do."""
    at = tables.reference(slot)
    rows = np.flatnonzero(at)
    return Tables(tables.buffer, at[rows]), rows.tolist()


class Member(NamedTuple):
    """The rows whose union holds one type of table, and those tables."""

    number: int
    rows: list[int]
    tables: Tables


def union(tables: Tables, slot: int) -> list[Member]:
    """The members of a union by type, absent ones (type 0) left out; its type stands at ``slot``, the table behind."""
    types, at = tables.uint8(slot), tables.reference(slot + 1)
    empty = (types > 0) & (at == 0)
    if empty.any():
        raise tables.buffer.error("a declared table is missing", int(tables.at[np.argmax(empty)]))
    found = [(number, np.flatnonzero(types == number)) for number in np.unique(types[types > 0]).tolist()]
    return [Member(number, rows.tolist(), Tables(tables.buffer, at[rows])) for number, rows in found]


def grouped(items: Sequence[T], owner: Ints, owners: int) -> list[tuple[T, ...]]:
    """Items by their owner, whose numbers ascend."""
    ends = np.cumsum(np.bincount(owner, minlength=owners)).tolist()
    starts = [0, *ends][:-1]
    return [tuple(items[start:end]) for start, end in zip(starts, ends, strict=True)]
