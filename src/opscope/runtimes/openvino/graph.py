"""The graph that ran, and the model as OpenVINO read it, without weights, as they are kept beside a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.core.errors import TraceFormatError
from opscope.core.json import from_json
from opscope.readers.compressed import mapped_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GRAPH = "graph.openvino.json"
"""Name of the graph's file, beside the trace."""
SCHEMA = "opscope.openvino-graph/1"
_MOST_DIMENSIONS, _LONGEST = 64, 1 << 62


class NodeTensor(msgspec.Struct, frozen=True):
    """Type and shape of a tensor that a node writes."""

    dtype: str  # of its elements, as OpenVINO writes it: `f32`, `i8`
    shape: tuple[int, ...] | None  # null where it was open when it was told


class ModelNode(msgspec.Struct, frozen=True):
    """A node of a graph."""

    name: str  # unique in its graph
    type: str  # of operator
    inputs: tuple[tuple[str, int], ...]  # nodes that it reads, and which of their tensors
    outputs: tuple[NodeTensor, ...]
    transposed: tuple[bool, bool] = (False, False)  # of a product of matrices, whether its factors are read across


class RunNode(msgspec.Struct, frozen=True):
    """A node of the graph that ran."""

    node: ModelNode  # itself
    kernel: str  # that runs it
    layers: tuple[str, ...]  # nodes of the model that it computes; empty for one that was added
    layout: str  # of its output, such as `acdb` for channels last


class OpenVinoGraph(msgspec.Struct, frozen=True):
    """Graph that OpenVINO made of a model."""

    schema: str  # :data:`SCHEMA`
    runtime: str  # version of OpenVINO
    properties: dict[str, str]  # with which the model was compiled, as the plugin has them
    given: tuple[ModelNode, ...]  # of the model, each behind those that it reads, with the sizes of this run
    ran: tuple[RunNode, ...]  # likewise, in the order in which they ran


def read_graph(path: Path) -> OpenVinoGraph:
    """Read a graph from a file. Raises TraceFormatError if it is none, or has another schema."""
    try:
        graph = from_json(bytes(mapped_file(path)), OpenVinoGraph)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TraceFormatError(f"not a graph of OpenVINO: {error}", where=path) from error
    if graph.schema != SCHEMA:
        raise TraceFormatError(f"has the schema {graph.schema!r}, not {SCHEMA!r}", where=path)
    if any(not _has_possible_sizes(tensor) for tensor in _every_tensor(graph)):
        raise TraceFormatError("a tensor has impossible sizes", where=path)
    return graph


def _every_tensor(graph: OpenVinoGraph) -> Iterator[NodeTensor]:
    for node in (*graph.given, *(run_node.node for run_node in graph.ran)):
        yield from node.outputs


def _has_possible_sizes(tensor: NodeTensor) -> bool:
    shape = tensor.shape or ()
    return len(shape) <= _MOST_DIMENSIONS and all(0 <= size < _LONGEST for size in shape)
