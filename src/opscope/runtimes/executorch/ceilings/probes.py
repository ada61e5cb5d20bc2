"""Probes of compute, of operators without multiply-accumulates, of memory and of the fixed cost of an operator.

Matrices, convolutions of four kinds and batches multiply and accumulate. Operators without that have their data in
cache: what arithmetic alone allows. One graph holds an operator many times, always on the same memory, so that calling
the library does not show. XNNPACK's own operators pass over the memory, in its own threads: what they reach is what
operators can reach.
"""

from __future__ import annotations

import math
from ctypes import c_size_t
from typing import TYPE_CHECKING, NamedTuple

import msgspec

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
from opscope.runtimes.executorch.ceilings.subgraph import ABSENT, Buffer
from opscope.runtimes.executorch.ceilings.xnnpack import Datatype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from opscope.runtimes.executorch.ceilings.subgraph import SubgraphBuilder


_DATATYPES = {"f32": Datatype.FP32, "f16": Datatype.FP16, "qs8": Datatype.QINT8}
# Elements for each thread: the first fit into the smallest cache with three tensors, the second with two.
_ELEMENTS = (2_048, 4_096, 16_384)
_AT_ONCE = 1 << 18
_ROW = 512
_MEAN_IMAGE = (16, 16)
_WIDEST = 4
_MEAN, _APPROXIMATE_GELU = 2, 1
_HEIGHT_AND_WIDTH = (c_size_t * 2)(1, 2)

# XNNPACK's operator -> the function that defines it, and its arguments before the values.
_UNARY: dict[str, tuple[str, tuple[float | None, ...]]] = {
    "Softmax": ("xnn_define_softmax", ()),
    "Sigmoid": ("xnn_define_sigmoid", ()),
    "TanH": ("xnn_define_tanh", ()),
    "GELU": ("xnn_define_gelu", ()),
    "ApproxGELU": ("xnn_define_unary", (_APPROXIMATE_GELU, None)),
    "HardSwish": ("xnn_define_hardswish", ()),
    "ELU": ("xnn_define_elu", (1.0,)),
    "Clamp": ("xnn_define_clamp", (0.25, 0.75)),
    "Exp": ("xnn_define_exp", ()),
    "Log": ("xnn_define_log", ()),
    "Square": ("xnn_define_square", ()),
    "Square Root": ("xnn_define_square_root", ()),
    "Reciprocal Square Root": ("xnn_define_reciprocal_square_root", ()),
}
_BINARY = {
    "Add": "xnn_define_add2",
    "Subtract": "xnn_define_subtract",
    "Multiply": "xnn_define_multiply2",
    "Divide": "xnn_define_divide",
}
_ALSO_QUANTISED = ("Add", "Clamp", "HardSwish", "Multiply", "Sigmoid", "TanH")
# XNNPACK leaves the output of an elementwise operator in the place of its input where it can, which halves the traffic.
# Probes of the cheap ones do the same; that their data become constant after some runs does not change their time.
_IN_PLACE = ("Add", "Clamp", "HardSwish", "Multiply", "Square", "Subtract")
_CONVERSIONS = (("f32", "f16"), ("f16", "f32"), ("f32", "qs8"), ("qs8", "f32"))
_SMALLEST_SET, _LARGEST_SET = 1 << 15, 1 << 28
_SHARE_OF_MEMORY = 8
# Sizes of weights: from beyond the smallest caches to beyond the last one of most machines. Each is made and packed.
_SMALLEST_WEIGHTS, _LARGEST_WEIGHTS, _WEIGHTS_APART = 1 << 18, 1 << 26, 4
_PRODUCT, _INPUTS = 1 << 20, 512
_BYTES_AT_ONCE = 1 << 21
_WIDTH = Datatype.FP32.bits // 8
_ROWS = 8
# Tensors that begin at the same place of a page slow each other down.
_APART = 192
_TINY = 16
_TINY_AT_ONCE = 128
_SUM = 0
_BOUNDS = (-1.0, 1.0)
_LAST_AXIS = (c_size_t * 1)(1)


class _Types(NamedTuple):
    """Number types of activations and weights, and whether activations are quantised at run time."""

    activation: Datatype
    weight: Datatype
    dynamic: bool = False


