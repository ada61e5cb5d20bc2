"""Damage that fuzzing found to get past a reader, each as the edit that makes it."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import pytest

from opscope.core.errors import TraceFormatError
from opscope.readers.flatbuffer import FlatBuffer, Tables
from opscope.runtimes.executorch.etdump import EtdumpReader
from opscope.runtimes.executorch.etrecord import read_etrecord
from traces import etdump

pytestmark = pytest.mark.usefixtures("small_repeats")

INFERENCE = """
    Method::execute 100
      OPERATOR_CALL @3 60
        native_call_add.out 50
"""
END = 7


def with_layout(data: bytes, **fields: int) -> bytes:
    """A trace whose events' layouts have other offsets: ``slot_6=0`` removes the start time."""
    buffer = FlatBuffer(data, "trace", 4)
    blocks = Tables(buffer, buffer.root().children(1)[0])
    profile = Tables(buffer, Tables(buffer, blocks.children(3)[0]).reference(0))
    edited = bytearray(data)
    for layout in buffer.vtables(profile.at)[0].tolist():
        for slot, offset in fields.items():
            struct.pack_into("<H", edited, layout + 4 + 2 * int(slot.removeprefix("slot_")), offset)
    return bytes(edited)


def offset_of(data: bytes, slot: int) -> int:
    """Where a field of the first event stands within its table."""
    buffer = FlatBuffer(data, "trace", 4)
    blocks = Tables(buffer, buffer.root().children(1)[0])
    profile = Tables(buffer, Tables(buffer, blocks.children(3)[0]).reference(0)).only(0)
    return int(profile.field(slot)[0] - profile.at[0])


@pytest.mark.parametrize("repeat", [1, 8])
def test_events_without_times_start_and_end_at_zero(repeat: int) -> None:
    """Both fields may be absent; that several inferences repeat each other changes nothing."""
    data = with_layout(etdump(INFERENCE, repeat=repeat), slot_6=0, slot_7=0)
    found = EtdumpReader().read(data, Path("trace.etdump")).frame
    assert found.select("start", "duration").rows() == [(0, 0)] * 3 * repeat


@pytest.mark.parametrize("repeat", [1, 8])
def test_a_field_that_shares_its_bytes_with_a_time_is_read_from_every_inference(repeat: int) -> None:
    """The instruction stands where the end time does: it differs between inferences as the times do, or is refused."""
    data = etdump(INFERENCE, repeat=repeat)
    shared = with_layout(data, slot_2=offset_of(data, END))
    try:
        found = EtdumpReader().read(shared, Path("trace.etdump")).frame.filter(name="native_call_add.out")
    except TraceFormatError:
        return
    assert found["instruction"].to_list() == (found["start"] + found["duration"]).to_list()


def record(content: bytes) -> bytearray:
    """An ETRecord with one member, stored; what it says of that member stands in its directory."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("debug_handle_map", content)
        archive.writestr("ETRECORD_V0", b"")
    return bytearray(stream.getvalue())


def refused(data: bytes, directory: Path) -> str:
    """What the reader of ETRecords says to these bytes."""
    path = directory / "record.etrecord"
    path.write_bytes(data)
    with pytest.raises(TraceFormatError) as caught:
        read_etrecord(path)
    return str(caught.value)


def test_a_member_that_claims_to_be_stored_in_more_bytes_than_the_file_has(tmp_path: Path) -> None:
    """Its stored size is 1.9 GB: refused from the directory alone, before anything is allocated."""
    data = record(b"{}")
    struct.pack_into("<I", data, data.index(b"PK\1\2") + 20, 0x72000000)
    assert "debug_handle_map" in refused(data, tmp_path)


def test_members_that_would_stand_before_the_file(tmp_path: Path) -> None:
    """The directory is said to start later than it does, so that positions become negative: the file is damaged."""
    data = record(b"{}")
    end = data.rindex(b"PK\5\6")
    start = struct.unpack_from("<I", data, end + 16)[0]
    struct.pack_into("<I", data, end + 16, start + 4)
    refused(data, tmp_path)
