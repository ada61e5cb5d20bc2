"""Read XNNPACK payloads of delegates: a header, a graph as a FlatBuffer, and constants that are never read.

Source of the header: ``backends/xnnpack/serialization/xnnpack_graph_serialize.py`` of ExecuTorch 1.5.1; of the
graph: ``runtime_schema.fbs`` beside it. A payload without header is a graph from its first byte.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from opscope.core.errors import TraceFormatError
from opscope.program.structure.dtypes import xnnpack_type
from opscope.program.xnnpack import graph as program
from opscope.program.xnnpack.graph import (
    UNKNOWN,
    ConstantData,
    DelegateGraph,
    QuantisationKind,
    QuantisationScales,
    XnnGraph,
    XnnNode,
    XnnValue,
)
from opscope.readers.flatbuffer import (
    FLOAT32,
    INT32,
    UINT16,
    UINT32,
    UINT64,
    FlatBuffer,
    Number,
    lengths,
    nested,
    numbers,
    referred,
    texts,
    union,
    vectors,
)
from opscope.runtimes.executorch.pte import decode_executable, program_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from opscope.program.structure.plan import Executable, Span
    from opscope.program.xnnpack.graph import Attributes
    from opscope.readers.flatbuffer import Member, Tables


class Field(NamedTuple):
    """An attribute: its slot, the type of its numbers, and whether it is a vector of them."""

    slot: int
    number: Number[int] | Number[float] = UINT32
    vector: bool = False

    def column(self, tables: Tables) -> list[Any]:
        """Read the attribute of every table: a number or a tuple of them."""
        read: Callable[[Tables, int, Number[Any]], list[Any]] = vectors if self.vector else numbers
        return read(tables, self.slot, self.number)


class NodeSlots(NamedTuple):
    """Slots of one node type."""

    inputs: tuple[int, ...]  # ids of inputs
    outputs: tuple[int, ...]  # ids of outputs
    flags: int  # the flags
    attributes: Callable[..., program.Attributes] | None = None  # what holds several attributes, None for fewer
    fields: tuple[Field, ...] = ()  # the attributes, in the order of that type's fields

    def read_attributes(self, tables: Tables) -> list[program.Attributes | None]:
        """Read the attributes of every table."""
        if not self.fields:
            return [None] * len(tables)
        if self.attributes is None:
            return self.fields[0].column(tables)
        rows = zip(*(field.column(tables) for field in self.fields), strict=True)
        return [self.attributes(*row) for row in rows]


def _leading_fields(count: int) -> tuple[Field, ...]:
    return tuple(Field(slot) for slot in range(count))


def _concatenation_slots(count: int) -> NodeSlots:
    """Return the slots of a concatenation, whose fifth input was appended after the flags."""
    return NodeSlots((1, 2, 3, 4, 7)[:count], (5,), 6, None, _leading_fields(1))


_UNARY = NodeSlots((0,), (1,), 2)
_BINARY = NodeSlots((0, 1), (2,), 3)
_CONVOLUTION = NodeSlots((15, 16, 17), (18,), 19, program.Convolution, _leading_fields(15))
_POOLING = NodeSlots((10,), (11,), 12, program.Pooling, _leading_fields(10))
_ARGMAX = NodeSlots((6,), (7, 8), 9, program.Pooling, _leading_fields(6))
_SLOPE = NodeSlots((1,), (2,), 3, None, (Field(0, FLOAT32),))
_TRANSPOSE = NodeSlots((2,), (3,), 4, None, (Field(1, vector=True),))
_RESIZE = NodeSlots((2,), (3,), 4, program.Resizing, _leading_fields(2))
_PAD = NodeSlots((3,), (4,), 5, program.Padding, (Field(0, vector=True), Field(1, vector=True), Field(2, FLOAT32)))
_RESHAPE = NodeSlots((2,), (3,), 4, None, (Field(1, vector=True),))
_SLICE = NodeSlots((3,), (4,), 5, program.Slicing, (Field(1, vector=True), Field(2, vector=True)))
_FULLY_CONNECTED = NodeSlots((0, 1, 2), (3,), 4)
_ATTENTION = NodeSlots((0, 1, 2, 3, 4), (5,), 6)

# XNodeUnion, in the order of its members
_KINDS = """
Add FullyConnected Softmax Sigmoid StaticTranspose Clamp Conv2d Div StaticResizeBilinear2D StaticConstantPad
AvgPooling2d Minimum DepthwiseConv2d MaxPooling2d Multiply Subtract Floor Convert GlobalAvgPooling2d
StaticReshape ArgMaxPooling2d SquareRoot Ceiling Hardswish LeakyReLU Maximum Negate Square ELU Abs PReLU
Concatenate2 Concatenate3 Concatenate4 StaticSlice ScaledDotProductAttention BatchMatrixMultiply Concatenate5
ConvTranspose2d ReciprocalSquareRoot Log Gelu Tanh Exp Sin Copy Cos
""".split()
_LAYOUTS = {
    **dict.fromkeys("Add Div Minimum Multiply Subtract Maximum PReLU BatchMatrixMultiply".split(), _BINARY),
    "FullyConnected": _FULLY_CONNECTED,
    "StaticTranspose": _TRANSPOSE,
    **dict.fromkeys("Conv2d DepthwiseConv2d ConvTranspose2d".split(), _CONVOLUTION),
    "StaticResizeBilinear2D": _RESIZE,
    "StaticConstantPad": _PAD,
    **dict.fromkeys("AvgPooling2d MaxPooling2d".split(), _POOLING),
    "StaticReshape": _RESHAPE,
    "ArgMaxPooling2d": _ARGMAX,
    **dict.fromkeys("LeakyReLU ELU".split(), _SLOPE),
    **{f"Concatenate{count}": _concatenation_slots(count) for count in range(2, 6)},
    "StaticSlice": _SLICE,
    "ScaledDotProductAttention": _ATTENTION,
}
"""Slots of node kinds that differ from ``_UNARY``."""
NODES = {number: (kind, _LAYOUTS.get(kind, _UNARY)) for number, kind in enumerate(_KINDS, 1)}


# XValueUnion, XNNQuantizedTensorValue, XNNTensorValue
_PLAIN, _QUANTISED = 1, 2
_TENSOR, _PARAMETERS = 0, 1
_TYPE, _DIMS, _CONSTANT, _PLACE, _FLAGS, _ID = 0, 2, 3, 4, 5, 6
_NO_PLACE = 2**32 - 1
_EXTERNAL_INPUT, _EXTERNAL_OUTPUT = 1, 2

# XNNQuantParams
_SCALE, _CHANNEL, _ZERO_POINT = 0, 1, 1
_CHANNEL_SCALES, _GROUP_SCALES = 3, 5

_NOT_QUANTISED = QuantisationScales(QuantisationKind.NONE)


def read_xnn_values(table: Tables) -> tuple[tuple[XnnValue, ...], int]:
    """Read the values in the order of the file, and count the values of unknown kinds."""
    values_by_row: dict[int, XnnValue] = {}
    for member in union(table, 0):
        if member.number in {_PLAIN, _QUANTISED}:
            read = _read_plain_values if member.number == _PLAIN else _read_quantised_values
            values_by_row.update(zip(member.rows, read(member), strict=True))
    return tuple(values_by_row[row] for row in sorted(values_by_row)), len(table) - len(values_by_row)


def _read_plain_values(member: Member) -> list[XnnValue]:
    return _read_values(member.tables, [_NOT_QUANTISED] * len(member.rows))


def _read_quantised_values(member: Member) -> list[XnnValue]:
    tensors, rows = referred(member.tables, _TENSOR)
    if len(rows) != len(member.rows):
        raise tensors.buffer.error("a quantised value has no tensor")
    return _read_values(tensors, _read_scales(member.tables))


def _read_values(tensors: Tables, scales: list[QuantisationScales]) -> list[XnnValue]:
    flags = numbers(tensors, _FLAGS, UINT32)
    columns = zip(
        numbers(tensors, _ID, UINT32),
        map(xnnpack_type, numbers(tensors, _TYPE, UINT16)),
        vectors(tensors, _DIMS, UINT32),
        (bool(flag & _EXTERNAL_INPUT) for flag in flags),
        (bool(flag & _EXTERNAL_OUTPUT) for flag in flags),
        numbers(tensors, _CONSTANT, UINT32),
        scales,
        map(_argument_position, flags, numbers(tensors, _PLACE, UINT32)),
        strict=True,
    )
    return [XnnValue(*row) for row in columns]


def _argument_position(flags: int, position: int) -> int | None:
    """Return the position among the arguments of a call; None for internal values, whatever is written there."""
    return position if flags & (_EXTERNAL_INPUT | _EXTERNAL_OUTPUT) and position != _NO_PLACE else None


def _read_scales(values: Tables) -> list[QuantisationScales]:
    out = [QuantisationScales(QuantisationKind.UNKNOWN)] * len(values)
    for member in union(values, _PARAMETERS):
        if member.number in _SCALES:
            for row, scales in zip(member.rows, _SCALES[member.number](member.tables), strict=True):
                out[row] = scales
    return out


def _read_per_channel(tables: Tables) -> list[QuantisationScales]:
    rows = zip(_count_scales(tables, _CHANNEL_SCALES), numbers(tables, _CHANNEL, INT32), strict=True)
    return [QuantisationScales(QuantisationKind.PER_CHANNEL, scales, channel) for scales, channel in rows]


def _read_per_group(tables: Tables) -> list[QuantisationScales]:
    rows = zip(_count_scales(tables, _GROUP_SCALES), numbers(tables, _CHANNEL, INT32), strict=True)
    return [QuantisationScales(QuantisationKind.PER_CHANNEL_GROUP, scales, channel) for scales, channel in rows]


def _read_per_tensor(tables: Tables) -> list[QuantisationScales]:
    rows = zip(numbers(tables, _SCALE, FLOAT32), numbers(tables, _ZERO_POINT, INT32), strict=True)
    return [QuantisationScales(QuantisationKind.PER_TENSOR, scale=scale, zero_point=zero) for scale, zero in rows]


def _count_scales(tables: Tables, slot: int) -> list[int]:
    """Return the number of scales: as stated, or in older payloads the length of the vector that holds them."""
    pairs = zip(numbers(tables, slot, UINT32), lengths(tables, _SCALE), strict=True)
    return [stated or held for stated, held in pairs]


_SCALES: dict[int, Callable[[Tables], list[QuantisationScales]]] = {
    1: _read_per_channel,
    2: _read_per_tensor,
    3: lambda tables: [QuantisationScales(QuantisationKind.PER_TOKEN)] * len(tables),
    4: _read_per_group,
}


BACKEND = "XnnpackBackend"
_MAGIC = b"XH00"
_MAGIC_AT, _MAGIC_END = 4, 8
_HEADER_LENGTH = 30
_IDENTIFIERS = (b"XN01", b"XN00")
_HINT = "export the model or copy the file again: the payload is damaged or newer than supported"
_ABSENT = 2**32 - 1  # the id of an input that is left out
_BY_KEY = 2**64 - 1  # the offset of data that are found by their key

# XNNGraph, XNode, OutputMinMax, ConstantDataOffset
_VERSION, _NODES, _VALUES, _INPUTS, _OUTPUTS, _CONSTANTS = 0, 1, 2, 4, 5, 8
_NODE, _DEBUG_HANDLE, _MIN_MAX = 0, 2, 3
_MIN, _MAX = 0, 1
_OFFSET, _SIZE, _KEY = 0, 1, 2


def read_xnn_graphs(path: Path) -> tuple[DelegateGraph, ...]:
    """Read the XNNPACK delegates of a .pte with their graphs, in the order of the file."""
    data = program_bytes(path)
    return delegate_graphs(data, str(path), decode_executable(data, str(path)))


def delegate_graphs(data: bytes | memoryview, where: str, program: Executable) -> tuple[DelegateGraph, ...]:
    """Return the XNNPACK delegates of a program in memory; a payload that several share is read once."""
    delegates: list[DelegateGraph] = []
    payloads = _Payloads(data)
    for plan in program.plans:
        callers = plan.callers()
        for number, delegate in enumerate(plan.delegates):
            if delegate.id == BACKEND:
                graph = payloads.graph(delegate.data, f"{where}, delegate {number} of {plan.name}")
                delegates.append(DelegateGraph(plan.name, number, callers.get(number, ()), graph))
    return tuple(delegates)


class _Payloads:
    """Graphs of a file by their position; together they may not be longer than the file."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self._left = len(data)
        self._graphs: dict[Span, XnnGraph] = {}

    def graph(self, span: Span | None, owner: str) -> XnnGraph:
        """Return the graph of a payload; ``owner`` names the delegate in errors."""
        if span is None:
            raise TraceFormatError("it has no payload", where=owner, hint=_HINT)
        if span not in self._graphs:
            self._left -= span.size
            if self._left < 0:
                raise TraceFormatError("payloads overlap each other", where=owner, offset=span.offset, hint=_HINT)
            self._graphs[span] = decode_xnn_graph(self._data[span.offset : span.offset + span.size], owner)
        return self._graphs[span]


