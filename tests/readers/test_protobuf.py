"""Protocol buffers: every kind of field, and every byte where a file can end."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.core.errors import TraceFormatError
from opscope.readers.protobuf import BYTES, FIXED32, FIXED64, VARINT, WireMessage, fields, signed, whole


def varint(value: int) -> bytes:
    """A number as the format writes it."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def written(number: int, wire: int, value: int | bytes) -> bytes:
    """A field."""
    key = varint(number << 3 | wire)
    if isinstance(value, int):
        return key + varint(value)
    return key + (varint(len(value)) if wire == BYTES else b"") + value


def message(data: bytes) -> WireMessage:
    """A file that is one message."""
    return whole(memoryview(data), "a.pb")


@given(st.integers(1, 1 << 28), st.integers(0, (1 << 64) - 1))
def test_numbers_are_read_as_they_were_written(number: int, value: int) -> None:
    """Any field number, any value of 64 bits."""
    (field,) = fields(message(written(number, VARINT, value)))
    assert (field.number, field.wire, field.value) == (number, VARINT, value)
    assert field.integer() == signed(value)


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=20))
def test_packed_numbers_are_those_that_are_written_one_by_one(values: list[int]) -> None:
    """A writer may choose either."""
    unsigned = [value & (1 << 64) - 1 for value in values]
    (packed,) = fields(message(written(4, BYTES, b"".join(map(varint, unsigned)))))
    assert packed.numbers() == values
    single = fields(message(b"".join(written(4, VARINT, value) for value in unsigned)))
    assert [number for field in single for number in field.numbers()] == values


def test_parts_are_views_of_the_file() -> None:
    """Nothing is copied, and a message in a message knows where it lies."""
    inner = written(1, BYTES, b"name")
    data = written(7, BYTES, inner) + written(2, FIXED32, struct.pack("<f", 1.5)) + written(3, FIXED64, bytes(8))
    nested, single, double = fields(message(data))
    (name,) = fields(nested.message())
    assert name.text() == "name"
    assert name.part.view().obj is nested.part.data.obj
    assert single.floats() == [1.5]
    assert (double.number, double.part.size) == (3, 8)


def test_a_message_that_ends_early_is_refused_with_the_byte() -> None:
    """At every length that is not the end of a field."""
    data = written(1, VARINT, 300) + written(2, BYTES, b"abc") + written(3, FIXED32, bytes(4))
    ends = {3, 8, len(data)}
    for length in range(1, len(data)):
        if length in ends:
            assert list(fields(message(data[:length])))
            continue
        with pytest.raises(TraceFormatError):
            list(fields(message(data[:length])))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\x00\x01", "a field has number 0"),
        (b"\x0b", "wire type 3, which is not supported"),
        (b"\x08" + b"\xff" * 11, "a number is unterminated"),
        (b"\x12\x05ab", "extends past the end"),
    ],
)
def test_what_the_format_does_not_allow_is_refused(data: bytes, problem: str) -> None:
    """The sentence says what, the error where."""
    with pytest.raises(TraceFormatError, match=problem):
        list(fields(message(data)))


def test_a_field_that_is_written_in_another_way_is_refused() -> None:
    """A schema that expects a text gets no number instead."""
    (field,) = fields(message(written(5, VARINT, 1)))
    with pytest.raises(TraceFormatError, match="field 5 is of wire type 0, not 2"):
        field.text()


@given(st.binary(max_size=200))
def test_any_bytes_are_fields_or_an_error(data: bytes) -> None:
    """Never anything else."""
    with contextlib.suppress(TraceFormatError):
        list(fields(message(data)))
