"""Probes of kernels that multiply and accumulate: matrices, convolutions of four kinds, batches."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from opscope.program.ceilings.ceilings import KernelClass, KernelUse, MacCeiling, kernel_use
from opscope.runtimes.ceilings.sampler import Probe, ProbeCandidate
from opscope.runtimes.executorch.ceilings.subgraph import ABSENT
from opscope.runtimes.executorch.ceilings.xnnpack import Datatype

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.runtimes.executorch.ceilings.subgraph import SubgraphBuilder


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
