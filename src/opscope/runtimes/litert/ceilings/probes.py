"""Probes of LiteRT's delegate: what small models reach that hold one kind of operator each."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from opscope.program.ceilings.ceilings import (
    Dispatch,
    DispatchCost,
    ElementCeiling,
    KernelClass,
    KernelUse,
    MacCeiling,
    MemoryCeiling,
    Pattern,
    kernel_use,
    operator_name,
)
from opscope.runtimes.ceilings.sampler import Probe, ProbeCandidate
from opscope.runtimes.litert.ceilings.graphs import ABSENT, GraphBuilder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Candidate: TypeAlias = ProbeCandidate[GraphBuilder]
    ModelProbe: TypeAlias = Probe[GraphBuilder]

# Rows for each thread, output channels, input channels.
_GEMMS = ((56, 512, 512), (112, 256, 1024))
# Channels of square matrices, chained.
_GEMVS = (128, 512)
_MACS_AT_ONCE = 1 << 20
# Height and width of an image for each thread, input channels, output channels, filter.
_CONVOLUTIONS = ((28, 64, 64, 3), (14, 128, 128, 3))
# Height and width of an image for each thread, channels.
_DEPTHWISE = ((28, 128), (28, 256), (7, 512))
_DEPTHWISE_FILTERS = (3, 5)
# Likewise of a transposed convolution with a stride of 2.
_TRANSPOSED = ((14, 128, 64, 4), (7, 256, 128, 4))
# Matrices for each thread, rows, columns, inner size.
_MATMULS = ((8, 128, 128, 64), (1, 256, 256, 256))
_TYPES = {"f32": ("f32", "f32"), "qs8": ("qs8", "qs8"), "qd8": ("f32", "qs8")}
"""Types of activations and weights; activations of ``qd8`` are quantised at run time."""

# Elements for each thread: they stay in the smaller caches.
_ELEMENTS = (4_096, 16_384)
_ROW = 512
_CHAIN = 16
# XNNPACK's operator -> LiteRT's, its table of options, and what is written there.
_UNARY: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "Softmax": ("SOFTMAX", "SoftmaxOptions", {"beta": 1.0}),
    "Sigmoid": ("LOGISTIC", None, {}),
    "TanH": ("TANH", None, {}),
    "GELU": ("GELU", "GeluOptions", {}),
    "ApproxGELU": ("GELU", "GeluOptions", {"approximate": True}),
    "HardSwish": ("HARD_SWISH", None, {}),
    "ELU": ("ELU", None, {}),
    "Exp": ("EXP", None, {}),
    "Abs": ("ABS", None, {}),
    "Square Root": ("SQRT", None, {}),
    "Reciprocal Square Root": ("RSQRT", None, {}),
}


class _Function(NamedTuple):
    """A function of XNNPACK, LiteRT's operator for it, and the types of its input and its output."""

    name: str
    operator: str
    source: str
    target: str


# Those that the delegate joins when they follow each other: each reads the same tensor and has an output of its own.
_APART = (
    _Function("Clamp", "RELU6", "f32", "f32"),
    _Function("Square", "SQUARE", "f32", "f32"),
    _Function("Convert to qs8", "QUANTIZE", "f32", "qs8"),
    _Function("Convert to f32", "DEQUANTIZE", "qs8", "f32"),
    _Function("Sigmoid", "LOGISTIC", "qs8", "qs8"),
    _Function("TanH", "TANH", "qs8", "qs8"),
)
_AT_ONCE_APART, _APART_ELEMENTS = 8, (16_384, 65_536)
_BINARY = {"Add": ("ADD", "AddOptions"), "Subtract": ("SUB", "SubOptions"), "Multiply": ("MUL", "MulOptions")}
_ALSO_QUANTISED = ("Add", "Multiply")
_OUTPUTS = {"Sigmoid": (1 / 256, -128)}
"""Scale and zero point of int8 outputs that are not free."""
_LOOKUP = "Invalid Unary Op"
"""What XNNPACK calls a function of int8 that it looks up in a table."""
_MEAN_IMAGE = (16, 16)

