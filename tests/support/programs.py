"""A small program (.pte) written by hand: one method that calls a delegate and then a portable add."""

from __future__ import annotations

from pathlib import Path

import flatbuffers

_KERNEL_CALL, _DELEGATE_CALL = 1, 2


def tiny_program(method: str = "forward", portable: str = "aten::add", delegate: str = "XnnpackBackend") -> bytes:
    """The program as a file without segments; a reader finds its method, operator and delegate."""
    builder = flatbuffers.Builder(512)
    name, operator, overload = (builder.CreateString(text) for text in (method, portable, "out"))
    backend = builder.CreateString(delegate)
    operators = _tables(builder, [_table(builder, [(0, operator), (1, overload)])])
    delegates = _tables(builder, [_table(builder, [(0, backend)])])
    instructions = _tables(builder, [_instruction(builder, _DELEGATE_CALL), _instruction(builder, _KERNEL_CALL)])
    chains = _tables(builder, [_table(builder, [(2, instructions)])])
    plan = _table(builder, [(0, name), (5, chains), (6, operators), (7, delegates)])
    builder.Finish(_table(builder, [(1, _tables(builder, [plan]))]), file_identifier=b"ET12")
    return bytes(builder.Output())


def write_tiny_program(directory: Path) -> Path:
    """``tiny.pte`` in a directory."""
    path = directory / "tiny.pte"
    path.write_bytes(tiny_program())
    return path


def _instruction(builder: flatbuffers.Builder, kind: int) -> int:
    builder.StartObject(1)
    builder.PrependInt32Slot(0, 0, -1)
    call = builder.EndObject()
    builder.StartObject(2)
    builder.PrependUint8Slot(0, kind, 0)
    builder.PrependUOffsetTRelativeSlot(1, call, 0)
    return builder.EndObject()


def _table(builder: flatbuffers.Builder, fields: list[tuple[int, int]]) -> int:
    builder.StartObject(1 + max(slot for slot, _ in fields))
    for slot, offset in fields:
        builder.PrependUOffsetTRelativeSlot(slot, offset, 0)
    return builder.EndObject()


def _tables(builder: flatbuffers.Builder, offsets: list[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return builder.EndVector()
