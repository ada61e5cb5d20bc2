"""The layout of a record: which of its bytes are always the same, and where its numbers stand.

A layout has numbers of fixed width, so only the name's length varies: what is before it has a fixed distance to the
start of the record, what is behind it to the start of the next one.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opscope.table.nesting import Ints

    Words = NDArray[np.uint64]
    Mask = NDArray[np.bool_]

WORD = 8
_LONGEST_RECORD = 1024
_MOST_DIGITS = 16
_FEW_DIGITS = 3
_TOKEN = re.compile(rb'[ \t\r\n]*("(?:[^"\\\x00-\x1f]|\\.)*"|[{}\[\],:]|[^ \t\r\n{}\[\],:"]+)')
_DIGITS = re.compile(rb"0|[1-9][0-9]*\Z")
_SEPARATOR = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*\Z")
_NUMBERS = ("ts", "pid", "tid")
_WHOLE = np.uint64(0xFFFFFFFFFFFFFFFF)
_BEGIN, _END = ord("B"), ord("E")


class Constant(NamedTuple):
    """Bytes of which some are always the same.

    Attributes:
        value: the bytes; zero where they vary.
        mask: 255 where they are always the same, else zero.
    """

    value: bytes
    mask: bytes


class Place(NamedTuple):
    """Where a value stands.

    Attributes:
        first: its first byte within the part.
        width: in bytes.
        in_tail: whether it stands behind the name.
    """

    first: int
    width: int
    in_tail: bool


class Fields(NamedTuple):
    """The values of many records; arrays of one length.

    Attributes:
        good: whether all of the bytes behind the name, and all digits, are what the layout says.
        time: in cycles.
        pid: process.
        tid: slot.
        begin: whether it is a begin.
    """

    good: Mask
    time: Ints
    pid: Ints
    tid: Ints
    begin: Mask


@dataclass(frozen=True)
class Layout:
    """A layout.

    Attributes:
        head: the bytes before the name.
        tail: the bytes behind it, up to the next record, filled up in front to whole words.
        back: how many bytes stand behind the name.
        ts: where the time stands, and so on.
        opening: the bytes that a record starts with, at most a word of them.
        mark: place of the byte in them that occurs least in a record.
    """

    head: Constant
    tail: Constant
    back: int
    ts: Place
    pid: Place
    tid: Place
    ph: Place
    opening: bytes
    mark: int

    @property
    def front(self) -> int:
        """Bytes before the name."""
        return len(self.head.value)

    @property
    def tail_width(self) -> int:
        """Bytes of the tail, in whole words."""
        return len(self.tail.value)

    @cached_property
    def _tail_words(self) -> tuple[Words, Words]:
        return np.frombuffer(self.tail.value, np.uint64), np.frombuffer(self.tail.mask, np.uint64)

    def read(self, head: Words, tail: Words) -> Fields:
        """The values of many records, whose names are still to be compared.

        Args:
            head: their first bytes as words; shape (records, words).
            tail: their last bytes; shape (records, words).
        """
        value, mask = self._tail_words
        differs = np.zeros(len(tail), np.uint64)
        for column in np.flatnonzero(mask).tolist():
            word = tail[:, column] if mask[column] == _WHOLE else tail[:, column] & mask[column]
            differs |= word ^ value[column]
        good = differs == 0
        phase = self._part(head, tail, self.ph)[:, self.ph.first]
        begin = phase == _BEGIN
        good &= begin | (phase == _END)
        (time, time_good), (pid, pid_good), (tid, tid_good) = (
            _number(self._part(head, tail, place), place) for place in (self.ts, self.pid, self.tid)
        )
        return Fields(good & time_good & pid_good & tid_good, time, pid, tid, begin)

    @staticmethod
    def _part(head: Words, tail: Words, place: Place) -> NDArray[np.uint8]:
        return (tail if place.in_tail else head).view(np.uint8)


def _number(part: NDArray[np.uint8], place: Place) -> tuple[Ints, Mask]:
    """The numbers at a place, and which of them are made of digits without a leading zero."""
    if place.width <= _FEW_DIGITS:
        return _digit_by_digit(part, place)
    end = place.first + place.width
    number, good = _eight(part, end, min(place.width, WORD))
    if place.width > WORD:
        upper, also = _eight(part, end - WORD, place.width - WORD)
        number, good = number + upper * 10**WORD, good & also
    return number, good & (part[:, place.first] != ord("0"))


def _digit_by_digit(part: NDArray[np.uint8], place: Place) -> tuple[Ints, Mask]:
    digit = part[:, place.first] - np.uint8(ord("0"))
    good = digit <= 9 if place.width == 1 else digit - np.uint8(1) < 9  # noqa: PLR2004 - a digit, and one above 0
    number = digit.astype(np.int64)
    for byte in range(place.first + 1, place.first + place.width):
        digit = part[:, byte] - np.uint8(ord("0"))
        good &= digit <= 9  # noqa: PLR2004 - a digit
        number = number * 10 + digit
    return number, good


def _eight(part: NDArray[np.uint8], end: int, width: int) -> tuple[Ints, Mask]:
    """Up to eight digits that end at a byte: as one word, of which neighbours are added up in three steps."""
    if end >= WORD:
        digits: Words = np.ndarray((len(part),), "<u8", part, end - WORD, part.strides[:1]).astype(np.uint64)
    else:
        digits = np.ndarray((len(part),), "<u8", part, 0, part.strides[:1]) << np.uint64(8 * (WORD - end))
    kept = np.uint64((1 << 64) - (1 << 8 * (WORD - width)))
    zeros = np.uint64(0x3030303030303030)
    digits = ((digits ^ zeros) & kept).astype(np.uint64)
    good = ((digits + np.uint64(0x7676767676767676)) | digits) & np.uint64(0x8080808080808080) == 0
    digits = digits * np.uint64(10) + (digits >> np.uint64(8))
    low = (digits & np.uint64(0x000000FF000000FF)) * np.uint64(0x000F424000000064)
    high = ((digits >> np.uint64(16)) & np.uint64(0x000000FF000000FF)) * np.uint64(0x0000271000000001)
    return ((low + high) >> np.uint64(32)).astype(np.int64), good


def layout_of(record: bytes) -> Layout | None:
    """The layout of a record with what separates it from the next; None when it has none that can be used."""
    found = _values(record) if len(record) <= _LONGEST_RECORD else None
    if found is None:
        return None
    spans, _ = found
    name = spans.pop("name")
    back = len(record) - name.stop
    width = -(-back // WORD) * WORD
    if any(spans[key].stop - spans[key].start > _MOST_DIGITS for key in _NUMBERS):
        return None
    varying = bytearray(record)
    mask = bytearray(b"\xff" * len(record))
    for span in (*spans.values(), name):
        for byte in range(span.start, span.stop):
            varying[byte] = mask[byte] = 0
    filler = bytes(width - back)
    opening = record[: min(WORD, name.start, *(span.start for span in spans.values()))]
    places = {
        key: Place(span.start - name.stop + width - back, span.stop - span.start, in_tail=True)
        if span.start > name.start
        else Place(span.start, span.stop - span.start, in_tail=False)
        for key, span in spans.items()
    }
    return Layout(
        head=Constant(bytes(varying[: name.start]), bytes(mask[: name.start])),
        tail=Constant(filler + bytes(varying[name.stop :]), filler + bytes(mask[name.stop :])),
        back=back,
        **places,
        opening=opening,
        mark=min(range(len(opening)), key=lambda at: record.count(opening[at])),
    )


def _values(record: bytes) -> tuple[dict[str, slice], int] | None:
    """Where the values of name, ph, ts, pid and tid stand, without quotes; None when a record is not of this kind."""
    spans: dict[str, slice] = {}
    depth, at, key, expects_value = 0, 0, "", False
    while True:
        match = _TOKEN.match(record, at)
        if match is None:
            return None
        token, at = match[1], match.end()
        if depth == 1 and expects_value and key in {"name", "ph", *_NUMBERS}:
            quoted = token.startswith(b'"')
            if key in spans:
                return None
            spans[key] = slice(match.start(1) + quoted, match.end(1) - quoted)
        expects_value = depth == 1 and token == b":"
        if depth == 1 and token.startswith(b'"'):
            key = token[1:-1].decode("latin-1")
        depth += (token in {b"{", b"["}) - (token in {b"}", b"]"})
        if depth <= 0:
            break
    whole = _SEPARATOR.match(record, at) and _agrees(record[:at], spans)
    return (spans, at) if whole else None


def _agrees(record: bytes, spans: dict[str, slice]) -> bool:
    """Whether a record, read in general, has the values that stand at these places."""
    try:
        value = json.loads(record)
    except (ValueError, RecursionError):
        return False
    if set(spans) != {"name", "ph", *_NUMBERS} or not isinstance(value, dict):
        return False
    texts = all(value[key] == record[spans[key]].decode("latin-1") for key in ("name", "ph"))
    numbers = all(_DIGITS.fullmatch(record[spans[key]]) and value[key] == int(record[spans[key]]) for key in _NUMBERS)
    return texts and numbers and value["ph"] in {"B", "E"} and bool(value["name"])
