"""Arithmetic of XNNPACK's nodes, one rule for each kind.

Dimensions of images are N, H, W, C. Filters are [OC, KH, KW, IC / groups], those of depthwise convolutions
[1, KH, KW, OC]. Source: ``backends/xnnpack/operators`` of ExecuTorch 1.5.1, which writes them so.

Least bytes that an event of a delegate moves: each tensor once, at its own width.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from opscope.program.cost.dimensions import MOST_DIMENSIONS, NotKnownError, Shape, at_least, elements, of_rank
from opscope.program.cost.operator_cost import BILINEAR, NOTHING, SOFTMAX, Arithmetic, Cost, operations
from opscope.program.xnnpack.graph import Convolution, Pooling, QuantisationKind
from opscope.program.xnnpack.subgraph import BINARY, UNARY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opscope.program.structure.dtypes import NumberType
    from opscope.program.xnnpack.graph import XnnGraph, XnnNode


IMAGE = 4  # dimensions of a batch of images, and of a filter
MATRIX = 2
TRANSPOSED = 1  # XNN_FLAG_TRANSPOSE_WEIGHTS: the matrix is [IC, OC]; of a product of matrices it is the second one
# Bytes of a stored scale: fp32 for a channel, bf16 for a group of a channel.
# Source: get_quant_params in backends/xnnpack/operators/node_visitor.py of ExecuTorch 1.5.1.
_SCALE_BYTES = {QuantisationKind.PER_CHANNEL: 4, QuantisationKind.PER_CHANNEL_GROUP: 2}
_BYTE = 8


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
    if not isinstance(options, Pooling):
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


class GraphTraffic:
    """The values of a graph with their shapes, and who uses them.

    ``graph``: of a delegate; ``dims``: real shapes by value; None: those of the file. When given, every value that is
    no constant needs one.
    """

    def __init__(self, graph: XnnGraph, dims: Mapping[int, Shape] | None = None) -> None:
        self._nodes = graph.nodes
        self._values = graph.by_id()
        self._dims = dims
        self._outputs = set(graph.outputs)
        self._users: dict[int, set[int]] = {}
        for number, node in enumerate(graph.nodes):
            for each in node.inputs:
                self._users.setdefault(each, set()).add(number)

    def shaped(self, number: int) -> NodeShapes:
        """A node with its shapes."""
        if not 0 <= number < len(self._nodes):
            raise NotKnownError
        node = self._nodes[number]
        return NodeShapes(node, tuple(map(self._shape, node.inputs)), tuple(map(self._shape, node.outputs)))

    def bytes_of(self, number: int) -> int:
        """Bytes of a value with its stored scales."""
        value, shape = self._values.get(number), self._shape(number)
        if value is None:
            raise NotKnownError
        data = stored_bytes(value.dtype, shape)
        if not value.is_constant or value.dtype.bits is None or value.dtype.bits > _BYTE:
            return data
        return data + value.quantisation.scales * _SCALE_BYTES.get(value.quantisation.kind, 0)

    def of(self, numbers: Sequence[int]) -> Cost:
        """Bytes of one event that computes these nodes: of what is computed or needed elsewhere, and of constants."""
        group = {number: self.shaped(number) for number in numbers}
        made = {value for each in group.values() for value in each.node.outputs}
        taken = {value for each in group.values() for value in each.node.inputs} - made
        constants = {value for value in taken if self._values[value].is_constant}
        return Cost(
            macs=0,
            flops=0,
            read_bytes=sum(self._read(value, list(group.values())) for value in taken - constants),
            written_bytes=sum(self.bytes_of(value) for value in made if self._needed_outside(value, group)),
            weight_bytes=sum(map(self.bytes_of, constants)),
        )

    def _shape(self, number: int) -> Shape:
        value = self._values.get(number)
        shape = value.dims if value and (self._dims is None or value.is_constant) else (self._dims or {}).get(number)
        if value is None or shape is None or len(shape) > MOST_DIMENSIONS:
            raise NotKnownError
        return shape

    def _needed_outside(self, value: int, group: Mapping[int, NodeShapes]) -> bool:
        """What nobody uses is written all the same."""
        users = self._users.get(value)
        return not users or value in self._outputs or any(user not in group for user in users)

    def _read(self, number: int, group: Sequence[NodeShapes]) -> int:
        """Of a tensor, as much as the nodes look at."""
        parts = [self._part(number, shaped) for shaped in group if number in shaped.node.inputs]
        return min(sum(parts), self.bytes_of(number))

    def _part(self, number: int, shaped: NodeShapes) -> int:
        seen = window_elements(shaped) if _only_data(number, shaped.node) else None
        return self.bytes_of(number) if seen is None else stored_bytes(self._values[number].dtype, (seen,))


def _only_data(number: int, node: XnnNode) -> bool:
    return node.inputs[0] == number and number not in node.inputs[1:]


def stored_bytes(dtype: NumberType, shape: Shape) -> int:
    """Bytes of elements; rows of half bytes are filled up to whole ones."""
    if dtype.bits is None:
        raise NotKnownError
    row = (shape[-1] if shape else 1) * dtype.bits
    return elements(shape[:-1]) * ((row + _BYTE - 1) // _BYTE)
