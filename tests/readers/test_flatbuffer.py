"""FlatBuffers as arrays: fields, vectors and strings of many tables at once, and every way that offsets can lie."""

from __future__ import annotations

import struct

import flatbuffers
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.core.errors import TraceFormatError
from opscope.readers.flatbuffer import FlatBuffer, Tables, intern_strings

ABSENT = None


def people(*names: str | None, ages: tuple[int, ...] = ()) -> FlatBuffer:
    """A root with a vector of tables in slot 0; each has a name in slot 0 and, where given, an age in slot 1."""
    builder = flatbuffers.Builder(64)
    tables = []
    for row, name in enumerate(names):
        text = None if name is None else builder.CreateString(name)
        builder.StartObject(2)
        if text is not None:
            builder.PrependUOffsetTRelativeSlot(0, text, 0)
        if row < len(ages):
            builder.PrependInt32Slot(1, ages[row], 7)
        tables.append(builder.EndObject())
    builder.StartVector(4, len(tables), 4)
    for offset in reversed(tables):
        builder.PrependUOffsetTRelative(offset)
    vector = builder.EndVector()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, vector, 0)
    builder.Finish(builder.EndObject())
    return FlatBuffer(bytes(builder.Output()), "people.bin")


def children(buffer: FlatBuffer) -> Tables:
    """The tables of the vector in the root."""
    return Tables(buffer, buffer.root().children(0)[0])


def words(*values: int) -> FlatBuffer:
    """A buffer of 32-bit words."""
    return FlatBuffer(struct.pack(f"<{len(values)}I", *values), "words.bin")


def at(*positions: int) -> np.ndarray:
    """Byte positions."""
    return np.array(positions, np.int64)


def test_a_field_of_all_tables_is_one_column():
    """One row a table; a field that holds its default is not stored, and reads as that default."""
    assert children(people("a", "b", "c", ages=(30, 7, -1))).int32(1, default=7).tolist() == [30, 7, -1]


def test_a_field_that_a_table_does_not_have_reads_as_the_default():
    """Tables written before the field existed have shorter layouts."""
    assert children(people("a", "b", ages=(30,))).int32(1, default=-1).tolist() == [30, -1]
    assert children(people("a")).int32(9, default=5).tolist() == [5]


def test_strings_are_interned():
    """Every distinct text once, and its number for each table."""
    codes, texts = children(people("add", "mul", "add", "subtract", "mul")).strings(0)
    assert [texts[code] for code in codes] == ["add", "mul", "add", "subtract", "mul"]
    assert sorted(texts) == ["add", "mul", "subtract"]


def test_an_absent_string_is_not_an_empty_one():
    """Its code is -1; the empty text has a code of its own."""
    codes, texts = children(people("", ABSENT, "x")).strings(0)
    assert codes[1] == -1
    assert [texts[code] for code in codes[[0, 2]]] == ["", "x"]


def test_long_strings_are_read_too():
    """Beyond the length up to which names are compared as words."""
    names = ["x" * 1_000, "y" * 1_000, "x" * 1_000]
    codes, texts = children(people(*names)).strings(0)
    assert [texts[code] for code in codes] == names


def test_text_that_is_not_utf8_keeps_its_place():
    """A damaged name does not make the file unreadable."""
    buffer = people("abcd")
    data = buffer.bytes.tobytes().replace(b"abcd", b"a\xff\xfed")
    _, texts = children(FlatBuffer(data, "people.bin")).strings(0)
    assert texts == ["a\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}d"]


def test_children_know_their_owner():
    """Flattened: the row of the owner stands beside each."""
    positions, owner = people("a", "b").root().children(0)
    assert (len(positions), owner.tolist()) == (2, [0, 0])


def test_an_absent_vector_has_no_children():
    """Neither does an empty one."""
    assert len(people("a").root().children(5)[0]) == 0
    assert len(people().root().children(0)[0]) == 0


def test_a_single_row_can_be_taken():
    """For formats where each table needs its own look."""
    names = children(people("a", "b")).only(1).strings(0)[1]
    assert names == ["b"]


def test_wide_values_need_only_four_byte_alignment():
    """A size prefix moves everything by four bytes."""
    assert words(0, 1, 2).u64(at(4)).tolist() == [(2 << 32) + 1]


