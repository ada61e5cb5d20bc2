"""Traces of ONNX Runtime attributed to the model as it was given, through the graph that the session ran; and costs."""

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
"""What computes more than its shapes tell."""
_GATHERING = frozenset({"Gather", "GatherElements", "GatherND", "GatherBlockQuantized"})
"""They read the rows of a table that are asked for, and no others."""
_QUANTISING = frozenset({"QuantizeLinear", "DequantizeLinear"})
_FEW_BITS, _GROUPED = "MatMulNBits", "GroupQueryAttention"
_PAST_KEYS = 3
"""Place of the keys of earlier tokens among the inputs of an attention."""
_MATRIX, _HEADS = 3, 4
"""Dimensions of data with all heads side by side, and with a dimension of heads."""


class SessionCosts:
    """Costs of the nodes of one graph that ran.

    Multiplications are those of the nodes of the given model, each counted once, and all sizes are those that the given
    model has: blocks of channels are filled up with zeros, and a pass may lay out or fuse differently elsewhere.
    """

    def __init__(
        self, given: OnnxGraph, ran: Sequence[SessionNode], origins: SessionOrigins, shapes: Mapping[str, SessionTensor]
    ) -> None:
        self._given, self._ran, self._origins = given, ran, origins
        stored = {one.name: SessionTensor(one.dtype.name, one.shape) for one in given.weights}
        self._tensors = {**stored, **_seen(ran, origins.holds), **shapes}
        self._counted: dict[int, int] = {}  # products of the given model, by number: place of the node that has them
        exact_first = sorted(range(len(ran)), key=lambda place: origins.nodes[place].attribution != Attribution.EXACT)
        for place in exact_first:
            for number in self._products(origins.nodes[place]):
                self._counted.setdefault(number, place)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Of a tensor of the given model."""
        return self._tensors[name].shape if name in self._tensors else None

    def held(self, name: str, tensor: SessionTensor) -> tuple[int, ...]:
        """Shape that the given model has for what a tensor holds; its own where that is not known."""
        return self.shape(self._origins.holds.get(name, "")) or tensor.shape

    def of(self, place: int, computed: Collection[str]) -> Cost | None:
        """The cost of one run of a node; None where it is not known."""
        node, origin = self._ran[place], self._origins.nodes[place]
        main = None if origin.main is None else self._given.nodes[origin.main]
        names = [name for name in node.inputs if name]
        if not node.written or len(node.read) != len(names) or (main is not None and main.op in _UNKNOWN):
            return None
        macs = self._macs(place)
        read = [self._bytes(name, one, main) for name, one in zip(names, node.read, strict=True)]
        written = [self._bytes(name, one, main) for name, one in zip(node.outputs, node.written, strict=False)]
        if macs is None or macs < 0 or None in (*read, *written):
            return None
        moved = sum(size or 0 for name, size in zip(names, read, strict=True) if name in computed)
        stored = sum(size or 0 for name, size in zip(names, read, strict=True) if name not in computed)
        others = 0 if macs or _moves(node) else math.prod(node.written[0].shape)
        padding = sum(self._padding_of(self._given.nodes[number]) for number in self._own(place)) if macs else 0
        left = sum(size or 0 for size in written)
        stored = min(stored, left) if node.op in _GATHERING else stored
        return Cost(macs, 2 * macs + others, moved, left, stored, padding).if_possible()

    def filter(self, main: OnnxNode | None) -> tuple[int, ...]:
        """Shape of the filter of a convolution of the model; empty for other nodes."""
        place = _WEIGHT_PLACE.get(main.op, 1) if main is not None else 1
        if main is None or "Conv" not in main.op or len(main.inputs) <= place:
            return ()
        return self.shape(main.inputs[place]) or ()

    def _bytes(self, name: str, tensor: SessionTensor, main: OnnxNode | None) -> int | None:
        width = _BYTES.get(tensor.dtype)
        shape = self.held(name, tensor)
        whole = self.filter(main)
        if name not in self._origins.holds and len(whole) == len(shape) and len(whole) > _MATRIX - 1:
            shape = whole  # a filter in blocks
        return None if width is None else width * math.prod(shape)

    def _products(self, origin: NodeOrigin) -> list[int]:
        return [number for number in origin.nodes if family(self._given.nodes[number].op) in PRODUCTS]

    def _macs(self, place: int) -> int | None:
        """Multiply-accumulates; 0 for what is no product, None for a product whose factors are not known."""
        origin = self._origins.nodes[place]
        if origin.main is None:
            return None if family(self._ran[place].op) in PRODUCTS else 0
        each = [self._macs_of(self._given.nodes[number]) for number in self._own(place)]
        return None if None in each else sum(count or 0 for count in each)

    def _own(self, place: int) -> list[int]:
        """Products of the given model that are counted with a node."""
        return [number for number in self._products(self._origins.nodes[place]) if self._counted[number] == place]

    def _padding_of(self, node: OnnxNode) -> int:
        """Multiply-accumulates of a convolution with the zeros around its input."""
        names = [*node.inputs[:1], *node.inputs[_WEIGHT_PLACE.get(node.op, 1) :][:1], *node.outputs[:1]]
        data, weight, made = (self.shape(name) for name in names) if len(names) == _MATRIX else (None, None, None)
        if node.op not in _CONVOLUTIONS or not data or not weight or not made:
            return 0
        if not _MATRIX <= len(made) == len(weight) == len(data):
            return 0
        each = [
            _inside(size, taps, count, *_steps(node, axis, size, taps, count))
            for axis, (size, taps, count) in enumerate(zip(data[2:], weight[2:], made[2:], strict=True))
        ]
        whole = made[0] * math.prod(weight[:2])
        return whole * (math.prod(made[2:]) * math.prod(weight[2:]) - math.prod(each))

    def _macs_of(self, node: OnnxNode) -> int | None:
        read = {place: self.shape(name) for place, name in enumerate(node.inputs) if name}
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


def _steps(node: OnnxNode, axis: int, size: int, taps: int, count: int) -> tuple[int, int, int]:
    """Stride and dilation of a convolution along a dimension, and how many zeros stand before its input."""

    def option(name: str, otherwise: int) -> int:
        values = node.attributes.get(name)
        return int(values[axis]) if isinstance(values, tuple) and len(values) > axis else otherwise

    stride, dilation, same = option("strides", 1), option("dilations", 1), str(node.attributes.get("auto_pad", ""))
    if same.startswith("SAME"):
        around = max(0, (count - 1) * stride + (taps - 1) * dilation + 1 - size)
        return stride, dilation, around // 2 if same == "SAME_UPPER" else around - around // 2
    return stride, dilation, option("pads", 0)


def _inside(size: int, taps: int, count: int, stride: int, dilation: int, before: int) -> int:
    """Pairs of an output and a tap of its filter, along a dimension, whose input is no zero of the padding."""
    if stride < 1 or taps > _MOST_TAPS:  # of a damaged file
        return taps * count
    found = 0
    for tap in range(taps):
        first = -(-(before - tap * dilation) // stride)
        last = (size - 1 + before - tap * dilation) // stride
        found += max(0, min(last, count - 1) - max(first, 0) + 1)
    return found


def _seen(ran: Sequence[SessionNode], holds: Mapping[str, str]) -> dict[str, SessionTensor]:
    """Tensors of the model as nodes had them that neither fill up nor lay out anew."""
    session_tensors: dict[str, SessionTensor] = {}
    for node in ran:
        if node.domain == BLOCKED or node.op in MOVERS:
            continue
        for names, tensors in ((node.inputs, node.read), (node.outputs, node.written)):
            own = [name for name in names if name]
            for name, tensor in zip(own, tensors if len(tensors) == len(own) else (), strict=False):
                if holds.get(name) == name:
                    session_tensors.setdefault(name, tensor)
    return session_tensors


def _moves(node: SessionNode) -> bool:
    """Whether what ran only moves data, whatever node of the model it stands for."""
    return classify(f"{node.op}: ").category is Category.DATA_MOVEMENT


_Shapes: TypeAlias = "Mapping[int, tuple[int, ...] | None]"
"""Shapes of what a node reads, by the place of its inputs; inputs that are left out have none."""


def _multiplied(main: OnnxNode, read: _Shapes, made: Sequence[int]) -> int | None:
    """A product of two matrices, by the inner size of the first one."""
    rows, across = read.get(0), main.attributes.get("transA")
    place = 0 if across and main.op in _GEMMS else -2 if across else -1
    return math.prod(made) * rows[place] if rows and len(rows) >= abs(place) else None


def _of_few_bits(main: OnnxNode, read: _Shapes, _: Sequence[int]) -> int | None:
    """Weights are stored in blocks; their number of columns is an option (``MatMulNBits`` of com.microsoft)."""
    rows, columns = read.get(0), main.attributes.get("N")
    return math.prod(rows) * columns if rows and isinstance(columns, int) else None


def _recurrent(_: OnnxNode, read: _Shapes, __: Sequence[int]) -> int | None:
    """Of each step and each sequence, all weights of the input and of the state once (operators LSTM, GRU and RNN)."""
    data, weights, state = (read.get(place) for place in range(3))
    if data is None or weights is None or state is None or len(data) != _MATRIX:
        return None
    return data[0] * data[1] * (math.prod(weights) + math.prod(state))


def _summed(main: OnnxNode, read: _Shapes, _: Sequence[int]) -> int | None:
    """A product of two tensors: every combination of their indices once; none of one tensor alone."""
    terms = str(main.attributes.get("equation", "")).replace(" ", "").partition("->")[0].split(",")
    shapes = [read.get(place) for place in range(len(terms))]
    if len(terms) == 1:
        return 0
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        if shape is None or len(shape) != len(term) or not term.isalpha():
            return None
        for index, size in zip(term, shape, strict=True):
            sizes[index] = max(size, sizes.get(index, 1))
    return math.prod(sizes.values()) if len(terms) == 2 else None  # noqa: PLR2004 - of more the order is not known


def _attention(main: OnnxNode, read: _Shapes, _: Sequence[int]) -> int | None:
    """Scores and their sum over the values; where the operator makes queries, keys and values itself, these too.

    Sources: the operators ``Attention`` of ONNX (version 23), and ``Attention``, ``QAttention`` and
    ``MultiHeadAttention`` of com.microsoft. With a cache of earlier keys those of com.microsoft are not known: their
    shapes do not tell how much of it is used.
    """
    if main.domain == "com.microsoft":
        return _packed_attention(main, read) if main.op != "MultiHeadAttention" else _side_by_side(main, read)
    queries, keys, values, cached = (read.get(place) for place in (0, 1, 2, 4))
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


def _packed_attention(main: OnnxNode, read: _Shapes) -> int | None:
    """One matrix makes queries, keys and values, which are as wide as each other."""
    data, weights = read.get(0), read.get(1)
    cached = any(main.inputs[8:9]) if main.op == "QAttention" else any(main.inputs[4:5])
    uneven = "qkv_hidden_sizes" in main.attributes
    if cached or uneven or data is None or weights is None or (len(data), len(weights)) != (_MATRIX, 2):
        return None
    images, rows, _ = data
    return images * rows * math.prod(weights) + 2 * images * rows * rows * (weights[1] // 3)


def _side_by_side(main: OnnxNode, read: _Shapes) -> int | None:
    queries, keys, values = (read.get(place) for place in range(3))
    cached = any(main.inputs[6:8])
    if cached or queries is None or keys is None or values is None or not len(queries) == len(keys) == _MATRIX:
        return None
    return queries[0] * queries[1] * keys[1] * (queries[2] + values[-1]) if len(values) == _MATRIX else None


_COUNTS: dict[str, Callable[[OnnxNode, _Shapes, Sequence[int]], int | None]] = {
    **dict.fromkeys(_PRODUCTS | _GEMMS, _multiplied),
    **dict.fromkeys(_RECURRENT, _recurrent),
    **dict.fromkeys(("Attention", "MultiHeadAttention", "QAttention"), _attention),
    "Einsum": _summed,
    "MatMulNBits": _of_few_bits,
}


_MOVES = ("ReorderInput", "ReorderOutput", "Transpose")
_PER_TENSOR = len(_MOVES) + 1
_ROOM = 16
"""Numbers for each node of a graph that another node runs: more than its tensors and what a session adds need."""


class _Named(NamedTuple):
    """A node that ran."""

    name: str  # as the trace calls it
    instruction: int  # its number
    node: SessionNode  # itself
    origin: NodeOrigin  # where it comes from, in its own graph
    facts: _Facts  # what its own graph says
    place: int  # among the nodes of its own graph
    first: int = 0  # number of the first node of its own graph, behind which the others are numbered
    owner: int | None = None  # number of the node that runs its graph; None for one of the model itself


def session_graph_of(side: Side) -> SessionGraph:
    """The graph that the sessions of a side ran, as it is kept beside their traces.

    Where none is kept, as beside a profile from elsewhere, it is the nodes that the trace names, without their tensors.
    """
    file = side.kept_file(GRAPH)
    return read_session_graph(file) if file else _named_by(side)


def _named_by(side: Side) -> SessionGraph:
    frame = side.table.frame
    kept = frame.filter(frame["scope"].is_in([Scope.KERNEL.value, Scope.DELEGATE_OP.value]))
    parts = [name.partition(": ") for name in kept["name"].unique(maintain_order=True).to_list()]
    nodes = tuple(SessionNode(name, op, "", (), ()) for op, _, name in parts)
    return SessionGraph(SCHEMA, "", "", (), nodes)


class NodeFacts(NamedTuple):
    """A node that a session ran, and what the model as it was given says of it."""

    node: SessionNode
    main: OnnxNode | None  # of the given model; None for one that the session added
    facts: OperatorFacts
    filter: tuple[int, ...]  # shape of the filter of a convolution; empty for others


def node_facts(given: OnnxGraph, ran: SessionGraph) -> list[NodeFacts]:
    """What is known of the nodes of a session, those of the graphs that they run included."""
    facts = []
    for one in _numbered(given, ran.nodes, frozenset(), ran.shapes):
        main = one.facts.main(one.origin)
        facts.append(NodeFacts(one.node, main, one.facts.of(one), one.facts.filter(main)))
    return facts


def with_nodes(side: Side, program: Path, ran: SessionGraph) -> AttributedSide:
    """A side whose operators have the numbers of the model's nodes, and what the model says of them.

    Operators of variants whose graphs differ so have the same number where they compute the same nodes; nodes that a
    session added are numbered by the tensor that they lay out anew.
    """
    given, called = read_onnx(program).graph, ran.called()
    each = {name: _numbered(given, call.nodes, frozenset(), call.shapes) for name, call in called.items()}
    graphs = {name: _by_owner(own) for name, own in each.items()}
    *_, numbers = graphs.values()  # the same nodes run in every call
    last = 1 + max((one.instruction for own in each.values() for one in own), default=-1)
    places = {owner: {name: one.instruction for name, one in own.items()} for owner, own in numbers.items()}
    enclosed = {owner: own for owner, own in places.items() if owner is not None}
    table = side.table.with_instructions(places.get(None, {}), enclosed, last)
    kinds = {METHOD: [METHOD]}
    if not ran.calls:
        methods = side.table.frame["method"].unique().to_list()
        labels = {method: without_population(method or "")[1] for method in methods}
        names = {method: population_name(METHOD, label) if label else METHOD for method, label in labels.items()}
        table, kinds = table.with_method_names(names), {METHOD: [*dict.fromkeys(names.values())]}
    operators = {
        OperatorKey(kind, one.instruction, 0): one.facts.of(one)
        for name, owners in graphs.items()
        for kind in kinds.get(name, [name])
        for own in owners.values()
        for one in own.values()
    }
    named = [one for own in each.values() for one in own]
    strange = bool(named) and all(one.origin.attribution is Attribution.NAME for one in named)
    conflict = "it has none of the nodes that ran" if strange else None
    attributions = Attributions(operators, [], conflict, [], {}, {})
    return AttributedSide(side._replace(table=table), attributions)


def _by_owner(named: Sequence[_Named]) -> dict[int | None, dict[str, _Named]]:
    return {owner: _unambiguous(own) for owner, own in grouped(named, lambda one: one.owner).items()}


def _unambiguous(named: Sequence[_Named]) -> dict[str, _Named]:
    """Nodes of a node's graphs by name; where several bear one name, the only one that ran, if that can be told."""
    found = {}
    for name, own in grouped(named, lambda one: one.name).items():
        ran = [one for one in own if one.node.written]
        chosen = ran if len(own) > 1 else own
        if len(chosen) == 1:
            found[name] = chosen[0]
    return found


