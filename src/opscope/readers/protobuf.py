"""Protocol buffers by hand: the fields of a message, one after the other, and nothing copied.

Source: "Encoding", protobuf.dev. A message names no types, so whoever reads it says what a field is. What is not known
is passed over, as the format wants it. Groups are refused: no format that is read here has them.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from opscope.core.errors import TraceFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_WIDTHS = {FIXED64: 8, FIXED32: 4}
_LONGEST, _SEVEN, _MORE = 10, 7, 0x80
_ALL = (1 << 64) - 1
_SIGN = 1 << 63


class WireMessage(NamedTuple):
    """A message, as a part of a file."""

    data: memoryview  # the bytes of the whole file
    start: int  # of the message
    end: int  # behind its last byte
    where: str  # the file, for errors

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return self.end - self.start

    def view(self) -> memoryview:
        """Return the bytes of the message."""
        return self.data[self.start : self.end]

    def text(self) -> str:
        """Return the bytes as text; those that are no UTF-8 are replaced."""
        return str(self.view(), "utf-8", "replace")

    def error(self, problem: str, at: int | None = None) -> TraceFormatError:
        """Return an error at a byte of the file."""
        hint = "it is truncated or damaged: export, convert or copy it again"
        return TraceFormatError(problem, where=self.where, offset=self.start if at is None else at, hint=hint)

    def varints(self) -> Iterator[int]:
        """Yield the bytes as packed numbers, unsigned."""
        at = self.start
        while at < self.end:
            value, at = _read_varint(self, at)
            yield value


class WireField(NamedTuple):
    """A field of a message."""

    number: int  # by which the schema knows it
    wire: int  # how it is written: :data:`VARINT`, :data:`FIXED64`, :data:`BYTES` or :data:`FIXED32`
    value: int  # of a varint, unsigned; 0 for others
    part: WireMessage  # its bytes; empty for a varint

    @property
    def signed(self) -> int:
        """Return the value as a signed number of 64 bits."""
        return signed(self.value)

    def numbers(self) -> list[int]:
        """Return the signed numbers of a repeated field, which may be packed."""
        if self.wire == VARINT:
            return [self.signed]
        self.expect(BYTES)
        return [signed(value) for value in self.part.varints()]

    def floats(self) -> list[float]:
        """Return the numbers of 32 bits of a repeated field, which may be packed."""
        if self.wire not in {FIXED32, BYTES} or self.part.size % 4:
            raise self.part.error(f"field {self.number} does not hold numbers of 32 bits")
        return list(struct.unpack(f"<{self.part.size // 4}f", self.part.view()))

    def message(self) -> WireMessage:
        """Return the message that it holds."""
        self.expect(BYTES)
        return self.part

    def text(self) -> str:
        """Return the text that it holds."""
        return self.message().text()

    def integer(self) -> int:
        """Return the signed number that it holds."""
        self.expect(VARINT)
        return self.signed

    def expect(self, wire: int) -> None:
        """Refuse a field that is written in another way."""
        if self.wire != wire:
            raise self.part.error(f"field {self.number} is of wire type {self.wire}, not {wire}")


def signed(value: int) -> int:
    """Return a number of 64 bits with its sign."""
    return value - 2 * _SIGN if value >= _SIGN else value


def whole(data: memoryview, where: str) -> WireMessage:
    """Return a file as one message."""
    return WireMessage(data, 0, len(data), where)


def fields(message: WireMessage) -> Iterator[WireField]:
    """Yield the fields of a message, in the order of the file."""
    at = message.start
    while at < message.end:
        begin = at
        key, at = _read_varint(message, at)
        number, wire = key >> 3, key & 7
        if not number:
            raise message.error("a field has number 0", begin)
        value = size = 0
        if wire == VARINT:
            value, at = _read_varint(message, at)
        elif wire == BYTES:
            size, at = _read_varint(message, at)
        elif wire in _WIDTHS:
            size = _WIDTHS[wire]
        else:
            raise message.error(f"field {number} is of wire type {wire}, which is not supported", begin)
        if size > message.end - at:
            raise message.error(f"field {number} extends past the end of its message", begin)
        yield WireField(number, wire, value, WireMessage(message.data, at, at + size, message.where))
        at += size


def _read_varint(message: WireMessage, at: int) -> tuple[int, int]:
    """Return a number, and the position of the next byte."""
    value = shift = 0
    for index in range(at, min(at + _LONGEST, message.end)):
        byte = message.data[index]
        value |= (byte & ~_MORE) << shift
        if byte < _MORE:
            return value & _ALL, index + 1
        shift += _SEVEN
    problem = "a number is truncated" if message.end - at < _LONGEST else "a number is unterminated"
    raise message.error(problem, at)
