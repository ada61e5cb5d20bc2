"""Arithmetic on shapes that XNNPACK's nodes and ATen's operators share."""

from __future__ import annotations

import math
from itertools import zip_longest
from typing import NamedTuple, TypeAlias

Shape: TypeAlias = tuple[int, ...]
MOST_DIMENSIONS = 16  # runtime/core/exec_aten/util/tensor_dimension_limit.h of ExecuTorch
_MATRIX = 2


class NotKnownError(Exception):
    """A shape, width or option that a formula needs is missing or impossible.

    It stays inside this room: what a caller asks for is then None or absent.
    """


class Window(NamedTuple):
    """How a filter or a pooling window walks along one dimension; padding is that of both sides together."""

    size: int
    stride: int
    padding: int = 0
    dilation: int = 1

    def positions(self, length: int, *, ceil: bool = False) -> int:
        """Outputs along a dimension of this length.

        ``ceil`` counts a last window that does not fit too, unless it starts behind the data.
        """
        room = max(0, length + self.padding - self._reach(length))
        if not ceil:
            return room // self.stride + 1
        more = -(-room // self.stride)
        return more if more * self.stride >= length + self.padding // 2 else more + 1

    def expanded(self, length: int, adjustment: int = 0) -> int:
        """Outputs of a transposed convolution along a dimension of this length."""
        return max(0, (length - 1) * self.stride + adjustment + self._reach(length) - self.padding)

    def _reach(self, length: int) -> int:
        """From the window's first to its last element."""
        if min(self.size, self.stride, self.dilation) < 1 or min(self.padding, length) < 0:
            raise NotKnownError
        return (self.size - 1) * self.dilation + 1


def elements(shape: Shape) -> int:
    """Number of elements of a tensor; 1 for a scalar."""
    return math.prod(shape)


def of_rank(shape: Shape, rank: int) -> Shape:
    """The shape, which has so many dimensions."""
    if len(shape) != rank:
        raise NotKnownError
    return shape


def at_least(shape: Shape, rank: int) -> Shape:
    """The shape, which has so many dimensions or more."""
    if len(shape) < rank:
        raise NotKnownError
    return shape


def fits(shape: Shape, bound: Shape) -> bool:
    """Whether no size is beyond its bound, nor their number beyond what the runtime takes."""
    return len(shape) == len(bound) <= MOST_DIMENSIONS and all(
        0 <= size <= most for size, most in zip(shape, bound, strict=True)
    )


def broadcast(*shapes: Shape) -> Shape:
    """The shape of an elementwise result."""
    out: list[int] = []
    for column in zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1):
        sizes = set(column) - {1}
        if len(sizes) > 1:
            raise NotKnownError
        out.append(sizes.pop() if sizes else 1)
    return tuple(reversed(out))


def resolved(wanted: Shape, count: int, unknown: int = -1) -> Shape:
    """A shape for ``count`` elements with its one ``unknown`` size filled in."""
    free = wanted.count(unknown)
    known = elements(tuple(size for size in wanted if size != unknown))
    if not free and known == count:
        return wanted
    if free != 1 or known < 1 or count % known:
        raise NotKnownError
    return tuple(count // known if size == unknown else size for size in wanted)


def product(left: Shape, right: Shape) -> Shape:
    """The shape of a product of matrices, or of stacks of them whose leading dimensions broadcast."""
    if min(len(left), len(right)) < _MATRIX or left[-1] != right[-2]:
        raise NotKnownError
    return (*broadcast(left[:-2], right[:-2]), left[-2], right[-1])


def place_in(axis: int, rank: int) -> int:
    """A dimension counted from the first; negative ones count from behind the last."""
    if not -rank <= axis < rank:
        raise NotKnownError
    return axis % rank


def concatenated(shapes: tuple[Shape, ...], axis: int) -> Shape:
    """The shape of tensors laid one after another along a dimension."""
    first = at_least(shapes[0] if shapes else (), 1)
    place = place_in(axis, len(first))
    frames = {of_rank(shape, len(first))[:place] + shape[place + 1 :] for shape in shapes}
    if len(frames) > 1:
        raise NotKnownError
    return replaced(first, place, sum(shape[place] for shape in shapes))


def replaced(shape: Shape, place: int, *sizes: int) -> Shape:
    """The shape with other sizes, or none, instead of that at a place."""
    return (*shape[:place], *sizes, *shape[place + 1 :])


def permuted(shape: Shape, order: Shape) -> Shape:
    """The shape with its dimensions in another order."""
    places = [place_in(place, len(shape)) for place in of_rank(order, len(shape))]
    if len(set(places)) < len(places):
        raise NotKnownError
    return tuple(shape[place] for place in places)
