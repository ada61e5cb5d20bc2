"""Find what caused an operator: the aten operator, the module and the line of Python, by debug handle.

One handle covers everything that one call in the exported model was decomposed into, so module and line are the
same for all of it; kind and size tell which of the aten operators a node computes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from opscope.program.operators.taxonomy import aten_operator
from opscope.program.structure.etrecord import SourceLine
from opscope.program.xnnpack.graph import NO_HANDLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from opscope.program.operators.kinds import Attribution
    from opscope.program.structure.etrecord import EdgeGraph, EdgeNode
    from opscope.program.xnnpack.graph import XnnGraph, XnnNode

_ATEN = {
    "Add": "add",
    "ArgMaxPooling2d": "max_pool2d_with_indices",
    "AvgPooling2d": "avg_pool2d adaptive_avg_pool2d",
    "BatchMatrixMultiply": "bmm mm matmul",
    "Ceiling": "ceil",
    "Clamp": "relu relu6 hardtanh clamp",
    "ConvTranspose2d": "convolution conv_transpose2d",
    "Conv2d": "convolution conv1d conv2d linear addmm mm",
    "Convert": "quantize_per_tensor dequantize_per_tensor quantize_per_token dequantize_per_token to _to_copy "
    "to_dim_order choose_qparams choose_qparams_per_token_asymmetric quantize_affine dequantize_affine",
    "Cos": "cos",
    "DepthwiseConv2d": "convolution conv1d conv2d",
    "Div": "div",
    "Floor": "floor",
    "FullyConnected": "linear addmm mm bmm",
    "GlobalAvgPooling2d": "mean adaptive_avg_pool2d",
    "LeakyReLU": "leaky_relu",
    "Multiply": "mul square pow",
    "Negate": "neg",
    "PReLU": "prelu",
    "ReciprocalSquareRoot": "rsqrt",
    "Sin": "sin",
    "Square": "mul square pow",
    "SquareRoot": "sqrt",
    "StaticConstantPad": "constant_pad_nd pad",
    "StaticReshape": "view reshape squeeze unsqueeze flatten view_copy",
    "StaticResizeBilinear2D": "upsample_bilinear2d",
    "StaticSlice": "slice",
    "StaticTranspose": "permute transpose t",
    "Subtract": "sub",
}
"""Aten operators of node kinds; other kinds are named like their operator, in lower case."""

_COMPUTING = frozenset("Conv2d DepthwiseConv2d ConvTranspose2d FullyConnected BatchMatrixMultiply Softmax".split())
_LIBRARY = ("/torch/", "/torchao/", "/executorch/exir/")


class NodeOrigin(NamedTuple):
    """The nodes of a model, by number, that a node of the graph that ran computes."""

    nodes: tuple[int, ...]  # all that it computes, in order; empty for one that was added
    main: int | None  # the one that the work is in; None for one that was added, or that is not known
    attribution: Attribution  # how that is known
    moved: str | None = None  # tensor of the model that an added node lays out anew; None for others


class OperatorOrigin(msgspec.Struct, frozen=True):
    """The aten operator, module and line that caused an operator."""

    handle: int  # the debug handle
    aten: str  # the aten operator, as `aten.convolution.default`
    module: str | None  # path of the module in the model; empty for the model itself; None when it is not recorded
    module_type: str | None  # qualified name of its class; likewise
    frame: SourceLine | None  # the innermost line outside of torch; None when it is not recorded


class Origins:
    """The operators of a method by debug handle."""

    def __init__(self, graph: EdgeGraph) -> None:
        self._by_handle = graph.by_handle()
        self._graph = graph
        self._sizes = graph.sizes
        self.modules = {scope.path: scope.type for node in graph.nodes for scope in node.modules}

    def of_node(self, node: XnnNode, dims: tuple[int, ...]) -> OperatorOrigin | None:
        """Return the origin of a payload's node whose output has this shape; None if its handle is not recorded."""
        nodes = self._by_handle.get(node.debug_handle, ())
        if not nodes:
            return None
        fitting = [edge for edge in nodes if fits_kind(node.kind, edge)]
        sized = [edge for edge in fitting if self._has_size(edge, dims)]
        return self._make_origin((sized or fitting or nodes)[0], node.debug_handle)

    def of_handles(self, handles: Iterable[int], operator_name: str = "") -> OperatorOrigin | None:
        """Return the origin of a portable operator; None if none of its handles is recorded."""
        for handle in handles:
            nodes = self._by_handle.get(handle, ())
            matching = [edge for edge in nodes if aten_operator(edge.target) == aten_operator(operator_name)]
            if nodes:
                return self._make_origin((matching or nodes)[0], handle)
        return None

    def fused(self, carried: set[int], listed: Sequence[int]) -> dict[int, list[str]]:
        """Return operators of a delegate that no node carries, by the handle of the operator they were fused into."""
        makers = {name: edge for edge in self._graph.nodes for name in edge.outputs}
        fused_targets: dict[int, list[str]] = {}
        for handle in dict.fromkeys(listed):
            if handle not in carried:
                for edge in self._by_handle.get(handle, ()):
                    into = _find_carried_producer(edge, makers, carried)
                    if into is not None:
                        fused_targets.setdefault(into, []).append(edge.target)
        return fused_targets

    def conflict(self, graph: XnnGraph) -> str | None:
        """Return why a payload cannot be of the recorded model: operators or sizes that differ; None if it can be."""
        dims = {value.id: value.dims for value in graph.values}
        for node in graph.nodes:
            if node.debug_handle != NO_HANDLE and node.kind in _COMPUTING:
                problem = self._node_conflict(node, dims.get(node.outputs[0], ()) if node.outputs else ())
                if problem:
                    return problem
        return None

    def _node_conflict(self, node: XnnNode, dims: tuple[int, ...]) -> str | None:
        nodes = self._by_handle.get(node.debug_handle, ())
        fitting = [edge for edge in nodes if fits_kind(node.kind, edge)]
        if not fitting:
            recorded = ", ".join(edge.target for edge in nodes) or "nothing"
            return f"a {node.kind} has debug handle {node.debug_handle}, which is recorded for {recorded}"
        if not any(self._has_size(edge, dims) for edge in fitting):
            return f"the {node.kind} of debug handle {node.debug_handle} has different sizes than recorded"
        return None

    def _has_size(self, edge: EdgeNode, dims: tuple[int, ...]) -> bool:
        """Return whether an output has these dimensions in some order; sizes of 1, and open sizes, do not count."""
        recorded = [self._sizes[name] for name in edge.outputs if name in self._sizes]
        return any(_same_sizes(sizes, dims) for sizes in recorded) or not recorded

    def _make_origin(self, edge: EdgeNode, handle: int) -> OperatorOrigin:
        frame = own_line(edge.frames)
        if not edge.modules:
            return OperatorOrigin(handle, edge.target, None, None, frame)
        return OperatorOrigin(handle, edge.target, edge.modules[-1].path, edge.modules[-1].type, frame)


