"""All that an ETDump holds is kept, and the fast way of reading it gives the same table as the general one."""

from __future__ import annotations

import contextlib
import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import flatbuffers
import numpy as np
import polars as pl
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.core.errors import TraceFormatError
from opscope.core.table import Clock, EventTable
from opscope.core.table.events import Allocation
from opscope.readers.compressed import inflated
from opscope.readers.flatbuffer import FlatBuffer, Tables
from opscope.readers.lifecycle import delegate_by_names
from opscope.readers.registry import read_trace
from opscope.runtimes.executorch import etdump as reader
from opscope.runtimes.executorch.etdump import EtdumpReader, repeated_spans
from traces import Node, _event, _table, _vector, encode, etdump

pytestmark = pytest.mark.usefixtures("small_repeats")

MODEL = """
    Program::load_method 900
      Method::init 700
    Method::execute 100000
      DELEGATE_CALL @0 70000
        Convolution (NHWC, F32) IGEMM #1 50000
        Clamp (NC) #1 2000
      OPERATOR_CALL @1 20000
        native_call_add.out 19000
"""
REAL = Path(__file__).parents[2] / "data" / "toy_cnn.etdump"


def _read(data: bytes) -> EventTable:
    return EtdumpReader().read(data, Path("trace.etdump"))


def generally(data: bytes) -> EventTable:
    """The table as the general way reads it, block after block, without looking for repetition."""
    buffer = FlatBuffer(data, "trace.etdump", 4)
    blocks = Tables(buffer, buffer.root().children(1)[0])
    part = reader._decode_blocks(buffer, blocks, 0, len(blocks))
    segment, _ = part.segment(
        delegate_by_names(set(part.label.texts)), quantised=part.is_in_microseconds(part.is_delegate)
    )
    return EventTable.of_segments([segment], Clock.NS)


def _repeats_of(data: bytes) -> int:
    return max(segment.repeats for segment in _read(data).traces[0])


@pytest.mark.parametrize(
    "data",
    [*(etdump(MODEL, repeat=repeat) for repeat in (1, 3, 5, 6, 40)), REAL.read_bytes()],
    ids=["1", "3", "5", "6", "40", "real"],
)
def test_repeated_inferences_give_the_same_table(data: bytes) -> None:
    """Row for row, however many inferences repeat each other; written by the runtime itself, too."""
    assert _read(data).frame.equals(generally(data).frame)


def test_repetition_is_used_where_it_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of forty equal inferences all but the first few are one segment; in short traces comparing costs more."""
    data = etdump(MODEL, repeat=40)
    assert _repeats_of(data) >= 36
    monkeypatch.setattr(reader, "WORTH_BYTES", len(data))
    assert _repeats_of(data) == 1
    assert _read(data).frame.equals(generally(data).frame)


@pytest.mark.parametrize("change", ["name", "instruction", "order", "extra"])
def test_one_inference_that_differs_keeps_its_own_events(change: str) -> None:
    """Another name, instruction, order or number of events in the middle is never read as what stands around it."""
    usual = Node("Method::execute", 90, children=[Node("OPERATOR_CALL", 40, 0), Node("MOVE_CALL", 20, 1)])
    other = {
        "name": Node("Method::execute", 90, children=[Node("OPERATOR_CALL", 40, 0), Node("FREE_CALL", 20, 1)]),
        "instruction": Node("Method::execute", 90, children=[Node("OPERATOR_CALL", 40, 0), Node("MOVE_CALL", 20, 7)]),
        "order": Node("Method::execute", 90, children=[Node("MOVE_CALL", 20, 1), Node("OPERATOR_CALL", 40, 0)]),
        "extra": Node("Method::execute", 90, children=[*usual.children, Node("JF_CALL", 5, 2)]),
    }[change]
    data = encode([("Execute", [root]) for root in [usual] * 8 + [other] + [usual] * 8])
    found = _read(data)
    assert found.frame.equals(generally(data).frame)
    assert found.inference_times().duration.tolist() == [90] * 17


@settings(max_examples=60, deadline=None)
@given(st.integers(5, 12), st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), min_size=1, max_size=3))
def test_damage_is_seen_the_same_way(repeat: int, flips: list[tuple[int, int]]) -> None:
    """A file with flipped bytes gives the general way's table, or is refused by both."""
    data = bytearray(etdump(MODEL, repeat=repeat))
    for place, value in flips:
        data[12 + place % (len(data) - 12)] = value
    try:
        expected = generally(bytes(data))
    except TraceFormatError as error:
        if "2^62" in str(error):
            return  # a limit on sums, which depend on how many blocks are decoded together
        with pytest.raises(TraceFormatError):
            _read(bytes(data))
        return
    try:
        found = _read(bytes(data))
    except TraceFormatError:
        return  # the reader checks more than this comparison does, such as the size prefix
    shown = [name for name in expected.frame.columns if name not in {"method", "backend"}]
    assert found.frame.select(shown).equals(expected.frame.select(shown))


