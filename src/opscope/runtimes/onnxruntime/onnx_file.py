"""ONNX programs: what their nodes are, without their weights and without the package ``onnx``.

Source of field numbers: ``onnx/onnx.proto`` of onnx 1.23.2, version 14 of the intermediate representation. Weights are
passed over; integers of short constants are kept, since they are axes, shapes and paddings of nodes.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from opscope.core.errors import TraceFormatError, UsageError
from opscope.core.files import head_of, leads_out
from opscope.core.system.memory import limited
from opscope.core.units import counted_text
from opscope.program.structure.dtypes import NumberType
from opscope.readers.compressed import mapped_file
from opscope.readers.other_files import not_recognised, other_file
from opscope.readers.protobuf import BYTES, FIXED32, VARINT, WireMessage, fields, whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from opscope.readers.protobuf import WireField

_HEAD = 3
_ORT = b"ORTM"
_ORT_HEAD = 8
_NEWEST, _DEEPEST = 64, 32
_IR_VERSION, _GRAPH = 1, 7
_FOLLOWS = {2, 3, 4, 5, 6, 7, 8, 14, 20, 25}
_LONGEST = 64  # elements of a constant that is an option of a node
_EXTERNAL = 1
_MOST_DIMENSIONS, _MOST_ELEMENTS = 64, 1 << 62
_TYPES = {
    1: ("float32", 32),
    2: ("uint8", 8),
    3: ("int8", 8),
    4: ("uint16", 16),
    5: ("int16", 16),
    6: ("int32", 32),
    7: ("int64", 64),
    8: ("string", None),
    9: ("bool", 8),
    10: ("float16", 16),
    11: ("float64", 64),
    12: ("uint32", 32),
    13: ("uint64", 64),
    14: ("complex64", 64),
    15: ("complex128", 128),
    16: ("bfloat16", 16),
    17: ("float8_e4m3fn", 8),
    18: ("float8_e4m3fnuz", 8),
    19: ("float8_e5m2", 8),
    20: ("float8_e5m2fnuz", 8),
    21: ("uint4", 4),
    22: ("int4", 4),
    23: ("float4_e2m1fn", 4),
}

Attribute: TypeAlias = int | float | str | tuple[int, ...] | tuple[float, ...]
Sizes: TypeAlias = tuple[int | str, ...]
"""Of a tensor; a text is a size that the model names, and leaves open. An empty text has no name either."""


class OnnxValue(msgspec.Struct, frozen=True):
    """A tensor that is computed or given."""

    name: str  # in its graph
    dtype: NumberType | None  # None for what is no tensor, as sequences and maps, or of a type that is not stated
    sizes: Sizes | None  # None where the number of dimensions is not stated

    @property
    def fixed(self) -> bool:
        """Whether all its sizes are numbers."""
        return self.sizes is not None and all(isinstance(size, int) for size in self.sizes)


class OnnxWeight(msgspec.Struct, frozen=True):
    """A tensor that is stored with the model."""

    name: str  # in its graph
    dtype: NumberType  # of its elements
    shape: tuple[int, ...]
    external: str | None  # file beside the model that holds its data; None where the model does
    values: tuple[int, ...] | None  # integers of a short constant, which may be an option of a node; None for others


class OnnxOperator(msgspec.Struct, frozen=True):
    """An operator of a graph, of the model or of the one that ran."""

    name: str  # of a model: may be empty, and need not be unique; of a run: as the profile has it, never empty
    op: str  # its type, as `Conv`
    domain: str  # that defines it; empty for ONNX itself
    inputs: tuple[str, ...]  # names of tensors; empty for one that is left out
    outputs: tuple[str, ...]


class OnnxNode(OnnxOperator, frozen=True):
    """An operator as the model has it."""

    attributes: dict[str, Attribute]  # numbers and texts; tensors and types are left out
    graphs: dict[str, OnnxGraph]  # that it runs, by the name of the attribute


class OnnxGraph(msgspec.Struct, frozen=True):
    """Nodes in the order of the file, each behind those whose tensors it reads."""

    name: str  # of the graph
    nodes: tuple[OnnxNode, ...]
    # that a caller gives; those with a stored value, which a caller need not give, are left out
    inputs: tuple[OnnxValue, ...]
    outputs: tuple[OnnxValue, ...]  # that a caller gets
    values: tuple[OnnxValue, ...]  # tensors between nodes whose type is stated
    weights: tuple[OnnxWeight, ...]  # that are stored; those of nodes that are constants come last

    def all_nodes(self) -> Iterator[OnnxNode]:
        """Its nodes, and those of the graphs that they run."""
        for node in self.nodes:
            yield node
            for graph in node.graphs.values():
                yield from graph.all_nodes()

    def all_weights(self) -> Iterator[OnnxWeight]:
        """What is stored with it, and with the graphs that its nodes run."""
        yield from self.weights
        for node in self.nodes:
            for graph in node.graphs.values():
                yield from graph.all_weights()


class OnnxModel(msgspec.Struct, frozen=True):
    """An ONNX program without its weights."""

    version: int  # of the intermediate representation
    producer: str  # program that wrote it, with its version; empty where it does not say
    opsets: dict[str, int]  # version of each domain of operators; the empty one is ONNX itself
    graph: OnnxGraph  # that a caller runs
    functions: tuple[str, ...]  # operators that the model defines itself, as `domain.name`

    def external_files(self) -> tuple[str, ...]:
        """Files with weights beside the model, as it names them."""
        return tuple(dict.fromkeys(one.external for one in self.graph.all_weights() if one.external is not None))


def is_onnx_program(head: bytes) -> bool:
    """Whether a file begins as an ONNX program does: with its version, and a field that stands behind it."""
    if len(head) < _HEAD or head[0] != _IR_VERSION << 3 or not 0 < head[1] < _NEWEST:
        return False
    return head[2] >> 3 in _FOLLOWS and head[2] & 7 in {VARINT, BYTES}


def is_ort(path: Path) -> bool:
    """Whether a file is in the format that ONNX Runtime writes for itself: a FlatBuffer with this identifier."""
    return path.is_file() and head_of(path, _ORT_HEAD)[4:] == _ORT


def is_onnx(path: Path) -> bool:
    """Whether a file is an ONNX program, or one of ONNX Runtime's own."""
    return is_onnx_program(head_of(path, _HEAD)) or is_ort(path)


