"""XNNPACK payloads of delegates: a header, a graph as a FlatBuffer, and constants that are never looked at.

Source of the header: ``backends/xnnpack/serialization/xnnpack_graph_serialize.py`` of ExecuTorch 1.5.1; of the graph:
``runtime_schema.fbs`` beside it, as tables in :mod:`opscope.read.xnn_schema`. A payload without header is a graph from
its first byte.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np

from opscope.errors import NotFoundError, TraceFormatError, did_you_mean
from opscope.program.xnn_graph import UNKNOWN, ConstantData, DelegateGraph, PayloadHeader, XnnGraph, XnnNode
from opscope.read.fields import FLOAT32, UINT32, UINT64, nested, numbers, referred, texts, union, vectors
from opscope.read.flatbuffer import FlatBuffer
from opscope.read.mapped import mapped_file
from opscope.read.pte import decode_executable
from opscope.read.xnn_schema import NODES
from opscope.read.xnn_values import read_xnn_values

if TYPE_CHECKING:
    from pathlib import Path

    from opscope.program.plan import Executable, Plan, Span
    from opscope.program.xnn_graph import Attributes, XnnValue
    from opscope.read.fields import Member
    from opscope.read.flatbuffer import Tables

BACKEND = "XnnpackBackend"
_MAGIC = b"XH00"
_MAGIC_AT, _MAGIC_END = 4, 8
_HEADER_LENGTH = 30
_IDENTIFIERS = (b"XN01", b"XN00")
_HINT = "export the model again, or copy the file again: the payload is damaged or of a newer kind"
_ABSENT = 2**32 - 1  # the id of an input that is left out
_BY_KEY = 2**64 - 1  # the offset of data that are found by their key

# XNNGraph, XNode, OutputMinMax, ConstantDataOffset
_VERSION, _NODES, _VALUES, _INPUTS, _OUTPUTS, _CONSTANTS = 0, 1, 2, 4, 5, 8
_NODE, _DEBUG_HANDLE, _MIN_MAX = 0, 2, 3
_MIN, _MAX = 0, 1
_OFFSET, _SIZE, _KEY = 0, 1, 2


def read_xnn_graphs(path: Path, method: str | None = None) -> tuple[DelegateGraph, ...]:
    """The XNNPACK delegates of a .pte with their graphs, in the order of the file.

    Args:
        path: the program.
        method: only of this method; None: of all.

    Raises:
        NotFoundError: there is no such file, or no such method in it.
        StorageError: it cannot be read.
        TraceFormatError: the program or a payload is damaged.
    """
    data = mapped_file(path)
    program = decode_executable(data, str(path))
    plans = [plan for plan in program.plans if method in {None, plan.name}]
    if not plans:
        names = [plan.name for plan in program.plans]
        raise NotFoundError(f"no method {method!r}", where=path, hint=did_you_mean(method or "", names))
    return delegate_graphs(data, str(path), program, plans)


def delegate_graphs(
    data: bytes | memoryview, where: str, program: Executable, plans: list[Plan] | None = None
) -> tuple[DelegateGraph, ...]:
    """The XNNPACK delegates of a program whose file is already in memory; a payload that several share is read once.

    Raises:
        TraceFormatError: a payload is missing or damaged.
    """
    found: list[DelegateGraph] = []
    payloads = _Payloads(data)
    for plan in program.plans if plans is None else plans:
        callers = plan.callers()
        for number, delegate in enumerate(plan.delegates):
            if delegate.id == BACKEND:
                graph = payloads.graph(delegate.data, f"{where}, delegate {number} of {plan.name}")
                found.append(DelegateGraph(plan.name, number, callers.get(number, ()), graph))
    return tuple(found)


class _Payloads:
    """Graphs of a file by their place; together they may not be longer than the file."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self._left = len(data)
        self._graphs: dict[Span, XnnGraph] = {}

    def graph(self, span: Span | None, place: str) -> XnnGraph:
        """The graph at a place; ``place`` names the delegate in errors."""
        if span is None:
            raise TraceFormatError("it has no payload", where=place, hint=_HINT)
        if span not in self._graphs:
            self._left -= span.size
            if self._left < 0:
                raise TraceFormatError("payloads overlap each other", where=place, offset=span.offset, hint=_HINT)
            self._graphs[span] = decode_xnn_graph(self._data[span.offset : span.offset + span.size], place)
        return self._graphs[span]


