"""Work and traffic of a node that a session ran, from the shapes in its profile and the model as it was given."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from opscope.program.cost.operator_cost import Cost
from opscope.program.operators.taxonomy import Category, classify

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from opscope.runtimes.onnxruntime.graph import SessionNode, SessionTensor
    from opscope.runtimes.onnxruntime.onnx_file import OnnxGraph, OnnxNode

_BYTES = {
    **dict.fromkeys(("float", "int32", "uint32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("int8", "uint8", "bool"), 1),
    **dict.fromkeys(("double", "int64", "uint64"), 8),
}
_LAST_CHANNELS = frozenset({"NhwcFusedConv", "NhwcConv"})
_WEIGHT_PLACE = {"QLinearConv": 3}
_CONVOLUTIONS = frozenset({"Conv", "ConvInteger", "QLinearConv"})
_PRODUCTS = frozenset({"MatMul", "MatMulInteger", "QLinearMatMul"})
_UNKNOWN = frozenset({"Attention", "LSTM", "GRU", "RNN", "Einsum", "If", "Loop", "Scan"})
"""What computes more than its shapes tell."""


def node_cost(node: SessionNode, given: OnnxGraph, main: OnnxNode | None, computed: Collection[str]) -> Cost | None:
    """The cost of one run of a node; None where it is not known.

    Args:
        node: that ran, with the shapes of a run.
        given: the graph of the model.
        main: node of it that the work is in; None for one that was added.
        computed: tensors that a run computes or is given; all others are stored.
    """
    if not node.written or len(node.read) > len(node.inputs) or (main is not None and main.op in _UNKNOWN):
        return None
    sizes = [_bytes_of(one) for one in (*node.read, *node.written)]
    macs = _macs(node, given, main)
    if macs is None or None in sizes:
        return None
    names = [name for name in node.inputs if name]
    read = dict(zip(names, sizes, strict=False))
    moved = [size or 0 for name, size in read.items() if name in computed]
    stored = [size or 0 for name, size in read.items() if name not in computed]
    written = sum(size or 0 for size in sizes[len(node.read) :])
    elements = math.prod(node.written[0].shape)
    others = 0 if macs or classify(f"{node.op}: ").category is Category.DATA_MOVEMENT else elements
    return Cost(macs, 2 * macs + others, sum(moved), written, sum(stored))


def _bytes_of(tensor: SessionTensor) -> int | None:
    width = _BYTES.get(tensor.dtype)
    return None if width is None else width * math.prod(tensor.shape)


def _macs(node: SessionNode, given: OnnxGraph, main: OnnxNode | None) -> int | None:
    """Multiply-accumulates; 0 for what is no product, None for a product whose factors are not known."""
    if main is None:
        return 0
    made, read = node.written[0].shape, [one.shape for one in node.read]
    if main.op in _CONVOLUTIONS:
        weight = _weight_shape(given, main, _WEIGHT_PLACE.get(main.op, 1))
        places = made[1:-1] if node.op in _LAST_CHANNELS else made[2:]
        return None if weight is None else made[0] * math.prod(places) * math.prod(weight)
    if main.op == "ConvTranspose":
        weight = _weight_shape(given, main, 1)
        return None if weight is None or not read else math.prod(read[0][2:]) * read[0][0] * math.prod(weight)
    if main.op == "Gemm":
        rows = read[0] if read else ()
        return math.prod(made) * rows[0 if main.attributes.get("transA") else -1] if rows else None
    if main.op in _PRODUCTS:
        return math.prod(made) * read[0][-1] if read and read[0] else None
    return 0


def _weight_shape(given: OnnxGraph, node: OnnxNode, place: int) -> Sequence[int] | None:
    """Shape of a stored factor: filters of all outputs, inputs of a group, and the window."""
    name = node.inputs[place] if place < len(node.inputs) else ""
    return next((one.shape for one in given.weights if one.name == name), None)
