"""Shapes of an XNNPACK graph's values from those of its inputs, one rule for each kind of node.

Source: the functions that reshape operators in ``src/subgraph`` and ``src/operators`` of XNNPACK at commit 92a7ad50,
which ExecuTorch 1.5 uses. Images are N, H, W, C. A rule raises NotKnownError for shapes that no kernel takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from opscope.program.cost.dimensions import (
    NotKnownError,
    Shape,
    Window,
    at_least,
    broadcast,
    concatenated,
    elements,
    fits,
    of_rank,
    permuted,
    product,
    resolved,
)
from opscope.program.cost.node_cost import IMAGE, MATRIX, TRANSPOSED, NodeShapes
from opscope.program.xnnpack.graph import (
    ArgMaxPooling,
    Convolution,
    Padding,
    Pooling,
    QuantisationKind,
    Resizing,
    Slicing,
)
from opscope.program.xnnpack.subgraph import BINARY, UNARY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opscope.program.xnnpack.graph import Attributes, XnnGraph, XnnNode, XnnValue

A = TypeVar("A", bound="Attributes")
_KEEP_DIMS = 0x40  # XNN_FLAG_KEEP_DIMS
_TO_NHWC = (0, 2, 3, 1)
_SIGN = 2**31  # an axis below 0 stands as an unsigned number


def graph_shapes(graph: XnnGraph, inputs: Mapping[int, Shape]) -> dict[int, Shape]:
    """The shape of every value that follows from those of the inputs.

    Returns:
        Shapes by value; absent are values behind an unknown kind or input, and shapes beyond those of the file, which
        are upper bounds.
    """
    values = graph.by_id()
    if all(number in values and inputs.get(number) == values[number].dims for number in graph.inputs):
        return {value.id: value.dims for value in graph.values}
    known = {value.id: value.dims for value in graph.values if value.is_constant and fits(value.dims, value.dims)}
    known.update((number, shape) for number, shape in inputs.items() if _possible(values.get(number), shape))
    for node in graph.nodes:
        shape = _output(node, known)
        fitting = [number for number in node.outputs if shape is not None and _possible(values.get(number), shape)]
        known.update((number, shape) for number in fitting if shape is not None and number not in known)
    return known


def _possible(value: XnnValue | None, shape: Shape) -> bool:
    """Whether a value can have a shape: the file has the upper bound.

    Of an image that is quantised at run time the file has it in the order N, C, H, W, although it lies as N, H, W, C.
    """
    if value is None:
        return False
    per_token = value.quantisation.kind is QuantisationKind.PER_TOKEN and len(value.dims) == IMAGE
    return fits(shape, value.dims) or (per_token and fits(shape, permuted(value.dims, _TO_NHWC)))


def _output(node: XnnNode, known: Mapping[int, Shape]) -> Shape | None:
    """The shape that all outputs of a node have; None when it cannot be derived."""
    rule = _RULES.get(node.kind)
    if rule is None or any(number not in known for number in node.inputs):
        return None
    try:
        return rule(NodeShapes(node, tuple(known[number] for number in node.inputs), ()))
    except NotKnownError:
        return None


def _options(shaped: NodeShapes, kind: type[A]) -> A:
    if not isinstance(shaped.node.attributes, kind):
        raise NotKnownError
    return shaped.node.attributes


def _convolution(shaped: NodeShapes) -> Shape:
    options = _options(shaped, Convolution)
    count, height, width, _ = of_rank(shaped.input(0), IMAGE)
    down, across = _filter_windows(options)
    channels = options.groups * options.group_output_channels
    return (count, down.positions(height), across.positions(width), channels)


def _depthwise(shaped: NodeShapes) -> Shape:
    return (*_convolution(shaped)[:3], of_rank(shaped.input(1), IMAGE)[3])


def _deconvolution(shaped: NodeShapes) -> Shape:
    options = _options(shaped, Convolution)
    count, height, width, _ = of_rank(shaped.input(0), IMAGE)
    down, across = _filter_windows(options)
    height, width = down.expanded(height, options.adjustment_height), across.expanded(width, options.adjustment_width)
    return (count, height, width, options.groups * options.group_output_channels)


def _filter_windows(options: Convolution) -> tuple[Window, Window]:
    """How the filter walks down and across."""
    height, width = options.padding_top + options.padding_bottom, options.padding_left + options.padding_right
    down = Window(options.kernel_height, options.subsampling_height, height, options.dilation_height)
    return down, Window(options.kernel_width, options.subsampling_width, width, options.dilation_width)


def _pooling(shaped: NodeShapes) -> Shape:
    """Average pooling has no dilation, which stands as 0."""
    options = _options(shaped, Pooling)
    count, height, width, channels = of_rank(shaped.input(0), IMAGE)
    more_height, more_width = options.padding_top + options.padding_bottom, options.padding_left + options.padding_right
    down = Window(options.pooling_height, options.stride_height, more_height, max(1, options.dilation_height))
    across = Window(options.pooling_width, options.stride_width, more_width, max(1, options.dilation_width))
    return (count, down.positions(height), across.positions(width), channels)


def _argmax_pooling(shaped: NodeShapes) -> Shape:
    """Windows lie side by side, and what does not fill one is left out."""
    options = _options(shaped, ArgMaxPooling)
    count, height, width, channels = of_rank(shaped.input(0), IMAGE)
    if min(options.pooling_height, options.pooling_width) < 1:
        raise NotKnownError
    height = (height + options.padding_top + options.padding_bottom) // options.pooling_height
    return (count, height, (width + options.padding_left + options.padding_right) // options.pooling_width, channels)


def _mean(shaped: NodeShapes) -> Shape:
    count, _, _, channels = of_rank(shaped.input(0), IMAGE)
    return (count, 1, 1, channels) if shaped.node.flags & _KEEP_DIMS else (count, channels)


def _fully_connected(shaped: NodeShapes) -> Shape:
    weight = of_rank(shaped.input(1), MATRIX)
    return (*at_least(shaped.input(0), 1)[:-1], weight[1 if shaped.node.flags & TRANSPOSED else 0])


def _matrix_product(shaped: NodeShapes) -> Shape:
    right = at_least(shaped.input(1), MATRIX)
    return product(shaped.input(0), (*right[:-2], right[-1], right[-2]) if shaped.node.flags & TRANSPOSED else right)


def _attention(shaped: NodeShapes) -> Shape:
    return (*at_least(shaped.input(0), 1)[:-1], at_least(shaped.input(2), 1)[-1])


def _slice(shaped: NodeShapes) -> Shape:
    """No elements from the first on stand for all; no part reaches beyond the data."""
    options, data = _options(shaped, Slicing), shaped.input(0)
    offsets, sizes = of_rank(options.offsets, len(data)), of_rank(options.sizes, len(data))
    parts = zip(data, offsets, sizes, strict=True)
    return tuple(max(0, min(size if offset + size else have, have - offset)) for have, offset, size in parts)


def _pad(shaped: NodeShapes) -> Shape:
    options, data = _options(shaped, Padding), shaped.input(0)
    before, behind = of_rank(options.pre_paddings, len(data)), of_rank(options.post_paddings, len(data))
    return tuple(map(sum, zip(before, data, behind, strict=True)))


def _resize(shaped: NodeShapes) -> Shape:
    options = _options(shaped, Resizing)
    count, _, _, channels = of_rank(shaped.input(0), IMAGE)
    return (count, options.new_height, options.new_width, channels)


def _concatenate(shaped: NodeShapes) -> Shape:
    axis = _options(shaped, int)
    return concatenated(shaped.inputs, axis - 2 * _SIGN if axis >= _SIGN else axis)


_RULES: dict[str, Callable[[NodeShapes], Shape]] = {
    **dict.fromkeys((*UNARY, "Softmax", "Copy"), lambda shaped: shaped.input(0)),
    **dict.fromkeys(BINARY, lambda shaped: broadcast(*shaped.inputs)),
    **dict.fromkeys((f"Concatenate{count}" for count in range(2, 6)), _concatenate),
    "Conv2d": _convolution,
    "DepthwiseConv2d": _depthwise,
    "ConvTranspose2d": _deconvolution,
    "AvgPooling2d": _pooling,
    "MaxPooling2d": _pooling,
    "ArgMaxPooling2d": _argmax_pooling,
    "GlobalAvgPooling2d": _mean,
    "FullyConnected": _fully_connected,
    "BatchMatrixMultiply": _matrix_product,
    "ScaledDotProductAttention": _attention,
    "StaticTranspose": lambda shaped: permuted(shaped.input(0), _options(shaped, tuple)),
    "StaticReshape": lambda shaped: resolved(_options(shaped, tuple), elements(shaped.input(0)), unknown=0),
    "StaticSlice": _slice,
    "StaticConstantPad": _pad,
    "StaticResizeBilinear2D": _resize,
}