def decode_xnn_graph(payload: bytes | memoryview, where: str) -> XnnGraph:
    """The graph in a payload; ``where`` names it in errors, whose offsets count from the start of the graph.

    Raises:
        TraceFormatError: it is no payload, truncated, or damaged.
    """
    header = _header(payload, where)
    graph = memoryview(payload)[header.graph_offset : header.graph_offset + header.graph_size]
    identifier = bytes(graph[_MAGIC_AT:_MAGIC_END])
    if identifier not in _IDENTIFIERS:
        problem = f"not an XNNPACK graph that can be read: its identifier is {identifier!r}"
        raise TraceFormatError(problem, where=where, offset=header.graph_offset + _MAGIC_AT, hint=_HINT)
    root = FlatBuffer(graph, where).root()
    values, unknown = read_xnn_values(nested(root, _VALUES)[0])
    nodes = _nodes(nested(root, _NODES)[0])
    inputs, outputs = (vectors(root, slot, UINT32)[0] for slot in (_INPUTS, _OUTPUTS))
    if not unknown:
        _check_references(root, values, nodes, inputs + outputs)
    return XnnGraph(
        identifier.decode(), texts(root, _VERSION)[0], header, values, nodes, inputs, outputs, _constants(root), unknown
    )


def _header(payload: bytes | memoryview, where: str) -> PayloadHeader:
    size = len(payload)
    if payload[_MAGIC_AT:_MAGIC_END] != _MAGIC:
        return PayloadHeader(0, size, 0, 0)
    if size < _HEADER_LENGTH:
        raise TraceFormatError("truncated within its header", where=where, offset=size, hint=_HINT)
    header = PayloadHeader(*struct.unpack_from("<IIIQ", payload, 10))
    graph_end = header.graph_offset + header.graph_size
    if max(graph_end, header.constants_offset + header.constants_size) > size:
        raise TraceFormatError(f"its parts reach past its {size:,} bytes", where=where, offset=10, hint=_HINT)
    return header


def _nodes(table: Tables) -> tuple[XnnNode, ...]:
    handles = numbers(table, _DEBUG_HANDLE, UINT32)
    bounds = _bounds(table)
    nodes = [
        XnnNode(UNKNOWN, 0, handle, (), (), *bound, 0, None) for handle, bound in zip(handles, bounds, strict=True)
    ]
    for member in union(table, _NODE):
        described = _described(member)
        for row, (inputs, outputs, flags, attributes) in zip(member.rows, described, strict=True):
            kind = NODES[member.number][0] if member.number in NODES else UNKNOWN
            nodes[row] = XnnNode(
                kind, member.number, handles[row], inputs, outputs, *bounds[row], flags, attributes
            )  # fmt: skip
    return tuple(nodes)


def _bounds(table: Tables) -> list[tuple[float | None, float | None]]:
    bounds: list[tuple[float | None, float | None]] = [(None, None)] * len(table)
    given, rows = referred(table, _MIN_MAX)
    for row, low, high in zip(rows, numbers(given, _MIN, FLOAT32), numbers(given, _MAX, FLOAT32), strict=True):
        bounds[row] = (low, high)
    return bounds


def _described(member: Member) -> list[tuple[tuple[int, ...], tuple[int, ...], int, Attributes | None]]:
    """Inputs, outputs, flags and attributes of nodes of one type; nothing is known of an unknown type."""
    if member.number not in NODES:
        return [((), (), 0, None)] * len(member.rows)
    layout = NODES[member.number][1]
    columns = (
        _ids(member.tables, layout.inputs),
        _ids(member.tables, layout.outputs),
        numbers(member.tables, layout.flags, UINT32),
        layout.read_attributes(member.tables),
    )
    return list(zip(*columns, strict=True))


def _ids(tables: Tables, slots: tuple[int, ...]) -> list[tuple[int, ...]]:
    rows = zip(*(numbers(tables, slot, UINT32) for slot in slots), strict=True)
    return [tuple(number for number in row if number != _ABSENT) for row in rows]


def _constants(root: Tables) -> tuple[ConstantData, ...]:
    table = nested(root, _CONSTANTS)[0]
    columns = numbers(table, _OFFSET, UINT64), numbers(table, _SIZE, UINT64), texts(table, _KEY)
    rows = zip(*columns, strict=True)
    return tuple(ConstantData(None if offset == _BY_KEY else offset, size, key) for offset, size, key in rows)


def _check_references(
    root: Tables, values: tuple[XnnValue, ...], nodes: tuple[XnnNode, ...], externals: tuple[int, ...]
) -> None:
    """Every id that is used belongs to one value."""
    known = np.array([value.id for value in values], np.int64)
    if len(np.unique(known)) < len(known):
        raise root.buffer.error("two values have the same id")
    used = [number for node in nodes for number in node.inputs + node.outputs]
    missing = np.setdiff1d(np.array([*used, *externals], np.int64), known)
    if len(missing):
        raise root.buffer.error(f"value {int(missing[0])} is used and not defined")
