"""Attribute traces of OpenVINO to the original model, through the graph that ran, and count what its nodes cost."""

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
"""Number types of OpenVINO's tensors, with the names that opscope uses."""


def graph_of(side: Side) -> OpenVinoGraph:
    """Read the graph beside the traces of a side; without one, return the nodes that the trace names."""
    file = side.kept_file(GRAPH)
    return read_graph(file) if file else _graph_from_names(side)


def _graph_from_names(side: Side) -> OpenVinoGraph:
    frame = side.table.frame
    names = frame.filter(frame["scope"] == Scope.KERNEL.value)["name"].unique(maintain_order=True).to_list()
    parts = [name.partition(": ") for name in names]
    return OpenVinoGraph(SCHEMA, "", {}, (), tuple(RunNode(ModelNode(n, t, (), ()), "", (n,), "") for t, _, n in parts))


def with_nodes(side: Side, graph: OpenVinoGraph) -> AttributedSide:
    """Number the operators of a side by the nodes of the original model, and attribute them.

    In variants with different graphs, operators that compute the same node have the same number. A node that
    changes a layout is numbered by the node that reads its output.
    """
    traced_types = _traced_types(side)
    facts = _Facts(graph)
    positions = {
        f"{traced_types.get(run_node.node.name, run_node.node.type)}: {run_node.node.name}": position
        for position, run_node in enumerate(graph.ran)
    }
    numbers = facts.numbers()
    table = side.table.with_instructions(
        {name: numbers[position] for name, position in positions.items()}, {}, max(numbers) + 1
    )
    methods = [name for name in table.frame["method"].unique().to_list() if name]
    method = methods[0] if methods else _METHOD
    operators = {OperatorKey(method, numbers[position], 0): facts.of(position) for position in positions.values()}
    strange = all(origin.attribution is Attribution.NAME for origin in facts.origins.nodes) and bool(graph.given)
    conflict = "it has none of the nodes that ran" if strange else None
    return AttributedSide(side._replace(table=table), Attributions(operators, [], conflict, [], {}, {}))


def facts_of(graph: OpenVinoGraph) -> list[OperatorFacts]:
    """Return the facts of each node of a graph that ran, in its order."""
    facts = _Facts(graph)
    return [facts.of(position) for position in range(len(graph.ran))]


def _traced_types(side: Side) -> dict[str, str]:
    """Return the types of nodes in the trace by name, which differ from those of the graph."""
    frame = side.table.frame
    names = frame.filter(frame["scope"] == Scope.KERNEL.value)["name"].unique().to_list()
    return {name.partition(": ")[2]: name.partition(": ")[0] for name in names}


