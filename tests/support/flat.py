"""FlatBuffers written as nested literals: a table is a dict from slot to value.

A value is a text, a table, a list of tables or texts, or a number with its type: ``u32(7)``, ``i64([1, 2])``.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import flatbuffers
from flatbuffers import number_types


class Typed(NamedTuple):
    """A number, or a vector of numbers, of one type."""

    type: type
    value: float | list[float]


u8 = partial(Typed, number_types.Uint8Flags)
i16 = partial(Typed, number_types.Int16Flags)
u32 = partial(Typed, number_types.Uint32Flags)
i32 = partial(Typed, number_types.Int32Flags)
u64 = partial(Typed, number_types.Uint64Flags)
i64 = partial(Typed, number_types.Int64Flags)
f32 = partial(Typed, number_types.Float32Flags)
f64 = partial(Typed, number_types.Float64Flags)
boolean = partial(Typed, number_types.BoolFlags)


def flat(root: dict, identifier: bytes) -> bytes:
    """The bytes of a root table."""
    builder = flatbuffers.Builder(512)
    builder.Finish(_table(builder, root), file_identifier=identifier)
    return bytes(builder.Output())


def _table(builder: flatbuffers.Builder, fields: dict) -> int:
    ready = {slot: _reference(builder, value) for slot, value in fields.items()}
    builder.StartObject(max(ready, default=-1) + 1)
    for slot, value in ready.items():
        if isinstance(value, Typed):
            builder.Prepend(value.type, value.value)
            builder.Slot(slot)
        else:
            builder.PrependUOffsetTRelativeSlot(slot, value, 0)
    return builder.EndObject()


def _reference(builder: flatbuffers.Builder, value):
    """Whatever a field refers to is written before its table; a single number stays as it is."""
    if isinstance(value, str):
        return builder.CreateString(value)
    if isinstance(value, dict):
        return _table(builder, value)
    if isinstance(value, list):
        return _vector(builder, [_reference(builder, item) for item in value])
    return _numbers(builder, value) if isinstance(value.value, list) else value


def _vector(builder: flatbuffers.Builder, offsets: list[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return builder.EndVector()


def _numbers(builder: flatbuffers.Builder, value: Typed) -> int:
    builder.StartVector(value.type.bytewidth, len(value.value), max(4, value.type.bytewidth))
    for item in reversed(value.value):
        builder.Prepend(value.type, item)
    return builder.EndVector()
