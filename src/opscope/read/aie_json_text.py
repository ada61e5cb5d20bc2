"""The records of a trace in JSON, whatever its layout: a bare list, or the list ``traceEvents`` of an object.

Nothing is held but a window of the text. A list that is cut off is read as far as its records are whole.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from opscope.errors import TraceFormatError
from opscope.read.aie_json_events import Gathered, Record, record_of

if TYPE_CHECKING:
    from pathlib import Path

LIST_KEY = "traceEvents"
_WINDOW = 1 << 16
_GROWTH = 8
_STRETCH = 1 << 15
_SPACE = re.compile(rb"[ \t\r\n]*")
_FILLED = re.compile(rb"(?!\0*[^\0])")
_SEPARATOR = re.compile(rb"[ \t\r\n]*(?:,[ \t\r\n]*)?")
_PART_OF_NUMBER = re.compile(r"\.|[eE][+-]?")
"""What stands behind the whole part of a number that is cut off."""
_PARTS_OF_WORDS = ("true", "false", "null", "NaN", "Infinity", "-Infinity")
_LONGEST_ESCAPE = 12
_DECODER = json.JSONDecoder()
_RECORDS = msgspec.json.Decoder(list[Record])
_HINT = "the file was edited or is no trace; write it again"
_NO_COMMA = "no JSON: a comma is missing"
_MARK = b"\xef\xbb\xbf"


class CutOffError(Exception):
    """The file ends inside a value."""


class Values:
    """The bytes of a file, and how messages call it.

    A window of them is kept as text, for values that follow each other.

    Args:
        data: the bytes.
        path: for messages.
    """

    def __init__(self, data: memoryview, path: Path) -> None:
        self.data, self.path = data, path
        self._text, self._first = "", 0

    def value(self, at: int) -> tuple[Any, int]:
        """The value that starts at a byte, and the byte behind it.

        Raises:
            CutOffError: the file ends inside it.
            TraceFormatError: it is no JSON.
        """
        if not self._first <= at < self._first + len(self._text):
            self._load(at, _WINDOW)
        while True:
            final = self._first + len(self._text) >= len(self.data)
            try:
                value, end = _DECODER.raw_decode(self._text, at - self._first)
            except json.JSONDecodeError as error:
                if final:
                    self._refuse(error)
            except (RecursionError, ValueError) as error:
                raise self.error(_problem(error), at) from error
            else:
                if end < len(self._text) or final:
                    return self._read_again(value, at, self._first + end), self._first + end
            self._load(at, _GROWTH * len(self._text) if at == self._first else _WINDOW)

    def _load(self, at: int, size: int) -> None:
        self._text, self._first = str(self.data[at : at + size], "latin-1"), at

    def _refuse(self, error: json.JSONDecodeError) -> None:
        """Tell a value that is cut off from one that is damaged."""
        rest = self._text[error.pos :].rstrip(" \t\r\n\0")
        begun = any(word.startswith(rest) for word in _PARTS_OF_WORDS)
        escape = "escape" in error.msg and len(rest) < _LONGEST_ESCAPE
        number = _PART_OF_NUMBER.fullmatch(rest) is not None
        if begun or escape or number or error.msg.startswith("Unterminated string"):
            raise CutOffError from error
        raise self.error(f"no JSON: {error.msg}", self._first + error.pos) from error

    def _read_again(self, value: Any, at: int, end: int) -> Any:  # noqa: ANN401 - any JSON value
        """The value with its text decoded as UTF-8, where it has any beyond ASCII."""
        stored = bytes(self.data[at:end])
        if stored.isascii():
            return value
        try:
            return json.loads(stored)
        except ValueError as error:
            raise self.error("no UTF-8 in a text", at) from error

    def after_space(self, at: int) -> int:
        """The next byte that is no white space."""
        return _end(_SPACE, self.data, at)

    def after_separator(self, at: int) -> int:
        """The start of the next element behind one."""
        return _end(_SEPARATOR, self.data, at)

    def byte(self, at: int) -> bytes:
        """One byte; nothing behind the end, where zero bytes that fill the file up do not count."""
        return b"" if _FILLED.match(self.data, at) else bytes(self.data[at : at + 1])

    def error(self, problem: str, at: int) -> TraceFormatError:
        """An error that names the file and the byte."""
        return TraceFormatError(problem, where=self.path, offset=at, hint=_HINT)


def _end(pattern: re.Pattern[bytes], data: memoryview, at: int) -> int:
    match = pattern.match(data, at)
    return match.end() if match else at


def _problem(error: Exception) -> str:
    return "values stand too deeply in each other" if isinstance(error, RecursionError) else "a number is too long"


def first_element(values: Values) -> int:
    """Where the first element of the list of records stands.

    Raises:
        CutOffError: the file ends before it.
        TraceFormatError: there is no such list.
    """
    at = values.after_space(len(_MARK) if bytes(values.data[:3]) == _MARK else 0)
    if values.byte(at) == b"[":
        return values.after_space(at + 1)
    if values.byte(at) != b"{":
        raise values.error("no list of events", at)
    at = values.after_space(at + 1)
    while values.byte(at) == b'"':
        key, at = values.value(at)
        at = values.after_space(at)
        if values.byte(at) != b":":
            raise CutOffError if not values.byte(at) else values.error("no JSON: a colon is missing", at)
        at = values.after_space(at + 1)
        if key == LIST_KEY and values.byte(at) == b"[":
            return values.after_space(at + 1)
        _, behind = values.value(at)
        after = values.after_space(behind)
        if values.byte(after) not in {b"", b",", b"}"}:
            raise values.error(_NO_COMMA, after)
        at = values.after_separator(behind)
    if not values.byte(at):
        raise CutOffError
    raise values.error(f"the object has no list {LIST_KEY!r}", at)


class Position(NamedTuple):
    """How far a list was read.

    Attributes:
        at: start of the next element, or where reading ended.
        closed: whether the list ended there.
        cut: whether the file did.
    """

    at: int
    closed: bool = False
    cut: bool = False


def gather_stretch(values: Values, at: int, end: int, into: Gathered) -> Position:
    """Read the elements from one start up to a byte that is expected to start another.

    When it does, and all between are whole elements, they are decoded at once; else one after the other.

    Raises:
        TraceFormatError: naming the byte.
    """
    stretch = bytes(values.data[at:end]).rstrip()
    if stretch.endswith(b","):
        try:
            records = _RECORDS.decode(b"[" + stretch[:-1] + b"]")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        else:
            if records:
                into.add(records)
                return Position(end)
    return _gather_each(values, at, end, into)


def _gather_each(values: Values, at: int, end: int, into: Gathered) -> Position:
    """As above, one element after the other, at least one."""
    records, position = list[Record](), Position(at)
    while not (position.closed or position.cut) and (position.at < end or not records):
        position = _next(values, position.at, records)
    into.add(records)
    return position


def _next(values: Values, at: int, records: list[Record]) -> Position:
    """Take over one element; an element that is no object becomes a record of nothing."""
    at = values.after_space(at)
    if values.byte(at) in {b"", b"]"}:
        return Position(at, closed=bool(values.byte(at)), cut=not values.byte(at))
    try:
        value, behind = values.value(at)
    except CutOffError:
        return Position(at, cut=True)
    after = values.after_space(behind)
    if values.byte(after) not in {b"", b",", b"]"}:
        raise values.error(_NO_COMMA, after)
    if not values.byte(after) and not isinstance(value, dict):
        return Position(at, cut=True)
    records.append(record_of(value))
    return Position(values.after_separator(behind) if values.byte(after) == b"," else after)


def likely_start(values: Values, at: int) -> int:
    """Where an element is likely to start, within a window behind a start."""
    window = bytes(values.data[at : at + _STRETCH])
    comma = window.rfind(b"},")
    return values.after_separator(at + comma + 1) if comma >= 0 else at + 1