def decode_xnn_graph(payload: bytes | memoryview, where: str) -> XnnGraph:
    """Decode the graph in a payload; ``where`` names it in errors, whose offsets count from the start of the graph."""
    begin, size = _graph_span(payload, where)
    graph = memoryview(payload)[begin : begin + size]
    identifier = bytes(graph[_MAGIC_AT:_MAGIC_END])
    if identifier not in _IDENTIFIERS:
        problem = f"unsupported XNNPACK graph: its identifier is {identifier!r}"
        raise TraceFormatError(problem, where=where, offset=begin + _MAGIC_AT, hint=_HINT)
    root = FlatBuffer(graph, where).root()
    values, unknown = read_xnn_values(nested(root, _VALUES)[0])
    nodes = _read_nodes(nested(root, _NODES)[0])
    inputs, outputs = (vectors(root, slot, UINT32)[0] for slot in (_INPUTS, _OUTPUTS))
    if not unknown:
        known = np.array([value.id for value in values], np.int64)
        if len(np.unique(known)) < len(known):
            raise root.buffer.error("two values have the same id")
        used = [number for node in nodes for number in node.inputs + node.outputs]
        missing = np.setdiff1d(np.array([*used, *(inputs + outputs)], np.int64), known)
        if len(missing):
            raise root.buffer.error(f"value {int(missing[0])} is used but not defined")
    return XnnGraph(
        identifier.decode(), texts(root, _VERSION)[0], values, nodes, inputs, outputs, _read_constants(root), unknown
    )


