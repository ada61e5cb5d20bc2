"""Traces of OpenVINO attributed to the model as it was given, through the graph that ran, and what its nodes cost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from opscope.analysis.operators.attribution import Attributions
from opscope.analysis.operators.operators import GIVEN, LayoutChange, OperatorFacts
from opscope.core.parts import part
from opscope.core.table import Scope
from opscope.core.table.places import OperatorKey
from opscope.program.cost.operator_cost import Cost
from opscope.program.operators.kinds import Attribution, Category
from opscope.program.operators.taxonomy import UNKNOWN, classify, classify_node
from opscope.runtimes.attribution import AttributedSide
from opscope.runtimes.openvino.graph import GRAPH, SCHEMA, ModelNode, OpenVinoGraph, RunNode, read_graph
from opscope.runtimes.openvino.origins import PRODUCTS, RunOrigins

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opscope.program.operators.taxonomy import OperatorClass
    from opscope.program.origin import NodeOrigin
    from opscope.runtimes.openvino.graph import NodeTensor
    from opscope.runtimes.side import Side


_METHOD = "main"
NODE_TYPES = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f64": "float64",
    "i8": "int8",
    "u8": "uint8",
    "i32": "int32",
    "i64": "int64",
    "boolean": "bool",
}
"""Number types of OpenVINO's tensors, as everything else calls them."""


def graph_of(side: Side) -> OpenVinoGraph:
    """What is kept beside the traces of a side; where nothing is, the nodes that they name."""
    file = side.kept_file(GRAPH)
    return read_graph(file) if file else _named_by(side)


def _named_by(side: Side) -> OpenVinoGraph:
    frame = side.table.frame
    names = frame.filter(frame["scope"] == Scope.KERNEL.value)["name"].unique(maintain_order=True).to_list()
    parts = [name.partition(": ") for name in names]
    return OpenVinoGraph(SCHEMA, "", {}, (), tuple(RunNode(ModelNode(n, t, (), ()), "", (n,), "") for t, _, n in parts))


def with_nodes(side: Side, graph: OpenVinoGraph) -> AttributedSide:
    """A side whose operators have the numbers of the model's nodes, and what the model says of them.

    So operators of variants whose graphs differ have the same number where they compute the same node. One that changes
    a layout is numbered by the node that reads what it makes.
    """
    told = _types(side)
    facts = _Facts(graph)
    named = {f"{told.get(one.node.name, one.node.type)}: {one.node.name}": place for place, one in enumerate(graph.ran)}
    numbers = facts.numbers()
    table = side.table.with_instructions({name: numbers[place] for name, place in named.items()}, {}, max(numbers) + 1)
    methods = [name for name in table.frame["method"].unique().to_list() if name]
    method = methods[0] if methods else _METHOD
    operators = {OperatorKey(method, numbers[place], 0): facts.of(place) for place in named.values()}
    strange = all(one.attribution is Attribution.NAME for one in facts.origins.nodes) and bool(graph.given)
    conflict = "it has none of the nodes that ran" if strange else None
    return AttributedSide(side._replace(table=table), Attributions(operators, [], conflict, [], {}, {}))


def facts_of(graph: OpenVinoGraph) -> list[OperatorFacts]:
    """What is known of each node of a graph that ran, in its order."""
    facts = _Facts(graph)
    return [facts.of(place) for place in range(len(graph.ran))]


def _types(side: Side) -> dict[str, str]:
    """Types of the nodes as the trace tells them, which differ from those of the graph, by name."""
    frame = side.table.frame
    names = frame.filter(frame["scope"] == Scope.KERNEL.value)["name"].unique().to_list()
    return {name.partition(": ")[2]: name.partition(": ")[0] for name in names}