@given(st.lists(st.integers(-30, -1), max_size=60))
def test_stretches_cover_every_block_once(steps: list[int]) -> None:
    """Whatever the distances, the stretches follow each other and even ones have one distance to the block before."""
    at = np.cumsum([10_000, *steps])
    parts = list(repeated_spans(at))
    assert [first for first, _, _ in parts] == [0, *(last for _, last, _ in parts)][: len(parts)]
    assert not parts or parts[-1][1] == len(at)
    for first, last, even in parts:
        if even:
            assert len(set(np.diff(at[first - 1 : last]).tolist())) == 1


def side_file() -> bytes:
    """An inference with one allocation, one logged number and one logged tensor beside it."""
    builder = flatbuffers.Builder(256)
    execute = _event(builder, Node("Method::execute", 50), 1000)
    builder.StartObject(2)
    builder.PrependInt32Slot(0, 1, 0)
    builder.PrependUint64Slot(1, 4096, 0)
    allocation = _table(builder, 3, [(1, builder.EndObject())])
    logged = [_logged(builder, _number(builder, 7)), _logged(builder, _tensor(builder, [1, 3]))]
    name, allocator = builder.CreateString("Execute"), builder.CreateString("planned")
    allocators = _vector(builder, [_table(builder, 1, [(0, allocator)])])
    events = _vector(builder, [allocation, execute, *logged])
    run = _table(builder, 4, [(0, name), (2, allocators), (3, events)])
    builder.FinishSizePrefixed(_table(builder, 2, [(1, _vector(builder, [run]))]), file_identifier=b"ED00")
    return bytes(builder.Output())


def _logged(builder: flatbuffers.Builder, value: int) -> int:
    name = builder.CreateString("native_call_add.out")
    builder.StartObject(6)
    builder.PrependInt32Slot(1, 4, -1)
    builder.PrependUOffsetTRelativeSlot(2, value, 0)
    builder.PrependUOffsetTRelativeSlot(5, name, 0)
    return _table(builder, 3, [(2, builder.EndObject())])


def _number(builder: flatbuffers.Builder, number: int) -> int:
    builder.StartObject(1)
    builder.PrependInt64Slot(0, number, 0)
    holder = builder.EndObject()
    builder.StartObject(8)
    builder.PrependInt8Slot(0, 1, 0)
    builder.PrependUOffsetTRelativeSlot(3, holder, 0)
    return builder.EndObject()


def _tensor(builder: flatbuffers.Builder, sizes: list[int]) -> int:
    builder.StartVector(8, len(sizes), 8)
    for size in reversed(sizes):
        builder.PrependInt64(size)
    vector = builder.EndVector()
    builder.StartObject(4)
    builder.PrependInt8Slot(0, 6, 0)
    builder.PrependUOffsetTRelativeSlot(1, vector, 0)
    builder.PrependInt64Slot(3, 128, 0)
    tensor = builder.EndObject()
    builder.StartObject(8)
    builder.PrependInt8Slot(0, 5, 0)
    builder.PrependUOffsetTRelativeSlot(1, tensor, 0)
    return builder.EndObject()