def read_onnx(path: Path) -> OnnxModel:
    """The program of a file."""
    if is_ort(path):
        problem = "it is in ONNX Runtime's own format (.ort), which has fused operators"
        raise UsageError(problem, where=path, hint="give the original .onnx")
    if not is_onnx_program(head_of(path, _HEAD)) and other_file(path) is not None:
        raise not_recognised(path, "not an ONNX model", "give an .onnx file")
    with limited(path):
        return decode_onnx(mapped_file(path), str(path))


def decode_onnx(data: memoryview, where: str) -> OnnxModel:
    """The program in these bytes; ``where`` names them in errors."""
    members = _Members(whole(data, where))
    version, graph = members.integer(_IR_VERSION), members.message(_GRAPH)
    if version is None or graph is None:
        raise TraceFormatError("it is not an ONNX model: it has no version or no graph", where=where)
    opsets = dict(map(_opset, members.messages(8)))
    if not opsets:
        raise TraceFormatError("it has no operator set versions: it is truncated", where=where)
    return OnnxModel(
        version=version,
        producer=f"{members.text(2)} {members.text(3)}".strip(),
        opsets=opsets,
        graph=_graph(graph),
        functions=tuple(map(_function, members.messages(25))),
    )


def external_paths(model: OnnxModel, path: Path) -> list[Path]:
    """The files with weights of a model, which lie beside it or in directories beside it."""
    paths = []
    home = path.parent.resolve()
    for name in model.external_files():
        file = path.parent / name
        if leads_out(name) or file.resolve() != home / name:
            problem = f"it names {name!r} for its weights, which is not a file next to it"
            raise UsageError(problem, where=path, hint="save the model with its weights in one file next to it")
        if not file.is_file():
            problem = f"its weights are in {name}, which is not next to it"
            raise UsageError(problem, where=path, hint=f"copy them to {file}")
        paths.append(file)
    return paths


class _Members:
    """The fields of a message by their numbers; of one that is not repeated the last counts, as the format wants it."""

    def __init__(self, message: WireMessage) -> None:
        self._fields: dict[int, list[WireField]] = {}
        for field in fields(message):
            self._fields.setdefault(field.number, []).append(field)

    def all(self, number: int) -> list[WireField]:
        return self._fields.get(number, [])

    def last(self, number: int) -> WireField | None:
        return self._fields[number][-1] if number in self._fields else None

    def text(self, number: int) -> str:
        field = self.last(number)
        return field.text() if field else ""

    def texts(self, number: int) -> tuple[str, ...]:
        return tuple(field.text() for field in self.all(number))

    def integer(self, number: int) -> int | None:
        field = self.last(number)
        return field.integer() if field else None

    def integers(self, number: int) -> tuple[int, ...]:
        return tuple(value for field in self.all(number) for value in field.numbers())

    def message(self, number: int) -> WireMessage | None:
        field = self.last(number)
        return field.message() if field else None

    def messages(self, number: int) -> list[WireMessage]:
        return [field.message() for field in self.all(number)]


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _opset(message: WireMessage) -> tuple[str, int]:
    members = _Members(message)
    return _domain(members.text(1)), members.integer(2) or 0


def _function(message: WireMessage) -> str:
    members = _Members(message)
    return f"{members.text(10)}.{members.text(1)}"


def _graph(message: WireMessage, depth: int = 0) -> OnnxGraph:
    if depth > _DEEPEST:
        raise message.error(f"graphs are nested more than {_DEEPEST} deep")
    members = _Members(message)
    weights = (*map(_weight, members.messages(5)), *map(_sparse, members.messages(15)))
    stored = {one.name for one in weights}
    constants = tuple(one for message in members.messages(1) for one in _constant(message))
    inputs, outputs, values = (tuple(map(_value, members.messages(number))) for number in (11, 12, 13))
    return OnnxGraph(
        name=members.text(2),
        nodes=tuple(_node(one, depth) for one in members.messages(1)),
        inputs=tuple(one for one in inputs if one.name not in stored),
        outputs=outputs,
        values=values,
        weights=(*weights, *constants),
    )


