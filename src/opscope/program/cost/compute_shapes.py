"""Shapes of what products, convolutions, pooling, normalisations and reductions leave.

Positions of arguments are those of ATen's schemas. A rule gives a shape for each output, and raises NotKnownError where
a shape or an option is unknown or impossible.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from opscope.program.cost.dimensions import NotKnownError, Shape, Window, at_least, of_rank, place_in, product, replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from opscope.program.cost.call import OperatorCall

_MATRIX = 2
_IMAGE = 3  # channels, height and width
_BATCH = 4
_STRIDE, _PADDING, _DILATION, _TRANSPOSED, _ADJUSTMENT, _GROUPS = range(3, 9)


def product_of(first: int) -> Callable[[OperatorCall], tuple[Shape, ...]]:
    """A matrix product of argument ``first`` and the one behind it."""
    return lambda call: (product(call.shape(first), call.shape(first + 1)),)


def linear(call: OperatorCall) -> tuple[Shape, ...]:
    """A product with a transposed matrix."""
    return (product(at_least(call.shape(0), _MATRIX), of_rank(call.shape(1), _MATRIX)[::-1]),)


def attention(call: OperatorCall) -> tuple[Shape, ...]:
    """As the query, with the width of the values."""
    query, value = at_least(call.shape(0), 1), at_least(call.shape(2), 1)
    return ((*query[:-1], value[-1]),)


def convolution(call: OperatorCall) -> tuple[Shape, ...]:
    """With its channels from the filter."""
    data, weight = at_least(call.shape(0), _IMAGE), call.shape(1)
    rank = len(of_rank(weight, len(data))) - 2
    stride, padding, dilation, adjustment = (
        _for_each(call.numbers(position), rank) for position in (_STRIDE, _PADDING, _DILATION, _ADJUSTMENT)
    )
    windows = _windows(weight[2:], stride, padding, dilation)
    if call.is_set(_TRANSPOSED):
        sizes = (window.expanded(*pair) for window, *pair in zip(windows, data[2:], adjustment, strict=True))
        return ((data[0], weight[1] * call.number(_GROUPS), *sizes),)
    return ((data[0], weight[0], *_walked(windows, data[2:])),)


def pooling(ceil: int, dilation: int | None) -> Callable[[OperatorCall], tuple[Shape, ...]]:
    """Pooling of images with kernel, stride and padding behind the data; an empty stride is the kernel's size."""

    def rule(call: OperatorCall) -> tuple[Shape, ...]:
        data = at_least(call.shape(0), _IMAGE)
        kernel, padding = _for_each(call.numbers(1), 2), _for_each(call.numbers(3), 2)
        stride = _for_each(call.numbers(2) or kernel, 2)
        spread = (1, 1) if dilation is None else _for_each(call.numbers(dilation), 2)
        windows = _windows(kernel, stride, padding, spread)
        shape = (*data[:-2], *_walked(windows, data[-2:], ceil=call.is_set(ceil)))
        return (shape, shape)

    return rule


def _for_each(given: Shape, rank: int) -> Shape:
    """A number for each dimension; a single one holds for all."""
    return of_rank(given * rank if len(given) == 1 else given, rank)


def _windows(size: Shape, stride: Shape, padding: Shape, dilation: Shape) -> list[Window]:
    both = (2 * side for side in padding)
    return [Window(*window) for window in zip(size, stride, both, dilation, strict=True)]


def _walked(windows: list[Window], data: Shape, *, ceil: bool = False) -> Iterable[int]:
    return (window.positions(length, ceil=ceil) for window, length in zip(windows, data, strict=True))


def adaptive(call: OperatorCall) -> tuple[Shape, ...]:
    """Pooling to a given size."""
    return ((*at_least(call.shape(0), _IMAGE)[:-2], *of_rank(call.numbers(1), 2)),)


def layer_norm(call: OperatorCall) -> tuple[Shape, ...]:
    """The result, and one mean and one deviation for each stretch that was normalised."""
    data, normal = call.shape(0), call.numbers(1)
    statistics = at_least(data, len(normal))[: len(data) - len(normal)] + (1,) * len(normal)
    return (data, statistics, statistics)


def group_norm(call: OperatorCall) -> tuple[Shape, ...]:
    """The result, and one mean and one deviation for each group of channels."""
    data, statistics = call.shape(0), (call.number(3), call.number(6))
    return (data, statistics, statistics)


def reduction(dims: int, keep: int) -> Callable[[OperatorCall], tuple[Shape, ...]]:
    """Given positions of the dimensions to reduce and of whether they stay with size 1; no dimensions are all."""

    def rule(call: OperatorCall) -> tuple[Shape, ...]:
        data = call.shape(0)
        if call.overload in {"all_out", "unary_out", "dtype_out"} or not data:
            return ((), ())
        gone = {place_in(axis, len(data)) for axis in call.listed(dims)} or set(range(len(data)))
        kept = (1,) if call.is_set(keep) else ()
        shape = tuple(size for place in range(len(data)) for size in (kept if place in gone else (data[place],)))
        return (shape, shape)

    return rule


def prod(call: OperatorCall) -> tuple[Shape, ...]:
    """A product along one dimension, or of all elements."""
    return reduction(1, 2)(call) if call.overload == "int_out" else ((),)


def topk(call: OperatorCall) -> tuple[Shape, ...]:
    """The greatest elements along a dimension, and where they stood."""
    data = call.shape(0)
    shape = replaced(data, call.axis(2, data), call.number(1))
    return (shape, shape)


def upsample(scales: int) -> Callable[[OperatorCall], tuple[Shape, ...]]:
    """Images of a given size, or larger by given factors."""

    def rule(call: OperatorCall) -> tuple[Shape, ...]:
        data = of_rank(call.shape(0), _BATCH)
        size = call.numbers(1) if call.has(1) else _scaled(call, scales, data[2:])
        return (data[:2] + of_rank(size, 2),)

    return rule


def _scaled(call: OperatorCall, position: int, lengths: Shape) -> Shape:
    factors = call.argument(position)
    if not isinstance(factors, tuple) or len(factors) != len(lengths):
        raise NotKnownError
    sizes = [length * factor for length, factor in zip(lengths, factors, strict=True)]
    if not all(map(math.isfinite, sizes)):
        raise NotKnownError
    return tuple(map(int, sizes))


def pixel_shuffle(call: OperatorCall) -> tuple[Shape, ...]:
    """Channels laid out as pixels."""
    *leading, channels, height, width = at_least(call.shape(0), _IMAGE)
    factor = _factor(call)
    return ((*leading, channels // factor**2, height * factor, width * factor),)


def pixel_unshuffle(call: OperatorCall) -> tuple[Shape, ...]:
    """Pixels laid out as channels."""
    *leading, channels, height, width = at_least(call.shape(0), _IMAGE)
    factor = _factor(call)
    return ((*leading, channels * factor**2, height // factor, width // factor),)


def _factor(call: OperatorCall) -> int:
    factor = call.number(1)
    if factor < 1:
        raise NotKnownError
    return factor
