"""Traces of ONNX Runtime attributed to the model as it was given, through the graph that the session ran.

From the graph that a session ran back to the model as it was given: which of its nodes each node of it computes.

ONNX Runtime fuses nodes, renames them and their tensors, and adds nodes that lay data out anew. What remains are
tensors: a node's outputs are tensors of the given model, by their own name, by that of the node, or since the node
only moves another one. The nodes of the model between a node's inputs and its outputs are then what it computes.
Names were seen with 1.31.1: ``X_nchwc`` is a node that makes tensor X in blocks of channels, and a fusion is named
``NODE/NAME/`` behind the node that it replaces.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.analysis.operators.attribution import Attributions
from opscope.analysis.operators.operator_facts import LayoutChange, OperatorFacts
from opscope.core.grouping import grouped
from opscope.core.parts import part
from opscope.core.table import Scope
from opscope.core.table.places import OperatorKey
from opscope.program.operators.kinds import Attribution
from opscope.program.operators.taxonomy import classify, classify_node
from opscope.runtimes.attribution import AttributedSide
from opscope.runtimes.onnxruntime.costs import node_cost
from opscope.runtimes.onnxruntime.graph import GRAPH, SCHEMA, SessionGraph, SessionNode, read_session_graph
from opscope.runtimes.onnxruntime.onnx_file import OnnxValue, read_onnx
from opscope.runtimes.onnxruntime.signatures import METHOD

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opscope.program.operators.taxonomy import OperatorClass
    from opscope.runtimes.onnxruntime.onnx_file import OnnxGraph, OnnxNode
    from opscope.runtimes.side import Side


_MOVES = ("ReorderInput", "ReorderOutput", "Transpose")
_PER_TENSOR = len(_MOVES) + 1
_ROOM = 16
"""Numbers for each node of a graph that another node runs: more than its tensors and what a session adds need."""
_BLOCKED = "com.microsoft.nchwc"
_MOVERS = frozenset({"ReorderInput", "ReorderOutput", "Transpose", "Cast", "Identity", "Reshape"})
"""Operators that ONNX Runtime adds of its own accord."""
_BACK = frozenset({"ReorderOutput", "Transpose"})
_BLOCKED_LAYOUT = "_nchwc"
_SUM = 3
"""Place of the tensor that a convolution adds, among its inputs."""
_PRODUCTS = frozenset(
    """
    Conv ConvTranspose Gemm MatMul MatMulInteger ConvInteger QLinearConv QLinearMatMul Attention LSTM GRU RNN
    """.split()
)


class _Named(NamedTuple):
    """A node that ran."""

    name: str  # as the trace calls it
    instruction: int  # its number
    node: SessionNode  # itself
    origin: NodeOrigin  # where it comes from, in its own graph
    facts: _Facts  # what its own graph says
    first: int = 0  # number of the first node of its own graph, behind which the others are numbered


def session_graph_of(side: Side) -> SessionGraph:
    """The graph that the sessions of a side ran, as it is kept beside their traces.

    Where none is kept, as beside a profile from elsewhere, it is the nodes that the trace names, without their tensors.
    """
    file = _graph_file(side)
    return read_session_graph(file) if file is not None and file.exists() else _named_by(side)


def _named_by(side: Side) -> SessionGraph:
    frame = side.table.frame
    kept = frame.filter(frame["scope"].is_in([Scope.KERNEL.value, Scope.DELEGATE_OP.value]))
    parts = [name.partition(": ") for name in kept["name"].unique(maintain_order=True).to_list()]
    nodes = tuple(SessionNode(name, op, "", (), ()) for op, _, name in parts)
    return SessionGraph(SCHEMA, "", "", (), nodes)


def _graph_file(side: Side) -> Path | None:
    if side.bundle is None or side.variant is None:
        return Path(side.files[0][0]).with_name(GRAPH)
    traced = [one for one in side.bundle.manifest.completed(side.variant.name) if one.trace]
    return side.bundle.left_file(traced[0], GRAPH) if traced else None


def with_nodes(side: Side, program: Path, ran: SessionGraph) -> AttributedSide:
    """A side whose operators have the numbers of the model's nodes, and what the model says of them.

    Operators of variants whose graphs differ so have the same number where they compute the same nodes; nodes that a
    session added are numbered by the tensor that they lay out anew.
    """
    named = _numbered(read_onnx(program).graph, ran.nodes, frozenset())
    outer = {one.name: one for one in named if not one.first}
    inner = _unambiguous([one for one in named if one.first])
    last = 1 + max((one.instruction for one in named), default=-1)
    seen = set(side.table.frame["method"].unique().to_list())
    places, enclosed = ({name: one.instruction for name, one in own.items()} for own in (outer, inner))
    table = side.table.with_instructions(places, enclosed, last).with_method_names(dict.fromkeys(seen, METHOD))
    known = [one for own in (outer, inner) for one in own.values()]
    operators = {OperatorKey(METHOD, one.instruction, 0): one.facts.of(one) for one in known}
    strange = bool(named) and all(one.origin.attribution is Attribution.NAME for one in named)
    conflict = "it names none of the nodes that ran" if strange else None
    found = Attributions(operators, [], conflict, [], {}, {})
    return AttributedSide(side._replace(table=table), found)


def _unambiguous(named: Sequence[_Named]) -> dict[str, _Named]:
    """Nodes of several graphs by name; where several bear one name, the only one that ran, if that can be told."""
    found = {}
    for name, own in grouped(named, lambda one: one.name).items():
        ran = [one for one in own if one.node.written]
        chosen = ran if len(own) > 1 else own
        if len(chosen) == 1:
            found[name] = chosen[0]
    return found


def _numbered(given: OnnxGraph, ran: Sequence[SessionNode], around: frozenset[str]) -> list[_Named]:
    """Nodes by number: that of the given node, or of the tensor that is moved; what is left is numbered behind.

    Graphs that nodes run come behind all of it, in the order of the given model, whatever a session made of them.
    """
    facts = _Facts(given, ran, around)
    tensors = [name for node in given.nodes for name in node.outputs] + [one.name for one in given.inputs]
    places = {name: number for number, name in enumerate(dict.fromkeys(tensors))}
    behind = whole = len(given.nodes) + _PER_TENSOR * len(places)
    taken: set[int] = set()
    found = []
    for node, origin in zip(ran, node_origins(given, ran), strict=True):
        number = _number(node, origin, places, len(given.nodes))
        if number is None or number in taken:
            number, behind = behind, behind + 1
        taken.add(number)
        found.append(_Named(f"{node.op}: {node.name}", number, node, origin, facts))
    return [*found, *_nested(given, found, whole + _ROOM * (1 + len(given.nodes)))]


def _nested(given: OnnxGraph, outer: Sequence[_Named], first: int) -> Iterator[_Named]:
    """Nodes of the graphs that nodes run: ``If`` runs one of two, ``Loop`` and ``Scan`` one again and again."""
    running = {one.origin.main: one for one in outer if one.node.graphs}
    for number, node in enumerate(given.nodes):
        for name, graph in node.graphs.items():
            own = running.get(number)
            if own is not None and name in own.node.graphs:
                inner = _with_surroundings(graph, given)
                for one in _numbered(inner, own.node.graphs[name], own.facts.computed):
                    yield one._replace(instruction=first + one.instruction, first=first + one.first)
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


def _number(node: SessionNode, origin: NodeOrigin, places: Mapping[str, int], nodes: int) -> int | None:
    if origin.main is not None:
        return origin.main
    if origin.moved is None or origin.moved not in places:
        return None
    kind = _MOVES.index(node.op) if node.op in _MOVES else len(_MOVES)
    return nodes + _PER_TENSOR * places[origin.moved] + kind


class _Facts:
    """What the model says of nodes that ran."""

    def __init__(self, given: OnnxGraph, ran: Sequence[SessionNode], around: frozenset[str]) -> None:
        self._given = given
        self.computed = around | {name for node in ran for name in node.outputs} | {one.name for one in given.inputs}
        self._makers = {name: node for node in given.nodes for name in node.outputs}

    def of(self, named: _Named) -> OperatorFacts:
        node, origin = named.node, named.origin
        if origin.attribution is Attribution.NAME:
            return OperatorFacts()
        main = None if origin.main is None else self._given.nodes[origin.main]
        carrier = main or self._makers.get(origin.moved or "")
        shapes = [one.shape for one in (*node.read[:1], *node.written[:1])]
        return OperatorFacts(
            operator_class=self._class(node, main),
            attribution=origin.attribution,
            handles=tuple(named.first + number for number in origin.nodes),
            module=_module(carrier),
            computes=tuple(self._given.nodes[number].op for number in origin.nodes),
            dtype=node.read[0].dtype if node.read else None,
            shape=self._shape(node, main),
            elements=max((math.prod(shape) for shape in shapes), default=None),
            cost=part("costs of nodes", lambda: node_cost(node, self._given, main, self.computed), None),
            change=self._change(origin) if main is None else None,
            taps=math.prod(self._filter(main)[2:]) or None,
        )

    def _shape(self, node: SessionNode, main: OnnxNode | None) -> tuple[int, ...] | None:
        """Of the output; blocks of channels are filled up, and the filter says how many there are."""
        if not node.written:
            return None
        made, weight = node.written[0].shape, self._filter(main)
        if node.domain != _BLOCKED or len(made) < 2 or not weight:  # noqa: PLR2004 - images and channels
            return made
        return (made[0], weight[0], *made[2:])

    def _filter(self, main: OnnxNode | None) -> tuple[int, ...]:
        """Shape of the stored filter of a convolution; empty for other nodes."""
        if main is None or "Conv" not in main.op:
            return ()
        return next((one.shape for one in self._given.weights if one.name in main.inputs[1:2]), ())

    def _class(self, node: SessionNode, main: OnnxNode | None) -> OperatorClass:
        """By the type of the node; a convolution of one channel in each group is a depthwise one."""
        if main is not None and "Conv" in main.op and main.attributes.get("group", 1) != 1:
            weight = self._filter(main)
            if len(weight) > 1 and weight[1] == 1:
                return classify_node("DepthwiseConv2d")
        return classify(f"{main.op if main else node.op}: ")

    def _change(self, origin: NodeOrigin) -> LayoutChange | None:
        """Whose output is laid out anew, and who reads it."""
        if origin.moved is None:
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


class NodeOrigin(NamedTuple):
    """What a node of the session's graph computes."""

    nodes: tuple[int, ...]  # of the given model, by number; empty for one that was added
    main: int | None  # the one that the work is in; None for one that was added, or that is not known
    moved: str | None  # tensor of the given model that an added node lays out anew; None for others
    attribution: Attribution  # how that is known


