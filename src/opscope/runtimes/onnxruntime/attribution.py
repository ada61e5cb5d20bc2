"""Traces of ONNX Runtime attributed to the model as it was given, through the graph that the session ran."""

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
from opscope.runtimes.onnxruntime.costs import SessionCosts
from opscope.runtimes.onnxruntime.given import with_branches
from opscope.runtimes.onnxruntime.graph import GRAPH, SCHEMA, SessionGraph, SessionNode, read_session_graph
from opscope.runtimes.onnxruntime.onnx_file import OnnxValue, read_onnx
from opscope.runtimes.onnxruntime.origins import origins_of
from opscope.runtimes.onnxruntime.signatures import METHOD

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opscope.program.operators.taxonomy import OperatorClass
    from opscope.runtimes.onnxruntime.graph import SessionTensor
    from opscope.runtimes.onnxruntime.onnx_file import OnnxGraph, OnnxNode
    from opscope.runtimes.onnxruntime.origins import NodeOrigin
    from opscope.runtimes.side import Side


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


class NodeFacts(NamedTuple):
    """A node that a session ran, and what the model as it was given says of it."""

    node: SessionNode
    main: OnnxNode | None  # of the given model; None for one that the session added
    facts: OperatorFacts
    filter: tuple[int, ...]  # shape of the filter of a convolution; empty for others


def node_facts(given: OnnxGraph, ran: SessionGraph) -> list[NodeFacts]:
    """What is known of the nodes of a session, those of the graphs that they run included."""
    found = []
    for one in _numbered(given, ran.nodes, frozenset(), ran.shapes):
        main = one.facts.main(one.origin)
        found.append(NodeFacts(one.node, main, one.facts.of(one), one.facts.filter(main)))
    return found


def with_nodes(side: Side, program: Path, ran: SessionGraph) -> AttributedSide:
    """A side whose operators have the numbers of the model's nodes, and what the model says of them.

    Operators of variants whose graphs differ so have the same number where they compute the same nodes; nodes that a
    session added are numbered by the tensor that they lay out anew.
    """
    named = _numbered(read_onnx(program).graph, ran.nodes, frozenset(), ran.shapes)
    graphs = {owner: _unambiguous(own) for owner, own in grouped(named, lambda one: one.owner).items()}
    last = 1 + max((one.instruction for one in named), default=-1)
    seen = set(side.table.frame["method"].unique().to_list())
    places = {owner: {name: one.instruction for name, one in own.items()} for owner, own in graphs.items()}
    enclosed = {owner: own for owner, own in places.items() if owner is not None}
    table = side.table.with_instructions(places.get(None, {}), enclosed, last)
    table = table.with_method_names(dict.fromkeys(seen, METHOD))
    known = [one for own in graphs.values() for one in own.values()]
    operators = {OperatorKey(METHOD, one.instruction, 0): one.facts.of(one) for one in known}
    strange = bool(named) and all(one.origin.attribution is Attribution.NAME for one in named)
    conflict = "it has none of the nodes that ran" if strange else None
    found = Attributions(operators, [], conflict, [], {}, {})
    return AttributedSide(side._replace(table=table), found)


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
        self.origins = origins_of(given, ran)
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
            for own, told in zip(names, tensors, strict=True)
            for name, tensor in zip(own, told, strict=False)
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
            change=self._change(origin) if main is None else None,
            taps=math.prod(self._costs.filter(main)[2:]) or None,
        )

    def _class(self, node: SessionNode, main: OnnxNode | None) -> OperatorClass:
        """By the type of the node; a convolution of one channel in each group is a depthwise one."""
        if main is not None and "Conv" in main.op and main.attributes.get("group", 1) != 1:
            weight = self._costs.filter(main)
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
