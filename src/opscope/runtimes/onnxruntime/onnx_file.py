"""Read ONNX programs: their nodes, without their weights and without the package ``onnx``.

Source of field numbers: ``onnx/onnx.proto`` of onnx 1.23.2, version 14 of the intermediate representation.
Weights are skipped; integers of short constants are kept, since they are axes, shapes and paddings of nodes.
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
"""Sizes of a tensor. A text is the name of an open size; an empty text is an open size without a name."""


class OnnxValue(msgspec.Struct, frozen=True):
    """A tensor that is computed, or given by a caller."""

    name: str  # in its graph
    dtype: NumberType | None  # None for what is no tensor, as sequences and maps, or of a type that is not stated
    sizes: Sizes | None  # None where the number of dimensions is not stated

    @property
    def fixed(self) -> bool:
        """Return whether all sizes are numbers."""
        return self.sizes is not None and all(isinstance(size, int) for size in self.sizes)


class OnnxWeight(msgspec.Struct, frozen=True):
    """A tensor that is stored with the model."""

    name: str  # in its graph
    dtype: NumberType  # of its elements
    shape: tuple[int, ...]
    external: str | None  # file beside the model that holds its data; None where the model does
    values: tuple[int, ...] | None  # integers of a short constant, which may be an option of a node; None for others


class OnnxOperator(msgspec.Struct, frozen=True):
    """An operator of a graph, of the model or of the graph that ran."""

    name: str  # of a model: may be empty, and need not be unique; of a run: as the profile has it, never empty
    op: str  # its type, as `Conv`
    domain: str  # that defines it; empty for ONNX itself
    inputs: tuple[str, ...]  # names of tensors; empty for one that is left out
    outputs: tuple[str, ...]


class OnnxNode(OnnxOperator, frozen=True):
    """An operator of the model with its attributes and nested graphs."""

    attributes: dict[str, Attribute]  # numbers and texts; tensors and types are left out
    graphs: dict[str, OnnxGraph]  # that it runs, by the name of the attribute


class OnnxGraph(msgspec.Struct, frozen=True):
    """Nodes in the order of the file, each after those whose tensors it reads."""

    name: str  # of the graph
    nodes: tuple[OnnxNode, ...]
    # that a caller gives; those with a stored value, which a caller need not give, are left out
    inputs: tuple[OnnxValue, ...]
    outputs: tuple[OnnxValue, ...]  # that a caller gets
    values: tuple[OnnxValue, ...]  # tensors between nodes whose type is stated
    weights: tuple[OnnxWeight, ...]  # that are stored; those of nodes that are constants come last

    def all_nodes(self) -> Iterator[OnnxNode]:
        """Yield the nodes, each followed by those of its nested graphs."""
        for node in self.nodes:
            yield node
            for graph in node.graphs.values():
                yield from graph.all_nodes()

    def all_weights(self) -> Iterator[OnnxWeight]:
        """Yield the stored tensors, followed by those of nested graphs."""
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
        """Return the files with weights beside the model, by the names in the model."""
        return tuple(
            dict.fromkeys(weight.external for weight in self.graph.all_weights() if weight.external is not None)
        )


def is_onnx_program(head: bytes) -> bool:
    """Return whether a file begins like an ONNX program: with its version, and a field that may follow."""
    if len(head) < _HEAD or head[0] != _IR_VERSION << 3 or not 0 < head[1] < _NEWEST:
        return False
    return head[2] >> 3 in _FOLLOWS and head[2] & 7 in {VARINT, BYTES}


def is_ort(path: Path) -> bool:
    """Return whether a file is in ONNX Runtime's own format: a FlatBuffer with its identifier."""
    return path.is_file() and head_of(path, _ORT_HEAD)[4:] == _ORT


def is_onnx(path: Path) -> bool:
    """Return whether a file is an ONNX program, or one in ONNX Runtime's own format."""
    return is_onnx_program(head_of(path, _HEAD)) or is_ort(path)


