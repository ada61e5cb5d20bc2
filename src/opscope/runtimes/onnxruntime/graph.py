"""The graph that a session ran: the nodes of the optimised model, without weights, as it is kept beside a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.core.errors import TraceFormatError
from opscope.core.json import from_json
from opscope.readers.compressed import mapped_file
from opscope.runtimes.onnxruntime.onnx_file import OnnxOperator

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

METHOD = "main"
"""Name of a model's only function."""
GRAPH = "graph.onnxruntime.json"
"""Name of the graph's file, beside the trace."""
SCHEMA = "opscope.onnxruntime-graph/1"


_MOST_DIMENSIONS, _LONGEST = 64, 1 << 62


class SessionTensor(msgspec.Struct, frozen=True):
    """Type and shape of a tensor that a node read or wrote."""

    dtype: str  # of its elements, as the profile names it: `float`, `int8`
    shape: tuple[int, ...]


class SessionNode(OnnxOperator, frozen=True):
    """A node that ran."""

    # tensors that it was given in the last run, one for each input that is not left out; fewer, or none, where
    # the profile does not tell
    read: tuple[SessionTensor, ...] = ()
    written: tuple[SessionTensor, ...] = ()  # tensors that it left then; likewise
    activation: str | None = None  # that a convolution also computes; empty for none, None where that is not told
    # nodes of the graphs that it runs, by the name of the attribute
    graphs: dict[str, tuple[SessionNode, ...]] = msgspec.field(default_factory=dict)
    runs: int = 1  # how often it ran in the last run of the model: the nodes of a loop's graph in every iteration


class SessionCall(msgspec.Struct, frozen=True):
    """The graph as one of several calls ran it: its nodes have the tensors of that call."""

    nodes: tuple[SessionNode, ...]
    shapes: dict[str, SessionTensor] = {}  # as of the graph


class SessionGraph(msgspec.Struct, frozen=True):
    """Graph that ONNX Runtime made of a model."""

    schema: str  # :data:`SCHEMA`
    runtime: str  # version of ONNX Runtime
    level: str  # of the optimisation of the graph, as `all`
    providers: tuple[str, ...]  # of the session, the preferred one first
    nodes: tuple[SessionNode, ...]  # of the graph that ran
    # tensors of the model as it was given, as a run without any optimisation had them; none where that is not possible
    shapes: dict[str, SessionTensor] = {}
    # of the process's clock, from which times of the profile count, in ns; 0 where that is not told
    started_ns: int = 0
    calls: dict[str, SessionCall] = {}  # by name, where the graph is called for several phases; nodes are of the last

    def called(self) -> dict[str, SessionCall]:
        """Return the graph as each call ran it, by name; the only function of a model is called :data:`METHOD`."""
        return self.calls or {METHOD: SessionCall(self.nodes, self.shapes)}


def read_session_graph(path: Path) -> SessionGraph:
    """Read a session graph from a file. Raises TraceFormatError if it is none, or has another schema."""
    try:
        graph = from_json(bytes(mapped_file(path)), SessionGraph)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TraceFormatError(f"not a session graph: {error}", where=path) from error
    if graph.schema != SCHEMA:
        raise TraceFormatError(f"has the schema {graph.schema!r}, not {SCHEMA!r}", where=path)
    if any(not _has_possible_sizes(tensor.shape) for tensor in _every_tensor(graph)):
        raise TraceFormatError("a tensor has impossible sizes", where=path)
    return graph


def every_node(nodes: Sequence[SessionNode]) -> Iterator[SessionNode]:
    """Yield nodes, each followed by those of its nested graphs."""
    for node in nodes:
        yield node
        for graph in node.graphs.values():
            yield from every_node(graph)


def _every_tensor(graph: SessionGraph) -> Iterator[SessionTensor]:
    for call in graph.called().values():
        yield from call.shapes.values()
        for node in every_node(call.nodes):
            yield from (*node.read, *node.written)


def _has_possible_sizes(shape: Sequence[int]) -> bool:
    return len(shape) <= _MOST_DIMENSIONS and all(0 <= size < _LONGEST for size in shape)
