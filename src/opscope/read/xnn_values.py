"""Values of an XNNPACK graph: types, dimensions and scales.

Source of the slots: ``backends/xnnpack/serialization/runtime_schema.fbs`` of ExecuTorch 1.5.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.program.dtypes import xnnpack_type
from opscope.program.xnn_graph import Quantisation, QuantisationKind, XnnValue
from opscope.read.fields import FLOAT32, INT32, UINT16, UINT32, lengths, numbers, referred, union, vectors

if TYPE_CHECKING:
    from collections.abc import Callable

    from opscope.read.fields import Member
    from opscope.read.flatbuffer import Tables

# XValueUnion, XNNQuantizedTensorValue, XNNTensorValue
_PLAIN, _QUANTISED = 1, 2
_TENSOR, _PARAMETERS = 0, 1
_TYPE, _DIMS, _CONSTANT, _PLACE, _FLAGS, _ID = 0, 2, 3, 4, 5, 6
_NO_PLACE = 2**32 - 1
_EXTERNAL_INPUT, _EXTERNAL_OUTPUT = 1, 2

# XNNQuantParams
_SCALE, _CHANNEL, _GROUP_SIZE, _ZERO_POINT = 0, 1, 2, 1
_CHANNEL_SCALES, _GROUP_SCALES = 3, 5

_NOT_QUANTISED = Quantisation(QuantisationKind.NONE)


def read_xnn_values(table: Tables) -> tuple[tuple[XnnValue, ...], int]:
    """The values in the order of the file, and how many more are of unknown kinds.

    Raises:
        TraceFormatError: an offset points outside, or a quantised value has no tensor.
    """
    found: dict[int, XnnValue] = {}
    for member in union(table, 0):
        if member.number in {_PLAIN, _QUANTISED}:
            read = _plain if member.number == _PLAIN else _quantised
            found.update(zip(member.rows, read(member), strict=True))
    return tuple(found[row] for row in sorted(found)), len(table) - len(found)


def _plain(member: Member) -> list[XnnValue]:
    return _values(member.tables, [_NOT_QUANTISED] * len(member.rows))


def _quantised(member: Member) -> list[XnnValue]:
    tensors, rows = referred(member.tables, _TENSOR)
    if len(rows) != len(member.rows):
        raise tensors.buffer.error("a quantised value has no tensor")
    return _values(tensors, _scales(member.tables))


def _values(tensors: Tables, scales: list[Quantisation]) -> list[XnnValue]:
    flags = numbers(tensors, _FLAGS, UINT32)
    columns = zip(
        numbers(tensors, _ID, UINT32),
        map(xnnpack_type, numbers(tensors, _TYPE, UINT16)),
        vectors(tensors, _DIMS, UINT32),
        (bool(flag & _EXTERNAL_INPUT) for flag in flags),
        (bool(flag & _EXTERNAL_OUTPUT) for flag in flags),
        numbers(tensors, _CONSTANT, UINT32),
        scales,
        map(_place, flags, numbers(tensors, _PLACE, UINT32)),
        strict=True,
    )
    return [XnnValue(*row) for row in columns]


def _place(flags: int, place: int) -> int | None:
    """Place among the arguments of a call; values of the graph's own have none, whatever is written there."""
    return place if flags & (_EXTERNAL_INPUT | _EXTERNAL_OUTPUT) and place != _NO_PLACE else None


def _scales(values: Tables) -> list[Quantisation]:
    out = [Quantisation(QuantisationKind.UNKNOWN)] * len(values)
    for member in union(values, _PARAMETERS):
        if member.number in _SCALES:
            for row, scales in zip(member.rows, _SCALES[member.number](member.tables), strict=True):
                out[row] = scales
    return out


def _per_channel(tables: Tables) -> list[Quantisation]:
    rows = zip(_stored(tables, _CHANNEL_SCALES), numbers(tables, _CHANNEL, INT32), strict=True)
    return [Quantisation(QuantisationKind.PER_CHANNEL, scales, channel) for scales, channel in rows]


def _per_group(tables: Tables) -> list[Quantisation]:
    columns = _stored(tables, _GROUP_SCALES), numbers(tables, _CHANNEL, INT32), numbers(tables, _GROUP_SIZE, INT32)
    return [Quantisation(QuantisationKind.PER_CHANNEL_GROUP, *row) for row in zip(*columns, strict=True)]


def _per_tensor(tables: Tables) -> list[Quantisation]:
    rows = zip(numbers(tables, _SCALE, FLOAT32), numbers(tables, _ZERO_POINT, INT32), strict=True)
    return [Quantisation(QuantisationKind.PER_TENSOR, scale=scale, zero_point=zero) for scale, zero in rows]


def _per_token(tables: Tables) -> list[Quantisation]:
    return [Quantisation(QuantisationKind.PER_TOKEN)] * len(tables)


def _stored(tables: Tables, slot: int) -> list[int]:
    """Number of scales: as stated, or in older payloads the length of the vector that holds them."""
    pairs = zip(numbers(tables, slot, UINT32), lengths(tables, _SCALE), strict=True)
    return [stated or held for stated, held in pairs]


_SCALES: dict[int, Callable[[Tables], list[Quantisation]]] = {
    1: _per_channel,
    2: _per_tensor,
    3: _per_token,
    4: _per_group,
}
