"""Rows of a profile for the nodes of the graph that the session saved: their names, and the shapes of their tensors.

A row is written when its event ends. Read from its end, the executor of a graph comes first, then its nodes, the last
one first, and behind a node that runs graphs their executors. A node without a name is called by its type and its place
among the nodes of the model that are no constants, and one that a session added by its type and a later number.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.core.json import from_json
from opscope.readers.compressed import mapped_file
from opscope.runtimes.onnxruntime.graph import SessionNode, SessionTensor, every_node
from opscope.runtimes.onnxruntime.passes import CONTROL, family, names_before
from opscope.runtimes.onnxruntime.profile import RUN, ProfileArguments, ProfileRow

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from opscope.runtimes.onnxruntime.onnx_file import OnnxGraph, OnnxNode

_ELEMENTS = {"float32": "float", "float64": "double"}
"""Types of elements that a profile names otherwise than the format of a model."""


class _Ran(NamedTuple):
    """A node that ran."""

    name: str  # in the profile
    told: ProfileArguments  # by its row
    bodies: list[tuple[OnnxGraph, list[_Ran]]]  # graphs that it ran, the last one first


def session_nodes(graph: OnnxGraph, profile: Path, given: OnnxGraph, before: int = 0) -> tuple[SessionNode, ...]:
    """The nodes of a saved graph, with what a profile of it tells of its last run, or of one so many runs before."""
    rows = _run(_rows(profile), before)
    last = max((place for place, row in enumerate(rows) if row.executor), default=-1)
    read = _read_back(rows, last - 1, graph) if last >= 0 else None
    ran = read[0] if read else [_Ran(row.node, row.args, []) for row in rows if row.node]
    return _session_nodes(graph, ran, given, {})


def tensors_of(nodes: Sequence[SessionNode]) -> dict[str, SessionTensor]:
    """Tensors by name; without those that two graphs call by the same name, and that differ."""
    session_tensors: dict[str, SessionTensor] = {}
    several: set[str] = set()
    for node in every_node(nodes):
        for names, tensors in ((node.inputs, node.read), (node.outputs, node.written)):
            own = [name for name in names if name]
            for name, tensor in zip(own, tensors if len(own) == len(tensors) else (), strict=False):
                if session_tensors.setdefault(name, tensor) != tensor:
                    several.add(name)
    known = {name: tensor for name, tensor in session_tensors.items() if name not in several}
    casts = {before: tensor for name, tensor in known.items() for before in names_before(name)}
    return {**casts, **known}


def _rows(profile: Path) -> list[ProfileRow]:
    try:
        return from_json(bytes(mapped_file(profile)), list[ProfileRow])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []


def _run(rows: Sequence[ProfileRow], before: int) -> list[ProfileRow]:
    """Rows of nodes and executors of a run that ended, the last one or one so many before it."""
    ends = [-1, *(place for place, row in enumerate(rows) if row.cat == "Session" and row.name == RUN)]
    last = len(ends) - 1 - before
    profile_rows = rows[ends[last - 1] + 1 : ends[last]] if last > 0 else [] if before else rows
    return [row for row in profile_rows if row.node is not None or row.executor]


def _read_back(rows: Sequence[ProfileRow], place: int, graph: OnnxGraph) -> tuple[list[_Ran], int] | None:
    """What ran of a graph, the last node first, and the place before it; None where the rows are of another graph."""
    found: list[_Ran] = []
    executed = [node for node in graph.nodes if node.op != "Constant"]
    while len(found) < len(executed):
        row = rows[place] if place >= 0 else None
        if row is None or row.node is None:
            return None
        place -= 1
        ran = _Ran(row.node, row.args, [])
        while row.args.op_name in CONTROL and place >= 0 and rows[place].executor:
            running = [one for one in executed if one.op == row.args.op_name and one.name in {row.node, ""}]
            bodies = [body for one in running for body in one.graphs.values()]
            tried = ((body, _read_back(rows, place - 1, body)) for body in bodies)
            body, inner = next(((body, inner) for body, inner in tried if inner), (None, None))
            if body is None or inner is None:
                return None
            ran.bodies.append((body, inner[0]))
            place = inner[1]
        found.append(ran)
    named = {node.name for node in executed}
    unlike = Counter(one.told.op_name for one in found) != Counter(node.op for node in executed)
    strange = "" not in named and any(one.name not in named for one in found)
    return None if unlike or strange else (found, place)


def _session_nodes(
    graph: OnnxGraph, ran: Sequence[_Ran], given: OnnxGraph | None, around: Mapping[str, SessionTensor]
) -> tuple[SessionNode, ...]:
    own = {one.name: SessionTensor(_ELEMENTS.get(one.dtype.name, one.dtype.name), one.shape) for one in graph.weights}
    stored = {**around, **own}
    pairs = _paired(graph, ran, given)
    makers = {name: node for node in given.nodes for name in node.outputs} if given else {}
    nodes = []
    for place, node in enumerate(graph.nodes):
        seen = pairs.get(place, _Ran(node.name, ProfileArguments(), []))
        before = next((makers[name] for name in node.outputs if name in makers), None)
        graphs = {}
        for name, body in node.graphs.items():
            iterations = [nodes_ran for graph_ran, nodes_ran in seen.bodies if graph_ran is body]
            inner = _session_nodes(body, _merged(iterations), before.graphs.get(name) if before else None, stored)
            graphs[name] = tuple(msgspec.structs.replace(inner_node, runs=len(iterations)) for inner_node in inner)
        nodes.append(_session_node(node, seen, stored, graphs))
    return tuple(nodes)


def _merged(runs: Sequence[list[_Ran]]) -> list[_Ran]:
    """All runs of one graph as one; a node whose tensors had other sizes in another run tells none."""
    found = []
    for own in zip(*runs, strict=True):
        told = own[0].told
        steady = all(one.told == told for one in own)
        bodies = [body for one in own for body in one.bodies]
        found.append(_Ran(own[0].name, told if steady else ProfileArguments(told.op_name), bodies))
    return found


def _paired(graph: OnnxGraph, ran: Sequence[_Ran], given: OnnxGraph | None) -> dict[int, _Ran]:
    """What ran by the place of its node: by name, by the place in the given model, and what is left by its order."""
    found: dict[int, _Ran] = {}
    last = {one.name: one for one in reversed(ran) if one.name}
    named = {node.name for node in graph.nodes}
    for place, node in enumerate(graph.nodes):
        if node.name and node.name in last and last[node.name].told.op_name == node.op:
            found[place] = last[node.name]
    free = [one for one in reversed(ran) if one.name and one.name not in named]
    places = {node.outputs[:1]: place for place, node in enumerate(graph.nodes) if not node.name}
    numbered = [node for node in given.nodes if node.op != "Constant"] if given else []
    for one in list(free):
        number = one.name.removeprefix(f"{one.told.op_name}_")
        before = numbered[int(number)] if number.isdecimal() and int(number) < len(numbered) else None
        kept = places.get(before.outputs[:1]) if before and before.op == one.told.op_name else None
        if kept is not None and kept not in found and graph.nodes[kept].op == one.told.op_name:
            found[kept] = one
            free.remove(one)
    for place, node in enumerate(graph.nodes):
        next_one = next((one for one in free if one.told.op_name == node.op), None) if place not in found else None
        if next_one is not None and not node.name:
            found[place] = next_one
            free.remove(next_one)
    return found


def _session_node(
    node: OnnxNode,
    ran: _Ran,
    stored: Mapping[str, SessionTensor],
    graphs: dict[str, tuple[SessionNode, ...]],
) -> SessionNode:
    read, written = (_session_tensors(one) for one in (ran.told.input_type_shape, ran.told.output_type_shape))
    whole = _with_weights(node, read, stored) if written else read
    activation = str(node.attributes.get("activation", "")) if family(node.op) == "Conv" else None
    return SessionNode(ran.name, node.op, node.domain, node.inputs, node.outputs, whole, written, activation, graphs)


def _with_weights(
    node: OnnxNode, tensors: Sequence[SessionTensor], stored: Mapping[str, SessionTensor]
) -> tuple[SessionTensor, ...]:
    """What a node read, with the weights that a profile leaves out: those that the kernel packed when it was made.

    Each is put in its place by the order of the inputs; what cannot be is left as the profile has it.
    """
    names, left, session_tensors = [name for name in node.inputs if name], list(tensors), []
    for place, name in enumerate(names):
        weight = stored.get(name)
        computed = sum(other not in stored for other in names[place:])
        if weight is None or (left and left[0] == weight and len(left) > computed):
            if not left:
                return tuple(tensors)
            session_tensors.append(left.pop(0))
        else:
            session_tensors.append(weight)
    return tuple(tensors) if left else tuple(session_tensors)


def _session_tensors(told: Sequence[Mapping[str, Sequence[int]]]) -> tuple[SessionTensor, ...]:
    return tuple(SessionTensor(dtype, tuple(shape)) for one in told for dtype, shape in one.items())