class _Facts:
    """Facts of the model about the nodes that ran."""

    def __init__(self, graph: OpenVinoGraph) -> None:
        self._graph = graph
        self.origins = RunOrigins(graph)
        self._costs = RunCosts(graph, self.origins)
        self._places = {run_node.node.name: position for position, run_node in enumerate(graph.ran)}
        self._readers: dict[str, list[int]] = {}
        for position, run_node in enumerate(graph.ran):
            for name, _ in run_node.node.inputs:
                self._readers.setdefault(name, []).append(position)

    def numbers(self) -> list[int]:
        """Return a number for each node that ran: that of its node of the model, or one after all of these."""
        first = len(self._graph.given)
        behind, taken, numbers = 3 * first, set[int](), []
        for position, origin in enumerate(self.origins.nodes):
            number = origin.main
            if number is None and (reader := self._find_model_neighbour(position, forwards=True)) is not None:
                number = first + 2 * reader
            elif number is None and (maker := self._find_model_neighbour(position, forwards=False)) is not None:
                number = first + 2 * maker + 1
            if number is None or number in taken:
                number, behind = behind, behind + 1
            taken.add(number)
            numbers.append(number)
        return numbers

    def _find_model_neighbour(self, position: int, *, forwards: bool) -> int | None:
        """Return the node of the model that reads what an added node writes, or that writes what it reads."""
        node = self._graph.ran[position].node
        neighbours = (
            self._readers.get(node.name, ()) if forwards else [self._places.get(name) for name, _ in node.inputs]
        )
        return next((self.origins.nodes[neighbour].main for neighbour in neighbours if neighbour is not None), None)

    def of(self, position: int) -> OperatorFacts:
        run_node, origin = self._graph.ran[position], self.origins.nodes[position]
        kernel = run_node.kernel or None
        if origin.attribution is Attribution.NAME:
            return OperatorFacts(kernel=kernel)
        main = None if origin.main is None else self._graph.given[origin.main]
        made = run_node.node.outputs[0] if run_node.node.outputs else None
        read = self._costs.read(position)
        shapes = [tensor.shape for tensor in (read[:1] + ([made] if made else [])) if tensor.shape is not None]
        return OperatorFacts(
            operator_class=self._operator_class(run_node, origin),
            attribution=origin.attribution,
            handles=origin.nodes,
            module=_module_of_node(main or self._node_of_layout_change(position)),
            computes=tuple(self._graph.given[number].type for number in origin.nodes),
            dtype=NODE_TYPES.get(read[0].dtype, read[0].dtype) if read else None,
            shape=made.shape if made else None,
            elements=max((math.prod(shape) for shape in shapes), default=None),
            cost=part("costs of nodes", lambda: self._costs.of(position), None),
            change=self._layout_change(position) if main is None else None,
            kernel=kernel,
        )

    def _operator_class(self, run_node: RunNode, origin: NodeOrigin) -> OperatorClass:
        """Return the class of the model's node; of several joined nodes, that of the first whose class is known."""
        filter_ = self._costs.filter(origin.main)
        if filter_ and filter_.depthwise:
            return classify_node("DepthwiseConv2d")
        operator_class = classify(f"{run_node.node.type}: ")
        if origin.main is None or (
            operator_class.category in PRODUCTS and operator_class.category is self.origins.kind(origin.main)
        ):
            kind = classify(f"{self._graph.given[origin.main].type}: ") if origin.main is not None else operator_class
            return operator_class if operator_class.kind == "linear" else kind
        operator_classes = [classify(f"{self._graph.given[number].type}: ") for number in (origin.main, *origin.nodes)]
        return next((kind for kind in operator_classes if kind != UNKNOWN), operator_class)

    def _node_of_layout_change(self, position: int) -> ModelNode | None:
        """Return the node of the model that an added node changes the layout for; None if there is none."""
        number = self._find_model_neighbour(position, forwards=True)
        if number is None:
            number = self._find_model_neighbour(position, forwards=False)
        return None if number is None else self._graph.given[number]

    def _layout_change(self, position: int) -> LayoutChange:
        before, after = (
            self._find_model_neighbour(position, forwards=False),
            self._find_model_neighbour(position, forwards=True),
        )
        labels = [[] if number is None else [_node_label(self._graph.given[number])] for number in (before, after)]
        return LayoutChange("runtime", labels[0] or [GIVEN], labels[1] or ["output of the model"])


def _module_of_node(node: ModelNode | None) -> str | None:
    """Return the layer in a node's name, as exporters write it: ``/block/conv/Conv`` is in ``block.conv``."""
    name = node.name.removesuffix("/WithoutBiases") if node else ""
    if "/" not in name:
        return name if "." in name else None
    parts: Sequence[str] = [part for part in name.split("/") if part]
    return ".".join(parts[:-1] or parts) or None


def _node_label(node: ModelNode) -> str:
    return f"{_module_of_node(node) or node.name} ({node.type})"


_BITS = {"f64": 64, "i64": 64, "u64": 64, "f32": 32, "i32": 32, "u32": 32, "f16": 16, "bf16": 16, "i16": 16, "u16": 16}
_BITS |= {"i8": 8, "u8": 8, "boolean": 8, "f8e4m3": 8, "f8e5m2": 8, "i4": 4, "u4": 4, "u2": 2, "u1": 1}
_GROUPED = frozenset({"GroupConvolution", "GroupConvolutionBackpropData"})
_BACKWARDS = frozenset({"ConvolutionBackpropData", "GroupConvolutionBackpropData"})
_CONVOLUTIONS = frozenset({"Convolution", *_GROUPED, *_BACKWARDS})
_UNKNOWN = frozenset({"If", "Loop", "TensorIterator"})
"""Operators whose work does not follow from the shapes of their tensors."""
_MATRIX = 2
_STORED = "Const"


class Filter(NamedTuple):
    """Size and number of groups of a convolution's filter."""

    groups: int
    shape: tuple[int, ...]  # of one group: results, data, taps; for one that goes backwards data, results, taps

    @property
    def taps(self) -> tuple[int, ...]:
        """Number of filter taps along each axis."""
        return self.shape[_MATRIX:]

    @property
    def depthwise(self) -> bool:
        """Return whether each group has one channel."""
        return self.groups > 1 and min(self.shape[:_MATRIX]) == 1


