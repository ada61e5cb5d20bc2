"""The graph that a session ran: the nodes of the optimised model, without weights, as it is kept beside a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from opscope.core.errors import TraceFormatError
from opscope.core.json import from_json
from opscope.readers.mapped import file_view

if TYPE_CHECKING:
    from pathlib import Path

    from opscope.runtimes.onnxruntime.onnx_file import OnnxModel

GRAPH = "graph.onnxruntime.json"
"""Its file, beside the trace."""
SCHEMA = "opscope.onnxruntime-graph/1"


class SessionNode(msgspec.Struct, frozen=True):
    """A node that ran.

    Attributes:
        name: as the profile has it.
        op: its type.
        domain: that defines it; empty for ONNX itself.
        inputs: names of tensors; empty for one that is left out.
        outputs: likewise.
    """

    name: str
    op: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class SessionGraph(msgspec.Struct, frozen=True):
    """What ONNX Runtime made of a model.

    Attributes:
        schema: :data:`SCHEMA`.
        runtime: version of ONNX Runtime.
        level: of the optimisation of the graph, as ``all``.
        providers: of the session, the preferred one first.
        nodes: of the graph that ran, those of nested graphs left out.
    """

    schema: str
    runtime: str
    level: str
    providers: tuple[str, ...]
    nodes: tuple[SessionNode, ...]


def session_nodes(model: OnnxModel) -> tuple[SessionNode, ...]:
    """The nodes of an optimised model."""
    return tuple(SessionNode(one.name, one.op, one.domain, one.inputs, one.outputs) for one in model.graph.nodes)


def read_session_graph(path: Path) -> SessionGraph:
    """The graph of a file.

    Raises:
        NotFoundError: there is no such file.
        StorageError: it cannot be read.
        TraceFormatError: it is damaged, or of another schema.
    """
    try:
        found = from_json(bytes(file_view(path)), SessionGraph)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TraceFormatError(f"not a graph of a session: {error}", where=path) from error
    if found.schema != SCHEMA:
        raise TraceFormatError(f"is of the schema {found.schema!r}, not {SCHEMA!r}", where=path)
    return found