def _graph_span(payload: bytes | memoryview, where: str) -> tuple[int, int]:
    """Return first byte and size of the graph in a payload; without a header it is the whole payload."""
    size = len(payload)
    if payload[_MAGIC_AT:_MAGIC_END] != _MAGIC:
        return 0, size
    if size < _HEADER_LENGTH:
        raise TraceFormatError("truncated within its header", where=where, offset=size, hint=_HINT)
    begin, graph_size, constants, constants_size = struct.unpack_from("<IIIQ", payload, 10)
    if max(begin + graph_size, constants + constants_size) > size:
        raise TraceFormatError(f"its parts extend past its {size:,} bytes", where=where, offset=10, hint=_HINT)
    return begin, graph_size


def _read_nodes(table: Tables) -> tuple[XnnNode, ...]:
    handles = numbers(table, _DEBUG_HANDLE, UINT32)
    bounds = _read_bounds(table)
    nodes = [
        XnnNode(UNKNOWN, 0, handle, (), (), *bound, 0, None) for handle, bound in zip(handles, bounds, strict=True)
    ]
    for member in union(table, _NODE):
        described = _describe_nodes(member)
        for row, (inputs, outputs, flags, attributes) in zip(member.rows, described, strict=True):
            kind = NODES[member.number][0] if member.number in NODES else UNKNOWN
            node = XnnNode(kind, member.number, handles[row], inputs, outputs, *bounds[row], flags, attributes)
            nodes[row] = node
    return tuple(nodes)


