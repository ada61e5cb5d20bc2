"""Arithmetic of XNNPACK's nodes, one rule for each kind.

Dimensions of images are N, H, W, C. Filters are [OC, KH, KW, IC / groups], those of depthwise convolutions
[1, KH, KW, OC]. Source: ``backends/xnnpack/operators`` of ExecuTorch 1.5.1, which writes them so.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from opscope.program.cost.dimensions import NotKnownError, Shape, at_least, elements, of_rank
from opscope.program.operators.arithmetic import BILINEAR, NOTHING, SOFTMAX, Arithmetic, operations
from opscope.program.xnnpack.graph import ArgMaxPooling, Convolution, Pooling
from opscope.program.xnnpack.subgraph import BINARY, UNARY

if TYPE_CHECKING:
    from collections.abc import Callable

    from opscope.program.xnnpack.graph import XnnNode

IMAGE = 4  # dimensions of a batch of images, and of a filter
MATRIX = 2
TRANSPOSED = 1  # XNN_FLAG_TRANSPOSE_WEIGHTS: the matrix is [IC, OC]; of a product of matrices it is the second one


class NodeShapes(NamedTuple):
    """A node with the shapes of its inputs and outputs, in the order in which it lists them."""

    node: XnnNode
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]

    def input(self, place: int) -> Shape:
        """The shape of an input; NotKnownError when there is none at this place."""
        return _at(self.inputs, place)

    def output(self) -> Shape:
        """The shape of the first output; NotKnownError when there is none."""
        return _at(self.outputs, 0)


def node_arithmetic(shaped: NodeShapes) -> Arithmetic:
    """What a node computes without its fused activation."""
    rule = _RULES.get(shaped.node.kind)
    if rule is None:
        raise NotKnownError
    return rule(shaped)


def activation_operations(node: XnnNode, output: Shape) -> int:
    """Comparisons of a fused activation: one for each finite bound and element."""
    bounds = (node.output_min, node.output_max)
    return elements(output) * sum(bound is not None and math.isfinite(bound) for bound in bounds)


def window_elements(shaped: NodeShapes) -> int | None:
    """So many elements of its first input a node looks at, at most; None when it looks at all of them.

    A slice, or a window whose stride is longer than itself, passes over the rest.
    """
    options = shaped.node.attributes
    if shaped.node.kind == "StaticSlice":
        return elements(shaped.output())
    if shaped.node.kind == "StaticResizeBilinear2D":
        return 4 * elements(shaped.output())
    if isinstance(options, Pooling):
        return elements(shaped.output()) * options.pooling_height * options.pooling_width
    if isinstance(options, Convolution) and shaped.node.kind != "ConvTranspose2d":
        window = options.kernel_height * options.kernel_width
        return elements(shaped.output()[:3]) * window * options.groups * options.group_input_channels
    return None


def _at(shapes: tuple[Shape, ...], place: int) -> Shape:
    if place >= len(shapes):
        raise NotKnownError
    return shapes[place]


def _convolution(shaped: NodeShapes) -> Arithmetic:
    return Arithmetic(elements(_image(shaped)) * elements(_filter(shaped)[1:]))


def _depthwise(shaped: NodeShapes) -> Arithmetic:
    return Arithmetic(elements(_image(shaped)) * elements(_filter(shaped)[1:3]))


def _deconvolution(shaped: NodeShapes) -> Arithmetic:
    """Each element of the input meets the filters of the outputs in its group."""
    options = shaped.node.attributes
    if not isinstance(options, Convolution):
        raise NotKnownError
    data = of_rank(shaped.input(0), IMAGE)
    return Arithmetic(elements(data) * elements(_filter(shaped)[1:3]) * options.group_output_channels)


def _image(shaped: NodeShapes) -> Shape:
    of_rank(shaped.input(0), IMAGE)
    return of_rank(shaped.output(), IMAGE)


def _filter(shaped: NodeShapes) -> Shape:
    return of_rank(shaped.input(1), IMAGE)


def _fully_connected(shaped: NodeShapes) -> Arithmetic:
    weight = of_rank(shaped.input(1), MATRIX)
    return Arithmetic(elements(shaped.output()) * weight[0 if shaped.node.flags & TRANSPOSED else 1])


def _matrix_product(shaped: NodeShapes) -> Arithmetic:
    return Arithmetic(elements(shaped.output()) * at_least(shaped.input(0), MATRIX)[-1])


def _attention(shaped: NodeShapes) -> Arithmetic:
    """Scores, then their softmax with a scale and a mask, then the mean of values that they weigh."""
    query, key = (at_least(shaped.input(place), MATRIX) for place in (0, 1))
    scores = elements(query[:-1]) * key[-2]
    return Arithmetic(scores * query[-1] + elements(shaped.output()) * key[-2], (SOFTMAX + 2) * scores)


def _pooling(shaped: NodeShapes) -> Arithmetic:
    options = shaped.node.attributes
    if not isinstance(options, Pooling | ArgMaxPooling):
        raise NotKnownError
    return Arithmetic(others=elements(shaped.output()) * options.pooling_height * options.pooling_width)


def _mean(shaped: NodeShapes) -> Arithmetic:
    return Arithmetic(others=elements(shaped.input(0)))


def _clamp(shaped: NodeShapes) -> Arithmetic:
    return Arithmetic(others=activation_operations(shaped.node, shaped.output()))


def _each(count: int) -> Callable[[NodeShapes], Arithmetic]:
    """So many operations for each element of the output."""
    return lambda shaped: Arithmetic(others=count * elements(shaped.output()))


# ATen's names of elementwise kinds, where they are not the kind's own in lower case and count more than one operation.
_ATEN = {"LeakyReLU": "leaky_relu", "ReciprocalSquareRoot": "rsqrt"}

_MOVEMENTS = """
StaticTranspose StaticReshape StaticSlice StaticConstantPad Copy Convert DepthToSpace2D SpaceToDepth2D EvenSplit
Unpooling2d Concatenate2 Concatenate3 Concatenate4 Concatenate5
""".split()

_RULES: dict[str, Callable[[NodeShapes], Arithmetic]] = {
    **{kind: _each(operations(_ATEN.get(kind, kind.lower()))) for kind in UNARY | BINARY},
    **dict.fromkeys(_MOVEMENTS, lambda _: NOTHING),
    "Conv2d": _convolution,
    "DepthwiseConv2d": _depthwise,
    "ConvTranspose2d": _deconvolution,
    "FullyConnected": _fully_connected,
    "BatchMatrixMultiply": _matrix_product,
    "ScaledDotProductAttention": _attention,
    "AvgPooling2d": _pooling,
    "MaxPooling2d": _pooling,
    "ArgMaxPooling2d": _pooling,
    **dict.fromkeys(("GlobalAvgPooling2d", "StaticSum", "StaticReduceMax", "StaticReduceMin"), _mean),
    "Softmax": _each(SOFTMAX),
    "StaticResizeBilinear2D": _each(BILINEAR),
    "Clamp": _clamp,
}