_UNKNOWN = NodeOrigin((), None, None, Attribution.NAME)


def node_origins(given: OnnxGraph, ran: Sequence[SessionNode]) -> list[NodeOrigin]:
    """The origin of each node of a session's graph."""
    return _Walk(given).origins(ran)


class _Walk:
    def __init__(self, given: OnnxGraph) -> None:
        self._nodes = given.nodes
        self._maker = {name: number for number, node in enumerate(given.nodes) for name in node.outputs if name}
        self._named = _unique(given.nodes)
        self._stored = {one.name for one in given.weights}
        self._inputs = {one.name for one in given.inputs}
        self._meaning: dict[str, str] = {}

    def origins(self, ran: Sequence[SessionNode]) -> list[NodeOrigin]:
        # What is laid out as the model wants it bears the model's own name again: that tells what went in.
        back = [node for node in ran if node.op in _BACK and node.inputs and node.outputs and self._added(node)]
        self._meaning = {node.inputs[0]: node.outputs[0] for node in back}
        return [self._origin(node) for node in ran]

    def _added(self, node: SessionNode) -> bool:
        """Whether a node makes a tensor of the model that the model makes in another way."""
        maker, (read, *_), (made, *_) = self._maker.get(node.outputs[0]), node.inputs, node.outputs
        known = read in self._maker or read in self._inputs or read in self._stored
        return maker is not None and not known and self._nodes[maker].op != node.op and made != read

    def _origin(self, node: SessionNode) -> NodeOrigin:
        if not node.outputs:
            return self._by_name(node)
        read = [self._means(name) for name in node.inputs if name]
        made = self._made(node)
        for name, meaning in zip(node.outputs, made, strict=True):
            if meaning is not None:
                self._meaning[name] = meaning
        targets = [name for name in made if name is not None]
        if targets and node.op in _MOVERS and targets[0] in read[:1]:
            return NodeOrigin((), None, targets[0], Attribution.EXACT)
        if not targets:
            return _UNKNOWN
        nodes, closed = self._between({name for name in read if name is not None}, targets)
        alone = self._maker.get(targets[0])
        if not closed and alone is not None and self._nodes[alone].op == node.op:
            # It reads a tensor that was put in place of another, whose makers it does not compute again.
            return NodeOrigin((alone,), alone, None, Attribution.ALIGNED)
        main = max(nodes, key=lambda number: (self._nodes[number].op in _PRODUCTS, number), default=None)
        return NodeOrigin(nodes, main, None, Attribution.EXACT if closed else Attribution.ALIGNED)

    def _by_name(self, node: SessionNode) -> NodeOrigin:
        """Of a node whose tensors are not known."""
        blocked = (
            self._maker.get(node.name.removesuffix(_BLOCKED_LAYOUT)) if node.name.endswith(_BLOCKED_LAYOUT) else None
        )
        replaced = self._replaced(node.name)
        number = blocked if replaced is None else self._nodes.index(replaced)
        if number is None:
            return _UNKNOWN
        # A fusion bears the name of its last node, and the type of the one before it that the work is in.
        before = [self._maker[name] for name in self._nodes[number].inputs if name in self._maker]
        fused = [place for place in before if self._nodes[place].op == node.op != self._nodes[number].op]
        return NodeOrigin((*fused, number), fused[0] if fused else number, None, Attribution.ALIGNED)

    def _means(self, name: str) -> str | None:
        """The tensor of the given model that a tensor holds; None where that is not known."""
        if name in self._maker or name in self._inputs or name in self._stored:
            return name
        return self._meaning.get(name)

    def _made(self, node: SessionNode) -> list[str | None]:
        """What the outputs of a node hold."""
        own = [name if name in self._maker else None for name in node.outputs]
        if all(own) or not own:
            return own
        if node.outputs[0] in self._meaning:
            return [self._meaning[node.outputs[0]], *own[1:]]
        if node.name.endswith(_BLOCKED_LAYOUT) and node.name.removesuffix(_BLOCKED_LAYOUT) in self._maker:
            return [self._summed(node, node.name.removesuffix(_BLOCKED_LAYOUT)), *own[1:]]
        replaced = self._replaced(node.name)
        if replaced is not None and len(replaced.outputs) >= len(own):
            return list(replaced.outputs[: len(own)])
        if node.op in _MOVERS and node.inputs and own[0] is None:
            return [self._means(node.inputs[0]), *own[1:]]
        return own

    def _summed(self, node: SessionNode, made: str) -> str:
        """What a convolution leaves that also adds a tensor, its fourth input; else what its name says."""
        added = self._means(node.inputs[_SUM]) if len(node.inputs) > _SUM else None
        sums = (other for other in self._nodes if other.op in {"Add", "Sum"} and made in other.inputs)
        return next((other.outputs[0] for other in sums if added in other.inputs), made)

    def _replaced(self, name: str) -> OnnxNode | None:
        """The node of the same name, or the one whose name a fusion bears before a slash."""
        while name:
            number = self._named.get(name)
            if number is not None:
                return self._nodes[number]
            name = name.rpartition("/")[0]
        return None

    def _between(self, read: set[str], targets: Sequence[str]) -> tuple[tuple[int, ...], bool]:
        """Nodes of the model between tensors, and whether they read nothing else but what is stored."""
        found: set[int] = set()
        waiting, closed = list(targets), True
        while waiting:
            name = waiting.pop()
            maker = self._maker.get(name)
            if (name in read and name not in targets) or name in self._stored or not name:
                continue
            if maker is None:
                closed = False
            elif maker not in found:
                found.add(maker)
                waiting += [other for other in self._nodes[maker].inputs if other not in self._stored]
        return tuple(sorted(found)), closed


def _unique(nodes: Sequence[OnnxNode]) -> Mapping[str, int]:
    """Nodes by name, those whose name another one has left out."""
    found: dict[str, int] = {}
    several: set[str] = set()
    for number, node in enumerate(nodes):
        if node.name in found:
            several.add(node.name)
        found[node.name] = number
    return {name: number for name, number in found.items() if name and name not in several}
