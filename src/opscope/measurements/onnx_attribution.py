"""Traces of ONNX Runtime attributed to the model as it was given, through the graph that the session ran."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opscope.analysis.operators.attribution import Attributions
from opscope.analysis.operators.operator_facts import LayoutChange, OperatorFacts
from opscope.core.table import Scope
from opscope.core.table.places import OperatorKey
from opscope.program.operators.attribution import Attribution
from opscope.program.operators.taxonomy import classify, classify_node
from opscope.runtimes.onnxruntime.costs import node_cost
from opscope.runtimes.onnxruntime.graph import GRAPH, SCHEMA, SessionGraph, SessionNode, read_session_graph
from opscope.runtimes.onnxruntime.onnx_file import read_onnx
from opscope.runtimes.onnxruntime.origins import node_origins
from opscope.runtimes.onnxruntime.signatures import METHOD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.measurements.side import Side
    from opscope.program.operators.taxonomy import OperatorClass
    from opscope.runtimes.onnxruntime.onnx_file import OnnxGraph, OnnxNode
    from opscope.runtimes.onnxruntime.origins import NodeOrigin

_MOVES = ("ReorderInput", "ReorderOutput", "Transpose")
_PER_TENSOR = len(_MOVES) + 1
_BLOCKED = "com.microsoft.nchwc"


class _Named(NamedTuple):
    """A node that ran: what the trace calls it, its number, where it comes from."""

    name: str
    instruction: int
    node: SessionNode
    origin: NodeOrigin


def session_graph_of(side: Side) -> SessionGraph:
    """The graph that the sessions of a side ran, as it is kept beside their traces.

    Where none is kept, as beside a profile from elsewhere, it is the nodes that the trace names, without their tensors.

    Raises:
        TraceFormatError: it is damaged.
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
    traces = [one.trace for one in side.bundle.manifest.completed(side.variant.name) if one.trace]
    return (side.bundle.path / traces[0]).with_name(GRAPH) if traces else None


def with_onnx_operators(side: Side, program: Path, ran: SessionGraph) -> tuple[Side, Attributions]:
    """A side whose operators have the numbers of the model's nodes, and what the model says of them.

    Operators of variants whose graphs differ so have the same number where they compute the same nodes; nodes that a
    session added are numbered by the tensor that they lay out anew.

    Args:
        side: with traces of ONNX Runtime.
        program: the .onnx.
        ran: the graph that its sessions ran.

    Raises:
        OpscopeError: the program cannot be read.
    """
    given = read_onnx(program).graph
    origins = node_origins(given, ran.nodes)
    named = _numbered(given, ran.nodes, origins)
    numbers = {one.name: one.instruction for one in named}
    last = 1 + max(numbers.values(), default=-1)
    seen = set(side.table.frame["method"].unique().to_list())
    table = side.table.with_instructions(numbers, last).with_method_names(dict.fromkeys(seen, METHOD))
    facts = _Facts(given, ran)
    operators = {OperatorKey(METHOD, one.instruction, 0): facts.of(one) for one in named}
    strange = bool(named) and all(one.origin.attribution is Attribution.NAME for one in named)
    conflict = "it names none of the nodes that ran" if strange else None
    found = Attributions(operators, [], conflict, [], {}, {})
    return side._replace(table=table), found


def _numbered(given: OnnxGraph, ran: Sequence[SessionNode], origins: Sequence[NodeOrigin]) -> list[_Named]:
    """Nodes by number: that of the given node, or of the tensor that is moved; what is left is numbered behind."""
    tensors = [name for node in given.nodes for name in node.outputs] + [one.name for one in given.inputs]
    places = {name: number for number, name in enumerate(dict.fromkeys(tensors))}
    behind = len(given.nodes) + _PER_TENSOR * len(places)
    taken: set[int] = set()
    found = []
    for node, origin in zip(ran, origins, strict=True):
        number = _number(node, origin, places, len(given.nodes))
        if number is None or number in taken:
            number, behind = behind, behind + 1
        taken.add(number)
        found.append(_Named(f"{node.op}: {node.name}", number, node, origin))
    return found


def _number(node: SessionNode, origin: NodeOrigin, places: Mapping[str, int], nodes: int) -> int | None:
    if origin.main is not None:
        return origin.main
    if origin.moved is None or origin.moved not in places:
        return None
    kind = _MOVES.index(node.op) if node.op in _MOVES else len(_MOVES)
    return nodes + _PER_TENSOR * places[origin.moved] + kind


class _Facts:
    """What the model says of nodes that ran."""

    def __init__(self, given: OnnxGraph, ran: SessionGraph) -> None:
        self._given = given
        self._computed = {name for node in ran.nodes for name in node.outputs} | {one.name for one in given.inputs}
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
            handles=origin.nodes,
            module=_module(carrier),
            computes=tuple(self._given.nodes[number].op for number in origin.nodes),
            dtype=node.read[0].dtype if node.read else None,
            shape=self._shape(node, main),
            elements=max((math.prod(shape) for shape in shapes), default=None),
            cost=node_cost(node, self._given, main, self._computed),
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
