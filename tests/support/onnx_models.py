"""ONNX models written byte by byte, without the package ``onnx``: nodes with or without names, graphs within nodes.

Field numbers are those of ``onnx/onnx.proto``.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NewType, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Body = NewType("Body", bytes)
"""A graph, as the attribute of a node."""
Attribute: TypeAlias = "int | float | str | list[int] | np.ndarray | Body"
Sizes: TypeAlias = "Sequence[int | str] | None"

_WHOLE = {"uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "uint32": 12, "uint64": 13}
_TYPES = {**_WHOLE, "float32": 1, "float16": 10, "float64": 11, "string": 8}
_VARINT, _BYTES, _FIXED32 = 0, 2, 5


def node(op: str, inputs: str, outputs: str, name: str = "", domain: str = "", **attributes: Attribute) -> bytes:
    """A node; names of tensors are separated by blanks, and ``_`` is one that is left out."""
    read, made = ([one.replace("_", "") if one == "_" else one for one in text.split()] for text in (inputs, outputs))
    return b"".join(
        (
            *(_part(1, one) for one in read),
            *(_part(2, one) for one in made),
            *((_part(3, name),) if name else ()),
            _part(4, op),
            *(_part(5, _attribute(*pair)) for pair in attributes.items()),
            _part(7, domain),
        )
    )


def body(
    nodes: Iterable[bytes],
    inputs: Mapping[str, tuple[str, Sizes]],
    outputs: Mapping[str, tuple[str, Sizes]],
    weights: Mapping[str, np.ndarray] | None = None,
) -> Body:
    """A graph; an input or output has a type and sizes, None where they are not stated."""
    return Body(
        b"".join(
            (
                *(_part(1, one) for one in nodes),
                _part(2, "main"),
                *(_part(5, _tensor(name, values)) for name, values in (weights or {}).items()),
                *(_part(11, _value(name, *own)) for name, own in inputs.items()),
                *(_part(12, _value(name, *own)) for name, own in outputs.items()),
            )
        )
    )


def function(name: str, inputs: str, outputs: str, nodes: Iterable[bytes]) -> bytes:
    """An operator of the domain ``own`` that the model defines."""
    parts = [_part(1, name), *(_part(4, one) for one in inputs.split()), *(_part(5, one) for one in outputs.split())]
    return b"".join((*parts, *(_part(7, one) for one in nodes), _part(9, _opset("", 17)), _part(10, "own")))


def model(graph: Body, functions: Iterable[bytes] = ()) -> bytes:
    """The whole file."""
    domains = [_opset("", 17), _opset("com.microsoft", 1), _opset("own", 1)]
    return b"".join(
        (
            _part(1, 8),
            _part(7, graph),
            *(_part(8, one) for one in domains),
            *(_part(25, one) for one in functions),
        )
    )


def _opset(domain: str, version: int) -> bytes:
    return _part(1, domain) + _part(2, version)


def _attribute(name: str, value: Attribute) -> bytes:
    """Types of attributes: ``AttributeProto.AttributeType``."""
    if isinstance(value, float):
        return _part(1, name) + _tag(2, _FIXED32) + struct.pack("<f", value) + _part(20, 1)
    if isinstance(value, int):
        return _part(1, name) + _part(3, value) + _part(20, 2)
    if isinstance(value, str):
        return _part(1, name) + _part(4, value) + _part(20, 3)
    if isinstance(value, np.ndarray):
        return _part(1, name) + _part(5, _tensor("", value)) + _part(20, 4)
    if isinstance(value, bytes):
        return _part(1, name) + _part(6, value) + _part(20, 5)
    return _part(1, name) + b"".join(_part(8, one) for one in value) + _part(20, 7)


def _tensor(name: str, values: np.ndarray) -> bytes:
    sizes = b"".join(_part(1, size) for size in values.shape)
    return sizes + _part(2, _TYPES[values.dtype.name]) + _part(8, name) + _part(9, values.tobytes())


def _value(name: str, dtype: str, sizes: Sizes) -> bytes:
    shape = b"".join(_part(1, _part(2 if isinstance(size, str) else 1, size)) for size in sizes or ())
    kind = _part(1, _TYPES[dtype]) + (_part(2, shape) if sizes is not None else b"")
    return _part(1, name) + _part(2, _part(1, kind))


def _part(number: int, value: bytes | str | int) -> bytes:
    if isinstance(value, int):
        return _tag(number, _VARINT) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _tag(number, _BYTES) + _varint(len(data)) + data


def _tag(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _varint(value: int) -> bytes:
    left, found = value & (1 << 64) - 1, bytearray()
    while left > 127:
        found.append(left & 127 | 128)
        left >>= 7
    return bytes([*found, left])