class RunCosts:
    """Costs of the nodes of a graph that ran.

    Multiply-accumulates are those of the model's nodes, each counted once; bytes are those that nodes read and
    write, in the types in which they ran.
    """

    def __init__(self, graph: OpenVinoGraph, origins: RunOrigins) -> None:
        self._graph, self._origins = graph, origins
        self._outputs = {run_node.node.name: run_node.node.outputs for run_node in graph.ran}
        self._given = {node.name: node.outputs for node in graph.given}
        self._stored: set[str] = set()
        for run_node in graph.ran:
            read = [name for name, _ in run_node.node.inputs]
            if run_node.node.type == _STORED or (read and all(name in self._stored for name in read)):
                self._stored.add(run_node.node.name)

    def read(self, position: int) -> list[NodeTensor]:
        """Return the inputs of a node that are not weights."""
        return [tensor for name, tensor in self._input_tensors(position) if name not in self._stored]

    def of(self, position: int) -> Cost | None:
        """Return the cost of one run of a node; None if it is unknown."""
        run_node, origin = self._graph.ran[position], self._origins.nodes[position]
        if run_node.node.type in _UNKNOWN:
            return None
        macs = self._count_macs(position)
        inputs = self._input_tensors(position)
        sizes = [(name, _tensor_bytes(tensor)) for name, tensor in inputs]
        written = [_tensor_bytes(tensor) for tensor in run_node.node.outputs]
        if macs is None or None in [size for _, size in sizes] or None in written:
            return None
        moved = sum(size or 0 for name, size in sizes if name not in self._stored)
        weights = sum(size or 0 for name, size in sizes if name in self._stored)
        kinds = [self._origins.kind(number) for number in origin.nodes]
        computes = [kind for kind in kinds if kind not in {*PRODUCTS, Category.DATA_MOVEMENT}]
        made = math.prod(run_node.node.outputs[0].shape or ()) if run_node.node.outputs else 0
        elementwise_flops = 0 if macs else made * len(computes)
        return Cost(
            macs, 2 * macs + elementwise_flops, moved, sum(size or 0 for size in written), weights
        ).if_possible()

    def filter(self, number: int | None) -> Filter | None:
        """Return the filter of a convolution of the model; None for other nodes, and if its sizes are unknown."""
        node = None if number is None else self._graph.given[number]
        if node is None or node.type not in _CONVOLUTIONS:
            return None
        shape = self._input_shape(node, 1)
        if shape is None:
            return None
        grouped = node.type in _GROUPED
        return Filter(shape[0], shape[1:]) if grouped else Filter(1, shape)

    def _input_tensors(self, position: int) -> list[tuple[str, NodeTensor]]:
        inputs = []
        for name, port in self._graph.ran[position].node.inputs:
            outputs = self._outputs.get(name, ())
            if port < len(outputs):
                inputs.append((name, outputs[port]))
        return inputs

    def _count_macs(self, position: int) -> int | None:
        """Return the multiply-accumulates of a node; 0 if it has no product, None if the factors are unknown."""
        products = [number for number in self._origins.nodes[position].nodes if self._origins.kind(number) in PRODUCTS]
        if not products:
            is_product = classify(f"{self._graph.ran[position].node.type}: ").category in PRODUCTS
            return None if is_product else 0
        counts = [self._count_node_macs(number) for number in products]
        return None if None in counts else sum(count or 0 for count in counts)

    def _count_node_macs(self, number: int) -> int | None:
        node = self._graph.given[number]
        made = node.outputs[0].shape if node.outputs else None
        if made is None:
            return None
        if (filter_ := self.filter(number)) is not None:
            data = self._input_shape(node, 0) if node.type in _BACKWARDS else made
            macs_per_position = filter_.groups * math.prod(filter_.shape)
            return data[0] * math.prod(data[2:]) * macs_per_position if data else None
        if node.type == "ScaledDotProductAttention":
            return self._count_attention(node)
        rows = self._input_shape(node, 0)
        if node.type != "MatMul" or not rows:
            return None
        across = node.transposed[0] and len(rows) >= _MATRIX
        return math.prod(made) * rows[-2 if across else -1]

    def _count_attention(self, node: ModelNode) -> int | None:
        """Count the scores of an attention and their sum over the values."""
        queries, keys, values = (self._input_shape(node, position) for position in range(3))
        if not queries or not keys or not values or min(map(len, (queries, keys, values))) < _MATRIX:
            return None
        return math.prod(queries[:-1]) * keys[-2] * (queries[-1] + values[-1])

    def _input_shape(self, node: ModelNode, position: int) -> tuple[int, ...] | None:
        if position >= len(node.inputs):
            return None
        name, port = node.inputs[position]
        outputs: Sequence[NodeTensor] = self._given.get(name, ())
        return outputs[port].shape if port < len(outputs) else None


def _tensor_bytes(tensor: NodeTensor) -> int | None:
    """Return the size of a tensor in bytes; None if it is unknown."""
    if tensor.shape is None:
        return None
    elements = math.prod(tensor.shape)
    if not elements:
        return 0
    bits = _BITS.get(tensor.dtype)
    return None if bits is None else (elements * bits + 7) // 8