def _numbered(
    given: OnnxGraph, ran: Sequence[SessionNode], around: frozenset[str], shapes: Mapping[str, SessionTensor]
) -> list[_Named]:
    """Nodes by number: that of the given node, or of the tensor that is moved; what is left is numbered behind.

    Graphs that nodes run come behind all of it, in the order of the given model, whatever a session made of them.
    """
    whole_given = with_branches(given, ran)
    facts = _Facts(whole_given, ran, around, shapes)
    first = sum(1 for _ in given.all_nodes())
    tensors = [name for node in given.nodes for name in node.outputs] + [one.name for one in given.inputs]
    places = {name: number for number, name in enumerate(dict.fromkeys(tensors))}
    behind = whole = first + _PER_TENSOR * len(places)
    taken: set[int] = set()
    found = []
    for place, (node, origin) in enumerate(zip(ran, facts.origins.nodes, strict=True)):
        number = _number(node, origin, places, first)
        if number is None or number in taken:
            number, behind = behind, behind + 1
        taken.add(number)
        found.append(_Named(f"{node.op}: {node.name}", number, node, origin, facts, place))
    return [*found, *_nested(whole_given, found, whole + _ROOM * (1 + len(given.nodes)), shapes)]


def _nested(
    given: OnnxGraph, outer: Sequence[_Named], first: int, shapes: Mapping[str, SessionTensor]
) -> Iterator[_Named]:
    """Nodes of the graphs that nodes run: ``If`` runs one of two, ``Loop`` and ``Scan`` one again and again."""
    running = {one.origin.main: one for one in outer if one.node.graphs}
    for number, node in enumerate(given.nodes):
        for name, graph in node.graphs.items():
            own = running.get(number)
            if own is not None and name in own.node.graphs:
                inner = _with_surroundings(graph, given)
                for one in _numbered(inner, own.node.graphs[name], own.facts.computed, shapes):
                    inside = own.instruction if one.owner is None else first + one.owner
                    yield one._replace(instruction=first + one.instruction, first=first + one.first, owner=inside)
            first += _ROOM * _ROOM * (1 + sum(1 for _ in graph.all_nodes()))