def _read_bounds(table: Tables) -> list[tuple[float | None, float | None]]:
    bounds: list[tuple[float | None, float | None]] = [(None, None)] * len(table)
    bounds_tables, rows = referred(table, _MIN_MAX)
    for row, low, high in zip(
        rows, numbers(bounds_tables, _MIN, FLOAT32), numbers(bounds_tables, _MAX, FLOAT32), strict=True
    ):
        bounds[row] = (low, high)
    return bounds


def _describe_nodes(member: Member) -> list[tuple[tuple[int, ...], tuple[int, ...], int, Attributes | None]]:
    """Return inputs, outputs, flags and attributes of nodes of one type; empty for an unknown type."""
    if member.number not in NODES:
        return [((), (), 0, None)] * len(member.rows)
    layout = NODES[member.number][1]
    columns = (
        _read_ids(member.tables, layout.inputs),
        _read_ids(member.tables, layout.outputs),
        numbers(member.tables, layout.flags, UINT32),
        layout.read_attributes(member.tables),
    )
    return list(zip(*columns, strict=True))


def _read_ids(tables: Tables, slots: tuple[int, ...]) -> list[tuple[int, ...]]:
    rows = zip(*(numbers(tables, slot, UINT32) for slot in slots), strict=True)
    return [tuple(number for number in row if number != _ABSENT) for row in rows]


def _read_constants(root: Tables) -> tuple[ConstantData, ...]:
    table = nested(root, _CONSTANTS)[0]
    columns = numbers(table, _OFFSET, UINT64), numbers(table, _SIZE, UINT64), texts(table, _KEY)
    rows = zip(*columns, strict=True)
    return tuple(ConstantData(None if offset == _BY_KEY else offset, size, key) for offset, size, key in rows)
