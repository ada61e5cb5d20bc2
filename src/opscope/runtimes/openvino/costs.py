"""What a node that ran computes and moves, from the model as it was read and the graph that ran."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from opscope.program.cost.operator_cost import Cost
from opscope.program.operators.kinds import Category
from opscope.program.operators.taxonomy import classify
from opscope.runtimes.openvino.origins import PRODUCTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.runtimes.openvino.graph import ModelNode, NodeTensor, OpenVinoGraph
    from opscope.runtimes.openvino.origins import RunOrigins

_BITS = {"f64": 64, "i64": 64, "u64": 64, "f32": 32, "i32": 32, "u32": 32, "f16": 16, "bf16": 16, "i16": 16, "u16": 16}
_BITS |= {"i8": 8, "u8": 8, "boolean": 8, "f8e4m3": 8, "f8e5m2": 8, "i4": 4, "u4": 4, "u2": 2, "u1": 1}
_GROUPED = frozenset({"GroupConvolution", "GroupConvolutionBackpropData"})
_BACKWARDS = frozenset({"ConvolutionBackpropData", "GroupConvolutionBackpropData"})
_CONVOLUTIONS = frozenset({"Convolution", *_GROUPED, *_BACKWARDS})
_UNKNOWN = frozenset({"If", "Loop", "TensorIterator"})
"""What computes more than its shapes tell."""
_MATRIX = 2
_STORED = "Const"


class Filter(NamedTuple):
    """The filter of a convolution."""

    groups: int
    shape: tuple[int, ...]  # of one group: results, data, taps; for one that goes backwards data, results, taps

    @property
    def taps(self) -> tuple[int, ...]:
        """Along each axis."""
        return self.shape[_MATRIX:]

    @property
    def depthwise(self) -> bool:
        """Whether each group has one channel."""
        return self.groups > 1 and min(self.shape[:_MATRIX]) == 1


class RunCosts:
    """Costs of the nodes of a graph that ran.

    Multiplications are those of the model's nodes, each counted once; bytes are those that nodes read and leave, in the
    types with which they ran.
    """

    def __init__(self, graph: OpenVinoGraph, origins: RunOrigins) -> None:
        self._graph, self._origins = graph, origins
        self._outputs = {one.node.name: one.node.outputs for one in graph.ran}
        self._given = {node.name: node.outputs for node in graph.given}
        self._stored: set[str] = set()
        for one in graph.ran:
            read = [name for name, _ in one.node.inputs]
            if one.node.type == _STORED or (read and all(name in self._stored for name in read)):
                self._stored.add(one.node.name)

    def read(self, place: int) -> list[NodeTensor]:
        """What a node is given, without weights."""
        return [tensor for name, tensor in self._inputs(place) if name not in self._stored]

    def of(self, place: int) -> Cost | None:
        """The cost of one run of a node; None where it is not known."""
        one, origin = self._graph.ran[place], self._origins.nodes[place]
        if one.node.type in _UNKNOWN:
            return None
        macs = self._macs(place)
        inputs = self._inputs(place)
        sizes = [(name, _bytes(tensor)) for name, tensor in inputs]
        left = [_bytes(tensor) for tensor in one.node.outputs]
        if macs is None or None in [size for _, size in sizes] or None in left:
            return None
        moved = sum(size or 0 for name, size in sizes if name not in self._stored)
        weights = sum(size or 0 for name, size in sizes if name in self._stored)
        kinds = [self._origins.kind(number) for number in origin.nodes]
        computes = [kind for kind in kinds if kind not in {*PRODUCTS, Category.DATA_MOVEMENT}]
        made = math.prod(one.node.outputs[0].shape or ()) if one.node.outputs else 0
        others = 0 if macs else made * len(computes)
        return Cost(macs, 2 * macs + others, moved, sum(size or 0 for size in left), weights).if_possible()

    def filter(self, number: int | None) -> Filter | None:
        """The filter of a convolution of the model; None for other nodes, and where its sizes are not known."""
        node = None if number is None else self._graph.given[number]
        if node is None or node.type not in _CONVOLUTIONS:
            return None
        shape = self._shape(node, 1)
        if shape is None:
            return None
        grouped = node.type in _GROUPED
        return Filter(shape[0], shape[1:]) if grouped else Filter(1, shape)

    def _inputs(self, place: int) -> list[tuple[str, NodeTensor]]:
        found = []
        for name, port in self._graph.ran[place].node.inputs:
            outputs = self._outputs.get(name, ())
            if port < len(outputs):
                found.append((name, outputs[port]))
        return found

    def _macs(self, place: int) -> int | None:
        """Multiply-accumulates; 0 for what is no product, None for a product whose factors are not known."""
        own = [number for number in self._origins.nodes[place].nodes if self._origins.kind(number) in PRODUCTS]
        if not own:
            product = classify(f"{self._graph.ran[place].node.type}: ").category in PRODUCTS
            return None if product else 0
        each = [self._macs_of(number) for number in own]
        return None if None in each else sum(count or 0 for count in each)

    def _macs_of(self, number: int) -> int | None:
        node = self._graph.given[number]
        made = node.outputs[0].shape if node.outputs else None
        if made is None:
            return None
        if (filter_ := self.filter(number)) is not None:
            data = self._shape(node, 0) if node.type in _BACKWARDS else made
            each = filter_.groups * math.prod(filter_.shape)
            return data[0] * math.prod(data[2:]) * each if data else None
        if node.type == "ScaledDotProductAttention":
            return self._attention(node)
        rows = self._shape(node, 0)
        if node.type != "MatMul" or not rows:
            return None
        across = node.transposed[0] and len(rows) >= _MATRIX
        return math.prod(made) * rows[-2 if across else -1]

    def _attention(self, node: ModelNode) -> int | None:
        """Scores and their sum over the values."""
        queries, keys, values = (self._shape(node, place) for place in range(3))
        if not queries or not keys or not values or min(map(len, (queries, keys, values))) < _MATRIX:
            return None
        return math.prod(queries[:-1]) * keys[-2] * (queries[-1] + values[-1])

    def _shape(self, node: ModelNode, place: int) -> tuple[int, ...] | None:
        if place >= len(node.inputs):
            return None
        name, port = node.inputs[place]
        outputs: Sequence[NodeTensor] = self._given.get(name, ())
        return outputs[port].shape if port < len(outputs) else None


def _bytes(tensor: NodeTensor) -> int | None:
    """Of a tensor; None where it is not known."""
    if tensor.shape is None:
        return None
    elements = math.prod(tensor.shape)
    if not elements:
        return 0
    bits = _BITS.get(tensor.dtype)
    return None if bits is None else (elements * bits + 7) // 8
