"""Probes of ONNX Runtime's kernels: what small models reach that hold one kind of node each."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from opscope.program.ceilings.ceilings import (
    Dispatch,
    DispatchCost,
    ElementCeiling,
    KernelClass,
    MacCeiling,
    MemoryCeiling,
    Pattern,
)
from opscope.runtimes.ceilings.sampler import Probe, ProbeCandidate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from opscope.program.ceilings.ceilings import MeasuredCeiling
    from opscope.runtimes.onnxruntime.ceilings.graphs import OnnxBuilder

    Build: TypeAlias = Callable[[OnnxBuilder], None]
    Candidate: TypeAlias = ProbeCandidate[OnnxBuilder]
    NodeProbe: TypeAlias = Probe[OnnxBuilder]

# Rows for each thread, inner size, columns.
_GEMMS = ((56, 512, 512), (128, 512, 512))
# Channels of square matrices, chained.
_GEMVS = (128, 512)
_MACS_AT_ONCE = 1 << 22
# Height and width of an image for each thread, channels in and out, filter.
_CONVOLUTIONS = ((28, 64, 3), (14, 128, 3), (28, 128, 1), (14, 256, 1))
_DEPTHWISE = ((28, 128, 3), (28, 256, 3), (28, 128, 5))
_TRANSPOSED = ((14, 128, 64, 4), (7, 256, 128, 4))
_MATMULS = ((8, 128, 64, 128), (1, 256, 256, 256))
_CHAIN = 4
_LAYOUTS = frozenset({"ReorderInput", "ReorderOutput", "Transpose"})
"""Nodes that lay data out anew at either end of convolutions in a row."""

_UNARY = ("Abs", "Clip", "Erf", "Exp", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Softmax", "Sqrt", "Tanh")
_BINARY = ("Add", "Div", "Mul", "Sub")
# Elements for each thread: they stay in the smaller caches.
_ELEMENTS = (16_384, 65_536)
_ROW, _ELEMENTS_AT_ONCE = 512, 1 << 20

_WIDTH = 4
_SMALLEST_SET, _LARGEST_SET, _SHARE_OF_MEMORY = 1 << 15, 1 << 26, 16
_PASSED_AT_ONCE, _LEAST_PASSES, _MOST_PASSES = 1 << 23, 2, 64
_WEIGHT_SETS = (1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
_WEIGHT_CHANNELS = 512
_TINY, _TINY_AT_ONCE = 16, 256


class _Shape(NamedTuple):
    """Of a convolution: channels and size of an image, filter, and what stands in the ceiling."""

    channels: int
    side: int
    width: int

    @property
    def dims(self) -> tuple[int, int, int]:
        return (self.channels, self.side, self.side)


def largest_working_set(memory: int) -> int:
    """Bytes of the largest working set on a machine with so much memory: 64 MiB, or a sixteenth of it."""
    return min(_LARGEST_SET, memory // _SHARE_OF_MEMORY)


def node_probes(threads: int, largest: int) -> list[NodeProbe]:
    """All probes."""
    computing = [*_compute_probes(threads), *_element_probes(threads)]
    return [*computing, *_memory_probes(largest), *_weight_probes(largest), *_dispatch_probes(threads)]


def keeps_graph(candidate: Candidate) -> bool:
    """Whether the graph must run as it is: nodes that pass over memory alike would be taken for one."""
    return not isinstance(candidate.ceiling, MacCeiling)


def _compute_probes(threads: int) -> Iterator[NodeProbe]:
    for dtype in ("f32", "qs8"):
        operator = "MatMul" if dtype == "f32" else "MatMulInteger"
        yield _probe([_product(dtype, threads * rows, *rest) for rows, *rest in _GEMMS], operator)
        if dtype == "f32":
            yield _probe([_gemv(channels) for channels in _GEMVS], operator)
        else:
            yield _probe([_product(dtype, 1, 1024, threads * 1024)], operator)
        name = "Conv" if dtype == "f32" else "QLinearConv"
        for taps in (9, 1):
            shapes = [_Shape(channels, side, width) for side, channels, width in _CONVOLUTIONS if width**2 == taps]
            yield _probe([_convolution(dtype, threads, shape) for shape in shapes], name)
        for taps in (9, 25):
            shapes = [_Shape(channels, side, width) for side, channels, width in _DEPTHWISE if width**2 == taps]
            yield _probe([_convolution(dtype, threads, shape, depthwise=True) for shape in shapes], name)
    yield _probe([_transposed(threads, *shape) for shape in _TRANSPOSED], "ConvTranspose")
    yield _probe([_matmul(threads * count, *rest) for count, *rest in _MATMULS], "MatMul")


def _probe(candidates: list[Candidate], *operators: str) -> NodeProbe:
    return Probe(candidates, (_LAYOUTS | set(operators)).__contains__)


def _product(dtype: str, rows: int, inner: int, columns: int) -> Candidate:
    def build(graph: OnnxBuilder) -> None:
        if dtype == "f32":
            graph.leaves(graph.add("MatMul", (graph.given((rows, inner)), graph.weights((inner, columns)))))
            return
        zeros = graph.stored(np.array(128, np.uint8)), graph.stored(np.array(0, np.int8))
        factors = graph.given((rows, inner), "uint8"), graph.weights((inner, columns), "int8")
        graph.leaves(graph.add("MatMulInteger", (*factors, *zeros)))

    kernel = KernelClass.GEMM if rows > 1 else KernelClass.GEMV
    ceiling = MacCeiling(dtype=dtype, kernel=kernel, shape=f"[{rows}, {inner}] x [{inner}, {columns}]")
    return ProbeCandidate(ceiling, rows * inner * columns, build)


def _gemv(channels: int) -> Candidate:
    times = max(1, _MACS_AT_ONCE // (channels * channels))
    ceiling = MacCeiling(dtype="f32", kernel=KernelClass.GEMV, shape=f"[1, {channels}] x [{channels}, {channels}]")
    return ProbeCandidate(ceiling, times * channels * channels, _one_row(times, channels))


def _one_row(times: int, channels: int) -> Build:
    def build(graph: OnnxBuilder) -> None:
        last = graph.given((1, channels))
        for _ in range(times):
            last = graph.add("MatMul", (last, graph.weights((channels, channels))))
        graph.leaves(last)

    return build


def _convolution(dtype: str, images: int, shape: _Shape, *, depthwise: bool = False) -> Candidate:
    """Some in a row, so that laying out the data anew at either end takes little of the time."""
    channels, width = shape.channels, shape.width
    filters = (channels, 1 if depthwise else channels, width, width)
    options: dict[str, int | Sequence[int]] = {
        "group": channels if depthwise else 1,
        "kernel_shape": (width, width),
        "pads": (width // 2,) * 4,
    }

    def build(graph: OnnxBuilder) -> None:
        last = graph.given((images, *shape.dims), "float32" if dtype == "f32" else "uint8")
        scale, zero = (graph.stored(np.array(1 / 128, np.float32)), graph.stored(np.array(128, np.uint8)))
        own = graph.stored(np.array(0, np.int8))
        for _ in range(_CHAIN):
            weights = graph.weights(filters, "float32" if dtype == "f32" else "int8")
            values = (last, weights) if dtype == "f32" else (last, scale, zero, weights, scale, own, scale, zero)
            last = graph.add("Conv" if dtype == "f32" else "QLinearConv", values, options)
        graph.leaves(last)

    kernel = KernelClass.DWCONV if depthwise else KernelClass.CONV
    text = f"{[images, *shape.dims]} * {list(filters)}, {_CHAIN} times"
    work = _CHAIN * images * shape.side * shape.side * math.prod(filters)
    return ProbeCandidate(MacCeiling(dtype=dtype, kernel=kernel, taps=width * width, shape=text), work, build)


def _transposed(images: int, side: int, inputs: int, outputs: int, width: int) -> Candidate:
    """A transposed convolution that doubles height and width."""
    dims, filters = (images, inputs, side, side), (inputs, outputs, width, width)

    def build(graph: OnnxBuilder) -> None:
        values = graph.given(dims), graph.weights(filters)
        options = {"kernel_shape": (width, width), "strides": (2, 2), "pads": (width // 2 - 1,) * 4}
        graph.leaves(graph.add("ConvTranspose", values, options))

    ceiling = MacCeiling(dtype="f32", kernel=KernelClass.SUBCONV, shape=f"{list(dims)} * {list(filters)}, stride 2")
    return ProbeCandidate(ceiling, math.prod(dims) * outputs * width * width, build)


def _matmul(count: int, rows: int, inner: int, columns: int) -> Candidate:
    def build(graph: OnnxBuilder) -> None:
        graph.leaves(graph.add("MatMul", (graph.given((count, rows, inner)), graph.given((count, inner, columns)))))

    shape = f"{count} of [{rows}, {inner}] x [{inner}, {columns}]"
    ceiling = MacCeiling(dtype="f32", kernel=KernelClass.BMM, shape=shape)
    return ProbeCandidate(ceiling, count * rows * inner * columns, build)


def _element_probes(threads: int) -> Iterator[NodeProbe]:
    for function in (*_UNARY, *_BINARY):
        counts = [count * threads for count in _ELEMENTS]
        scalars = [_chained(function, counts[-1], scalar=True)] if function in _BINARY else []
        yield _probe([*(_chained(function, count) for count in counts), *scalars], function)
    yield _probe([_pooled(count * threads) for count in _ELEMENTS], "GlobalAveragePool")


def _chained(function: str, count: int, *, scalar: bool = False) -> Candidate:
    """The node on its own output, again and again; a sum adds a second input each time, or a single number."""
    dims, times = (count // _ROW, _ROW), _ELEMENTS_AT_ONCE // count

    def build(graph: OnnxBuilder) -> None:
        last = graph.given(dims)
        second = [graph.given((1, 1) if scalar else dims)] if function in _BINARY else []
        if function == "Clip":
            second = [graph.stored(np.array(bound, np.float32)) for bound in (0.25, 0.75)]
        for _ in range(max(1, times)):
            last = graph.add(function, (last, *second))
        graph.leaves(last)

    text = f"{list(dims)} and [1, 1]" if scalar else str(list(dims))
    return _of_elements(function, text, count * max(1, times), build)


def _pooled(count: int) -> Candidate:
    dims, times = (1, count // 256, 16, 16), max(1, _ELEMENTS_AT_ONCE // count)

    def build(graph: OnnxBuilder) -> None:
        given = graph.given(dims)
        for _ in range(times):
            graph.leaves(graph.add("GlobalAveragePool", (given,)))

    return _of_elements("GlobalAveragePool", str(list(dims)), count * times, build)


def _of_elements(function: str, shape: str, elements: int, build: Build) -> Candidate:
    return ProbeCandidate(ElementCeiling(function=function, dtype="f32", shape=shape), elements, build)


def _memory_probes(largest: int) -> Iterator[NodeProbe]:
    """Sums, updates and copies over working sets from 32 KiB on, each twice the one before."""
    size = _SMALLEST_SET
    while size <= largest:
        times = max(1, min(_MOST_PASSES, _PASSED_AT_ONCE // size))
        yield _probe([_sum(size, times)], "ReduceSum")
        yield _probe([_row(Pattern.UPDATE, "Abs", size, size, max(_LEAST_PASSES, times))], "Abs")
        yield _probe([_row(Pattern.COPY, "Concat", size, size // 2, max(_LEAST_PASSES, times))], "Concat")
        size *= 2


def _sum(size: int, times: int) -> Candidate:
    """The working set is read and next to nothing written."""

    def build(graph: OnnxBuilder) -> None:
        given, axes = graph.given((size // _WIDTH // _ROW, _ROW)), graph.stored(np.array([1], np.int64))
        for _ in range(times):
            graph.leaves(graph.add("ReduceSum", (given, axes), {"keepdims": 0}))

    return ProbeCandidate(MemoryCeiling(pattern=Pattern.READ, working_set=size), size * times, build)


def _row(pattern: Pattern, operator: str, working_set: int, size: int, times: int) -> Candidate:
    """Nodes in a row, each of which reads a tensor and writes one, in its place or beside it."""

    def build(graph: OnnxBuilder) -> None:
        last = graph.given((size // _WIDTH // _ROW, _ROW))
        for _ in range(times):
            last = graph.add(operator, (last,), {"axis": 0} if operator == "Concat" else None)
        graph.leaves(last)

    return ProbeCandidate(MemoryCeiling(pattern=pattern, working_set=working_set), 2 * size * times, build)


def _weight_probes(largest: int) -> Iterator[NodeProbe]:
    """One-row products whose weights fill a working set together, and are evicted where it is too large."""
    for size in _WEIGHT_SETS:
        if size <= largest:
            channels = min(_WEIGHT_CHANNELS, math.isqrt(size // _WIDTH))
            times = max(1, size // (channels * channels * _WIDTH))
            ceiling: MeasuredCeiling = MemoryCeiling(pattern=Pattern.WEIGHTS, working_set=size)
            work = times * channels * channels * _WIDTH
            yield _probe([ProbeCandidate(ceiling, work, _one_row(times, channels))], "MatMul")


def _dispatch_probes(threads: int) -> Iterator[NodeProbe]:
    """Nodes of 16 numbers, which one thread computes, and softmaxes of 16 numbers for each thread."""
    yield _probe([_tiny(Dispatch.SERIAL, "Abs", 1)], "Abs")
    if threads > 1:
        yield _probe([_tiny(Dispatch.PARALLEL, "Softmax", threads)], "Softmax")


def _tiny(dispatch: Dispatch, operator: str, rows: int) -> Candidate:
    def build(graph: OnnxBuilder) -> None:
        last = graph.given((rows, _TINY))
        for _ in range(_TINY_AT_ONCE):
            last = graph.add(operator, (last,))
        graph.leaves(last)

    return ProbeCandidate(DispatchCost(dispatch=dispatch), _TINY_AT_ONCE, build)
