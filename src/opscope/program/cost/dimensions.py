"""Arithmetic on shapes that XNNPACK's nodes and ATen's operators share."""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import NamedTuple, TypeAlias

Shape: TypeAlias = tuple[int, ...]
MOST_DIMENSIONS = 16  # runtime/core/exec_aten/util/tensor_dimension_limit.h of ExecuTorch
_MATRIX = 2


class NotKnownError(Exception):
    """Raised if a shape, width or option that a formula needs is missing or impossible.

    It stays inside this room: callers then get None or a missing value.
    """


class Window(NamedTuple):
    """Movement of a filter or a pooling window along one dimension; padding is that of both sides together."""

    size: int
    stride: int
    padding: int = 0
    dilation: int = 1

    def positions(self, length: int, *, ceil: bool = False) -> int:
        """Return the number of outputs along a dimension of this length.

        ``ceil`` also counts a last window that does not fit, unless it starts after the data.
        """
        room = max(0, length + self.padding - self._window_span(length))
        if not ceil:
            return room // self.stride + 1
        more = -(-room // self.stride)
        return more if more * self.stride >= length + self.padding // 2 else more + 1

    def expanded(self, length: int, adjustment: int = 0) -> int:
        """Return the number of outputs of a transposed convolution along a dimension of this length."""
        return max(0, (length - 1) * self.stride + adjustment + self._window_span(length) - self.padding)

    def _window_span(self, length: int) -> int:
        """Return the distance from the window's first to its last element."""
        if min(self.size, self.stride, self.dilation) < 1 or min(self.padding, length) < 0:
            raise NotKnownError
        return (self.size - 1) * self.dilation + 1


def elements(shape: Shape) -> int:
    """Return the number of elements of a tensor; 1 for a scalar."""
    return math.prod(shape)


def of_rank(shape: Shape, rank: int) -> Shape:
    """Return the shape if it has so many dimensions; raise NotKnownError otherwise."""
    if len(shape) != rank:
        raise NotKnownError
    return shape


def at_least(shape: Shape, rank: int) -> Shape:
    """Return the shape if it has so many dimensions or more; raise NotKnownError otherwise."""
    if len(shape) < rank:
        raise NotKnownError
    return shape


def fits(shape: Shape, bound: Shape) -> bool:
    """Return whether no size exceeds its bound, nor their number what the runtime allows."""
    return len(shape) == len(bound) <= MOST_DIMENSIONS and all(
        0 <= size <= most for size, most in zip(shape, bound, strict=True)
    )


def broadcast(*shapes: Shape) -> Shape:
    """Return the shape of an elementwise result. Raises NotKnownError if the shapes do not broadcast."""
    out: list[int] = []
    for column in zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1):
        sizes = set(column) - {1}
        if len(sizes) > 1:
            raise NotKnownError
        out.append(sizes.pop() if sizes else 1)
    return tuple(reversed(out))


def resolved(requested: Shape, count: int, unknown: int = -1) -> Shape:
    """Return a shape for ``count`` elements with its one ``unknown`` size filled in."""
    free = requested.count(unknown)
    known = elements(tuple(size for size in requested if size != unknown))
    if not free and known == count:
        return requested
    if free != 1 or known < 1 or count % known:
        raise NotKnownError
    return tuple(count // known if size == unknown else size for size in requested)


def product(first: Shape, second: Shape) -> Shape:
    """Return the shape of a product of matrices, or of stacks of them whose leading dimensions broadcast."""
    if min(len(first), len(second)) < _MATRIX or first[-1] != second[-2]:
        raise NotKnownError
    return (*broadcast(first[:-2], second[:-2]), first[-2], second[-1])


def place_in(axis: int, rank: int) -> int:
    """Return a dimension counted from the first; negative ones count from the end."""
    if not -rank <= axis < rank:
        raise NotKnownError
    return axis % rank


def concatenated(shapes: tuple[Shape, ...], axis: int) -> Shape:
    """Return the shape of tensors that are concatenated along a dimension."""
    first = at_least(shapes[0] if shapes else (), 1)
    position = place_in(axis, len(first))
    frames = {of_rank(shape, len(first))[:position] + shape[position + 1 :] for shape in shapes}
    if len(frames) > 1:
        raise NotKnownError
    return replaced(first, position, sum(shape[position] for shape in shapes))


def replaced(shape: Shape, position: int, *sizes: int) -> Shape:
    """Return the shape with other sizes, or none, in place of the size at a position."""
    return (*shape[:position], *sizes, *shape[position + 1 :])


def permuted(shape: Shape, order: Shape) -> Shape:
    """Return the shape with its dimensions in another order."""
    axes = [place_in(axis, len(shape)) for axis in of_rank(order, len(shape))]
    if len(set(axes)) < len(axes):
        raise NotKnownError
    return tuple(shape[axis] for axis in axes)