def read_onnx(path: Path) -> OnnxModel:
    """Read a program from a file. Raises UsageError for an .ort, TraceFormatError for other files."""
    if is_ort(path):
        problem = "it is in ONNX Runtime's own format (.ort), which has fused operators"
        raise UsageError(problem, where=path, hint="give the original .onnx")
    if not is_onnx_program(head_of(path, _HEAD)) and other_file(path) is not None:
        raise not_recognised(path, "not an ONNX model", "give an .onnx file")
    with limited(path):
        return decode_onnx(mapped_file(path), str(path))


def decode_onnx(data: memoryview, where: str) -> OnnxModel:
    """Decode a program; ``where`` names its source in errors."""
    members = _Members(whole(data, where))
    version, graph = members.integer(_IR_VERSION), members.message(_GRAPH)
    if version is None or graph is None:
        raise TraceFormatError("it is not an ONNX model: it has no version or no graph", where=where)
    opsets = dict(map(_decode_opset, members.messages(8)))
    if not opsets:
        raise TraceFormatError("it has no operator set versions: it is truncated", where=where)
    return OnnxModel(
        version=version,
        producer=f"{members.text(2)} {members.text(3)}".strip(),
        opsets=opsets,
        graph=_decode_graph(graph),
        functions=tuple(map(_decode_function_name, members.messages(25))),
    )


def external_paths(model: OnnxModel, path: Path) -> list[Path]:
    """Return the files with weights of a model, which lie beside it or in directories beside it.

    Raises UsageError if one of them is missing or elsewhere.
    """
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
    """The fields of a message, by number.

    Of a field that is not repeated, the last one counts, as the format demands.
    """

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


def _canonical_domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _decode_opset(message: WireMessage) -> tuple[str, int]:
    members = _Members(message)
    return _canonical_domain(members.text(1)), members.integer(2) or 0


def _decode_function_name(message: WireMessage) -> str:
    members = _Members(message)
    return f"{members.text(10)}.{members.text(1)}"


def _decode_graph(message: WireMessage, depth: int = 0) -> OnnxGraph:
    if depth > _DEEPEST:
        raise message.error(f"graphs are nested more than {_DEEPEST} deep")
    members = _Members(message)
    weights = (*map(_decode_weight, members.messages(5)), *map(_decode_sparse, members.messages(15)))
    stored = {weight.name for weight in weights}
    constants = tuple(constant for message in members.messages(1) for constant in _decode_constant(message))
    inputs, outputs, values = (tuple(map(_decode_value, members.messages(number))) for number in (11, 12, 13))
    return OnnxGraph(
        name=members.text(2),
        nodes=tuple(_decode_node(node_message, depth) for node_message in members.messages(1)),
        inputs=tuple(value for value in inputs if value.name not in stored),
        outputs=outputs,
        values=values,
        weights=(*weights, *constants),
    )


def _decode_constant(message: WireMessage) -> Iterator[OnnxWeight]:
    """Yield the tensor of a node that is a constant, by the name of its output."""
    members = _Members(message)
    if members.text(4) != "Constant" or not members.texts(2):
        return
    for attribute in map(_Members, members.messages(5)):
        tensor, name = attribute.message(5), members.texts(2)[0]
        integer, integers = attribute.integer(3), attribute.integers(8)
        if tensor is not None:
            yield msgspec.structs.replace(_decode_weight(tensor), name=name)
        elif attribute.text(1) == "value_int" and integer is not None:
            yield OnnxWeight(name, _number_type(7), (), None, (integer,))
        elif attribute.text(1) == "value_ints":
            yield OnnxWeight(name, _number_type(7), (len(integers),), None, integers)


