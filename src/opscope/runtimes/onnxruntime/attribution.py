"""Attribute traces of ONNX Runtime to the original model, through the graph that the session ran, and compute costs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from opscope.analysis.operators.attribution import Attributions
from opscope.analysis.operators.operators import LayoutChange, OperatorFacts
from opscope.core.grouping import grouped
from opscope.core.parts import part
from opscope.core.table import Scope
from opscope.core.table.places import OperatorKey
from opscope.program.cost.cache import CacheUse
from opscope.program.cost.operator_cost import Cost
from opscope.program.operators.kinds import Attribution
from opscope.program.operators.taxonomy import Category, classify, classify_node
from opscope.program.phases import population_name, without_population
from opscope.runtimes.attribution import AttributedSide
from opscope.runtimes.onnxruntime.given import with_branches
from opscope.runtimes.onnxruntime.graph import (
    GRAPH,
    METHOD,
    SCHEMA,
    SessionGraph,
    SessionNode,
    SessionTensor,
    read_session_graph,
)
from opscope.runtimes.onnxruntime.onnx_file import OnnxValue, read_onnx
from opscope.runtimes.onnxruntime.origins import SessionOrigins
from opscope.runtimes.onnxruntime.passes import BLOCKED, MOVERS, PRODUCTS, family

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from opscope.program.operators.taxonomy import OperatorClass
    from opscope.program.origin import NodeOrigin
    from opscope.runtimes.onnxruntime.onnx_file import OnnxGraph, OnnxNode
    from opscope.runtimes.side import Side

_BYTES = {
    **dict.fromkeys(("float", "int32", "uint32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("int8", "uint8", "bool"), 1),
    **dict.fromkeys(("double", "int64", "uint64"), 8),
}
_WEIGHT_PLACE = {"QLinearConv": 3}
_CONVOLUTIONS = frozenset({"Conv", "ConvInteger", "QLinearConv", "FusedConv"})
_GEMMS = frozenset({"Gemm", "QGemm"})
_PRODUCTS = frozenset(
    {"MatMul", "MatMulInteger", "QLinearMatMul", "FusedMatMul", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"}
)
_RECURRENT = frozenset({"LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"})
_UNKNOWN = frozenset({"GroupQueryAttention", "If", "Loop", "Scan", "SparseAttention"})
"""Operators whose work does not follow from the shapes of their tensors."""
_GATHERING = frozenset({"Gather", "GatherElements", "GatherND", "GatherBlockQuantized"})
"""Operators that read only the requested rows of a table."""
_QUANTISING = frozenset({"QuantizeLinear", "DequantizeLinear"})
_FEW_BITS, _GROUPED = "MatMulNBits", "GroupQueryAttention"
_PAST_KEYS = 3
"""Position of the keys of earlier tokens among the inputs of an attention."""
_MATRIX, _HEADS = 3, 4
"""Number of dimensions of data with all heads side by side, and with a dimension of heads."""


class SessionCosts:
    """Costs of the nodes of one graph that ran.

    Multiply-accumulates are those of the nodes of the original model, each counted once, and all sizes are those of
    the original model: blocks of channels are padded with zeros, and a pass may lay out or fuse differently on
    another machine.
    """

    def __init__(
        self,
        model_graph: OnnxGraph,
        ran: Sequence[SessionNode],
        origins: SessionOrigins,
        shapes: Mapping[str, SessionTensor],
    ) -> None:
        self._given, self._ran, self._origins = model_graph, ran, origins
        stored = {weight.name: SessionTensor(weight.dtype.name, weight.shape) for weight in model_graph.weights}
        self._tensors = {**stored, **_observed_tensors(ran, origins.holds), **shapes}
        self._counted: dict[int, int] = {}  # products of the given model, by number: place of the node that has them
        exact_first = sorted(
            range(len(ran)), key=lambda position: origins.nodes[position].attribution != Attribution.EXACT
        )
        for position in exact_first:
            for number in self._product_numbers(origins.nodes[position]):
                self._counted.setdefault(number, position)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor of the original model; None if it is unknown."""
        return self._tensors[name].shape if name in self._tensors else None

    def held(self, name: str, tensor: SessionTensor) -> tuple[int, ...]:
        """Return the shape of the original tensor that a tensor holds; its own shape if that is unknown."""
        return self.shape(self._origins.holds.get(name, "")) or tensor.shape

    def of(self, position: int, computed: Collection[str]) -> Cost | None:
        """Return the cost of one run of a node; None if it is unknown."""
        node, origin = self._ran[position], self._origins.nodes[position]
        main = None if origin.main is None else self._given.nodes[origin.main]
        names = [name for name in node.inputs if name]
        if not node.written or len(node.read) != len(names) or (main is not None and main.op in _UNKNOWN):
            return None
        macs = self._count_macs(position)
        read = [self._tensor_bytes(name, tensor, main) for name, tensor in zip(names, node.read, strict=True)]
        written = [
            self._tensor_bytes(name, tensor, main) for name, tensor in zip(node.outputs, node.written, strict=False)
        ]
        if macs is None or macs < 0 or None in (*read, *written):
            return None
        moved = sum(size or 0 for name, size in zip(names, read, strict=True) if name in computed)
        stored = sum(size or 0 for name, size in zip(names, read, strict=True) if name not in computed)
        elementwise_flops = 0 if macs or _only_moves_data(node) else math.prod(node.written[0].shape)
        padding = (
            sum(self._padding_of(self._given.nodes[number]) for number in self._owned_products(position)) if macs else 0
        )
        written_bytes = sum(size or 0 for size in written)
        stored = min(stored, written_bytes) if node.op in _GATHERING else stored
        return Cost(macs, 2 * macs + elementwise_flops, moved, written_bytes, stored, padding).if_possible()

    def filter(self, main: OnnxNode | None) -> tuple[int, ...]:
        """Return the shape of the filter of a convolution of the model; empty for other nodes."""
        position = _WEIGHT_PLACE.get(main.op, 1) if main is not None else 1
        if main is None or "Conv" not in main.op or len(main.inputs) <= position:
            return ()
        return self.shape(main.inputs[position]) or ()

    def _tensor_bytes(self, name: str, tensor: SessionTensor, main: OnnxNode | None) -> int | None:
        width = _BYTES.get(tensor.dtype)
        shape = self.held(name, tensor)
        filter_shape = self.filter(main)
        if name not in self._origins.holds and len(filter_shape) == len(shape) and len(filter_shape) > _MATRIX - 1:
            shape = filter_shape  # a filter in blocks
        return None if width is None else width * math.prod(shape)

    def _product_numbers(self, origin: NodeOrigin) -> list[int]:
        return [number for number in origin.nodes if family(self._given.nodes[number].op) in PRODUCTS]

    def _count_macs(self, position: int) -> int | None:
        """Return the multiply-accumulates of a node; 0 if it has no product, None if the factors are unknown."""
        origin = self._origins.nodes[position]
        if origin.main is None:
            return None if family(self._ran[position].op) in PRODUCTS else 0
        counts = [self._count_node_macs(self._given.nodes[number]) for number in self._owned_products(position)]
        return None if None in counts else sum(count or 0 for count in counts)

    def _owned_products(self, position: int) -> list[int]:
        """Return the products of the original model that are counted with a node."""
        return [
            number
            for number in self._product_numbers(self._origins.nodes[position])
            if self._counted[number] == position
        ]

    def _padding_of(self, node: OnnxNode) -> int:
        """Return the multiply-accumulates of a convolution that read the zeros around its input."""
        names = [*node.inputs[:1], *node.inputs[_WEIGHT_PLACE.get(node.op, 1) :][:1], *node.outputs[:1]]
        data, weight, made = (self.shape(name) for name in names) if len(names) == _MATRIX else (None, None, None)
        if node.op not in _CONVOLUTIONS or not data or not weight or not made:
            return 0
        if not _MATRIX <= len(made) == len(weight) == len(data):
            return 0
        pairs_per_axis = [
            _count_unpadded_pairs(size, taps, count, *_stride_dilation_padding(node, axis, size, taps, count))
            for axis, (size, taps, count) in enumerate(zip(data[2:], weight[2:], made[2:], strict=True))
        ]
        channel_products = made[0] * math.prod(weight[:2])
        return channel_products * (math.prod(made[2:]) * math.prod(weight[2:]) - math.prod(pairs_per_axis))

    def _count_node_macs(self, node: OnnxNode) -> int | None:
        read = {position: self.shape(name) for position, name in enumerate(node.inputs) if name}
        made = next((self.shape(name) for name in node.outputs if name), None)
        if made is None:
            return None
        if node.op in _CONVOLUTIONS:
            weight = read.get(_WEIGHT_PLACE.get(node.op, 1))
            return None if not weight or len(made) < _MATRIX else made[0] * math.prod(made[2:]) * math.prod(weight)
        if node.op == "ConvTranspose":
            weight, data = read.get(1), read.get(0)
            return None if not weight or not data else math.prod(data[2:]) * data[0] * math.prod(weight)
        count = _COUNTS.get(node.op)
        return None if count is None else count(node, read, made)


