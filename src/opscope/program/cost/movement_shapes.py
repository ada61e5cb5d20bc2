"""Shapes of what operators leave that move, cut or join data.

Positions of arguments are those of ATen's schemas. A rule gives a shape for each output, and raises NotKnownError where
a shape or an option is unknown or impossible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opscope.program.cost.dimensions import (
    NotKnownError,
    Shape,
    at_least,
    broadcast,
    concatenated,
    elements,
    of_rank,
    permuted,
    place_in,
    replaced,
    resolved,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from opscope.program.cost.call import OperatorCall

_MATRIX = 2
_MASKS = frozenset({"bool", "uint8"})


def embedding(indices: int, packed: int = 1) -> Callable[[OperatorCall], tuple[Shape, ...]]:
    """A row of a table for each index; ``packed`` elements stand in one of the table."""
    return lambda call: ((*call.shape(indices), of_rank(call.shape(0), _MATRIX)[1] * packed),)


def cat(call: OperatorCall) -> tuple[Shape, ...]:
    """One tensor after another; empty ones of one dimension are passed over."""
    shapes = call.shapes(0)
    return (concatenated(tuple(shape for shape in shapes if shape != (0,)) or shapes, call.number(1)),)


def stack(call: OperatorCall) -> tuple[Shape, ...]:
    """Tensors of one shape along a new dimension."""
    shapes = call.shapes(0)
    if len(set(shapes)) != 1:
        raise NotKnownError
    return (_inserted(shapes[0], call.number(1), len(shapes)),)


def unsqueeze(call: OperatorCall) -> tuple[Shape, ...]:
    """With a new dimension of size 1."""
    return (_inserted(call.shape(0), call.number(1), 1),)


def _inserted(data: Shape, axis: int, size: int) -> Shape:
    place = place_in(axis, len(data) + 1)
    return (*data[:place], size, *data[place:])


def squeeze(call: OperatorCall) -> tuple[Shape, ...]:
    """Without those of the named dimensions that have size 1."""
    data = call.shape(0)
    gone = {place_in(axis, len(data)) for axis in call.listed(1)}
    return (tuple(size for place, size in enumerate(data) if size != 1 or place not in gone),)


def slice_of(call: OperatorCall) -> tuple[Shape, ...]:
    """From a start to an end in steps; absent ends are those of the data, negative ones count from behind."""
    data = call.shape(0)
    place, step = call.axis(1, data), call.number(4)
    if step < 1:
        raise NotKnownError
    start = _within(call.number(2) if call.has(2) else 0, data[place])
    end = _within(call.number(3) if call.has(3) else data[place], data[place])
    return (replaced(data, place, max(0, -((start - end) // step))),)


def _within(position: int, length: int) -> int:
    return min(max(position + length if position < 0 else position, 0), length)


def narrow(call: OperatorCall) -> tuple[Shape, ...]:
    """So many elements of a dimension."""
    data = call.shape(0)
    return (replaced(data, call.axis(1, data), call.number(3)),)


def select(call: OperatorCall) -> tuple[Shape, ...]:
    """One element of a dimension."""
    data = call.shape(0)
    return (replaced(data, call.axis(1, data)),)


def unbind(call: OperatorCall) -> tuple[Shape, ...]:
    """Each element of a dimension."""
    return select(call) * len(call.outputs)


def split(call: OperatorCall) -> tuple[Shape, ...]:
    """Parts of one size, the last of which is what is left."""
    data, size = call.shape(0), call.number(1)
    place = call.axis(2, data)
    starts = (number * size for number in range(len(call.outputs)))
    return tuple(replaced(data, place, min(size, data[place] - start)) for start in starts)


def split_with_sizes(call: OperatorCall) -> tuple[Shape, ...]:
    """Parts of given sizes."""
    data = call.shape(0)
    place = call.axis(2, data)
    return tuple(replaced(data, place, size) for size in call.numbers(1))


def permute(call: OperatorCall) -> tuple[Shape, ...]:
    """Dimensions in another order."""
    return (permuted(call.shape(0), call.numbers(1)),)


def transpose(call: OperatorCall) -> tuple[Shape, ...]:
    """Two dimensions swapped."""
    data = call.shape(0)
    first, second = call.axis(1, data), call.axis(2, data)
    swap = {first: second, second: first}
    return (tuple(data[swap.get(place, place)] for place in range(len(data))),)


def t(call: OperatorCall) -> tuple[Shape, ...]:
    """A matrix with its two dimensions swapped; vectors stay."""
    data = call.shape(0)
    if len(data) > _MATRIX:
        raise NotKnownError
    return (data[::-1],)


def view(call: OperatorCall) -> tuple[Shape, ...]:
    """Another shape with as many elements; a size of -1 is what is left for it."""
    return (resolved(call.numbers(1), elements(call.shape(0))),)


def expand(call: OperatorCall) -> tuple[Shape, ...]:
    """Repeated along dimensions of size 1; a size of -1 keeps that of the data."""
    data, wanted = call.shape(0), call.numbers(1)
    have = (1,) * (len(at_least(wanted, len(data))) - len(data)) + data
    return (tuple(old if new < 0 else new for old, new in zip(have, wanted, strict=True)),)


def repeat(call: OperatorCall) -> tuple[Shape, ...]:
    """So many times along each dimension."""
    data, times = call.shape(0), call.numbers(1)
    have = (1,) * (len(at_least(times, len(data))) - len(data)) + data
    return (tuple(size * count for size, count in zip(have, times, strict=True)),)


def pad(call: OperatorCall) -> tuple[Shape, ...]:
    """With more elements before and after; pairs of counts from the last dimension on."""
    data, padding = call.shape(0), call.numbers(1)
    if len(padding) % 2 or len(padding) > 2 * len(data):
        raise NotKnownError
    more = [sum(padding[place : place + 2]) for place in range(0, len(padding), 2)]
    more += [0] * (len(data) - len(more))
    return (tuple(size + extra for size, extra in zip(data, reversed(more), strict=True)),)


def index(call: OperatorCall) -> tuple[Shape, ...]:
    """Elements by lists of numbers; a mask leaves as many as it has true elements, which is not known."""
    data, places = call.shape(0), call.places(1)
    if not places or places[-1] >= len(data):
        raise NotKnownError
    if any(call.tensor(number).dtype.name in _MASKS for number in call.tensors_at(1)):
        raise NotKnownError
    chosen = broadcast(*call.shapes(1))
    rest = tuple(size for place, size in enumerate(data) if place not in places)
    start = places[0] if places[-1] - places[0] == len(places) - 1 else 0
    return (rest[:start] + chosen + rest[start:],)


def index_select(call: OperatorCall) -> tuple[Shape, ...]:
    """Elements of a dimension by a list of numbers."""
    data = call.shape(0)
    return (replaced(data, call.axis(1, data), elements(call.shape(2))),)


def arange(call: OperatorCall) -> tuple[Shape, ...]:
    """Numbers from a start, or 0, to an end in steps; fractions are not followed."""
    start, end, step = (0, call.number(0), 1)
    if call.overload == "start_out":
        start, end, step = call.number(0), call.number(1), call.number(2)
    if not step:
        raise NotKnownError
    return ((max(0, -((start - end) // step)),),)
