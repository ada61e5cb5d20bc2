"""The graph that a session ran: the nodes of the optimised model, without weights, as it is kept beside a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from opscope.core.errors import TraceFormatError
from opscope.core.json import from_json
from opscope.readers.compressed import file_view

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from opscope.runtimes.onnxruntime.onnx_file import OnnxGraph, OnnxModel, OnnxNode

GRAPH = "graph.onnxruntime.json"
"""Its file, beside the trace."""
SCHEMA = "opscope.onnxruntime-graph/1"


class SessionTensor(msgspec.Struct, frozen=True):
    """A tensor as a node was given it, or left it."""

    dtype: str  # of its elements, as the profile names it: `float`, `int8`
    shape: tuple[int, ...]


class SessionNode(msgspec.Struct, frozen=True):
    """A node that ran."""

    name: str  # as the profile has it
    op: str  # its type
    domain: str  # that defines it; empty for ONNX itself
    inputs: tuple[str, ...]  # names of tensors; empty for one that is left out
    outputs: tuple[str, ...]
    # tensors that it was given in the last run, one for each input that is not left out; fewer, or none, where
    # the profile does not tell
    read: tuple[SessionTensor, ...] = ()
    written: tuple[SessionTensor, ...] = ()  # tensors that it left then; likewise
    graphs: dict[str, tuple[SessionNode, ...]] = {}  # nodes of the graphs that it runs, by the name of the attribute


class SessionGraph(msgspec.Struct, frozen=True):
    """What ONNX Runtime made of a model."""

    schema: str  # :data:`SCHEMA`
    runtime: str  # version of ONNX Runtime
    level: str  # of the optimisation of the graph, as `all`
    providers: tuple[str, ...]  # of the session, the preferred one first
    nodes: tuple[SessionNode, ...]  # of the graph that ran


def session_nodes(model: OnnxModel, profile: Path) -> tuple[SessionNode, ...]:
    """The nodes of an optimised model, with the shapes that a profile of it tells."""
    return _session_nodes(model.graph, _last_rows(profile), {})


_Tensors: TypeAlias = list[dict[str, list[int]]]


class _Arguments(msgspec.Struct, frozen=True):
    op_name: str = ""
    input_type_shape: _Tensors = []
    output_type_shape: _Tensors = []


class _Row(msgspec.Struct, frozen=True):
    cat: str = ""
    name: str = ""
    args: _Arguments = _Arguments()


_NODE = "_kernel_time"


def _last_rows(profile: Path) -> dict[str, _Arguments]:
    """Of each node the last row; nodes without a name share one, which says nothing of any of them."""
    try:
        rows = from_json(bytes(file_view(profile)), list[_Row])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    named = (row for row in rows if row.cat == "Node" and row.name.endswith(_NODE))
    return {row.name.removesuffix(_NODE): row.args for row in named if row.name != _NODE}


def _session_nodes(
    graph: OnnxGraph, rows: Mapping[str, _Arguments], around: Mapping[str, SessionTensor]
) -> tuple[SessionNode, ...]:
    own = {one.name: SessionTensor(_ELEMENTS.get(one.dtype.name, one.dtype.name), one.shape) for one in graph.weights}
    stored = {**around, **own}
    return tuple(_session_node(one, rows, stored) for one in graph.nodes)


_MOST_DIMENSIONS, _LONGEST = 64, 1 << 62
_ELEMENTS = {"float32": "float", "float64": "double"}
"""Types of elements that a profile names otherwise than the format of a model."""


def _session_node(node: OnnxNode, rows: Mapping[str, _Arguments], stored: Mapping[str, SessionTensor]) -> SessionNode:
    seen = rows.get(node.name, _Arguments())
    known = seen if seen.op_name == node.op else _Arguments()
    read, written = (_session_tensors(one) for one in (known.input_type_shape, known.output_type_shape))
    graphs = {name: _session_nodes(graph, rows, stored) for name, graph in node.graphs.items()}
    whole = _with_weights(node, read, stored) if written else read
    return SessionNode(node.name, node.op, node.domain, node.inputs, node.outputs, whole, written, graphs)


def _with_weights(
    node: OnnxNode, told: Sequence[SessionTensor], stored: Mapping[str, SessionTensor]
) -> tuple[SessionTensor, ...]:
    """What a node read, with the weights that a profile leaves out: those that the kernel packed when it was made.

    Each is put in its place by the order of the inputs; what cannot be is left as the profile has it.
    """
    names, left, found = [name for name in node.inputs if name], list(told), []
    for place, name in enumerate(names):
        weight = stored.get(name)
        computed = sum(other not in stored for other in names[place:])
        if weight is None or (left and left[0] == weight and len(left) > computed):
            if not left:
                return tuple(told)
            found.append(left.pop(0))
        else:
            found.append(weight)
    return tuple(told) if left else tuple(found)


def _session_tensors(told: _Tensors) -> tuple[SessionTensor, ...]:
    return tuple(SessionTensor(dtype, tuple(shape)) for one in told for dtype, shape in one.items())


def read_session_graph(path: Path) -> SessionGraph:
    """The graph of a file."""
    try:
        found = from_json(bytes(file_view(path)), SessionGraph)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TraceFormatError(f"not a graph of a session: {error}", where=path) from error
    if found.schema != SCHEMA:
        raise TraceFormatError(f"is of the schema {found.schema!r}, not {SCHEMA!r}", where=path)
    if any(not _possible(one.shape) for node in _every_node(found.nodes) for one in (*node.read, *node.written)):
        raise TraceFormatError("a tensor has sizes that none can have", where=path)
    return found


def _every_node(nodes: Sequence[SessionNode]) -> Iterator[SessionNode]:
    """Nodes, and those of the graphs that they run."""
    for node in nodes:
        yield node
        for graph in node.graphs.values():
            yield from _every_node(graph)


def _possible(shape: Sequence[int]) -> bool:
    return len(shape) <= _MOST_DIMENSIONS and all(0 <= size < _LONGEST for size in shape)