def test_signed_and_unsigned_words():
    """The same bits, read twice."""
    assert words(0xFFFFFFFF).i32(at(0)).tolist() == [-1]
    assert words(0xFFFFFFFF).u32(at(0)).tolist() == [0xFFFFFFFF]


@settings(deadline=None)
@given(st.lists(st.none() | st.text(max_size=20) | st.sampled_from(["a", "ab", "abc", "é" * 150]), max_size=20))
def test_strings_come_back(names):
    """Whatever the reference encoder writes is read as it was."""
    buffer = people(*names)
    codes, texts = children(buffer).strings(0) if names else (np.zeros(0, np.int64), [])
    assert [texts[code] if code >= 0 else None for code in codes] == names
    assert len(texts) == len(set(texts))


@pytest.mark.parametrize("position", [-4, 4, 8, 2**31])
def test_a_word_outside_of_the_file_is_refused(position):
    """The position is named."""
    with pytest.raises(TraceFormatError, match="points outside the file") as caught:
        words(1).u32(at(0, position))
    assert (caught.value.where, caught.value.offset) == ("words.bin", position)


def test_a_word_at_an_odd_place_is_refused():
    """Offsets of an encoder are aligned; those of a damaged file need not be."""
    with pytest.raises(TraceFormatError, match="not aligned"):
        words(1, 2).u32(at(2))


@pytest.mark.parametrize("length", [2, 2**31, 2**32 - 1])
def test_a_vector_that_is_longer_than_the_file_is_refused(length):
    """Before anything of its length is allocated."""
    with pytest.raises(TraceFormatError, match="extends past the end"):
        words(length, 0).vector(at(0))


def test_the_last_vector_may_end_with_the_file():
    """Nothing needs to follow."""
    first, count = words(2, 0, 0).vector(at(0))
    assert (first.tolist(), count.tolist()) == ([4], [2])


@pytest.mark.parametrize("root", [0, 2**31, 2**32 - 4], ids=["itself", "2^31", "before"])
def test_a_root_that_is_no_table_is_refused(root):
    """Offset 0 points to itself, the others leave the file."""
    with pytest.raises(TraceFormatError):
        words(root, 0, 0, 0).root()


@pytest.mark.parametrize("size", [0, 2, 1_000])
def test_an_impossible_layout_is_refused(size):
    """A table whose layout is smaller than its own header, or larger than the file."""
    with pytest.raises(TraceFormatError, match="impossible layout"):
        words(8, size, 4).root()


def test_an_offset_that_leads_back_is_refused():
    """Offsets are unsigned, so a table that claims to be its own child points outside of the file."""
    # Words: root offset 12; a layout of 6 bytes with one field at 4; the table at 12, whose field points to a vector
    # of one element that would point back to the table if offsets were signed.
    buffer = words(12, 0x00080006, 0x00000004, 8, 4, 1, 2**32 - 12)
    with pytest.raises(TraceFormatError, match="points outside the file"):
        children(buffer).int32(0)


def test_vectors_that_share_their_elements_are_refused():
    """Tables that claim the same vector again and again together hold more than the file."""
    buffer = people(*"abcdefgh")
    tables = Tables(buffer, np.repeat(buffer.root().at, buffer.size))
    with pytest.raises(TraceFormatError, match="overlap"):
        tables.children(0)


def test_strings_that_share_their_bytes_are_refused():
    """Texts that together are far longer than the file overlap: every word is the length of one that ends the file."""
    count = 2_000
    lengths = words(*(4 * (count - row - 1) for row in range(count)))
    with pytest.raises(TraceFormatError, match="overlap"):
        intern_strings(lengths, np.arange(count) * 4)


def test_no_tables_have_no_values():
    """An empty set of tables has empty columns."""
    empty = Tables(words(0), at())
    assert (len(empty), empty.int32(0).tolist(), empty.strings(0)[1]) == (0, [], [])


@pytest.mark.parametrize("size", range(8))
def test_a_file_of_a_few_bytes_is_refused(size):
    """Too short for a root table, however short."""
    with pytest.raises(TraceFormatError):
        FlatBuffer(b"\x04\0\0\0\x04\0\0\0"[:size], "short.bin").root()


def test_an_error_names_the_file_and_the_next_step():
    """Whoever reads it knows what to do."""
    error = words(0).error("something is wrong", 1_234)
    assert str(error) == "words.bin: something is wrong (at byte 1,234)"
    assert "truncated or damaged" in error.hint
