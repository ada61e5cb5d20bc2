"""Arithmetic and traffic of XNNPACK's nodes, with one rule for each kind.

Dimensions of images are N, H, W, C. Filters are [OC, KH, KW, IC / groups], those of depthwise convolutions [1,
KH, KW, OC]. Source: ``backends/xnnpack/operators`` of ExecuTorch 1.5.1, which writes them so.

An event of a delegate moves each tensor at least once, at its own width.
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

    def input(self, index: int) -> Shape:
        """Return the shape of an input. Raises NotKnownError if there is none at this index."""
        return _shape_at(self.inputs, index)

    def output(self) -> Shape:
        """Return the shape of the first output. Raises NotKnownError if there is none."""
        return _shape_at(self.outputs, 0)


def node_arithmetic(shaped: NodeShapes) -> Arithmetic:
    """Return the arithmetic of a node without its fused activation. Raises NotKnownError for unknown kinds."""
    rule = _RULES.get(shaped.node.kind)
    if rule is None:
        raise NotKnownError
    return rule(shaped)


def activation_operations(node: XnnNode, output: Shape) -> int:
    """Count the comparisons of a fused activation: one for each finite bound and element."""
    bounds = (node.output_min, node.output_max)
    return elements(output) * sum(bound is not None and math.isfinite(bound) for bound in bounds)


def window_elements(shaped: NodeShapes) -> int | None:
    """Return how many elements of its first input a node reads at most; None if it reads all of them.

    A slice, or a window whose stride is longer than itself, skips the rest.
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


def _shape_at(shapes: tuple[Shape, ...], index: int) -> Shape:
    if index >= len(shapes):
        raise NotKnownError
    return shapes[index]


def _count_convolution(shaped: NodeShapes) -> Arithmetic:
    return Arithmetic(elements(_image_shape(shaped)) * elements(_filter_shape(shaped)[1:]))


def _count_depthwise(shaped: NodeShapes) -> Arithmetic:
    return Arithmetic(elements(_image_shape(shaped)) * elements(_filter_shape(shaped)[1:3]))


def _count_deconvolution(shaped: NodeShapes) -> Arithmetic:
    """Count a transposed convolution: each input element meets the filters of the outputs in its group."""
    options = shaped.node.attributes
    if not isinstance(options, Convolution):
        raise NotKnownError
    data = of_rank(shaped.input(0), IMAGE)
    return Arithmetic(elements(data) * elements(_filter_shape(shaped)[1:3]) * options.group_output_channels)


def _image_shape(shaped: NodeShapes) -> Shape:
    of_rank(shaped.input(0), IMAGE)
    return of_rank(shaped.output(), IMAGE)


def _filter_shape(shaped: NodeShapes) -> Shape:
    return of_rank(shaped.input(1), IMAGE)


def _count_fully_connected(shaped: NodeShapes) -> Arithmetic:
    weight = of_rank(shaped.input(1), MATRIX)
    return Arithmetic(elements(shaped.output()) * weight[0 if shaped.node.flags & TRANSPOSED else 1])


def _count_matrix_product(shaped: NodeShapes) -> Arithmetic:
    return Arithmetic(elements(shaped.output()) * at_least(shaped.input(0), MATRIX)[-1])


def _count_attention(shaped: NodeShapes) -> Arithmetic:
    """Count scores, their softmax with a scale and a mask, and the weighted mean of the values."""
    query, key = (at_least(shaped.input(index), MATRIX) for index in (0, 1))
    scores = elements(query[:-1]) * key[-2]
    return Arithmetic(scores * query[-1] + elements(shaped.output()) * key[-2], (SOFTMAX + 2) * scores)


def _count_pooling(shaped: NodeShapes) -> Arithmetic:
    options = shaped.node.attributes
    if not isinstance(options, Pooling):
        raise NotKnownError
    return Arithmetic(others=elements(shaped.output()) * options.pooling_height * options.pooling_width)


def _count_mean(shaped: NodeShapes) -> Arithmetic:
    return Arithmetic(others=elements(shaped.input(0)))


def _count_clamp(shaped: NodeShapes) -> Arithmetic:
    return Arithmetic(others=activation_operations(shaped.node, shaped.output()))


def _per_output_rule(count: int) -> Callable[[NodeShapes], Arithmetic]:
    """Return the rule of so many operations for each element of the output."""
    return lambda shaped: Arithmetic(others=count * elements(shaped.output()))


# ATen's names of elementwise kinds, where they are not the kind's own in lower case and count more than one operation.
_ATEN = {"LeakyReLU": "leaky_relu", "ReciprocalSquareRoot": "rsqrt"}

_MOVEMENTS = """
StaticTranspose StaticReshape StaticSlice StaticConstantPad Copy Convert DepthToSpace2D SpaceToDepth2D EvenSplit
Unpooling2d Concatenate2 Concatenate3 Concatenate4 Concatenate5
""".split()

