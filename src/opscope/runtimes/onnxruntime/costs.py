"""Work and traffic of a node that a session ran, from the shapes in its profile and the model as it was given."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from opscope.program.cost.operator_cost import Cost
from opscope.program.operators.taxonomy import Category, classify

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

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
_GEMMS = frozenset({"Gemm", "QGemm"})
_PRODUCTS = frozenset(
    {"MatMul", "MatMulInteger", "QLinearMatMul", "FusedMatMul", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"}
)
_RECURRENT = frozenset({"LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"})
_UNKNOWN = frozenset({"GroupQueryAttention", "If", "Loop", "Scan", "SparseAttention"})
"""What computes more than its shapes tell."""
_MATRIX, _HEADS = 3, 4
"""Dimensions of data with all heads side by side, and with a dimension of heads."""


def node_cost(node: SessionNode, given: OnnxGraph, main: OnnxNode | None, computed: Collection[str]) -> Cost | None:
    """The cost of one run of a node; None where it is not known."""
    told = len(node.read) == sum(map(bool, node.inputs))
    if not node.written or not told or (main is not None and main.op in _UNKNOWN):
        return None
    sizes = [_bytes_of(one) for one in (*node.read, *node.written)]
    macs = _macs(node, given, main)
    if macs is None or macs < 0 or None in sizes:
        return None
    names = [name for name in node.inputs if name]
    read = dict(zip(names, sizes, strict=False))
    moved = [size or 0 for name, size in read.items() if name in computed]
    stored = [size or 0 for name, size in read.items() if name not in computed]
    written = sum(size or 0 for size in sizes[len(node.read) :])
    elements = math.prod(node.written[0].shape)
    others = 0 if macs or _moves(node) else elements
    return Cost(macs, 2 * macs + others, sum(moved), written, sum(stored)).if_possible()


def _bytes_of(tensor: SessionTensor) -> int | None:
    width = _BYTES.get(tensor.dtype)
    return None if width is None else width * math.prod(tensor.shape)


def _macs(node: SessionNode, given: OnnxGraph, main: OnnxNode | None) -> int | None:
    """Multiply-accumulates; 0 for what is no product, None for a product whose factors are not known."""
    if main is None or _moves(node):
        return 0
    read, made = _Shapes(node), node.written[0].shape
    if main.op in _CONVOLUTIONS:
        weight = _weight_shape(given, main, _WEIGHT_PLACE.get(main.op, 1)) or read.at(_WEIGHT_PLACE.get(node.op, 1))
        places = made[1:-1] if node.op in _LAST_CHANNELS else made[2:]
        return None if not weight or len(made) < _MATRIX else made[0] * math.prod(places) * math.prod(weight)
    if main.op == "ConvTranspose":
        weight, data = _weight_shape(given, main, 1) or read.at(1), read.at(0)
        return None if not weight or not data else math.prod(data[2:]) * data[0] * math.prod(weight)
    count = _COUNTS.get(main.op)
    return 0 if count is None else count(main, read, made)


def _moves(node: SessionNode) -> bool:
    """Whether what ran only moves data, whatever node of the model it stands for."""
    return classify(f"{node.op}: ").category is Category.DATA_MOVEMENT


class _Shapes:
    """Shapes of what a node read in a run, by the place of its inputs; inputs that are left out have none."""

    def __init__(self, node: SessionNode) -> None:
        places = [place for place, name in enumerate(node.inputs) if name]
        self._known = {place: tensor.shape for place, tensor in zip(places, node.read, strict=False)}

    def at(self, place: int) -> tuple[int, ...] | None:
        return self._known.get(place)


def _multiplied(main: OnnxNode, read: _Shapes, made: Sequence[int]) -> int | None:
    """A product of two matrices, by the inner size of the first one."""
    rows, across = read.at(0), main.attributes.get("transA")
    place = 0 if across and main.op in _GEMMS else -2 if across else -1
    return math.prod(made) * rows[place] if rows and len(rows) >= abs(place) else None


def _of_few_bits(main: OnnxNode, read: _Shapes, _: Sequence[int]) -> int | None:
    """Weights are stored in blocks; their number of columns is an option (``MatMulNBits`` of com.microsoft)."""
    rows, columns = read.at(0), main.attributes.get("N")
    return math.prod(rows) * columns if rows and isinstance(columns, int) else None


def _recurrent(_: OnnxNode, read: _Shapes, __: Sequence[int]) -> int | None:
    """Of each step and each sequence, all weights of the input and of the state once (operators LSTM, GRU and RNN)."""
    data, weights, state = (read.at(place) for place in range(3))
    if data is None or weights is None or state is None or len(data) != _MATRIX:
        return None
    return data[0] * data[1] * (math.prod(weights) + math.prod(state))


def _summed(main: OnnxNode, read: _Shapes, _: Sequence[int]) -> int | None:
    """A product of two tensors: every combination of their indices once; none of one tensor alone."""
    terms = str(main.attributes.get("equation", "")).replace(" ", "").partition("->")[0].split(",")
    shapes = [read.at(place) for place in range(len(terms))]
    if len(terms) == 1:
        return 0
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        if shape is None or len(shape) != len(term) or not term.isalpha():
            return None
        for index, size in zip(term, shape, strict=True):
            sizes[index] = max(size, sizes.get(index, 1))
    return math.prod(sizes.values()) if len(terms) == 2 else None  # noqa: PLR2004 - of more the order is not known


def _attention(main: OnnxNode, read: _Shapes, _: Sequence[int]) -> int | None:
    """Scores and their sum over the values; where the operator makes queries, keys and values itself, these too.

    Sources: the operators ``Attention`` of ONNX (version 23), and ``Attention``, ``QAttention`` and
    ``MultiHeadAttention`` of com.microsoft. With a cache of earlier keys those of com.microsoft are not known: their
    shapes do not tell how much of it is used.
    """
    if main.domain == "com.microsoft":
        return _packed_attention(main, read) if main.op != "MultiHeadAttention" else _side_by_side(main, read)
    queries, keys, values, cached = (read.at(place) for place in (0, 1, 2, 4))
    if queries is None or keys is None or values is None or not len(queries) == len(keys) == len(values):
        return None
    earlier = cached[-2] if cached and len(cached) == _HEADS else 0
    if len(queries) == _HEADS:
        images, heads, rows, width = queries
        return images * heads * rows * (keys[2] + earlier) * (width + values[3])
    split, shared = main.attributes.get("q_num_heads"), main.attributes.get("kv_num_heads")
    if len(queries) != _MATRIX or not isinstance(split, int) or not isinstance(shared, int) or shared < 1:
        return None
    return queries[0] * queries[1] * (keys[1] + earlier) * (queries[2] + values[2] * split // shared)


def _packed_attention(main: OnnxNode, read: _Shapes) -> int | None:
    """One matrix makes queries, keys and values, which are as wide as each other."""
    data, weights = read.at(0), read.at(1)
    cached = any(main.inputs[8:9]) if main.op == "QAttention" else any(main.inputs[4:5])
    uneven = "qkv_hidden_sizes" in main.attributes
    if cached or uneven or data is None or weights is None or (len(data), len(weights)) != (_MATRIX, 2):
        return None
    images, rows, _ = data
    return images * rows * math.prod(weights) + 2 * images * rows * rows * (weights[1] // 3)


def _side_by_side(main: OnnxNode, read: _Shapes) -> int | None:
    queries, keys, values = (read.at(place) for place in range(3))
    cached = any(main.inputs[6:8])
    if cached or queries is None or keys is None or values is None or not len(queries) == len(keys) == _MATRIX:
        return None
    return queries[0] * queries[1] * keys[1] * (queries[2] + values[-1]) if len(values) == _MATRIX else None


_COUNTS: dict[str, Callable[[OnnxNode, _Shapes, Sequence[int]], int | None]] = {
    **dict.fromkeys(_PRODUCTS | _GEMMS, _multiplied),
    **dict.fromkeys(_RECURRENT, _recurrent),
    **dict.fromkeys(("Attention", "MultiHeadAttention", "QAttention"), _attention),
    "Einsum": _summed,
    "MatMulNBits": _of_few_bits,
}


def _weight_shape(given: OnnxGraph, node: OnnxNode, place: int) -> Sequence[int] | None:
    """Shape of a stored factor: filters of all outputs, inputs of a group, and the window."""
    name = node.inputs[place] if place < len(node.inputs) else ""
    return next((one.shape for one in given.weights if one.name == name), None)