def _with_surroundings(graph: OnnxGraph, around: OnnxGraph) -> OnnxGraph:
    """A graph with what it reads of the one around it: its weights, and tensors that are computed there."""
    stored = {one.name for one in (*graph.weights, *around.weights)}
    made = {name for node in graph.nodes for name in node.outputs}
    read = dict.fromkeys(name for node in graph.nodes for name in node.inputs if name)
    outer = [OnnxValue(name, None, None) for name in read if name not in made | stored]
    own = {one.name for one in graph.inputs}
    inputs = (*graph.inputs, *(one for one in outer if one.name not in own))
    return msgspec.structs.replace(graph, weights=(*graph.weights, *around.weights), inputs=inputs)


def _number(node: SessionNode, origin: NodeOrigin, places: Mapping[str, int], first: int) -> int | None:
    if origin.main is not None:
        return origin.main
    if origin.moved is None or origin.moved not in places:
        return None
    kind = _MOVES.index(node.op) if node.op in _MOVES else len(_MOVES)
    return first + _PER_TENSOR * places[origin.moved] + kind


def _cache_use(node: SessionNode) -> CacheUse | None:
    """What an attention does with keys and values that are kept; None for other nodes.

    Source: the operator ``GroupQueryAttention`` of com.microsoft. Keys and values of the call may be packed behind the
    queries; those that are kept are (batch, heads, places, width), and are read as far as the call says.
    """
    names = [name for name in node.inputs if name]
    read = dict(zip(names, node.read, strict=False))
    if node.op != _GROUPED or len(node.inputs) <= _PAST_KEYS or len(node.written) < _PAST_KEYS - 1:
        return None
    queries, kept = read.get(node.inputs[0]), node.written[1]
    width = _BYTES.get(kept.dtype)
    if queries is None or width is None or len(queries.shape) != _MATRIX or len(kept.shape) != _HEADS:
        return None
    _, shared, places, size = kept.shape
    packed = not node.inputs[1]
    heads = queries.shape[2] // size - (2 * shared if packed else 0) if size else 0
    return CacheUse(
        reads=True,
        places=places,
        place_bytes=2 * shared * size * width,
        place_macs=2 * heads * size,
        tokens=queries.shape[1],
    )


