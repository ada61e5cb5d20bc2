"""Tensors in raw files: inputs made from a seed, and conversion between memory order and arrays.

The values come from numpy's frozen generator, so a seed means the same inputs on every machine, with every target.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from opscope.core.errors import RunError
from opscope.core.units import counted_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.program.structure.exported import Tensor

Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.generic]]

_FLOATS = ("float16", "float32", "float64", "bfloat16")
_INTEGERS = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
NUMBER_TYPES = (*_FLOATS, *_INTEGERS)
"""Types of tensors whose values can be made and read."""

# numpy has no bfloat16: such values are float32 in arrays, of which the upper half is kept in bytes.
_BFLOAT16 = "bfloat16"
_HALF_OF_UNIT, _UPPER = 0x7FFF, 16


def random_inputs(tensors: Sequence[Tensor], seed: int) -> list[Array]:
    """Return inputs of these shapes and types: normal numbers, small non-negative integers.

    Returns arrays of the type asked for; float32 where that is bfloat16.
    """
    # Its stream is frozen; those of the newer generators are not.
    generator = np.random.RandomState(seed)
    return [_random_array(generator, tensor) for tensor in tensors]


def _random_array(generator: np.random.RandomState, tensor: Tensor) -> Array:
    if tensor.dtype in _FLOATS:
        values = generator.standard_normal(tensor.shape).astype(np.float32)
        return values.astype(_numpy_type(tensor.dtype))
    if tensor.dtype in _INTEGERS:
        return generator.randint(0, 2, tensor.shape).astype(_numpy_type(tensor.dtype))
    raise RunError(f"inputs of number type {tensor.dtype} are not supported")


def as_type(values: Array, dtype: str) -> Array:
    """Return values as a number type; float32 for bfloat16."""
    return values.astype(_numpy_type(dtype))


def to_bytes(array: Array, dtype: str, order: Sequence[int]) -> bytes:
    """Return the bytes of a tensor in memory order."""
    laid = np.ascontiguousarray(array.transpose(order))
    return _round_to_bfloat16(laid).tobytes() if dtype == _BFLOAT16 else laid.tobytes()


def from_bytes(data: bytes, tensor: Tensor, order: Sequence[int]) -> Array:
    """Return the tensor whose bytes are in memory order; the inverse of :func:`to_bytes`."""
    if tensor.dtype not in NUMBER_TYPES:
        raise RunError(f"outputs of number type {tensor.dtype} are not supported")
    wide = tensor.dtype == _BFLOAT16
    flat = np.frombuffer(data, np.dtype(np.uint16) if wide else _numpy_type(tensor.dtype))
    laid = [tensor.shape[dimension] for dimension in order]
    if flat.size != np.prod(laid, dtype=np.int64):
        raise RunError(f"an output of shape {tensor.shape} has {counted_text(flat.size, 'value')}")
    values = (flat.astype(np.uint32) << _UPPER).view(np.float32) if wide else flat
    array: Array = values.reshape(laid).transpose(np.argsort(order))
    return array


def _numpy_type(name: str) -> np.dtype[np.generic]:
    return np.dtype("float32" if name == _BFLOAT16 else name)


def _round_to_bfloat16(values: Array) -> np.ndarray[tuple[int, ...], np.dtype[np.uint16]]:
    """Return the upper halves of float32 values, rounded to nearest even as torch rounds them."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    odd = (bits >> _UPPER) & 1
    return ((bits + _HALF_OF_UNIT + odd) >> _UPPER).astype(np.uint16)