_TYPES = {
    "f32": _Types(Datatype.FP32, Datatype.FP32),
    "f16": _Types(Datatype.FP16, Datatype.FP16),
    "qs8": _Types(Datatype.QINT8, Datatype.QCINT8),
    "qd8": _Types(Datatype.FP32, Datatype.QCINT8, dynamic=True),
    "qd8_qc4w": _Types(Datatype.FP32, Datatype.QCINT4, dynamic=True),
    "qd8_qb4w": _Types(Datatype.FP32, Datatype.QBINT4, dynamic=True),
}
# Chosen from some forty shapes under every group of features of an x86-64 CPU with AVX-512: each is within 2 % of the
# best under one group at least. A run takes less than 2 ms, so that a busy machine leaves some of them undisturbed.
# Rows for each thread, output channels, input channels.
_GEMMS = ((56, 512, 512), (128, 512, 512), (112, 256, 1024))
# Output channels for each thread, input channels; some weights fit into the smallest cache, some into the next.
_GEMVS = ((64, 64), (256, 512), (64, 2048))
# Height and width of an image for each thread, input channels, output channels, filter.
_CONVOLUTIONS = ((28, 64, 64, 3), (14, 128, 128, 3), (14, 256, 128, 3))
# Height and width of an image for each thread, channels.
_DEPTHWISE = ((28, 128), (28, 256), (7, 512))
_DEPTHWISE_FILTERS = (3, 5)
# Height and width of an image for each thread, input channels, output channels, filter; the stride is 2.
_TRANSPOSED = ((14, 128, 64, 4), (14, 128, 128, 2), (7, 256, 128, 4))
# Matrices for each thread, rows, columns, inner size.
_MATMULS = ((8, 128, 128, 64), (1, 256, 256, 256))
# Small products are put many times into one graph, so that calling the library does not show.
_MACS_AT_ONCE = 1 << 19
_FREE = (-math.inf, math.inf)
_TRANSPOSE_B = 1


def compute_probes(threads: int) -> Iterator[Probe[SubgraphBuilder]]:
    """Every number type with every class of kernels that XNNPACK's API has for it."""
    for dtype in _TYPES:
        yield _probe(dtype, KernelClass.GEMM, [_gemm(dtype, threads * rows, *rest) for rows, *rest in _GEMMS])
        yield _probe(dtype, KernelClass.GEMV, [_gemm(dtype, 1, threads * first, last) for first, last in _GEMVS])
    for dtype in ("f32", "f16", "qs8", "qd8"):
        yield _probe(dtype, KernelClass.IGEMM, [_convolution(dtype, threads, *shape) for shape in _CONVOLUTIONS])
        yield _probe(dtype, KernelClass.SUBCONV, [_transposed(dtype, threads, *shape) for shape in _TRANSPOSED])
    for dtype in ("f32", "f16", "qs8"):
        for width in _DEPTHWISE_FILTERS:
            candidates = [_depthwise(dtype, threads, *shape, width) for shape in _DEPTHWISE]
            yield _probe(dtype, KernelClass.DWCONV, candidates)
        yield _probe(dtype, KernelClass.BMM, [_matmul(dtype, threads * count, *rest) for count, *rest in _MATMULS])


def _probe(
    dtype: str, kernel: KernelClass, candidates: list[ProbeCandidate[SubgraphBuilder]]
) -> Probe[SubgraphBuilder]:
    use = KernelUse(dtype, kernel)

    def meant(operator: str) -> bool:
        quantises = _TYPES[dtype].dynamic and operator.startswith("Convert (NC, ")
        return quantises or kernel_use(operator, 1 if kernel is KernelClass.GEMV else None) == use

    return Probe(candidates, meant)


def _input(graph: SubgraphBuilder, types: _Types, dims: Sequence[int]) -> int:
    value = graph.external(types.activation, dims)
    return graph.quantised_at_run_time(value, dims) if types.dynamic else value


