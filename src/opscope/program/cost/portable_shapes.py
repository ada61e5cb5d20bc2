"""Derive the shapes of what portable ATen operators return from those of their arguments: one rule for each operator.

There is no rule if a shape depends on data, as that of the result of ``nonzero``.

Positions of arguments are those of ATen's schemas. A rule returns a shape for each output, and raises
NotKnownError if a shape or an option is unknown or impossible.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from opscope.program.cost.dimensions import (
    NotKnownError,
    Shape,
    Window,
    at_least,
    broadcast,
    concatenated,
    elements,
    of_rank,
    permuted,
    place_in,
    product,
    replaced,
    resolved,
)
from opscope.program.operators.kinds import Category
from opscope.program.operators.taxonomy import classify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from opscope.program.cost.call import OperatorCall


_MASKS = frozenset({"bool", "uint8"})


def embedding(indices: int, packed: int = 1) -> Callable[[OperatorCall], tuple[Shape, ...]]:
    """Return the rule of an embedding, a row of a table for each index; the table packs so many elements into one."""
    return lambda call: ((*call.shape(indices), of_rank(call.shape(0), _MATRIX)[1] * packed),)


def cat(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shape of concatenated tensors; empty tensors of one dimension are skipped."""
    shapes = call.shapes(0)
    return (concatenated(tuple(shape for shape in shapes if shape != (0,)) or shapes, call.number(1)),)