class _Facts:
    """What the model says of nodes that ran."""

    def __init__(
        self,
        given: OnnxGraph,
        ran: Sequence[SessionNode],
        around: frozenset[str],
        shapes: Mapping[str, SessionTensor],
    ) -> None:
        self._given = given
        self.computed = around | {name for node in ran for name in node.outputs} | {one.name for one in given.inputs}
        self.origins = SessionOrigins(given, ran)
        self._costs = SessionCosts(given, ran, self.origins, shapes)
        self._makers = {name: node for node in given.nodes for name in node.outputs}

    def main(self, origin: NodeOrigin) -> OnnxNode | None:
        """The node of the model that one that ran stands for."""
        return None if origin.main is None else self._given.nodes[origin.main]

    def filter(self, main: OnnxNode | None) -> tuple[int, ...]:
        """Shape of the filter of a convolution; empty for others."""
        return self._costs.filter(main)

    def of(self, named: _Named) -> OperatorFacts:
        node, origin = named.node, named.origin
        if origin.attribution is Attribution.NAME:
            return OperatorFacts()
        main = self.main(origin)
        carrier = main or self._makers.get(origin.moved or "")
        names = [*(name for name in node.inputs if name)][:1], node.outputs[:1]
        tensors = node.read[:1], node.written[:1]
        shapes = [
            self._costs.held(name, tensor)
            for own, session_tensors in zip(names, tensors, strict=True)
            for name, tensor in zip(own, session_tensors, strict=False)
        ]
        return OperatorFacts(
            operator_class=self._class(node, main),
            attribution=origin.attribution,
            handles=tuple(named.first + number for number in origin.nodes),
            module=_module(carrier),
            computes=tuple(self._given.nodes[number].op for number in origin.nodes),
            dtype=node.read[0].dtype if node.read else None,
            shape=self._costs.held(node.outputs[0], node.written[0]) if node.written else None,
            elements=max((math.prod(shape) for shape in shapes), default=None),
            cost=part("costs of nodes", lambda: self._costs.of(named.place, self.computed), None),
            change=self._change(node, origin) if main is None else None,
            weights=self._weights(node, main),
            cache=_cache_use(node),
        )

    def _weights(self, node: SessionNode, main: OnnxNode | None) -> str | None:
        """Number type of the weights of a product; None for other nodes."""
        if main is None or family(main.op) not in PRODUCTS:
            return None
        bits = main.attributes.get("bits")
        if main.op == _FEW_BITS and isinstance(bits, int):
            return f"int{bits}"
        names = [name for name in node.inputs if name]
        stored = (one.dtype for name, one in zip(names, node.read, strict=False) if name not in self.computed)
        return next(stored, None)

    def _class(self, node: SessionNode, main: OnnxNode | None) -> OperatorClass:
        """By the type of the node; a convolution of one channel in each group is a depthwise one."""
        if main is not None and "Conv" in main.op and main.attributes.get("group", 1) != 1:
            weight = self._costs.filter(main)
            if len(weight) > 1 and weight[1] == 1:
                return classify_node("DepthwiseConv2d")
        return classify(f"{main.op if main else node.op}: ")

    def _change(self, node: SessionNode, origin: NodeOrigin) -> LayoutChange | None:
        """Return whose output is laid out anew, and who reads it; None if the model itself asks for it.

        A pass may move the conversions of a quantised model through nodes that only move data.
        """
        is_moved_conversion = node.op in _QUANTISING and any(
            model_node.op == node.op for model_node in self._given.nodes
        )
        if origin.moved is None or is_moved_conversion:
            return None
        maker = self._makers.get(origin.moved)
        before = [_label(maker)] if maker else ["input of the model"]
        readers = [node for node in self._given.nodes if origin.moved in node.inputs]
        return LayoutChange("runtime", before, [_label(node) for node in readers] or ["output of the model"])


def _module(node: OnnxNode | None) -> str | None:
    """The layer that exporters write into the name of a node: ``/block/conv/Conv`` is of ``block.conv``."""
    parts = [part for part in node.name.split("/") if part] if node else []
    return ".".join(parts[:-1] or parts) or None


def _label(node: OnnxNode) -> str:
    return f"{_module(node) or node.name or 'a node without a name'} ({node.op})"
