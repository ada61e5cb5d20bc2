"""Work and traffic of a node that a session ran, from the shapes in its profile and the model as it was given."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from opscope.program.cost.operator_cost import Cost
from opscope.program.operators.kinds import Attribution
from opscope.program.operators.taxonomy import Category, classify
from opscope.runtimes.onnxruntime.graph import SessionTensor
from opscope.runtimes.onnxruntime.passes import BLOCKED, MOVERS, PRODUCTS, family

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from opscope.runtimes.onnxruntime.graph import SessionNode
    from opscope.runtimes.onnxruntime.onnx_file import OnnxGraph, OnnxNode
    from opscope.runtimes.onnxruntime.origins import NodeOrigin, SessionOrigins

_BYTES = {
    **dict.fromkeys(("float", "int32", "uint32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 2),
    **dict.fromkeys(("int8", "uint8", "bool"), 1),
    **dict.fromkeys(("double", "int64", "uint64"), 8),
}
_WEIGHT_PLACE = {"QLinearConv": 3}
_CONVOLUTIONS = frozenset({"Conv", "ConvInteger", "QLinearConv", "FusedConv"})
_GEMMS = frozenset({"Gemm", "QGemm"})
_PRODUCTS = frozenset(
    {"MatMul", "MatMulInteger", "QLinearMatMul", "FusedMatMul", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"}
)
_RECURRENT = frozenset({"LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"})
_UNKNOWN = frozenset({"GroupQueryAttention", "If", "Loop", "Scan", "SparseAttention"})
"""What computes more than its shapes tell."""
_MATRIX, _HEADS = 3, 4
"""Dimensions of data with all heads side by side, and with a dimension of heads."""


class SessionCosts:
    """Costs of the nodes of one graph that ran.

    Multiplications are those of the nodes of the given model, each counted once, and all sizes are those that the given
    model has: blocks of channels are filled up with zeros, and a pass may lay out or fuse differently elsewhere.
    """

    def __init__(
        self, given: OnnxGraph, ran: Sequence[SessionNode], origins: SessionOrigins, shapes: Mapping[str, SessionTensor]
    ) -> None:
        self._given, self._ran, self._origins = given, ran, origins
        stored = {one.name: SessionTensor(one.dtype.name, one.shape) for one in given.weights}
        self._tensors = {**stored, **_seen(ran, origins.holds), **shapes}
        self._counted: dict[int, int] = {}  # products of the given model, by number: place of the node that has them
        exact_first = sorted(range(len(ran)), key=lambda place: origins.nodes[place].attribution != Attribution.EXACT)
        for place in exact_first:
            for number in self._products(origins.nodes[place]):
                self._counted.setdefault(number, place)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Of a tensor of the given model."""
        return self._tensors[name].shape if name in self._tensors else None

    def held(self, name: str, tensor: SessionTensor) -> tuple[int, ...]:
        """Shape that the given model has for what a tensor holds; its own where that is not known."""
        return self.shape(self._origins.holds.get(name, "")) or tensor.shape

    def of(self, place: int, computed: Collection[str]) -> Cost | None:
        """The cost of one run of a node; None where it is not known."""
        node, origin = self._ran[place], self._origins.nodes[place]
        main = None if origin.main is None else self._given.nodes[origin.main]
        names = [name for name in node.inputs if name]
        if not node.written or len(node.read) != len(names) or (main is not None and main.op in _UNKNOWN):
            return None
        macs = self._macs(place)
        read = [self._bytes(name, one, main) for name, one in zip(names, node.read, strict=True)]
        written = [self._bytes(name, one, main) for name, one in zip(node.outputs, node.written, strict=False)]
        if macs is None or macs < 0 or None in (*read, *written):
            return None
        moved = sum(size or 0 for name, size in zip(names, read, strict=True) if name in computed)
        stored = sum(size or 0 for name, size in zip(names, read, strict=True) if name not in computed)
        others = 0 if macs or _moves(node) else math.prod(node.written[0].shape)
        padding = sum(self._padding_of(self._given.nodes[number]) for number in self._own(place)) if macs else 0
        left = sum(size or 0 for size in written)
        return Cost(macs, 2 * macs + others, moved, left, stored, padding).if_possible()

    def filter(self, main: OnnxNode | None) -> tuple[int, ...]:
        """Shape of the filter of a convolution of the model; empty for other nodes."""
        place = _WEIGHT_PLACE.get(main.op, 1) if main is not None else 1
        if main is None or "Conv" not in main.op or len(main.inputs) <= place:
            return ()
        return self.shape(main.inputs[place]) or ()

    def _bytes(self, name: str, tensor: SessionTensor, main: OnnxNode | None) -> int | None:
        width = _BYTES.get(tensor.dtype)
        shape = self.held(name, tensor)
        whole = self.filter(main)
        if name not in self._origins.holds and len(whole) == len(shape) and len(whole) > _MATRIX - 1:
            shape = whole  # a filter in blocks
        return None if width is None else width * math.prod(shape)

    def _products(self, origin: NodeOrigin) -> list[int]:
        return [number for number in origin.nodes if family(self._given.nodes[number].op) in PRODUCTS]

    def _macs(self, place: int) -> int | None:
        """Multiply-accumulates; 0 for what is no product, None for a product whose factors are not known."""
        origin = self._origins.nodes[place]
        if origin.main is None:
            return None if family(self._ran[place].op) in PRODUCTS else 0
        each = [self._macs_of(self._given.nodes[number]) for number in self._own(place)]
        return None if None in each else sum(count or 0 for count in each)

    def _own(self, place: int) -> list[int]:
        """Products of the given model that are counted with a node."""
        return [number for number in self._products(self._origins.nodes[place]) if self._counted[number] == place]

    def _padding_of(self, node: OnnxNode) -> int:
        """Multiply-accumulates of a convolution with the zeros around its input."""
        names = [*node.inputs[:1], *node.inputs[_WEIGHT_PLACE.get(node.op, 1) :][:1], *node.outputs[:1]]
        data, weight, made = (self.shape(name) for name in names) if len(names) == _MATRIX else (None, None, None)
        if node.op not in _CONVOLUTIONS or not data or not weight or not made:
            return 0
        if not _MATRIX <= len(made) == len(weight) == len(data):
            return 0
        each = [
            _inside(size, taps, count, *_steps(node, axis, size, taps, count))
            for axis, (size, taps, count) in enumerate(zip(data[2:], weight[2:], made[2:], strict=True))
        ]
        whole = made[0] * math.prod(weight[:2])
        return whole * (math.prod(made[2:]) * math.prod(weight[2:]) - math.prod(each))

    def _macs_of(self, node: OnnxNode) -> int | None:
        read = _Shapes({place: self.shape(name) for place, name in enumerate(node.inputs) if name})
        made = next((self.shape(name) for name in node.outputs if name), None)
        if made is None:
            return None
        if node.op in _CONVOLUTIONS:
            weight = read.at(_WEIGHT_PLACE.get(node.op, 1))
            return None if not weight or len(made) < _MATRIX else made[0] * math.prod(made[2:]) * math.prod(weight)
        if node.op == "ConvTranspose":
            weight, data = read.at(1), read.at(0)
            return None if not weight or not data else math.prod(data[2:]) * data[0] * math.prod(weight)
        count = _COUNTS.get(node.op)
        return None if count is None else count(node, read, made)