class _Facts:
    """What the model says of nodes that ran."""

    def __init__(self, graph: OpenVinoGraph) -> None:
        self._graph = graph
        self.origins = RunOrigins(graph)
        self._costs = RunCosts(graph, self.origins)
        self._places = {one.node.name: place for place, one in enumerate(graph.ran)}
        self._readers: dict[str, list[int]] = {}
        for place, one in enumerate(graph.ran):
            for name, _ in one.node.inputs:
                self._readers.setdefault(name, []).append(place)

    def numbers(self) -> list[int]:
        """A number for each node that ran: that of its node of the model, or behind all of these."""
        first = len(self._graph.given)
        behind, taken, numbers = 3 * first, set[int](), []
        for place, origin in enumerate(self.origins.nodes):
            number = origin.main
            if number is None and (reader := self._neighbour(place, forwards=True)) is not None:
                number = first + 2 * reader
            elif number is None and (maker := self._neighbour(place, forwards=False)) is not None:
                number = first + 2 * maker + 1
            if number is None or number in taken:
                number, behind = behind, behind + 1
            taken.add(number)
            numbers.append(number)
        return numbers

    def _neighbour(self, place: int, *, forwards: bool) -> int | None:
        """The node of the model that reads what an added one makes, or that makes what it reads."""
        node = self._graph.ran[place].node
        near = self._readers.get(node.name, ()) if forwards else [self._places.get(name) for name, _ in node.inputs]
        return next((self.origins.nodes[one].main for one in near if one is not None), None)

    def of(self, place: int) -> OperatorFacts:
        one, origin = self._graph.ran[place], self.origins.nodes[place]
        kernel = one.kernel or None
        if origin.attribution is Attribution.NAME:
            return OperatorFacts(kernel=kernel)
        main = None if origin.main is None else self._graph.given[origin.main]
        made = one.node.outputs[0] if one.node.outputs else None
        read = self._costs.read(place)
        shapes = [tensor.shape for tensor in (read[:1] + ([made] if made else [])) if tensor.shape is not None]
        return OperatorFacts(
            operator_class=self._class(one, origin),
            attribution=origin.attribution,
            handles=origin.nodes,
            module=_module(main or self._carrier(place)),
            computes=tuple(self._graph.given[number].type for number in origin.nodes),
            dtype=NODE_TYPES.get(read[0].dtype, read[0].dtype) if read else None,
            shape=made.shape if made else None,
            elements=max((math.prod(shape) for shape in shapes), default=None),
            cost=part("costs of nodes", lambda: self._costs.of(place), None),
            change=self._change(place) if main is None else None,
            kernel=kernel,
        )

    def _class(self, one: RunNode, origin: NodeOrigin) -> OperatorClass:
        """By the type of the model's node; of what was joined of several by the first that tells."""
        filter_ = self._costs.filter(origin.main)
        if filter_ and filter_.depthwise:
            return classify_node("DepthwiseConv2d")
        operator_class = classify(f"{one.node.type}: ")
        if origin.main is None or (
            operator_class.category in PRODUCTS and operator_class.category is self.origins.kind(origin.main)
        ):
            kind = classify(f"{self._graph.given[origin.main].type}: ") if origin.main is not None else operator_class
            return operator_class if operator_class.kind == "linear" else kind
        operator_classes = [classify(f"{self._graph.given[number].type}: ") for number in (origin.main, *origin.nodes)]
        return next((kind for kind in operator_classes if kind != UNKNOWN), operator_class)

    def _carrier(self, place: int) -> ModelNode | None:
        """Whose result is laid out anew, or who reads it."""
        number = self._neighbour(place, forwards=True)
        if number is None:
            number = self._neighbour(place, forwards=False)
        return None if number is None else self._graph.given[number]

    def _change(self, place: int) -> LayoutChange:
        before, after = self._neighbour(place, forwards=False), self._neighbour(place, forwards=True)
        told = [[] if number is None else [_label(self._graph.given[number])] for number in (before, after)]
        return LayoutChange("runtime", told[0] or [GIVEN], told[1] or ["output of the model"])


def _module(node: ModelNode | None) -> str | None:
    """The layer that exporters write into the name of a node: ``/block/conv/Conv`` is of ``block.conv``."""
    name = node.name.removesuffix("/WithoutBiases") if node else ""
    if "/" not in name:
        return name if "." in name else None
    parts: Sequence[str] = [part for part in name.split("/") if part]
    return ".".join(parts[:-1] or parts) or None


def _label(node: ModelNode) -> str:
    return f"{_module(node) or node.name} ({node.type})"


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
        inputs = []
        for name, port in self._graph.ran[place].node.inputs:
            outputs = self._outputs.get(name, ())
            if port < len(outputs):
                inputs.append((name, outputs[port]))
        return inputs

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