def _constant(message: WireMessage) -> Iterator[OnnxWeight]:
    """The tensor of a node that is a constant, by the name of its output."""
    members = _Members(message)
    if members.text(4) != "Constant" or not members.texts(2):
        return
    for one in map(_Members, members.messages(5)):
        tensor, name = one.message(5), members.texts(2)[0]
        whole, several = one.integer(3), one.integers(8)
        if tensor is not None:
            yield msgspec.structs.replace(_weight(tensor), name=name)
        elif one.text(1) == "value_int" and whole is not None:
            yield OnnxWeight(name, _number_type(7), (), None, (whole,))
        elif one.text(1) == "value_ints":
            yield OnnxWeight(name, _number_type(7), (len(several),), None, several)


def _node(message: WireMessage, depth: int) -> OnnxNode:
    members = _Members(message)
    attributes: dict[str, Attribute] = {}
    graphs: dict[str, OnnxGraph] = {}
    for one in map(_Members, members.messages(5)):
        body, value = one.message(6), _attribute(one)
        if body is not None:
            graphs[one.text(1)] = _graph(body, depth + 1)
        elif value is not None:
            attributes[one.text(1)] = value
    return OnnxNode(
        name=members.text(3),
        op=members.text(4),
        domain=_domain(members.text(7)),
        inputs=members.texts(1),
        outputs=members.texts(2),
        attributes=attributes,
        graphs=graphs,
    )


def _attribute(members: _Members) -> Attribute | None:
    """A number, a text or several numbers; None for anything else."""
    single, text = members.last(2), members.last(4)
    if single is not None:
        single.expect(FIXED32)
        return single.floats()[0]
    if text is not None:
        return text.text()
    floats = tuple(value for field in members.all(7) for value in field.floats())
    integer = members.integer(3)
    return integer if integer is not None else floats or members.integers(8) or None


def element_type(code: int) -> str:
    """Name of the type of number that the format has a number for."""
    return _number_type(code).name


def _number_type(code: int | None) -> NumberType:
    name, bits = _TYPES.get(code or 0, (f"type {code}", None))
    return NumberType(name, bits)


def _value(message: WireMessage) -> OnnxValue:
    members = _Members(message)
    kind = members.message(2)
    tensor = _Members(kind).message(1) if kind else None
    if tensor is None:
        return OnnxValue(members.text(1), None, None)
    own = _Members(tensor)
    code, shape = own.integer(1), own.message(2)
    sizes = None if shape is None else tuple(map(_size, _Members(shape).messages(1)))
    if sizes is not None and len(sizes) > _MOST_DIMENSIONS:
        raise message.error(f"a tensor has {counted_text(len(sizes), 'dimension', ',')}")
    return OnnxValue(members.text(1), None if code is None else _number_type(code), sizes)


def _size(message: WireMessage) -> int | str:
    members = _Members(message)
    value = members.integer(1)
    return members.text(2) if value is None else "" if value < 0 else value


def _weight(message: WireMessage) -> OnnxWeight:
    members = _Members(message)
    shape = _stored_shape(message, members.integers(1))
    dtype = _number_type(members.integer(2))
    entries = [_Members(one) for one in members.messages(13)] if members.integer(14) == _EXTERNAL else []
    external = {one.text(1): one.text(2) for one in entries}
    return OnnxWeight(members.text(8), dtype, shape, external.get("location"), _integers(members, dtype, shape))


def _stored_shape(message: WireMessage, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of a stored tensor."""
    if len(shape) > _MOST_DIMENSIONS:
        raise message.error(f"a stored tensor has {counted_text(len(shape), 'dimension', ',')}")
    if any(size < 0 for size in shape):
        raise message.error("a stored tensor has a negative size")
    if math.prod(shape) > _MOST_ELEMENTS:
        raise message.error("a stored tensor has impossibly many elements")
    return shape


def _integers(members: _Members, dtype: NumberType, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Integers of a short constant."""
    layout, place = {"int64": ("q", 7), "int32": ("i", 5)}.get(dtype.name, ("", 0))
    count, raw = math.prod(shape), members.message(9)
    if not layout or count > _LONGEST:
        return None
    if raw is not None:
        if raw.size != count * struct.calcsize(layout):
            raise raw.error(f"a stored tensor of {count} elements has {raw.size} bytes")
        return struct.unpack(f"<{count}{layout}", raw.view())
    values = members.integers(place)
    return values if len(values) == count else None


def _sparse(message: WireMessage) -> OnnxWeight:
    """A sparse tensor: its values, the places where they stand, and its sizes."""
    members = _Members(message)
    values = members.message(1)
    stored = _weight(values) if values else OnnxWeight("", _number_type(None), (), None, None)
    shape = _stored_shape(message, members.integers(3))
    return msgspec.structs.replace(stored, shape=shape, values=None)