def _gemm(dtype: str, rows: int, outputs: int, inputs: int) -> ProbeCandidate[SubgraphBuilder]:
    types = _TYPES[dtype]
    times = max(1, _MACS_AT_ONCE // (rows * outputs * inputs))

    def build(graph: SubgraphBuilder) -> None:
        weights = graph.weights(types.weight, (outputs, inputs))
        for _ in range(times):
            given = _input(graph, types, (rows, inputs))
            left = graph.external(types.activation, (rows, outputs), output=True)
            graph.define("xnn_define_fully_connected", *_FREE, given, weights, ABSENT, left, 0)

    kernel = KernelClass.GEMM if rows > 1 else KernelClass.GEMV
    ceiling = MacCeiling(dtype=dtype, kernel=kernel, shape=f"[{rows}, {inputs}] x [{inputs}, {outputs}]")
    return ProbeCandidate(ceiling, times * rows * outputs * inputs, build)


def _convolution(
    dtype: str, images: int, side: int, inputs: int, outputs: int, width: int
) -> ProbeCandidate[SubgraphBuilder]:
    types, dims, filters = _TYPES[dtype], (images, side, side, inputs), (outputs, width, width, inputs)

    def build(graph: SubgraphBuilder) -> None:
        given = _input(graph, types, dims)
        left = graph.external(types.activation, (*dims[:3], outputs), output=True)
        values = (given, graph.weights(types.weight, filters), ABSENT, left, 0)
        graph.define("xnn_define_convolution_2d", *_window(width), inputs, outputs, *_FREE, *values)

    ceiling = MacCeiling(dtype=dtype, kernel=KernelClass.IGEMM, shape=f"{list(dims)} * {list(filters)}")
    return ProbeCandidate(ceiling, math.prod(dims) * outputs * width * width, build)


def _transposed(
    dtype: str, images: int, side: int, inputs: int, outputs: int, width: int
) -> ProbeCandidate[SubgraphBuilder]:
    """A transposed convolution that doubles height and width."""
    types, dims, filters = _TYPES[dtype], (images, side, side, inputs), (outputs, width, width, inputs)
    padding, stride = (width // 2 - 1,) * 4, (2, 2)

    def build(graph: SubgraphBuilder) -> None:
        given = _input(graph, types, dims)
        left = graph.external(types.activation, (images, 2 * side, 2 * side, outputs), output=True)
        window = (*padding, 0, 0, width, width, *stride, 1, 1, 1)
        values = (given, graph.weights(types.weight, filters), ABSENT, left, 0)
        graph.define("xnn_define_deconvolution_2d", *window, inputs, outputs, *_FREE, *values)

    ceiling = MacCeiling(dtype=dtype, kernel=KernelClass.SUBCONV, shape=f"{list(dims)} * {list(filters)}, stride 2")
    return ProbeCandidate(ceiling, math.prod(dims) * outputs * width * width, build)


def _depthwise(dtype: str, images: int, side: int, channels: int, width: int) -> ProbeCandidate[SubgraphBuilder]:
    types, dims, filters = _TYPES[dtype], (images, side, side, channels), (1, width, width, channels)

    def build(graph: SubgraphBuilder) -> None:
        given = _input(graph, types, dims)
        left = graph.external(types.activation, dims, output=True)
        values = (given, graph.weights(types.weight, filters, channel=3), ABSENT, left, 0)
        graph.define("xnn_define_depthwise_convolution_2d", *_window(width), channels, *_FREE, *values)

    shape = f"{list(dims)} * {list(filters)}"
    ceiling = MacCeiling(dtype=dtype, kernel=KernelClass.DWCONV, taps=width * width, shape=shape)
    return ProbeCandidate(ceiling, math.prod(dims) * width * width, build)


def _window(width: int) -> tuple[int, ...]:
    """Padding that keeps the size, the filter, stride, dilation, and one group or one output for each channel."""
    return (width // 2,) * 4 + (width,) * 2 + (1,) * 5


def _matmul(dtype: str, count: int, rows: int, columns: int, inner: int) -> ProbeCandidate[SubgraphBuilder]:
    types = _TYPES[dtype]

    def build(graph: SubgraphBuilder) -> None:
        first = graph.external(types.activation, (count, rows, inner))
        second = graph.external(types.activation, (count, columns, inner))
        left = graph.external(types.activation, (count, rows, columns), output=True)
        graph.define("xnn_define_batch_matrix_multiply", first, second, left, _TRANSPOSE_B)

    shape = f"{count} of [{rows}, {inner}] x [{inner}, {columns}]"
    ceiling = MacCeiling(dtype=dtype, kernel=KernelClass.BMM, shape=shape)
    return ProbeCandidate(ceiling, count * rows * columns * inner, build)


class _Operator(NamedTuple):
    """An operator: number types and shapes of its tensors, and how it is added to a graph, output last."""

    ceiling: ElementCeiling
    types: tuple[Datatype, Datatype]
    inputs: tuple[tuple[int, ...], ...]
    output: tuple[int, ...]
    define: Callable[[SubgraphBuilder, list[int]], None]
    in_place: bool


def element_probes(threads: int) -> Iterator[Probe[SubgraphBuilder]]:
    """Every function in every number type that XNNPACK's API has for it."""
    counts = [count * threads for count in _ELEMENTS]
    for function in (*_UNARY, *_BINARY):
        for dtype in ("f32", "f16", "qs8") if function in _ALSO_QUANTISED else ("f32", "f16"):
            candidates = [_elementwise(function, dtype, dtype, count) for count in counts]
            yield _element_probe(
                function, [*candidates, _with_scalar(candidates[-1])] if function in _BINARY else candidates
            )
    for source, target in _CONVERSIONS:
        found = [_elementwise(f"Convert to {target}", source, target, count) for count in counts]
        yield _element_probe("Convert", found)
    for dtype in _DATATYPES:
        yield _element_probe("Mean", [_mean(dtype, count) for count in counts])


def _element_probe(operator: str, candidates: list[_Operator]) -> Probe[SubgraphBuilder]:
    return Probe([_candidate(candidate) for candidate in candidates], lambda name: operator_name(name) == operator)


def _elementwise(function: str, source: str, target: str, count: int) -> _Operator:
    dims = (count // _ROW, _ROW)
    ceiling = ElementCeiling(function=function, dtype=source, shape=str(list(dims)))
    types = _DATATYPES[source], _DATATYPES[target]
    inputs = (dims,) * (2 if function in _BINARY else 1)
    return _Operator(ceiling, types, inputs, dims, _defining(function), function in _IN_PLACE)


def _with_scalar(operator: _Operator) -> _Operator:
    """The same with a single number as the second input, which leaves one tensor to read."""
    ceiling = msgspec.structs.replace(operator.ceiling, shape=f"{operator.ceiling.shape} and [1, 1]")
    return operator._replace(ceiling=ceiling, inputs=(operator.inputs[0], (1, 1)))


def _defining(function: str) -> Callable[[SubgraphBuilder, list[int]], None]:
    if function in _BINARY:
        return lambda graph, values: graph.define(_BINARY[function], *_FREE, *values, 0)
    name, before = _UNARY.get(function, ("xnn_define_convert", ()))
    return lambda graph, values: graph.define(name, *before, *values, 0)


def _mean(dtype: str, count: int) -> _Operator:
    height, width = _MEAN_IMAGE
    dims = (1, height, width, count // height // width)
    ceiling = ElementCeiling(function="Mean", dtype=dtype, shape=str(list(dims)))
    types = _DATATYPES[dtype], _DATATYPES[dtype]

    def define(graph: SubgraphBuilder, values: list[int]) -> None:
        graph.define("xnn_define_static_reduce", _MEAN, len(_HEIGHT_AND_WIDTH), _HEIGHT_AND_WIDTH, *values, 0)

    return _Operator(ceiling, types, (dims,), (1, dims[-1]), define, in_place=False)


def _candidate(operator: _Operator) -> ProbeCandidate[SubgraphBuilder]:
    """The operator many times on the same memory; elements are those of its first input."""
    count = math.prod(operator.inputs[0])
    times = max(1, _AT_ONCE // count)

    def build(graph: SubgraphBuilder) -> None:
        source, target = operator.types
        given = [(dims, graph.random(source, dims)) for dims in operator.inputs]
        left = given[0][1] if operator.in_place else Buffer(count * _WIDEST)
        for _ in range(times):
            values = [graph.external(source, dims, memory=memory) for dims, memory in given]
            values.append(graph.external(target, operator.output, output=True, memory=left))
            operator.define(graph, values)

    return ProbeCandidate(operator.ceiling, count * times, build)


def largest_working_set(memory: int) -> int:
    """Bytes of the largest working set on a machine with so much memory: 256 MiB, or an eighth of it."""
    return min(_LARGEST_SET, memory // _SHARE_OF_MEMORY)


def memory_probes(threads: int, largest: int) -> Iterator[Probe[SubgraphBuilder]]:
    """Copies, sums and updates over working sets from 32 KiB on, each twice the one before."""
    arena, sums = Buffer(largest + _APART), Buffer(_WIDTH * _ROWS * threads)
    size = _SMALLEST_SET
    while size <= largest:
        yield Probe([_copy(arena, size)], lambda name: operator_name(name) == "Copy")
        yield Probe([_sum(arena, sums, size, _ROWS * threads)], lambda name: operator_name(name) == "Sum")
        yield Probe([_update(arena, size)], lambda name: operator_name(name) == "Clamp")
        size *= 2


def weight_probes(threads: int, largest: int) -> Iterator[Probe[SubgraphBuilder]]:
    """One-row products whose weights fill a working set together, so each is evicted where the set is too large."""
    size = _SMALLEST_WEIGHTS
    while size <= min(largest, _LARGEST_WEIGHTS):
        yield Probe([_weights(size, threads)], _one_row)
        size *= _WEIGHTS_APART


def _one_row(name: str) -> bool:
    return kernel_use(name, 1) == KernelUse("f32", KernelClass.GEMV)


def _weights(size: int, threads: int) -> ProbeCandidate[SubgraphBuilder]:
    """Products of at most ``_PRODUCT`` bytes of weights."""
    products = max(1, size // (_PRODUCT * threads))
    outputs = size // products // _INPUTS // _WIDTH

    def build(graph: SubgraphBuilder) -> None:
        for _ in range(products):
            weights = graph.weights(Datatype.FP32, (outputs, _INPUTS))
            given = graph.external(Datatype.FP32, (1, _INPUTS))
            left = graph.external(Datatype.FP32, (1, outputs), output=True)
            graph.define("xnn_define_fully_connected", *_FREE, given, weights, ABSENT, left, 0)

    work = products * outputs * _INPUTS * _WIDTH
    return ProbeCandidate(MemoryCeiling(pattern=Pattern.WEIGHTS, working_set=size), work, build)


def _copy(arena: Buffer, size: int) -> ProbeCandidate[SubgraphBuilder]:
    """One half of the working set into the other."""
    half, times = size // 2, max(1, _BYTES_AT_ONCE // size)
    dims = (half // _WIDTH,)

    def build(graph: SubgraphBuilder) -> None:
        for _ in range(times):
            given = graph.external(Datatype.FP32, dims, memory=arena)
            left = graph.external(Datatype.FP32, dims, output=True, memory=arena.part(half + _APART))
            graph.define("xnn_define_copy", given, left, 0)

    return ProbeCandidate(MemoryCeiling(pattern=Pattern.COPY, working_set=size), 2 * half * times, build)


def _sum(arena: Buffer, sums: Buffer, size: int, rows: int) -> ProbeCandidate[SubgraphBuilder]:
    """The working set is read and next to nothing written."""
    columns, times = size // _WIDTH // rows, max(1, _BYTES_AT_ONCE // size)

    def build(graph: SubgraphBuilder) -> None:
        for _ in range(times):
            given = graph.external(Datatype.FP32, (rows, columns), memory=arena)
            left = graph.external(Datatype.FP32, (rows,), output=True, memory=sums)
            graph.define("xnn_define_static_reduce", _SUM, 1, _LAST_AXIS, given, left, 0)

    return ProbeCandidate(MemoryCeiling(pattern=Pattern.READ, working_set=size), rows * columns * _WIDTH * times, build)


def _update(arena: Buffer, size: int) -> ProbeCandidate[SubgraphBuilder]:
    """Every number is read and written in its place, as XNNPACK does for elementwise operators."""
    dims, times = (size // _WIDTH,), max(1, _BYTES_AT_ONCE // size)

    def build(graph: SubgraphBuilder) -> None:
        for _ in range(times):
            given = graph.external(Datatype.FP32, dims, memory=arena)
            left = graph.external(Datatype.FP32, dims, output=True, memory=arena)
            graph.define("xnn_define_clamp", *_BOUNDS, given, left, 0)

    return ProbeCandidate(MemoryCeiling(pattern=Pattern.UPDATE, working_set=size), 2 * size * times, build)


def dispatch_probes(threads: int) -> Iterator[Probe[SubgraphBuilder]]:
    """A copy of 16 numbers, which one thread does, and a softmax of 16 numbers for each thread."""
    yield Probe([_tiny(Dispatch.SERIAL, "xnn_define_copy", 1)], lambda name: operator_name(name) == "Copy")
    if threads > 1:
        probe = _tiny(Dispatch.PARALLEL, "xnn_define_softmax", threads)
        yield Probe([probe], lambda name: operator_name(name) == "Softmax")


def _tiny(dispatch: Dispatch, define: str, rows: int) -> ProbeCandidate[SubgraphBuilder]:
    dims = (rows, _TINY)

    def build(graph: SubgraphBuilder) -> None:
        given, left = graph.random(Datatype.FP32, dims), Buffer(rows * _TINY * _WIDTH)
        for _ in range(_TINY_AT_ONCE):
            values = [graph.external(Datatype.FP32, dims, memory=given)]
            values.append(graph.external(Datatype.FP32, dims, output=True, memory=left))
            graph.define(define, *values, 0)

    return ProbeCandidate(DispatchCost(dispatch=dispatch), _TINY_AT_ONCE, build)
