"""Small models as protocol buffers, written field by field.

Field numbers are those of :mod:`opscope.runtimes.onnxruntime.onnx_file`.
Only what these models need is written: one graph, tensors of fixed sizes, attributes that are whole numbers or lists of
them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opscope.experiment.tensors import Array

    Attributes: TypeAlias = Mapping[str, int | Sequence[int]]

_VERSION, _OPERATORS = 8, 17
"""Of the intermediate representation and of the operators: those that ONNX Runtime 1.12 and later read."""
_VARINT, _BYTES = 0, 2
_SEVEN, _MORE = 7, 0x80
_NUMBER, _NUMBERS = 2, 7  # types of an attribute
_TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7}
_SEED = 1


class GivenTensor(NamedTuple):
    """An input of a model."""

    name: str
    dtype: str
    dims: tuple[int, ...]

    def values(self) -> Array:
        """What it is filled with."""
        drawn = np.random.default_rng(_SEED)
        if self.dtype == "float32":
            return drawn.random(self.dims, np.float32)
        limits = np.iinfo(self.dtype)
        return drawn.integers(limits.min, limits.max, self.dims, self.dtype, endpoint=True)


class OnnxBuilder:
    """A model in the making."""

    def __init__(self) -> None:
        self.inputs: list[GivenTensor] = []
        self.outputs: list[str] = []
        self._nodes: list[bytes] = []
        self._stored: list[bytes] = []
        self._made = 0

    def given(self, dims: Sequence[int], dtype: str = "float32") -> str:
        """An input; returns its name."""
        self.inputs.append(GivenTensor(f"in{len(self.inputs)}", dtype, tuple(dims)))
        return self.inputs[-1].name

    def stored(self, values: Array) -> str:
        """A constant; returns its name."""
        name = f"w{len(self._stored)}"
        dims = b"".join(_number(1, size) for size in values.shape)
        kind = _number(2, _TYPES[values.dtype.name])
        self._stored.append(dims + kind + _text(8, name) + _field(9, np.ascontiguousarray(values).tobytes()))
        return name

    def weights(self, dims: Sequence[int], dtype: str = "float32") -> str:
        """Constant numbers; returns their name. They differ from each other, since equal ones are stored once."""
        drawn, count = np.random.default_rng(len(self._stored)), math.prod(dims)
        if dtype == "float32":
            return self.stored(((drawn.random(count, np.float32) - np.float32(0.5)) / 8).reshape(dims))
        return self.stored(drawn.integers(-64, 64, count, np.int8).reshape(dims))

    def add(
        self, operator: str, inputs: Sequence[str], attributes: Mapping[str, int | Sequence[int]] | None = None
    ) -> str:
        """Add a node; returns its output."""
        name, self._made = f"t{self._made}", self._made + 1
        parts = [_text(1, one) for one in inputs]
        parts += [_text(2, name), _text(3, f"n{name}"), _text(4, operator)]
        parts += [_field(5, _attribute(key, value)) for key, value in (attributes or {}).items()]
        self._nodes.append(b"".join(parts))
        return name

    def leaves(self, name: str) -> None:
        """Declare an output; its type is left to the runtime."""
        self.outputs.append(name)

    def content(self) -> bytes:
        """The .onnx."""
        graph = [_field(1, node) for node in self._nodes]
        graph += [_text(2, "ceilings"), *(_field(5, one) for one in self._stored)]
        graph += [_field(11, _value(one)) for one in self.inputs]
        graph += [_field(12, _text(1, name)) for name in self.outputs]
        opset = _text(1, "") + _number(2, _OPERATORS)
        return _number(1, _VERSION) + _field(7, b"".join(graph)) + _field(8, opset)


def _value(tensor: GivenTensor) -> bytes:
    sizes = b"".join(_field(1, _number(1, size)) for size in tensor.dims)
    described = _number(1, _TYPES[tensor.dtype]) + _field(2, sizes)
    return _text(1, tensor.name) + _field(2, _field(1, described))


def _attribute(name: str, value: int | Sequence[int]) -> bytes:
    if isinstance(value, int):
        return _text(1, name) + _number(3, value) + _number(20, _NUMBER)
    return _text(1, name) + _joined(_number(8, one) for one in value) + _number(20, _NUMBERS)


def _joined(parts: Iterable[bytes]) -> bytes:
    return b"".join(parts)


def _text(number: int, value: str) -> bytes:
    return _field(number, value.encode())


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value & (1 << 64) - 1)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= _MORE:
        found.append(value & (_MORE - 1) | _MORE)
        value >>= _SEVEN
    found.append(value)
    return bytes(found)