_MOST_TAPS = 10_000


def _steps(node: OnnxNode, axis: int, size: int, taps: int, count: int) -> tuple[int, int, int]:
    """Stride and dilation of a convolution along a dimension, and how many zeros stand before its input."""

    def option(name: str, otherwise: int) -> int:
        values = node.attributes.get(name)
        return int(values[axis]) if isinstance(values, tuple) and len(values) > axis else otherwise

    stride, dilation, same = option("strides", 1), option("dilations", 1), str(node.attributes.get("auto_pad", ""))
    if same.startswith("SAME"):
        around = max(0, (count - 1) * stride + (taps - 1) * dilation + 1 - size)
        return stride, dilation, around // 2 if same == "SAME_UPPER" else around - around // 2
    return stride, dilation, option("pads", 0)


def _inside(size: int, taps: int, count: int, stride: int, dilation: int, before: int) -> int:
    """Pairs of an output and a tap of its filter, along a dimension, whose input is no zero of the padding."""
    if stride < 1 or taps > _MOST_TAPS:  # of a damaged file
        return taps * count
    found = 0
    for tap in range(taps):
        first = -(-(before - tap * dilation) // stride)
        last = (size - 1 + before - tap * dilation) // stride
        found += max(0, min(last, count - 1) - max(first, 0) + 1)
    return found


def _seen(ran: Sequence[SessionNode], holds: Mapping[str, str]) -> dict[str, SessionTensor]:
    """Tensors of the model as nodes had them that neither fill up nor lay out anew."""
    found: dict[str, SessionTensor] = {}
    for node in ran:
        if node.domain == BLOCKED or node.op in MOVERS:
            continue
        for names, tensors in ((node.inputs, node.read), (node.outputs, node.written)):
            own = [name for name in names if name]
            for name, tensor in zip(own, tensors if len(tensors) == len(own) else (), strict=False):
                if holds.get(name) == name:
                    found.setdefault(name, tensor)
    return found


def _moves(node: SessionNode) -> bool:
    """Whether what ran only moves data, whatever node of the model it stands for."""
    return classify(f"{node.op}: ").category is Category.DATA_MOVEMENT


class _Shapes(NamedTuple):
    """Shapes of what a node reads, by the place of its inputs; inputs that are left out have none."""

    known: Mapping[int, tuple[int, ...] | None]

    def at(self, place: int) -> tuple[int, ...] | None:
        return self.known.get(place)


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