def _decode_node(message: WireMessage, depth: int) -> OnnxNode:
    members = _Members(message)
    attributes: dict[str, Attribute] = {}
    graphs: dict[str, OnnxGraph] = {}
    for attribute in map(_Members, members.messages(5)):
        body, value = attribute.message(6), _decode_attribute(attribute)
        if body is not None:
            graphs[attribute.text(1)] = _decode_graph(body, depth + 1)
        elif value is not None:
            attributes[attribute.text(1)] = value
    return OnnxNode(
        name=members.text(3),
        op=members.text(4),
        domain=_canonical_domain(members.text(7)),
        inputs=members.texts(1),
        outputs=members.texts(2),
        attributes=attributes,
        graphs=graphs,
    )


def _decode_attribute(members: _Members) -> Attribute | None:
    """Decode a number, a text or several numbers; None for anything else."""
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
    """Return the name of a number type, by its code in the format."""
    return _number_type(code).name


def _number_type(code: int | None) -> NumberType:
    name, bits = _TYPES.get(code or 0, (f"type {code}", None))
    return NumberType(name, bits)


def _decode_value(message: WireMessage) -> OnnxValue:
    members = _Members(message)
    kind = members.message(2)
    tensor = _Members(kind).message(1) if kind else None
    if tensor is None:
        return OnnxValue(members.text(1), None, None)
    tensor_type = _Members(tensor)
    code, shape = tensor_type.integer(1), tensor_type.message(2)
    sizes = None if shape is None else tuple(map(_decode_size, _Members(shape).messages(1)))
    if sizes is not None and len(sizes) > _MOST_DIMENSIONS:
        raise message.error(f"a tensor has {counted_text(len(sizes), 'dimension', ',')}")
    return OnnxValue(members.text(1), None if code is None else _number_type(code), sizes)


def _decode_size(message: WireMessage) -> int | str:
    members = _Members(message)
    value = members.integer(1)
    return members.text(2) if value is None else "" if value < 0 else value


def _decode_weight(message: WireMessage) -> OnnxWeight:
    members = _Members(message)
    shape = _stored_shape(message, members.integers(1))
    dtype = _number_type(members.integer(2))
    entries = [_Members(member) for member in members.messages(13)] if members.integer(14) == _EXTERNAL else []
    external = {pair.text(1): pair.text(2) for pair in entries}
    return OnnxWeight(
        members.text(8), dtype, shape, external.get("location"), _decode_short_integers(members, dtype, shape)
    )


def _stored_shape(message: WireMessage, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes of a stored tensor. Raises TraceFormatError if they are impossible."""
    if len(shape) > _MOST_DIMENSIONS:
        raise message.error(f"a stored tensor has {counted_text(len(shape), 'dimension', ',')}")
    if any(size < 0 for size in shape):
        raise message.error("a stored tensor has a negative size")
    if math.prod(shape) > _MOST_ELEMENTS:
        raise message.error("a stored tensor has impossibly many elements")
    return shape


def _decode_short_integers(members: _Members, dtype: NumberType, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the integers of a short constant; None for other tensors."""
    layout, field_number = {"int64": ("q", 7), "int32": ("i", 5)}.get(dtype.name, ("", 0))
    count, raw = math.prod(shape), members.message(9)
    if not layout or count > _LONGEST:
        return None
    if raw is not None:
        if raw.size != count * struct.calcsize(layout):
            raise raw.error(f"a stored tensor of {count} elements has {raw.size} bytes")
        return struct.unpack(f"<{count}{layout}", raw.view())
    values = members.integers(field_number)
    return values if len(values) == count else None


def _decode_sparse(message: WireMessage) -> OnnxWeight:
    """Decode a sparse tensor: its values, their indices, and its sizes."""
    members = _Members(message)
    values = members.message(1)
    stored = _decode_weight(values) if values else OnnxWeight("", _number_type(None), (), None, None)
    shape = _stored_shape(message, members.integers(3))
    return msgspec.structs.replace(stored, shape=shape, values=None)