_RULES: dict[str, Callable[[NodeShapes], Arithmetic]] = {
    **{kind: _per_output_rule(operations(_ATEN.get(kind, kind.lower()))) for kind in UNARY | BINARY},
    **dict.fromkeys(_MOVEMENTS, lambda _: NOTHING),
    "Conv2d": _count_convolution,
    "DepthwiseConv2d": _count_depthwise,
    "ConvTranspose2d": _count_deconvolution,
    "FullyConnected": _count_fully_connected,
    "BatchMatrixMultiply": _count_matrix_product,
    "ScaledDotProductAttention": _count_attention,
    "AvgPooling2d": _count_pooling,
    "MaxPooling2d": _count_pooling,
    "ArgMaxPooling2d": _count_pooling,
    **dict.fromkeys(("GlobalAvgPooling2d", "StaticSum", "StaticReduceMax", "StaticReduceMin"), _count_mean),
    "Softmax": _per_output_rule(SOFTMAX),
    "StaticResizeBilinear2D": _per_output_rule(BILINEAR),
    "Clamp": _count_clamp,
}


class GraphTraffic:
    """The values of a graph with their shapes, and the nodes that use them.

    ``graph``: of a delegate. ``dims``: real shapes by value; None: those of the file. If given, every value that is
    no constant needs one.
    """

    def __init__(self, graph: XnnGraph, dims: Mapping[int, Shape] | None = None) -> None:
        self._nodes = graph.nodes
        self._values = graph.by_id()
        self._dims = dims
        self._outputs = set(graph.outputs)
        self._users: dict[int, set[int]] = {}
        for number, node in enumerate(graph.nodes):
            for value in node.inputs:
                self._users.setdefault(value, set()).add(number)

    def shaped(self, number: int) -> NodeShapes:
        """Return a node with its shapes. Raises NotKnownError if there is no such node or shape."""
        if not 0 <= number < len(self._nodes):
            raise NotKnownError
        node = self._nodes[number]
        return NodeShapes(node, tuple(map(self._shape_of, node.inputs)), tuple(map(self._shape_of, node.outputs)))

    def bytes_of(self, number: int) -> int:
        """Return the bytes of a value with its stored scales."""
        value, shape = self._values.get(number), self._shape_of(number)
        if value is None:
            raise NotKnownError
        data = stored_bytes(value.dtype, shape)
        if not value.is_constant or value.dtype.bits is None or value.dtype.bits > _BYTE:
            return data
        return data + value.quantisation.scales * _SCALE_BYTES.get(value.quantisation.kind, 0)

    def of(self, numbers: Sequence[int]) -> Cost:
        """Return the bytes of one event that computes these nodes.

        It reads inputs and constants, and writes outputs that are needed elsewhere.
        """
        group = {number: self.shaped(number) for number in numbers}
        made = {value for node_shapes in group.values() for value in node_shapes.node.outputs}
        taken = {value for node_shapes in group.values() for value in node_shapes.node.inputs} - made
        constants = {value for value in taken if self._values[value].is_constant}
        return Cost(
            macs=0,
            flops=0,
            read_bytes=sum(self._read_bytes(value, list(group.values())) for value in taken - constants),
            written_bytes=sum(self.bytes_of(value) for value in made if self._needed_outside(value, group)),
            weight_bytes=sum(map(self.bytes_of, constants)),
        )

    def _shape_of(self, number: int) -> Shape:
        value = self._values.get(number)
        shape = value.dims if value and (self._dims is None or value.is_constant) else (self._dims or {}).get(number)
        if value is None or shape is None or len(shape) > MOST_DIMENSIONS:
            raise NotKnownError
        return shape

    def _needed_outside(self, value: int, group: Mapping[int, NodeShapes]) -> bool:
        """Return whether a value is needed outside of a group; values that nobody uses are written, too."""
        users = self._users.get(value)
        return not users or value in self._outputs or any(user not in group for user in users)

    def _read_bytes(self, number: int, group: Sequence[NodeShapes]) -> int:
        """Return the bytes of a tensor that the nodes of a group read."""
        parts = [self._bytes_read_by_node(number, shaped) for shaped in group if number in shaped.node.inputs]
        return min(sum(parts), self.bytes_of(number))

    def _bytes_read_by_node(self, number: int, shaped: NodeShapes) -> int:
        seen = window_elements(shaped) if _only_data(number, shaped.node) else None
        return self.bytes_of(number) if seen is None else stored_bytes(self._values[number].dtype, (seen,))


def _only_data(number: int, node: XnnNode) -> bool:
    return node.inputs[0] == number and number not in node.inputs[1:]


def stored_bytes(dtype: NumberType, shape: Shape) -> int:
    """Return the bytes of elements; rows of half bytes are padded to whole ones."""
    if dtype.bits is None:
        raise NotKnownError
    row = (shape[-1] if shape else 1) * dtype.bits
    return elements(shape[:-1]) * ((row + _BYTE - 1) // _BYTE)