def test_allocations_and_logged_values_are_kept() -> None:
    """Allocator and size, and for logged values their place, kind, number or tensor."""
    found = _read(side_file())
    (side,) = found.side
    assert side.allocations == (Allocation(0, "planned", 4096),)
    number, tensor = side.logged
    assert (number.name, number.instruction, number.kind, number.number) == ("native_call_add.out", 4, "int", 7)
    assert (tensor.kind, tensor.shape, tensor.dtype, tensor.offset) == ("tensor", (1, 3), 6, 128)
    assert found.inference_times().duration.tolist() == [50]


def test_blocks_labels_and_metadata_are_kept() -> None:
    """Names of blocks, the delegate's own identifier beside the name, and bytes it attached."""
    builder = flatbuffers.Builder(256)
    name, label = builder.CreateString("shown"), builder.CreateString("its own")
    metadata = builder.CreateByteVector(b"\x01\x02")
    builder.StartObject(8)
    builder.PrependUOffsetTRelativeSlot(0, name, 0)
    builder.PrependUOffsetTRelativeSlot(4, label, 0)
    builder.PrependUOffsetTRelativeSlot(5, metadata, 0)
    builder.PrependUint64Slot(6, 10, 0)
    builder.PrependUint64Slot(7, 17, 0)
    event = _table(builder, 3, [(0, builder.EndObject())])
    block = builder.CreateString("Execute")
    builder_events = _vector(builder, [event])
    builder.StartObject(4)
    builder.PrependUOffsetTRelativeSlot(0, block, 0)
    builder.PrependInt32Slot(1, 3, -1)
    builder.PrependUOffsetTRelativeSlot(3, builder_events, 0)
    run = builder.EndObject()
    builder.FinishSizePrefixed(_table(builder, 2, [(1, _vector(builder, [run]))]), file_identifier=b"ED00")
    row = _read(bytes(builder.Output())).frame.row(0, named=True)
    assert (row["name"], row["delegate_label"], row["metadata"]) == ("shown", "its own", b"\x01\x02")
    assert (row["block"], row["bundled_input"]) == ("Execute", 3)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_compressed_traces_are_read_as_they_are(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """By content, whatever the name; the hash is that of the file as it is stored.

    Cut at every length it is refused, and with any byte changed it is refused or still has the same content.
    """
    data = etdump(MODEL, repeat=3)
    plain, packed = tmp_path / "a.etdump", tmp_path / "b.bin"
    plain.write_bytes(data)
    packed.write_bytes(pack(data))
    assert read_trace(packed).table.frame.equals(read_trace(plain).table.frame)
    assert read_trace(packed).sha256 != read_trace(plain).sha256
    small = pack(etdump(MODEL))
    for length in range(4, len(small)):
        with pytest.raises(TraceFormatError):
            inflated(small[:length], tmp_path)
    for place in range(4, len(small), 7):
        broken = small[:place] + bytes([small[place] ^ 0xFF]) + small[place + 1 :]
        with contextlib.suppress(TraceFormatError):
            assert isinstance(inflated(broken, tmp_path), bytes)


@pytest.mark.parametrize("pack", [lambda data: gzip.compress(data, 9), zstandard.compress])
def test_a_file_that_grows_beyond_measure_is_refused(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """200 MB of nothing in a few hundred kilobytes at most."""
    with pytest.raises(TraceFormatError, match="grows more than"):
        inflated(pack(bytes(200_000_000)), tmp_path)


def test_times_beyond_what_can_be_added_are_refused() -> None:
    """A repeated block with a time of 2^63 is refused as a single one is."""
    data = bytearray(etdump(MODEL, repeat=12))
    needle = struct.pack("<Q", _read(bytes(data)).inference_times().start[-1])
    place = data.rindex(needle)
    data[place : place + 8] = struct.pack("<Q", (1 << 64) - 1)
    with pytest.raises(TraceFormatError):
        _read(bytes(data))


def test_the_frame_is_made_only_when_asked() -> None:
    """A table can be analysed without ever writing out its rows."""
    found = _read(etdump(MODEL, repeat=30))
    assert "frame" not in vars(found)
    assert found.events == found.frame.height
    assert isinstance(found.frame, pl.DataFrame)