_WIDTH = 4
_SMALLEST_SET, _LARGEST_SET, _SHARE_OF_MEMORY = 1 << 15, 1 << 27, 16
_PASSED_AT_ONCE = 1 << 22
# A smaller copy is over before calling the runtime is.
_SMALLEST_COPY = 1 << 21
_ROWS = 8
_UPDATES = 8
_WEIGHT_SETS = (1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
_WEIGHT_CHANNELS = 512
_TINY, _TINY_AT_ONCE = 16, 256


def largest_working_set(memory: int) -> int:
    """Bytes of the largest working set on a machine with so much memory: 128 MiB, or a sixteenth of it."""
    return min(_LARGEST_SET, memory // _SHARE_OF_MEMORY)


def litert_probes(threads: int, largest: int) -> list[ModelProbe]:
    """All probes."""
    computing = [*_compute_probes(threads), *_element_probes(threads)]
    return [*computing, *_memory_probes(threads, largest), *_weight_probes(largest), *_dispatch_probes(threads)]


def _compute_probes(threads: int) -> Iterator[ModelProbe]:
    for dtype in _TYPES:
        gemms = [_gemm(dtype, threads * rows, outputs, inputs) for rows, outputs, inputs in _GEMMS]
        yield _multiplying(dtype, KernelClass.GEMM, gemms)
        yield _multiplying(dtype, KernelClass.GEMV, [_gemv(dtype, channels) for channels in _GEMVS])
        convolutions = [_convolution(dtype, threads, *shape) for shape in _CONVOLUTIONS]
        yield _multiplying(dtype, KernelClass.IGEMM, convolutions)
    for dtype in ("f32", "qs8"):
        transposed = [_transposed(dtype, threads, *shape) for shape in _TRANSPOSED]
        yield _multiplying(dtype, KernelClass.SUBCONV, transposed)
        for width in _DEPTHWISE_FILTERS:
            candidates = [_depthwise(dtype, threads, *shape, width) for shape in _DEPTHWISE]
            yield _multiplying(dtype, KernelClass.DWCONV, candidates)
        matmuls = [_matmul(dtype, threads * count, *rest) for count, *rest in _MATMULS]
        yield _multiplying(dtype, KernelClass.BMM, matmuls)


def _multiplying(dtype: str, kernel: KernelClass, candidates: list[Candidate]) -> ModelProbe:
    use = KernelUse(dtype, kernel)

    def meant(operator: str) -> bool:
        quantises = dtype == "qd8" and operator.startswith("Convert (NC, ")
        return quantises or kernel_use(operator, 1 if kernel is KernelClass.GEMV else None) == use

    return Probe(candidates, meant)


def _gemm(dtype: str, rows: int, outputs: int, inputs: int) -> Candidate:
    activation, weight = _TYPES[dtype]

    def build(graph: GraphBuilder) -> None:
        given = graph.given(activation, (rows, inputs))
        graph.leaves(_product(graph, given, graph.weights(weight, (outputs, inputs)), (rows, outputs), activation))

    ceiling = MacCeiling(dtype=dtype, kernel=KernelClass.GEMM, shape=f"[{rows}, {inputs}] x [{inputs}, {outputs}]")
    return ProbeCandidate(ceiling, rows * outputs * inputs, build)


def _product(graph: GraphBuilder, given: int, weights: int, dims: Sequence[int], activation: str) -> int:
    bias = graph.bias(dims[-1]) if activation == "qs8" else ABSENT
    fields = {"keepNumDims": True}
    return graph.add(
        "FULLY_CONNECTED", (given, weights, bias), graph.made(activation, dims), "FullyConnectedOptions", fields
    )


def _gemv(dtype: str, channels: int) -> Candidate:
    activation, weight = _TYPES[dtype]
    times = max(1, _MACS_AT_ONCE // (channels * channels))

    def build(graph: GraphBuilder) -> None:
        last, weights = graph.given(activation, (1, channels)), graph.weights(weight, (channels, channels))
        for _ in range(times):
            last = _product(graph, last, weights, (1, channels), activation)
        graph.leaves(last)

    ceiling = MacCeiling(dtype=dtype, kernel=KernelClass.GEMV, shape=f"[1, {channels}] x [{channels}, {channels}]")
    return ProbeCandidate(ceiling, times * channels * channels, build)


def _convolution(dtype: str, images: int, side: int, inputs: int, outputs: int, width: int) -> Candidate:
    activation, weight = _TYPES[dtype]
    dims, filters = (images, side, side, inputs), (outputs, width, width, inputs)

    def build(graph: GraphBuilder) -> None:
        values = [graph.given(activation, dims), graph.weights(weight, filters)]
        values.append(graph.bias(outputs) if activation == "qs8" else _no_bias(graph, outputs))
        made = graph.made(activation, (*dims[:3], outputs))
        graph.leaves(graph.add("CONV_2D", values, made, "Conv2DOptions", {"strideW": 1, "strideH": 1}))

    ceiling = MacCeiling(dtype=dtype, kernel=KernelClass.IGEMM, shape=f"{list(dims)} * {list(filters)}")
    return ProbeCandidate(ceiling, math.prod(dims) * outputs * width * width, build)


def _no_bias(graph: GraphBuilder, channels: int) -> int:
    return graph.weights("f32", (channels,))


def _depthwise(dtype: str, images: int, side: int, channels: int, width: int) -> Candidate:
    activation, weight = _TYPES[dtype]
    dims, filters = (images, side, side, channels), (1, width, width, channels)

    def build(graph: GraphBuilder) -> None:
        values = [graph.given(activation, dims), graph.weights(weight, filters, axis=3)]
        values.append(graph.bias(channels) if activation == "qs8" else _no_bias(graph, channels))
        fields = {"strideW": 1, "strideH": 1, "depthMultiplier": 1}
        made = graph.made(activation, dims)
        graph.leaves(graph.add("DEPTHWISE_CONV_2D", values, made, "DepthwiseConv2DOptions", fields))

    shape = f"{list(dims)} * {list(filters)}"
    ceiling = MacCeiling(dtype=dtype, kernel=KernelClass.DWCONV, taps=width * width, shape=shape)
    return ProbeCandidate(ceiling, math.prod(dims) * width * width, build)


def _transposed(dtype: str, images: int, side: int, inputs: int, outputs: int, width: int) -> Candidate:
    """A transposed convolution that doubles height and width."""
    activation, weight = _TYPES[dtype]
    dims, filters = (images, side, side, inputs), (outputs, width, width, inputs)
    made = (images, 2 * side, 2 * side, outputs)

    def build(graph: GraphBuilder) -> None:
        values = [graph.numbers(made), graph.weights(weight, filters), graph.given(activation, dims)]
        left, fields = graph.made(activation, made), {"strideW": 2, "strideH": 2}
        graph.leaves(graph.add("TRANSPOSE_CONV", values, left, "TransposeConvOptions", fields))

    ceiling = MacCeiling(dtype=dtype, kernel=KernelClass.SUBCONV, shape=f"{list(dims)} * {list(filters)}, stride 2")
    return ProbeCandidate(ceiling, math.prod(dims) * outputs * width * width, build)


def _matmul(dtype: str, count: int, rows: int, columns: int, inner: int) -> Candidate:
    activation, _ = _TYPES[dtype]

    def build(graph: GraphBuilder) -> None:
        values = graph.given(activation, (count, rows, inner)), graph.given(activation, (count, columns, inner))
        made = graph.made(activation, (count, rows, columns))
        graph.leaves(graph.add("BATCH_MATMUL", values, made, "BatchMatMulOptions", {"adjY": True}))

    shape = f"{count} of [{rows}, {inner}] x [{inner}, {columns}]"
    ceiling = MacCeiling(dtype=dtype, kernel=KernelClass.BMM, shape=shape)
    return ProbeCandidate(ceiling, count * rows * columns * inner, build)


def _element_probes(threads: int) -> Iterator[ModelProbe]:
    for function in (*_UNARY, *_BINARY):
        for dtype in ("f32", "qs8") if function in _ALSO_QUANTISED else ("f32",):
            yield _running(function, [_chained(function, dtype, count * threads) for count in _ELEMENTS])
    for apart in _APART:
        yield _running(apart.name, [_apart(apart, count * threads) for count in _APART_ELEMENTS])
    for dtype in ("f32", "qs8"):
        yield _running("Mean", [_mean(dtype, count * threads) for count in _ELEMENTS])


def _running(function: str, candidates: list[Candidate]) -> ModelProbe:
    quantised = any(getattr(candidate.ceiling, "dtype", "") == "qs8" for candidate in candidates)
    meant = {function.partition(" to ")[0], *([_LOOKUP] if quantised else [])}
    return Probe(candidates, lambda name: operator_name(name).partition(" to ")[0] in meant)


def _chained(function: str, dtype: str, count: int) -> Candidate:
    """The operator on its own output, again and again; a sum adds the input each time."""
    dims = (count // _ROW, _ROW)
    operator, options, fields = (*_BINARY[function], {}) if function in _BINARY else _UNARY[function]

    def build(graph: GraphBuilder) -> None:
        last = graph.given(dtype, dims)
        second = [graph.given(dtype, dims)] if function in _BINARY else []
        for _ in range(_CHAIN):
            last = graph.add(operator, (last, *second), graph.made(dtype, dims), options, fields)
        graph.leaves(last)

    ceiling = ElementCeiling(function=function, dtype=dtype, shape=str(list(dims)))
    return ProbeCandidate(ceiling, count * _CHAIN, build)


def _apart(function: _Function, count: int) -> Candidate:
    dims, quantised = (count // _ROW, _ROW), _OUTPUTS.get(function.name, (1 / 128, 0))

    def build(graph: GraphBuilder) -> None:
        given = graph.given(function.source, dims)
        for _ in range(_AT_ONCE_APART):
            graph.leaves(graph.add(function.operator, (given,), graph.made(function.target, dims, *quantised)))

    ceiling = ElementCeiling(function=function.name, dtype=function.source, shape=str(list(dims)))
    return ProbeCandidate(ceiling, count * _AT_ONCE_APART, build)


def _mean(dtype: str, count: int) -> Candidate:
    height, width = _MEAN_IMAGE
    dims = (1, height, width, count // height // width)

    def build(graph: GraphBuilder) -> None:
        given, axes = graph.given(dtype, dims), graph.numbers((1, 2))
        for _ in range(_AT_ONCE_APART):
            left = graph.made(dtype, (1, dims[-1]))
            graph.leaves(graph.add("MEAN", (given, axes), left, "ReducerOptions", {"keepDims": False}))

    ceiling = ElementCeiling(function="Mean", dtype=dtype, shape=str(list(dims)))
    return ProbeCandidate(ceiling, count * _AT_ONCE_APART, build)


def _memory_probes(threads: int, largest: int) -> Iterator[ModelProbe]:
    """Sums, updates and copies over working sets from 32 KiB on, each twice the one before; small copies left out."""
    size = _SMALLEST_SET
    while size <= largest:
        yield Probe([_sum(size, _ROWS * threads)], lambda name: operator_name(name) == "Sum")
        yield Probe([_update(size)], lambda name: operator_name(name) == "Abs")
        if size >= _SMALLEST_COPY:
            yield Probe([_copy(size)], lambda name: operator_name(name) == "Static Reshape")
        size *= 2


def _sum(size: int, rows: int) -> Candidate:
    """The working set is read and next to nothing written."""
    dims, times = (rows, size // _WIDTH // rows), max(1, min(32, _PASSED_AT_ONCE // size))

    def build(graph: GraphBuilder) -> None:
        given, axes = graph.given("f32", dims), graph.numbers((1,))
        for _ in range(times):
            made = graph.made("f32", dims[:1])
            graph.leaves(graph.add("SUM", (given, axes), made, "ReducerOptions", {"keepDims": False}))

    ceiling = MemoryCeiling(pattern=Pattern.READ, working_set=size)
    return ProbeCandidate(ceiling, times * math.prod(dims) * _WIDTH, build)


def _update(size: int) -> Candidate:
    """Every number is read and written in its place, as the delegate does for elementwise operators in a row."""
    dims, times = (size // _WIDTH // _ROW, _ROW), max(_UPDATES, min(64, _PASSED_AT_ONCE // size))

    def build(graph: GraphBuilder) -> None:
        last = graph.given("f32", dims)
        for _ in range(times):
            last = graph.add("ABS", (last,), graph.made("f32", dims))
        graph.leaves(last)

    ceiling = MemoryCeiling(pattern=Pattern.UPDATE, working_set=size)
    return ProbeCandidate(ceiling, 2 * size * times, build)


def _copy(size: int) -> Candidate:
    """One half of the working set into the other."""
    count = size // 2 // _WIDTH

    def build(graph: GraphBuilder) -> None:
        given, sizes = graph.given("f32", (1, count)), graph.numbers((count,))
        left = graph.made("f32", (count,))
        graph.leaves(graph.add("RESHAPE", (given, sizes), left, "ReshapeOptions", {"newShape": [count]}))

    return ProbeCandidate(MemoryCeiling(pattern=Pattern.COPY, working_set=size), 2 * count * _WIDTH, build)


def _weight_probes(largest: int) -> Iterator[ModelProbe]:
    """One-row products whose weights fill a working set together, and are evicted where it is too large."""
    for size in _WEIGHT_SETS:
        if size <= largest:
            yield Probe([_weights(size)], lambda name: kernel_use(name, 1) == KernelUse("f32", KernelClass.GEMV))


def _weights(size: int) -> Candidate:
    each = _WEIGHT_CHANNELS * _WEIGHT_CHANNELS * _WIDTH
    times = max(1, size // each)
    channels = min(_WEIGHT_CHANNELS, math.isqrt(size // _WIDTH))

    def build(graph: GraphBuilder) -> None:
        last, weights = graph.given("f32", (1, channels)), graph.weights("f32", (channels, channels))
        for _ in range(times):
            last = _product(graph, last, weights, (1, channels), "f32")
        graph.leaves(last)

    ceiling = MemoryCeiling(pattern=Pattern.WEIGHTS, working_set=size)
    return ProbeCandidate(ceiling, times * channels * channels * _WIDTH, build)


def _dispatch_probes(threads: int) -> Iterator[ModelProbe]:
    """A function of 16 numbers, which one thread computes, and a softmax of 16 numbers for each thread."""
    yield Probe([_tiny(Dispatch.SERIAL, "ABS", None, {}, 1)], lambda name: operator_name(name) == "Abs")
    if threads > 1:
        shared = _tiny(Dispatch.PARALLEL, *_UNARY["Softmax"], threads)
        yield Probe([shared], lambda name: operator_name(name) == "Softmax")


def _tiny(dispatch: Dispatch, operator: str, options: str | None, fields: dict[str, Any], rows: int) -> Candidate:
    def build(graph: GraphBuilder) -> None:
        last = graph.given("f32", (rows, _TINY))
        for _ in range(_TINY_AT_ONCE):
            last = graph.add(operator, (last,), graph.made("f32", (rows, _TINY)), options, fields)
        graph.leaves(last)

    return ProbeCandidate(DispatchCost(dispatch=dispatch), _TINY_AT_ONCE, build)
