"""Match the rows of a profile to the nodes of the graph that the session saved: their names, and their tensor shapes.

A row is written when its event ends. Read from its end, the executor of a graph comes first, then its nodes,
the last one first, and after a node that runs graphs their executors. A node without a name is called by its
type and its position among the nodes of the model that are no constants, and one that a session added by its
type and a later number.
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
"""Element types that a profile names differently than the format of a model."""


class _Ran(NamedTuple):
    """A node that ran."""

    name: str  # in the profile
    arguments: ProfileArguments  # by its row
    bodies: list[tuple[OnnxGraph, list[_Ran]]]  # graphs that it ran, the last one first


def session_nodes(graph: OnnxGraph, profile: Path, model_graph: OnnxGraph, before: int = 0) -> tuple[SessionNode, ...]:
    """Return the nodes of a saved graph, with their tensors in the run that is ``before`` runs before the last."""
    rows = _rows_of_run(_read_rows(profile), before)
    last = max((position for position, row in enumerate(rows) if row.executor), default=-1)
    read = _read_back(rows, last - 1, graph) if last >= 0 else None
    ran = read[0] if read else [_Ran(row.node, row.args, []) for row in rows if row.node]
    return _session_nodes(graph, ran, model_graph, {})


def tensors_of(nodes: Sequence[SessionNode]) -> dict[str, SessionTensor]:
    """Return tensors by name, without names that two graphs use for different tensors."""
    session_tensors: dict[str, SessionTensor] = {}
    several: set[str] = set()
    for node in every_node(nodes):
        for names, tensors in ((node.inputs, node.read), (node.outputs, node.written)):
            tensor_names = [name for name in names if name]
            for name, tensor in zip(tensor_names, tensors if len(tensor_names) == len(tensors) else (), strict=False):
                if session_tensors.setdefault(name, tensor) != tensor:
                    several.add(name)
    known = {name: tensor for name, tensor in session_tensors.items() if name not in several}
    casts = {before: tensor for name, tensor in known.items() for before in names_before(name)}
    return {**casts, **known}


def _read_rows(profile: Path) -> list[ProfileRow]:
    try:
        return from_json(bytes(mapped_file(profile)), list[ProfileRow])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []


def _rows_of_run(rows: Sequence[ProfileRow], before: int) -> list[ProfileRow]:
    """Return the rows of nodes and executors of a run that ended: the last one, or ``before`` runs earlier."""
    ends = [-1, *(position for position, row in enumerate(rows) if row.cat == "Session" and row.name == RUN)]
    last = len(ends) - 1 - before
    profile_rows = rows[ends[last - 1] + 1 : ends[last]] if last > 0 else [] if before else rows
    return [row for row in profile_rows if row.node is not None or row.executor]


def _read_back(rows: Sequence[ProfileRow], position: int, graph: OnnxGraph) -> tuple[list[_Ran], int] | None:
    """Return the nodes that ran of a graph, the last one first, and the position before it.

    None if the rows are of another graph.
    """
    ran_nodes: list[_Ran] = []
    executed = [node for node in graph.nodes if node.op != "Constant"]
    while len(ran_nodes) < len(executed):
        row = rows[position] if position >= 0 else None
        if row is None or row.node is None:
            return None
        position -= 1
        ran = _Ran(row.node, row.args, [])
        while row.args.op_name in CONTROL and position >= 0 and rows[position].executor:
            running = [node for node in executed if node.op == row.args.op_name and node.name in {row.node, ""}]
            bodies = [body for node in running for body in node.graphs.values()]
            tried = ((body, _read_back(rows, position - 1, body)) for body in bodies)
            body, inner = next(((body, inner) for body, inner in tried if inner), (None, None))
            if body is None or inner is None:
                return None
            ran.bodies.append((body, inner[0]))
            position = inner[1]
        ran_nodes.append(ran)
    node_names = {node.name for node in executed}
    unlike = Counter(ran_node.arguments.op_name for ran_node in ran_nodes) != Counter(node.op for node in executed)
    strange = "" not in node_names and any(ran_node.name not in node_names for ran_node in ran_nodes)
    return None if unlike or strange else (ran_nodes, position)


def _session_nodes(
    graph: OnnxGraph, ran: Sequence[_Ran], model_graph: OnnxGraph | None, around: Mapping[str, SessionTensor]
) -> tuple[SessionNode, ...]:
    weights = {
        weight.name: SessionTensor(_ELEMENTS.get(weight.dtype.name, weight.dtype.name), weight.shape)
        for weight in graph.weights
    }
    stored = {**around, **weights}
    pairs = _pair_nodes(graph, ran, model_graph)
    makers = {name: node for node in model_graph.nodes for name in node.outputs} if model_graph else {}
    nodes = []
    for position, node in enumerate(graph.nodes):
        seen = pairs.get(position, _Ran(node.name, ProfileArguments(), []))
        before = next((makers[name] for name in node.outputs if name in makers), None)
        graphs = {}
        for name, body in node.graphs.items():
            iterations = [nodes_ran for graph_ran, nodes_ran in seen.bodies if graph_ran is body]
            inner = _session_nodes(body, _merge_runs(iterations), before.graphs.get(name) if before else None, stored)
            graphs[name] = tuple(msgspec.structs.replace(inner_node, runs=len(iterations)) for inner_node in inner)
        nodes.append(_session_node(node, seen, stored, graphs))
    return tuple(nodes)


def _merge_runs(runs: Sequence[list[_Ran]]) -> list[_Ran]:
    """Merge all runs of one graph; a node whose tensors had different sizes in two runs has none."""
    merged = []
    for runs_of_node in zip(*runs, strict=True):
        arguments = runs_of_node[0].arguments
        steady = all(ran_node.arguments == arguments for ran_node in runs_of_node)
        bodies = [body for ran_node in runs_of_node for body in ran_node.bodies]
        merged.append(_Ran(runs_of_node[0].name, arguments if steady else ProfileArguments(arguments.op_name), bodies))
    return merged


def _pair_nodes(graph: OnnxGraph, ran: Sequence[_Ran], model_graph: OnnxGraph | None) -> dict[int, _Ran]:
    """Return the nodes that ran, by position in the graph: by name, position in the original model, or order."""
    ran_by_position: dict[int, _Ran] = {}
    last = {ran_node.name: ran_node for ran_node in reversed(ran) if ran_node.name}
    node_names = {node.name for node in graph.nodes}
    for position, node in enumerate(graph.nodes):
        if node.name and node.name in last and last[node.name].arguments.op_name == node.op:
            ran_by_position[position] = last[node.name]
    free = [ran_node for ran_node in reversed(ran) if ran_node.name and ran_node.name not in node_names]
    unnamed = {node.outputs[:1]: position for position, node in enumerate(graph.nodes) if not node.name}
    numbered = [node for node in model_graph.nodes if node.op != "Constant"] if model_graph else []
    for ran_node in list(free):
        number = ran_node.name.removeprefix(f"{ran_node.arguments.op_name}_")
        before = numbered[int(number)] if number.isdecimal() and int(number) < len(numbered) else None
        match = unnamed.get(before.outputs[:1]) if before and before.op == ran_node.arguments.op_name else None
        if match is not None and match not in ran_by_position and graph.nodes[match].op == ran_node.arguments.op_name:
            ran_by_position[match] = ran_node
            free.remove(ran_node)
    for position, node in enumerate(graph.nodes):
        next_one = (
            next((ran_node for ran_node in free if ran_node.arguments.op_name == node.op), None)
            if position not in ran_by_position
            else None
        )
        if next_one is not None and not node.name:
            ran_by_position[position] = next_one
            free.remove(next_one)
    return ran_by_position


def _session_node(
    node: OnnxNode,
    ran: _Ran,
    stored: Mapping[str, SessionTensor],
    graphs: dict[str, tuple[SessionNode, ...]],
) -> SessionNode:
    read, written = (
        _session_tensors(shapes) for shapes in (ran.arguments.input_type_shape, ran.arguments.output_type_shape)
    )
    inputs = _with_weights(node, read, stored) if written else read
    activation = str(node.attributes.get("activation", "")) if family(node.op) == "Conv" else None
    return SessionNode(ran.name, node.op, node.domain, node.inputs, node.outputs, inputs, written, activation, graphs)


def _with_weights(
    node: OnnxNode, tensors: Sequence[SessionTensor], stored: Mapping[str, SessionTensor]
) -> tuple[SessionTensor, ...]:
    """Return the tensors that a node read, including the weights that its kernel packed and the profile omits.

    Weights are inserted in the order of the inputs. If that fails, the tensors are those of the profile.
    """
    names, remaining, session_tensors = [name for name in node.inputs if name], list(tensors), []
    for position, name in enumerate(names):
        weight = stored.get(name)
        computed = sum(later not in stored for later in names[position:])
        if weight is None or (remaining and remaining[0] == weight and len(remaining) > computed):
            if not remaining:
                return tuple(tensors)
            session_tensors.append(remaining.pop(0))
        else:
            session_tensors.append(weight)
    return tuple(tensors) if remaining else tuple(session_tensors)


def _session_tensors(typed_shapes: Sequence[Mapping[str, Sequence[int]]]) -> tuple[SessionTensor, ...]:
    return tuple(
        SessionTensor(dtype, tuple(shape)) for typed_shape in typed_shapes for dtype, shape in typed_shape.items()
    )