def stack(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shape of tensors of one shape, stacked along a new dimension."""
    shapes = call.shapes(0)
    if len(set(shapes)) != 1:
        raise NotKnownError
    return (_insert_size(shapes[0], call.number(1), len(shapes)),)


def unsqueeze(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shape with a new dimension of size 1."""
    return (_insert_size(call.shape(0), call.number(1), 1),)


def _insert_size(data: Shape, axis: int, size: int) -> Shape:
    axis = place_in(axis, len(data) + 1)
    return (*data[:axis], size, *data[axis:])


def squeeze(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shape without those of the named dimensions that have size 1."""
    data = call.shape(0)
    gone = {place_in(axis, len(data)) for axis in call.listed(1)}
    return (tuple(size for axis, size in enumerate(data) if size != 1 or axis not in gone),)


def slice_of(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shape of a slice; absent ends are those of the data, negative ones count from the end."""
    data = call.shape(0)
    axis, step = call.axis(1, data), call.number(4)
    if step < 1:
        raise NotKnownError
    start = _clamp_position(call.number(2) if call.has(2) else 0, data[axis])
    end = _clamp_position(call.number(3) if call.has(3) else data[axis], data[axis])
    return (replaced(data, axis, max(0, -((start - end) // step))),)


def _clamp_position(position: int, length: int) -> int:
    return min(max(position + length if position < 0 else position, 0), length)


def narrow(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shape of so many elements of a dimension."""
    data = call.shape(0)
    return (replaced(data, call.axis(1, data), call.number(3)),)


def select(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shape of one element of a dimension."""
    data = call.shape(0)
    return (replaced(data, call.axis(1, data)),)


def unbind(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shapes of all elements of a dimension."""
    return select(call) * len(call.outputs)


def split(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shapes of parts of one size, the last of which has the rest."""
    data, size = call.shape(0), call.number(1)
    axis = call.axis(2, data)
    starts = (number * size for number in range(len(call.outputs)))
    return tuple(replaced(data, axis, min(size, data[axis] - start)) for start in starts)


def split_with_sizes(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shapes of parts of given sizes."""
    data = call.shape(0)
    axis = call.axis(2, data)
    return tuple(replaced(data, axis, size) for size in call.numbers(1))


def permute(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shape with its dimensions in another order."""
    return (permuted(call.shape(0), call.numbers(1)),)


def transpose(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shape with two dimensions swapped."""
    data = call.shape(0)
    first, second = call.axis(1, data), call.axis(2, data)
    swap = {first: second, second: first}
    return (tuple(data[swap.get(axis, axis)] for axis in range(len(data))),)


def t(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shape of a matrix with its two dimensions swapped; vectors keep theirs."""
    data = call.shape(0)
    if len(data) > _MATRIX:
        raise NotKnownError
    return (data[::-1],)


def view(call: OperatorCall) -> tuple[Shape, ...]:
    """Return another shape with as many elements; a size of -1 is computed."""
    return (resolved(call.numbers(1), elements(call.shape(0))),)


def expand(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shape repeated along dimensions of size 1; a size of -1 keeps that of the data."""
    data, requested = call.shape(0), call.numbers(1)
    have = (1,) * (len(at_least(requested, len(data))) - len(data)) + data
    return (tuple(old if new < 0 else new for old, new in zip(have, requested, strict=True)),)


def repeat(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shape repeated so many times along each dimension."""
    data, times = call.shape(0), call.numbers(1)
    have = (1,) * (len(at_least(times, len(data))) - len(data)) + data
    return (tuple(size * count for size, count in zip(have, times, strict=True)),)


def pad(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shape with padding; its pairs of counts begin with the last dimension."""
    data, padding = call.shape(0), call.numbers(1)
    if len(padding) % 2 or len(padding) > 2 * len(data):
        raise NotKnownError
    more = [sum(padding[axis : axis + 2]) for axis in range(0, len(padding), 2)]
    more += [0] * (len(data) - len(more))
    return (tuple(size + extra for size, extra in zip(data, reversed(more), strict=True)),)


def index(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shape of elements selected by lists of numbers.

    The number of elements that a mask selects is unknown.
    """
    data, axes = call.shape(0), call.places(1)
    if not axes or axes[-1] >= len(data):
        raise NotKnownError
    if any(call.tensor(number).dtype.name in _MASKS for number in call.tensors_at(1)):
        raise NotKnownError
    chosen = broadcast(*call.shapes(1))
    rest = tuple(size for axis, size in enumerate(data) if axis not in axes)
    start = axes[0] if axes[-1] - axes[0] == len(axes) - 1 else 0
    return (rest[:start] + chosen + rest[start:],)


def index_select(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shape of elements of a dimension that a list of numbers selects."""
    data = call.shape(0)
    return (replaced(data, call.axis(1, data), elements(call.shape(2))),)


def arange(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shape of numbers from a start, or 0, to an end in steps; fractions are not supported."""
    start, end, step = (0, call.number(0), 1)
    if call.overload == "start_out":
        start, end, step = call.number(0), call.number(1), call.number(2)
    if not step:
        raise NotKnownError
    return ((max(0, -((start - end) // step)),),)


_MATRIX = 2
_IMAGE = 3  # channels, height and width
_BATCH = 4
_STRIDE, _PADDING, _DILATION, _TRANSPOSED, _ADJUSTMENT, _GROUPS = range(3, 9)


def product_of(first: int) -> Callable[[OperatorCall], tuple[Shape, ...]]:
    """Return the rule of a matrix product of argument ``first`` and the one after it."""
    return lambda call: (product(call.shape(first), call.shape(first + 1)),)


def linear(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shape of a product with a transposed matrix."""
    return (product(at_least(call.shape(0), _MATRIX), of_rank(call.shape(1), _MATRIX)[::-1]),)


def attention(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shape of an attention: that of the query, with the width of the values."""
    query, value = at_least(call.shape(0), 1), at_least(call.shape(2), 1)
    return ((*query[:-1], value[-1]),)


def convolution(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shape of a convolution, whose channels are those of the filter."""
    data, weight = at_least(call.shape(0), _IMAGE), call.shape(1)
    rank = len(of_rank(weight, len(data))) - 2
    stride, padding, dilation, adjustment = (
        _for_each(call.numbers(position), rank) for position in (_STRIDE, _PADDING, _DILATION, _ADJUSTMENT)
    )
    windows = _make_windows(weight[2:], stride, padding, dilation)
    if call.is_set(_TRANSPOSED):
        sizes = (window.expanded(*pair) for window, *pair in zip(windows, data[2:], adjustment, strict=True))
        return ((data[0], weight[1] * call.number(_GROUPS), *sizes),)
    return ((data[0], weight[0], *_window_counts(windows, data[2:])),)


def pooling(ceil: int, dilation: int | None) -> Callable[[OperatorCall], tuple[Shape, ...]]:
    """Return the rule of image pooling with kernel, stride and padding after the data.

    An empty stride is the kernel.
    """

    def rule(call: OperatorCall) -> tuple[Shape, ...]:
        data = at_least(call.shape(0), _IMAGE)
        kernel, padding = _for_each(call.numbers(1), 2), _for_each(call.numbers(3), 2)
        stride = _for_each(call.numbers(2) or kernel, 2)
        spread = (1, 1) if dilation is None else _for_each(call.numbers(dilation), 2)
        windows = _make_windows(kernel, stride, padding, spread)
        shape = (*data[:-2], *_window_counts(windows, data[-2:], ceil=call.is_set(ceil)))
        return (shape, shape)

    return rule


def _for_each(numbers: Shape, rank: int) -> Shape:
    """Return a number for each dimension; a single number is used for all."""
    return of_rank(numbers * rank if len(numbers) == 1 else numbers, rank)


def _make_windows(size: Shape, stride: Shape, padding: Shape, dilation: Shape) -> list[Window]:
    both = (2 * side for side in padding)
    return [Window(*window) for window in zip(size, stride, both, dilation, strict=True)]


def _window_counts(windows: list[Window], data: Shape, *, ceil: bool = False) -> Iterable[int]:
    return (window.positions(length, ceil=ceil) for window, length in zip(windows, data, strict=True))


def adaptive(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shape of pooling to a given size."""
    return ((*at_least(call.shape(0), _IMAGE)[:-2], *of_rank(call.numbers(1), 2)),)


def layer_norm(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shapes of the result, and of one mean and one deviation for each normalised part."""
    data, normal = call.shape(0), call.numbers(1)
    statistics = at_least(data, len(normal))[: len(data) - len(normal)] + (1,) * len(normal)
    return (data, statistics, statistics)


def group_norm(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shapes of the result, and of one mean and one deviation for each group of channels."""
    data, statistics = call.shape(0), (call.number(3), call.number(6))
    return (data, statistics, statistics)


def reduction(dims: int, keep: int) -> Callable[[OperatorCall], tuple[Shape, ...]]:
    """Return the rule of a reduction, given the positions of its dimensions and of its keep flag.

    Without dimensions, all are reduced.
    """

    def rule(call: OperatorCall) -> tuple[Shape, ...]:
        data = call.shape(0)
        if call.overload in {"all_out", "unary_out", "dtype_out"} or not data:
            return ((), ())
        gone = {place_in(axis, len(data)) for axis in call.listed(dims)} or set(range(len(data)))
        kept_size = (1,) if call.is_set(keep) else ()
        shape = tuple(size for axis in range(len(data)) for size in (kept_size if axis in gone else (data[axis],)))
        return (shape, shape)

    return rule


def prod(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shape of a product along one dimension, or of all elements."""
    return reduction(1, 2)(call) if call.overload == "int_out" else ((),)


def topk(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shapes of the greatest elements along a dimension, and of their indices."""
    data = call.shape(0)
    shape = replaced(data, call.axis(2, data), call.number(1))
    return (shape, shape)


def upsample(scales: int) -> Callable[[OperatorCall], tuple[Shape, ...]]:
    """Return the rule of images that are resized to a given size, or by given factors."""

    def rule(call: OperatorCall) -> tuple[Shape, ...]:
        data = of_rank(call.shape(0), _BATCH)
        size = call.numbers(1) if call.has(1) else _scale_lengths(call, scales, data[2:])
        return (data[:2] + of_rank(size, 2),)

    return rule


def _scale_lengths(call: OperatorCall, position: int, lengths: Shape) -> Shape:
    factors = call.argument(position)
    if not isinstance(factors, tuple) or len(factors) != len(lengths):
        raise NotKnownError
    sizes = [length * factor for length, factor in zip(lengths, factors, strict=True)]
    if not all(map(math.isfinite, sizes)):
        raise NotKnownError
    return tuple(map(int, sizes))


def pixel_shuffle(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shape of channels that are laid out as pixels."""
    *leading, channels, height, width = at_least(call.shape(0), _IMAGE)
    factor = _shuffle_factor(call)
    return ((*leading, channels // factor**2, height * factor, width * factor),)


def pixel_unshuffle(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shape of pixels that are laid out as channels."""
    *leading, channels, height, width = at_least(call.shape(0), _IMAGE)
    factor = _shuffle_factor(call)
    return ((*leading, channels * factor**2, height // factor, width // factor),)


def _shuffle_factor(call: OperatorCall) -> int:
    factor = call.number(1)
    if factor < 1:
        raise NotKnownError
    return factor


def output_shapes(call: OperatorCall) -> tuple[Shape, ...]:
    """Return the shapes of the outputs of a call; an operator that returns fewer tensors has the first of them.

    Raises NotKnownError for operators without a rule.
    """
    rule = _RULES.get(call.operator)
    if rule is not None:
        return rule(call)
    if call.in_place:
        return (call.shape(0),)
    if classify(call.name).category is not Category.ELEMENTWISE or call.operator == "glu":
        raise NotKnownError
    return (broadcast(*map(call.shape_of, call.inputs)),)


_SAME = """
softmax log_softmax cumsum clone clone_dim_order to to_dim_order alias detach lift_fresh contiguous copy fill
full_like zeros_like ones_like empty_like flip roll tril triu masked_fill masked_scatter scatter scatter_add index_put
slice_scatter select_scatter prelu quantize_per_tensor dequantize_per_tensor quantize_per_channel
dequantize_per_channel quantize_per_token dequantize_per_token native_batch_norm_legit_no_training custom_sdpa
""".split()

_PADS = (
    "constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d replication_pad3d".split()
)

_RULES: dict[str, Callable[[OperatorCall], tuple[Shape, ...]]] = {
    **dict.fromkeys(_SAME, lambda call: (call.shape(0),)),
    **dict.fromkeys(_PADS, pad),
    **dict.fromkeys("view et_view reshape".split(), view),
    **dict.fromkeys("full zeros ones empty".split(), lambda call: (call.numbers(0),)),
    **dict.fromkeys("mm bmm matmul mixed_mm".split(), product_of(0)),
    **dict.fromkeys("addmm baddbmm".split(), product_of(1)),
    **dict.fromkeys("mean sum amax amin argmax argmin max min any all".split(), reduction(1, 2)),
    **dict.fromkeys("var var_mean".split(), reduction(1, 3)),
    "prod": prod,
    "linear": linear,
    "scaled_dot_product_attention": attention,
    "convolution": convolution,
    "avg_pool2d": pooling(ceil=4, dilation=None),
    "max_pool2d_with_indices": pooling(ceil=5, dilation=4),
    "adaptive_avg_pool2d": adaptive,
    "native_layer_norm": layer_norm,
    "native_group_norm": group_norm,
    "topk": topk,
    "upsample_bilinear2d": upsample(3),
    "upsample_nearest2d": upsample(2),
    "pixel_shuffle": pixel_shuffle,
    "pixel_unshuffle": pixel_unshuffle,
    "embedding": embedding(1),
    "embedding_byte": embedding(5),
    "embedding_4bit": embedding(5, packed=2),
    "embedding_2bit": embedding(5, packed=4),
    "cat": cat,
    "stack": stack,
    "unsqueeze": unsqueeze,
    "squeeze": squeeze,
    "slice": slice_of,
    "narrow": narrow,
    "select": select,
    "unbind": unbind,
    "split": split,
    "split_with_sizes": split_with_sizes,
    "permute": permute,
    "transpose": transpose,
    "t": t,
    "expand": expand,
    "repeat": repeat,
    "index": index,
    "index_select": index_select,
    "gather": lambda call: (call.shape(2),),
    "arange": arange,
}