_MOST_TAPS = 10_000


def _stride_dilation_padding(node: OnnxNode, axis: int, size: int, taps: int, count: int) -> tuple[int, int, int]:
    """Return stride, dilation and the number of zeros before the input of a convolution, along one dimension."""

    def option(name: str, otherwise: int) -> int:
        values = node.attributes.get(name)
        return int(values[axis]) if isinstance(values, tuple) and len(values) > axis else otherwise

    stride, dilation, same = option("strides", 1), option("dilations", 1), str(node.attributes.get("auto_pad", ""))
    if same.startswith("SAME"):
        around = max(0, (count - 1) * stride + (taps - 1) * dilation + 1 - size)
        return stride, dilation, around // 2 if same == "SAME_UPPER" else around - around // 2
    return stride, dilation, option("pads", 0)


def _count_unpadded_pairs(size: int, taps: int, count: int, stride: int, dilation: int, before: int) -> int:
    """Count pairs of an output and a filter tap along a dimension whose input is not padding."""
    if stride < 1 or taps > _MOST_TAPS:  # of a damaged file
        return taps * count
    pairs = 0
    for tap in range(taps):
        first = -(-(before - tap * dilation) // stride)
        last = (size - 1 + before - tap * dilation) // stride
        pairs += max(0, min(last, count - 1) - max(first, 0) + 1)
    return pairs


def _observed_tensors(ran: Sequence[SessionNode], holds: Mapping[str, str]) -> dict[str, SessionTensor]:
    """Return the tensors of the original model, as the nodes that neither pad nor lay out data had them."""
    session_tensors: dict[str, SessionTensor] = {}
    for node in ran:
        if node.domain == BLOCKED or node.op in MOVERS:
            continue
        for names, tensors in ((node.inputs, node.read), (node.outputs, node.written)):
            tensor_names = [name for name in names if name]
            for name, tensor in zip(tensor_names, tensors if len(tensors) == len(tensor_names) else (), strict=False):
                if holds.get(name) == name:
                    session_tensors.setdefault(name, tensor)
    return session_tensors


def _only_moves_data(node: SessionNode) -> bool:
    """Return whether a node only moves data, whatever node of the model it stands for."""
    return classify(f"{node.op}: ").category is Category.DATA_MOVEMENT


_Shapes: TypeAlias = "Mapping[int, tuple[int, ...] | None]"
"""Shapes of what a node reads, by position of the input; omitted inputs are missing."""


def _count_matrix_product(main: OnnxNode, read: _Shapes, made: Sequence[int]) -> int | None:
    """Count a product of two matrices as output elements times the inner size of the first matrix."""
    rows, across = read.get(0), main.attributes.get("transA")
    position = 0 if across and main.op in _GEMMS else -2 if across else -1
    return math.prod(made) * rows[position] if rows and len(rows) >= abs(position) else None


def _count_few_bit_product(main: OnnxNode, read: _Shapes, _: Sequence[int]) -> int | None:
    """Count a product with weights in blocks.

    Their number of columns is an option (``MatMulNBits`` of com.microsoft).
    """
    rows, columns = read.get(0), main.attributes.get("N")
    return math.prod(rows) * columns if rows and isinstance(columns, int) else None


def _count_recurrent_layer(_: OnnxNode, read: _Shapes, __: Sequence[int]) -> int | None:
    """Count all weights of input and state once for each step and sequence (operators LSTM, GRU and RNN)."""
    data, weights, state = (read.get(position) for position in range(3))
    if data is None or weights is None or state is None or len(data) != _MATRIX:
        return None
    return data[0] * data[1] * (math.prod(weights) + math.prod(state))


def _count_einsum(main: OnnxNode, read: _Shapes, _: Sequence[int]) -> int | None:
    """Count an Einsum of two tensors: every combination of their indices once; 0 for one tensor."""
    terms = str(main.attributes.get("equation", "")).replace(" ", "").partition("->")[0].split(",")
    shapes = [read.get(position) for position in range(len(terms))]
    if len(terms) == 1:
        return 0
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        if shape is None or len(shape) != len(term) or not term.isalpha():
            return None
        for index, size in zip(term, shape, strict=True):
            sizes[index] = max(size, sizes.get(index, 1))
    return math.prod(sizes.values()) if len(terms) == 2 else None  # noqa: PLR2004 - of more the order is not known


def _count_attention(main: OnnxNode, read: _Shapes, _: Sequence[int]) -> int | None:
    """Count the scores of an attention and their sum over the values, and the projections that the operator contains.

    Sources: the operators ``Attention`` of ONNX (version 23), and ``Attention``, ``QAttention`` and
    ``MultiHeadAttention`` of com.microsoft. With a cache of earlier keys the count of those of com.microsoft is
    unknown: their shapes do not tell how much of it is used.
    """
    if main.domain == "com.microsoft":
        return (
            _count_packed_attention(main, read)
            if main.op != "MultiHeadAttention"
            else _count_unpacked_attention(main, read)
        )
    queries, keys, values, cached = (read.get(position) for position in (0, 1, 2, 4))
    if queries is None or keys is None or values is None or not len(queries) == len(keys) == len(values):
        return None
    earlier = cached[-2] if cached and len(cached) == _HEADS else 0
    if len(queries) == _HEADS:
        images, heads, rows, width = queries
        return images * heads * rows * (keys[2] + earlier) * (width + values[3])
    split, shared = main.attributes.get("q_num_heads"), main.attributes.get("kv_num_heads")
    if len(queries) != _MATRIX or not isinstance(split, int) or not isinstance(shared, int) or shared < 1:
        return None
    return queries[0] * queries[1] * (keys[1] + earlier) * (queries[2] + values[2] * split // shared)


def _count_packed_attention(main: OnnxNode, read: _Shapes) -> int | None:
    """Count an attention in which one matrix makes queries, keys and values of equal width."""
    data, weights = read.get(0), read.get(1)
    cached = any(main.inputs[8:9]) if main.op == "QAttention" else any(main.inputs[4:5])
    uneven = "qkv_hidden_sizes" in main.attributes
    if cached or uneven or data is None or weights is None or (len(data), len(weights)) != (_MATRIX, 2):
        return None
    images, rows, _ = data
    return images * rows * math.prod(weights) + 2 * images * rows * rows * (weights[1] // 3)


def _count_unpacked_attention(main: OnnxNode, read: _Shapes) -> int | None:
    queries, keys, values = (read.get(position) for position in range(3))
    cached = any(main.inputs[6:8])
    if cached or queries is None or keys is None or values is None or not len(queries) == len(keys) == _MATRIX:
        return None
    return queries[0] * queries[1] * keys[1] * (queries[2] + values[-1]) if len(values) == _MATRIX else None


_COUNTS: dict[str, Callable[[OnnxNode, _Shapes, Sequence[int]], int | None]] = {
    **dict.fromkeys(_PRODUCTS | _GEMMS, _count_matrix_product),
    **dict.fromkeys(_RECURRENT, _count_recurrent_layer),
    **dict.fromkeys(("Attention", "MultiHeadAttention", "QAttention"), _count_attention),
    "Einsum": _count_einsum,
    "MatMulNBits": _count_few_bit_product,
}


_MOVES = ("ReorderInput", "ReorderOutput", "Transpose")
_PER_TENSOR = len(_MOVES) + 1
_ROOM = 16
"""Number of operator numbers reserved per node for a nested graph: more than its tensors and added nodes need."""


class _Named(NamedTuple):
    """A node that ran, with its number and its facts."""

    name: str  # as the trace calls it
    instruction: int  # its number
    node: SessionNode  # itself
    origin: NodeOrigin  # where it comes from, in its own graph
    facts: _Facts  # what its own graph says
    position: int  # among the nodes of its own graph
    first: int = 0  # number of the first node of its own graph, behind which the others are numbered
    owner: int | None = None  # number of the node that runs its graph; None for one of the model itself


def session_graph_of(side: Side) -> SessionGraph:
    """Return the graph that the sessions of a side ran, which is kept beside their traces.

    If none was kept, as beside a profile from elsewhere, the graph has the nodes that the trace names, without
    tensors.
    """
    file = side.kept_file(GRAPH)
    return read_session_graph(file) if file else _graph_from_names(side)


def _graph_from_names(side: Side) -> SessionGraph:
    frame = side.table.frame
    operators = frame.filter(frame["scope"].is_in([Scope.KERNEL.value, Scope.DELEGATE_OP.value]))
    parts = [name.partition(": ") for name in operators["name"].unique(maintain_order=True).to_list()]
    nodes = tuple(SessionNode(name, op, "", (), ()) for op, _, name in parts)
    return SessionGraph(SCHEMA, "", "", (), nodes)


class NodeFacts(NamedTuple):
    """A node that a session ran, and what the original model says about it."""

    node: SessionNode
    main: OnnxNode | None  # of the given model; None for one that the session added
    facts: OperatorFacts
    filter: tuple[int, ...]  # shape of the filter of a convolution; empty for others


def node_facts(model_graph: OnnxGraph, ran: SessionGraph) -> list[NodeFacts]:
    """Return the facts of all nodes of a session, including those of nested graphs."""
    facts = []
    for node in _number_nodes(model_graph, ran.nodes, frozenset(), ran.shapes):
        main = node.facts.main(node.origin)
        facts.append(NodeFacts(node.node, main, node.facts.of(node), node.facts.filter(main)))
    return facts


def with_nodes(side: Side, program: Path, ran: SessionGraph) -> AttributedSide:
    """Number the operators of a side by the nodes of the original model, and attribute them.

    In variants with different graphs, operators that compute the same nodes have the same number. Nodes that a
    session added are numbered by the tensor whose layout they change.
    """
    model_graph, calls = read_onnx(program).graph, ran.called()
    nodes_by_call = {
        name: _number_nodes(model_graph, call.nodes, frozenset(), call.shapes) for name, call in calls.items()
    }
    graphs = {name: _by_owner(nodes) for name, nodes in nodes_by_call.items()}
    *_, numbers = graphs.values()  # the same nodes run in every call
    last = 1 + max((node.instruction for nodes in nodes_by_call.values() for node in nodes), default=-1)
    numbers_by_owner = {
        owner: {name: node.instruction for name, node in nodes.items()} for owner, nodes in numbers.items()
    }
    enclosed_numbers = {owner: nodes for owner, nodes in numbers_by_owner.items() if owner is not None}
    table = side.table.with_instructions(numbers_by_owner.get(None, {}), enclosed_numbers, last)
    kinds = {METHOD: [METHOD]}
    if not ran.calls:
        methods = side.table.frame["method"].unique().to_list()
        labels = {method: without_population(method or "")[1] for method in methods}
        names = {method: population_name(METHOD, label) if label else METHOD for method, label in labels.items()}
        table, kinds = table.with_method_names(names), {METHOD: [*dict.fromkeys(names.values())]}
    operators = {
        OperatorKey(kind, node.instruction, 0): node.facts.of(node)
        for name, owners in graphs.items()
        for kind in kinds.get(name, [name])
        for nodes in owners.values()
        for node in nodes.values()
    }
    all_nodes = [node for nodes in nodes_by_call.values() for node in nodes]
    strange = bool(all_nodes) and all(node.origin.attribution is Attribution.NAME for node in all_nodes)
    conflict = "it has none of the nodes that ran" if strange else None
    attributions = Attributions(operators, [], conflict, [], {}, {})
    return AttributedSide(side._replace(table=table), attributions)


def _by_owner(nodes: Sequence[_Named]) -> dict[int | None, dict[str, _Named]]:
    return {
        owner: _by_unique_name(owned_nodes) for owner, owned_nodes in grouped(nodes, lambda node: node.owner).items()
    }


def _by_unique_name(nodes: Sequence[_Named]) -> dict[str, _Named]:
    """Return nodes by name; of several with one name, the only one that ran, and none if that is ambiguous."""
    unique = {}
    for name, namesakes in grouped(nodes, lambda node: node.name).items():
        ran = [node for node in namesakes if node.node.written]
        chosen = ran if len(namesakes) > 1 else namesakes
        if len(chosen) == 1:
            unique[name] = chosen[0]
    return unique


def _number_nodes(
    model_graph: OnnxGraph, ran: Sequence[SessionNode], around: frozenset[str], shapes: Mapping[str, SessionTensor]
) -> list[_Named]:
    """Number the nodes of a graph: as the original node, as the tensor whose layout changes, or after all of these.

    Nodes of nested graphs are numbered last, in the order of the original model, so that sessions agree on the
    numbers.
    """
    whole_given = with_branches(model_graph, ran)
    facts = _Facts(whole_given, ran, around, shapes)
    first = sum(1 for _ in model_graph.all_nodes())
    tensors = [name for node in model_graph.nodes for name in node.outputs] + [
        value.name for value in model_graph.inputs
    ]
    tensor_numbers = {name: number for number, name in enumerate(dict.fromkeys(tensors))}
    behind = first_free = first + _PER_TENSOR * len(tensor_numbers)
    taken: set[int] = set()
    numbered = []
    for position, (node, origin) in enumerate(zip(ran, facts.origins.nodes, strict=True)):
        number = _find_number(node, origin, tensor_numbers, first)
        if number is None or number in taken:
            number, behind = behind, behind + 1
        taken.add(number)
        numbered.append(_Named(f"{node.op}: {node.name}", number, node, origin, facts, position))
    return [
        *numbered,
        *_number_nested_nodes(whole_given, numbered, first_free + _ROOM * (1 + len(model_graph.nodes)), shapes),
    ]


def _number_nested_nodes(
    model_graph: OnnxGraph, outer: Sequence[_Named], first: int, shapes: Mapping[str, SessionTensor]
) -> Iterator[_Named]:
    """Number the nodes of nested graphs: ``If`` runs one of two graphs, ``Loop`` and ``Scan`` run one repeatedly."""
    running = {outer_node.origin.main: outer_node for outer_node in outer if outer_node.node.graphs}
    for number, node in enumerate(model_graph.nodes):
        for name, graph in node.graphs.items():
            running_node = running.get(number)
            if running_node is not None and name in running_node.node.graphs:
                inner = _with_surroundings(graph, model_graph)
                for inner_node in _number_nodes(
                    inner, running_node.node.graphs[name], running_node.facts.computed, shapes
                ):
                    owner = running_node.instruction if inner_node.owner is None else first + inner_node.owner
                    yield inner_node._replace(
                        instruction=first + inner_node.instruction, first=first + inner_node.first, owner=owner
                    )
            first += _ROOM * _ROOM * (1 + sum(1 for _ in graph.all_nodes()))


def _with_surroundings(graph: OnnxGraph, around: OnnxGraph) -> OnnxGraph:
    """Extend a graph by what it reads of the surrounding one: its weights, and tensors that are computed there."""
    stored = {weight.name for weight in (*graph.weights, *around.weights)}
    made = {name for node in graph.nodes for name in node.outputs}
    read = dict.fromkeys(name for node in graph.nodes for name in node.inputs if name)
    outer = [OnnxValue(name, None, None) for name in read if name not in made | stored]
    input_names = {value.name for value in graph.inputs}
    inputs = (*graph.inputs, *(value for value in outer if value.name not in input_names))
    return msgspec.structs.replace(graph, weights=(*graph.weights, *around.weights), inputs=inputs)


def _find_number(node: SessionNode, origin: NodeOrigin, tensor_numbers: Mapping[str, int], first: int) -> int | None:
    if origin.main is not None:
        return origin.main
    if origin.moved is None or origin.moved not in tensor_numbers:
        return None
    kind = _MOVES.index(node.op) if node.op in _MOVES else len(_MOVES)
    return first + _PER_TENSOR * tensor_numbers[origin.moved] + kind


def _cache_use(node: SessionNode) -> CacheUse | None:
    """Return how an attention uses a cache of keys and values; None for other nodes.

    Source: the operator ``GroupQueryAttention`` of com.microsoft. Keys and values of the call may be packed after
    the queries. The cached ones are (batch, heads, places, width), and are read as far as the call says.
    """
    names = [name for name in node.inputs if name]
    read = dict(zip(names, node.read, strict=False))
    if node.op != _GROUPED or len(node.inputs) <= _PAST_KEYS or len(node.written) < _PAST_KEYS - 1:
        return None
    queries, cache = read.get(node.inputs[0]), node.written[1]
    width = _BYTES.get(cache.dtype)
    if queries is None or width is None or len(queries.shape) != _MATRIX or len(cache.shape) != _HEADS:
        return None
    _, shared, cache_size, size = cache.shape
    packed = not node.inputs[1]
    heads = queries.shape[2] // size - (2 * shared if packed else 0) if size else 0
    return CacheUse(
        reads=True,
        places=cache_size,
        place_bytes=2 * shared * size * width,
        place_macs=2 * heads * size,
        tokens=queries.shape[1],
    )


class _Facts:
    """Facts of the model about the nodes that ran."""

    def __init__(
        self,
        model_graph: OnnxGraph,
        ran: Sequence[SessionNode],
        around: frozenset[str],
        shapes: Mapping[str, SessionTensor],
    ) -> None:
        self._given = model_graph
        self.computed = (
            around | {name for node in ran for name in node.outputs} | {value.name for value in model_graph.inputs}
        )
        self.origins = SessionOrigins(model_graph, ran)
        self._costs = SessionCosts(model_graph, ran, self.origins, shapes)
        self._makers = {name: node for node in model_graph.nodes for name in node.outputs}

    def main(self, origin: NodeOrigin) -> OnnxNode | None:
        """Return the node of the model that a node of the session stands for; None if there is none."""
        return None if origin.main is None else self._given.nodes[origin.main]

    def filter(self, main: OnnxNode | None) -> tuple[int, ...]:
        """Return the shape of the filter of a convolution; empty for other nodes."""
        return self._costs.filter(main)

    def of(self, node_: _Named) -> OperatorFacts:
        node, origin = node_.node, node_.origin
        if origin.attribution is Attribution.NAME:
            return OperatorFacts()
        main = self.main(origin)
        carrier = main or self._makers.get(origin.moved or "")
        names = [*(name for name in node.inputs if name)][:1], node.outputs[:1]
        tensors = node.read[:1], node.written[:1]
        shapes = [
            self._costs.held(name, tensor)
            for tensor_names, session_tensors in zip(names, tensors, strict=True)
            for name, tensor in zip(tensor_names, session_tensors, strict=False)
        ]
        return OperatorFacts(
            operator_class=self._operator_class(node, main),
            attribution=origin.attribution,
            handles=tuple(node_.first + number for number in origin.nodes),
            module=_module_of_node(carrier),
            computes=tuple(self._given.nodes[number].op for number in origin.nodes),
            dtype=node.read[0].dtype if node.read else None,
            shape=self._costs.held(node.outputs[0], node.written[0]) if node.written else None,
            elements=max((math.prod(shape) for shape in shapes), default=None),
            cost=part("costs of nodes", lambda: self._costs.of(node_.position, self.computed), None),
            change=self._layout_change(node, origin) if main is None else None,
            weights=self._weight_type(node, main),
            cache=_cache_use(node),
        )

    def _weight_type(self, node: SessionNode, main: OnnxNode | None) -> str | None:
        """Return the number type of the weights of a product; None for other nodes."""
        if main is None or family(main.op) not in PRODUCTS:
            return None
        bits = main.attributes.get("bits")
        if main.op == _FEW_BITS and isinstance(bits, int):
            return f"int{bits}"
        names = [name for name in node.inputs if name]
        stored = (tensor.dtype for name, tensor in zip(names, node.read, strict=False) if name not in self.computed)
        return next(stored, None)

    def _operator_class(self, node: SessionNode, main: OnnxNode | None) -> OperatorClass:
        """Return the class of a node's type; a convolution with one channel per group is depthwise."""
        if main is not None and "Conv" in main.op and main.attributes.get("group", 1) != 1:
            weight = self._costs.filter(main)
            if len(weight) > 1 and weight[1] == 1:
                return classify_node("DepthwiseConv2d")
        return classify(f"{main.op if main else node.op}: ")

    def _layout_change(self, node: SessionNode, origin: NodeOrigin) -> LayoutChange | None:
        """Return whose output gets another layout, and who reads it; None if the model itself asks for it.

        A pass may move the conversions of a quantised model through nodes that only move data.
        """
        is_moved_conversion = node.op in _QUANTISING and any(
            model_node.op == node.op for model_node in self._given.nodes
        )
        if origin.moved is None or is_moved_conversion:
            return None
        maker = self._makers.get(origin.moved)
        before = [_node_label(maker)] if maker else ["input of the model"]
        readers = [node for node in self._given.nodes if origin.moved in node.inputs]
        return LayoutChange("runtime", before, [_node_label(node) for node in readers] or ["output of the model"])


def _module_of_node(node: OnnxNode | None) -> str | None:
    """Return the layer in a node's name, as exporters write it: ``/block/conv/Conv`` is in ``block.conv``.

    None if empty.
    """
    parts = [part for part in node.name.split("/") if part] if node else []
    return ".".join(parts[:-1] or parts) or None


def _node_label(node: OnnxNode) -> str:
    return f"{_module_of_node(node) or node.name or 'a node without a name'} ({node.op})"
