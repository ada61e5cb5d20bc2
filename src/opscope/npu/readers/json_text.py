"""The records of a trace in JSON, whatever its layout: a bare list, or the list ``traceEvents`` of an object.

Nothing is held but a window of the text. Whole records of a window are decoded at once; a window that is damaged, cut
off or odd is read record by record, which finds the byte.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import msgspec

from opscope.core.errors import TraceFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIST_KEY = "traceEvents"
_WINDOW = 1 << 15
_VALUE = 1 << 12
_GROWTH = 8
_SPACE = re.compile(rb"[ \t\r\n]*")
_FILLED = re.compile(rb"(?!\0*[^\0])")
_SEPARATOR = re.compile(rb"[ \t\r\n]*(?:,[ \t\r\n]*)?")
_PART_OF_NUMBER = re.compile(r"\.|[eE][+-]?")
"""What stands behind the whole part of a number that is cut off."""
_PARTS_OF_WORDS = ("true", "false", "null", "NaN", "Infinity", "-Infinity")
_LONGEST_ESCAPE = 12
_DECODER = json.JSONDecoder()
_ELEMENTS = re.compile(rb"(.*\})[ \t\r\n]*,[ \t\r\n]*(?=\{)", re.DOTALL)
"""Up to where the last element is likely to start; a comma between objects in an element looks the same."""
_HINT = "the file was edited or is not a trace; rewrite it"
_NO_COMMA = "not valid JSON: a comma is missing"
_MARK = b"\xef\xbb\xbf"


class Record(msgspec.Struct, gc=False):
    """A record of the list, as far as this format uses it; of an element that is no object, nothing."""

    name: object = None
    ph: object = None
    ts: object = None
    pid: object = None
    tid: object = None
    args: object = None


_RECORDS = msgspec.json.Decoder(list[Record])


class _CutOffError(Exception):
    """The file ends inside a value."""


class RecordScanner:
    """One pass through a file; ``is_cut`` tells afterwards whether the file ends inside the list."""

    def __init__(self, data: memoryview, path: Path) -> None:
        self._data, self._path = data, path
        self.is_cut = False

    def records(self) -> Iterator[list[Record]]:
        """Yield the records in order, many at once; raise TraceFormatError where the text is no JSON."""
        try:
            at: int | None = self._first_element()
        except _CutOffError:
            self.is_cut = True
            return
        while at is not None:
            match = _ELEMENTS.match(bytes(self._data[at : at + _WINDOW]))
            decoded = _decode_list(match[1]) if match else None
            end = at + (match.end() if match else 1)
            if decoded is None:
                while at is not None and at < end:
                    at, element = self._next_element(at)
                    yield element
            else:
                yield decoded
                at = end

    def _first_element(self) -> int:
        """Return the byte at which the first element of the list of records stands."""
        at = self._after_space(len(_MARK) if bytes(self._data[:3]) == _MARK else 0)
        if self._byte_at(at) == b"[":
            return self._after_space(at + 1)
        if self._byte_at(at) != b"{":
            raise self._format_error("no event list", at)
        at = self._after_space(at + 1)
        while self._byte_at(at) == b'"':
            key, at = self._read_value(at)
            at = self._after_space(at)
            if self._byte_at(at) != b":":
                raise (
                    self._format_error("not valid JSON: a colon is missing", at) if self._byte_at(at) else _CutOffError
                )
            at = self._after_space(at + 1)
            if key == LIST_KEY and self._byte_at(at) == b"[":
                return self._after_space(at + 1)
            at = self._behind_value(self._read_value(at)[1], b"}")
        if not self._byte_at(at):
            raise _CutOffError
        raise self._format_error(f"the object has no list {LIST_KEY!r}", at)

    def _next_element(self, at: int) -> tuple[int | None, list[Record]]:
        """Return where the next element stands, and this one; None and nothing where the list or the file ends."""
        at = self._after_space(at)
        if self._byte_at(at) in {b"", b"]"}:
            self.is_cut = not self._byte_at(at)
            return None, []
        try:
            value, end = self._read_value(at)
        except _CutOffError:
            self.is_cut = True
            return None, []
        following = self._behind_value(end, b"]")
        if isinstance(value, dict):
            known = {name: value[name] for name in Record.__struct_fields__ if name in value}
            return following, [Record(**known)]
        # a number or a word that the file ends behind may have lost its rest
        return following, [Record()] if self._byte_at(self._after_space(end)) else []

    def _behind_value(self, end: int, closing: bytes) -> int:
        """Return where the element behind a value stands; raise TraceFormatError if no comma or end follows."""
        after = self._after_space(end)
        if self._byte_at(after) not in {b"", b",", closing}:
            raise self._format_error(_NO_COMMA, after)
        return _match_end(_SEPARATOR, self._data, after)

    def _read_value(self, at: int) -> tuple[Any, int]:
        """Return the value that starts at a byte, and the byte behind it."""
        size = _VALUE
        while True:
            text, is_final = str(self._data[at : at + size], "latin-1"), at + size >= len(self._data)
            try:
                value, end = _DECODER.raw_decode(text)
            except json.JSONDecodeError as error:
                if is_final:
                    self._raise_cut_or_damaged(error, text, at)
            except (RecursionError, ValueError) as error:
                is_deep = isinstance(error, RecursionError)
                problem = "values are nested too deeply" if is_deep else "a number is too long"
                raise self._format_error(problem, at) from error
            else:
                if end < len(text) or is_final:
                    return self._with_text(value, at, at + end), at + end
            size *= _GROWTH

    def _raise_cut_or_damaged(self, error: json.JSONDecodeError, text: str, at: int) -> None:
        rest = text[error.pos :].rstrip(" \t\r\n\0")
        is_word = any(word.startswith(rest) for word in _PARTS_OF_WORDS)
        is_escape = "escape" in error.msg and len(rest) < _LONGEST_ESCAPE
        if is_word or is_escape or _PART_OF_NUMBER.fullmatch(rest) or error.msg.startswith("Unterminated string"):
            raise _CutOffError from error
        raise self._format_error(f"not valid JSON: {error.msg}", at + error.pos) from error

    def _with_text(self, value: Any, at: int, end: int) -> Any:  # noqa: ANN401 - any JSON value
        """Return a value with its text decoded as UTF-8, where it has any beyond ASCII."""
        stored = bytes(self._data[at:end])
        if stored.isascii():
            return value
        try:
            return json.loads(stored)
        except ValueError as error:
            raise self._format_error("a string is not valid UTF-8", at) from error

    def _after_space(self, at: int) -> int:
        return _match_end(_SPACE, self._data, at)

    def _byte_at(self, at: int) -> bytes:
        """Return one byte; nothing behind the end, where zero bytes that fill the file up do not count."""
        return b"" if _FILLED.match(self._data, at) else bytes(self._data[at : at + 1])

    def _format_error(self, problem: str, at: int) -> TraceFormatError:
        return TraceFormatError(problem, where=self._path, offset=at, hint=_HINT)


def _match_end(pattern: re.Pattern[bytes], data: memoryview, at: int) -> int:
    match = pattern.match(data, at)
    return match.end() if match else at


def _decode_list(elements: bytes) -> list[Record] | None:
    """Decode the elements of a window; None if that is not possible."""
    try:
        str(elements, "utf-8")  # the decoder looks only at the texts that it keeps
        return _RECORDS.decode(b"[" + elements + b"]")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