def fits_kind(kind: str, edge: EdgeNode) -> bool:
    """Return whether a node of this kind can compute an aten operator."""
    if kind.startswith("Concatenate"):
        return aten_operator(edge.target) in {"cat", "stack"}
    return aten_operator(edge.target) in _ATEN.get(kind, kind.casefold()).split()


def own_line(frames: Sequence[SourceLine]) -> SourceLine | None:
    """Return the innermost line that is not torch's own, else the innermost of all; None without lines."""
    lines = [frame for frame in frames if not any(part in frame.file for part in _LIBRARY)]
    return lines[-1] if lines else frames[-1] if frames else None


def _find_carried_producer(edge: EdgeNode, makers: dict[str, EdgeNode], carried: set[int]) -> int | None:
    """Return the nearest handle before an operator that a node carries; None if there is none."""
    waiting, seen = list(edge.inputs), set(edge.inputs)
    while waiting:
        maker = makers.get(waiting.pop(0))
        if maker is None:
            continue
        for handle in maker.handles:
            if handle in carried:
                return handle
        waiting += [name for name in maker.inputs if name not in seen]
        seen.update(maker.inputs)
    return None


def _same_sizes(sizes: Sequence[int | str], dims: tuple[int, ...]) -> bool:
    if any(isinstance(size, str) for size in sizes):
        known = Counter(size for size in sizes if isinstance(size, int) and size > 1)
        return not known - Counter(dims)
    recorded, actual = (sorted(size for size in dimensions if size != 1) for dimensions in (sizes, dims))
    return recorded == actual
