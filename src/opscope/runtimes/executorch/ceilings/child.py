"""The process that measures ceilings, with the argument ``REQUEST``.

As for a repetition, the order of its steps is what makes it true: clear features, load the backend, which copies the
features when it is loaded, prove what was cleared, then measure. Neither torch nor executorch is imported.
"""

from __future__ import annotations

import math
import sys
from ctypes import c_size_t
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opscope.experiment.protocol import CeilingsRequest
from opscope.program.ceilings import Dispatch, KernelClass, Pattern
from opscope.runtimes.ceilings.probes import (
    CONVOLUTIONS,
    DEPTHWISE,
    DEPTHWISE_FILTERS,
    GEMMS,
    MATMULS,
    MEAN_IMAGE,
    ROW,
    TRANSPOSED,
    WIDTH,
    Probe,
    RefusedError,
    XnnpackGraphs,
    element_candidate,
)
from opscope.runtimes.ceilings.process import measured_ceilings
from opscope.runtimes.child import answer_request
from opscope.runtimes.executorch.ceilings.xnnpack import (
    ABSENT,
    Buffer,
    Datatype,
    GraphRuntime,
    SubgraphBuilder,
    Xnnpack,
)
from opscope.runtimes.executorch.cpuinfo import switched_off
from opscope.runtimes.executorch.installed import installed_runtime, library_directory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.bundle.manifest import MaskProof
    from opscope.program.ceilings import Ceilings
    from opscope.runtimes.ceilings.probes import ProbeCandidate, Sizes


_DATATYPES = {"f32": Datatype.FP32, "f16": Datatype.FP16, "qs8": Datatype.QINT8}
"""Of activations; those of further number types are floats, quantised at run time."""
_WEIGHTS = {
    "f32": Datatype.FP32,
    "f16": Datatype.FP16,
    "qs8": Datatype.QCINT8,
    "qd8": Datatype.QCINT8,
    "qd8_qc4w": Datatype.QCINT4,
    "qd8_qb4w": Datatype.QBINT4,
}
_SHAPES: dict[KernelClass, list[Sequence[Sizes]]] = {
    KernelClass.GEMM: [GEMMS],
    KernelClass.IGEMM: [CONVOLUTIONS],
    KernelClass.SUBCONV: [TRANSPOSED],
    KernelClass.DWCONV: [[(*shape, width) for shape in DEPTHWISE] for width in DEPTHWISE_FILTERS],
    KernelClass.BMM: [MATMULS],
}
# Output channels for each thread, input channels; some weights fit into the smallest cache, some into the next.
_GEMVS = ((64, 64), (256, 512), (64, 2048))

# Elements for each thread: the first fit into the smallest cache with three tensors, the second with two.
_ELEMENTS = (2_048, 4_096, 16_384)
_ELEMENTS_AT_ONCE = 1 << 18
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

_PRODUCT, _INPUTS = 1 << 20, 512
_BYTES_AT_ONCE = 1 << 21
# Tensors that begin at the same place of a page slow each other down.
_APART = 192
_SUM = 0
_BOUNDS = (-1.0, 1.0)
_LAST_AXIS = (c_size_t * 1)(1)
_FREE = (-math.inf, math.inf)
_TRANSPOSE_B = 1


class SubgraphProbes(XnnpackGraphs[SubgraphBuilder]):
    """Probes of what XNNPACK's API has."""

    multiplying = (
        (tuple(_WEIGHTS), (KernelClass.GEMM, KernelClass.GEMV)),
        (("f32", "f16", "qs8", "qd8"), (KernelClass.IGEMM, KernelClass.SUBCONV)),
        (("f32", "f16", "qs8"), (KernelClass.DWCONV, KernelClass.BMM)),
    )
    operators = {  # noqa: RUF012 - never changed
        Pattern.COPY: "Copy",
        Pattern.READ: "Sum",
        Pattern.UPDATE: "Clamp",
        Dispatch.SERIAL: "Copy",
        Dispatch.PARALLEL: "Softmax",
    }
    macs_at_once = 1 << 19
    tiny_at_once = 128
    largest_set, share_of_memory = 1 << 28, 8

    def shapes(self, kernel: KernelClass, dtype: str) -> list[list[Sizes]]:  # noqa: ARG002 - the same for all
        """Of one row, output channels are for each thread."""
        if kernel is KernelClass.GEMV:
            return [[(1, self.threads * outputs, inputs) for outputs, inputs in _GEMVS]]
        return [self.per_thread(shapes) for shapes in _SHAPES[kernel]]

    def product(self, graph: SubgraphBuilder, dtype: str, sizes: Sizes, times: int) -> None:
        """Always the same product."""
        rows, outputs, inputs = sizes
        weights = graph.weights(_WEIGHTS[dtype], (outputs, inputs))
        for _ in range(times):
            given, left = _ends(graph, dtype, (rows, inputs), (rows, outputs))
            graph.define("xnn_define_fully_connected", *_FREE, given, weights, ABSENT, left, 0)

    def convolution(self, graph: SubgraphBuilder, dtype: str, image: Sizes, filters: Sizes) -> None:
        """One group."""
        given, left = _ends(graph, dtype, image, (*image[:3], filters[0]))
        values = (given, graph.weights(_WEIGHTS[dtype], filters), ABSENT, left, 0)
        window = (*_window(filters[1]), filters[-1], filters[0])
        graph.define("xnn_define_convolution_2d", *window, *_FREE, *values)

    def depthwise(self, graph: SubgraphBuilder, dtype: str, image: Sizes, filters: Sizes) -> None:
        """One output for each channel."""
        given, left = _ends(graph, dtype, image, image)
        values = (given, graph.weights(_WEIGHTS[dtype], filters, channel=3), ABSENT, left, 0)
        window = (*_window(filters[1]), image[-1])
        graph.define("xnn_define_depthwise_convolution_2d", *window, *_FREE, *values)

    def transposed(self, graph: SubgraphBuilder, dtype: str, image: Sizes, filters: Sizes) -> None:
        """Padding, no adjustment, the filter, stride, dilation and one group."""
        (images, side, _, inputs), (outputs, width, _, _) = image, filters
        given, left = _ends(graph, dtype, image, (images, 2 * side, 2 * side, outputs))
        window = (*(width // 2 - 1,) * 4, 0, 0, width, width, 2, 2, 1, 1, 1)
        values = (given, graph.weights(_WEIGHTS[dtype], filters), ABSENT, left, 0)
        graph.define("xnn_define_deconvolution_2d", *window, inputs, outputs, *_FREE, *values)

    def matmul(self, graph: SubgraphBuilder, dtype: str, sizes: Sizes) -> None:
        """The second factor lies column by column."""
        count, rows, columns, inner = sizes
        activation = _DATATYPES[dtype]
        factors = [graph.external(activation, (count, size, inner)) for size in (rows, columns)]
        left = graph.external(activation, (count, rows, columns), output=True)
        graph.define("xnn_define_batch_matrix_multiply", *factors, left, _TRANSPOSE_B)

    def elements(self) -> Iterator[Probe[SubgraphBuilder]]:
        """Every function in every number type that XNNPACK's API has for it."""
        counts = [count * self.threads for count in _ELEMENTS]
        for function in (*_UNARY, *_BINARY):
            for dtype in ("f32", "f16", "qs8") if function in _ALSO_QUANTISED else ("f32", "f16"):
                candidates = [_elementwise(function, dtype, dtype, count) for count in counts]
                if function in _BINARY:
                    candidates.append(_elementwise(function, dtype, dtype, counts[-1], scalar=True))
                yield Probe(candidates, partial(self.is_operator, operator=function))
        for source, target in _CONVERSIONS:
            candidates = [_elementwise(f"Convert to {target}", source, target, count) for count in counts]
            yield Probe(candidates, partial(self.is_operator, operator="Convert"))
        for dtype in _DATATYPES:
            yield Probe([_mean(dtype, count) for count in counts], partial(self.is_operator, operator="Mean"))

    def passes(self, pattern: Pattern, size: int) -> int:  # noqa: ARG002 - all alike
        """Over 2 MiB together."""
        return max(1, _BYTES_AT_ONCE // size)

    def passing(self, graph: SubgraphBuilder, pattern: Pattern, dims: Sizes, times: int) -> None:
        """Of memory that all graphs share: sums of rows, numbers in their place, or one half to the other."""
        numbers = (math.prod(dims),)
        for _ in range(times):
            given = graph.external(Datatype.FP32, dims if pattern is Pattern.READ else numbers, memory=self._arena)
            if pattern is Pattern.READ:
                left = graph.external(Datatype.FP32, dims[:1], output=True, memory=self._sums)
                graph.define("xnn_define_static_reduce", _SUM, 1, _LAST_AXIS, given, left, 0)
            elif pattern is Pattern.UPDATE:
                left = graph.external(Datatype.FP32, numbers, output=True, memory=self._arena)
                graph.define("xnn_define_clamp", *_BOUNDS, given, left, 0)
            else:
                half = self._arena.part(numbers[0] * WIDTH + _APART)
                left = graph.external(Datatype.FP32, numbers, output=True, memory=half)
                graph.define("xnn_define_copy", given, left, 0)

    @cached_property
    def _arena(self) -> Buffer:
        return Buffer(self.largest + _APART)

    @cached_property
    def _sums(self) -> Buffer:
        return Buffer(self.rows_to_sum(0) * WIDTH)

    def weights(self, size: int) -> Sizes:
        """Products of at most ``_PRODUCT`` bytes for each thread."""
        products = max(1, size // (_PRODUCT * self.threads))
        return products, size // products // _INPUTS // WIDTH, _INPUTS

    def weighing(self, graph: SubgraphBuilder, sizes: Sizes) -> None:
        """Every product with weights of its own."""
        products, *channels = sizes
        for _ in range(products):
            self.product(graph, "f32", (1, *channels), 1)

    def tiny(self, graph: SubgraphBuilder, dispatch: Dispatch, dims: Sizes) -> None:
        """Always on the same numbers."""
        given, left = graph.random(Datatype.FP32, dims), Buffer(math.prod(dims) * WIDTH)
        for _ in range(self.tiny_at_once):
            values = [graph.external(Datatype.FP32, dims, memory=given)]
            values.append(graph.external(Datatype.FP32, dims, output=True, memory=left))
            graph.define("xnn_define_copy" if dispatch is Dispatch.SERIAL else "xnn_define_softmax", *values, 0)


def _ends(graph: SubgraphBuilder, dtype: str, given: Sizes, left: Sizes) -> tuple[int, int]:
    """Input and output; the input is quantised where weights of int8 or int4 meet floats."""
    activation = _DATATYPES.get(dtype, Datatype.FP32)
    value = graph.external(activation, given)
    if dtype not in _DATATYPES:
        value = graph.quantised_at_run_time(value, given)
    return value, graph.external(activation, left, output=True)


def _window(width: int) -> Sizes:
    """Padding that keeps the size, the filter, stride, dilation, and one group or one output for each channel."""
    return (width // 2,) * 4 + (width,) * 2 + (1,) * 5


def _elementwise(
    function: str, source: str, target: str, count: int, *, scalar: bool = False
) -> ProbeCandidate[SubgraphBuilder]:
    """A function of one or two tensors, or of one and a single number, which leaves one tensor to read."""
    dims = (count // ROW, ROW)
    name, before = (
        (_BINARY[function], _FREE) if function in _BINARY else _UNARY.get(function, ("xnn_define_convert", ()))
    )
    second = [(1, 1) if scalar else dims] if function in _BINARY else []
    types = _DATATYPES[source], _DATATYPES[target]

    def build(graph: SubgraphBuilder) -> None:
        _repeat(graph, types, [dims, *second], dims, (name, *before), in_place=function in _IN_PLACE)

    return element_candidate(function, source, dims, _times(count), build, scalar=scalar)


def _mean(dtype: str, count: int) -> ProbeCandidate[SubgraphBuilder]:
    dims, types = (1, *MEAN_IMAGE, count // math.prod(MEAN_IMAGE)), (_DATATYPES[dtype],) * 2
    reduction = ("xnn_define_static_reduce", _MEAN, len(_HEIGHT_AND_WIDTH), _HEIGHT_AND_WIDTH)

    def build(graph: SubgraphBuilder) -> None:
        _repeat(graph, types, [dims], (1, dims[-1]), reduction)

    return element_candidate("Mean", dtype, dims, _times(count), build)


def _times(count: int) -> int:
    return max(1, _ELEMENTS_AT_ONCE // count)


def _repeat(
    graph: SubgraphBuilder,
    types: tuple[Datatype, Datatype],
    inputs: Sequence[Sizes],
    output: Sizes,
    operator: tuple[Any, ...],
    *,
    in_place: bool = False,
) -> None:
    """Put an operator (its function, and the arguments before the values) into a graph, many times on one memory."""
    given = [(dims, graph.random(types[0], dims)) for dims in inputs]
    count = math.prod(inputs[0])
    left = given[0][1] if in_place else Buffer(count * _WIDEST)
    for _ in range(_times(count)):
        values = [graph.external(types[0], dims, memory=memory) for dims, memory in given]
        values.append(graph.external(types[1], output, output=True, memory=left))
        graph.define(*operator, *values, 0)


def main(arguments: Sequence[str]) -> int:
    """Answer one request; see :func:`opscope.runtimes.child.answer_request`."""
    return answer_request(Path(arguments[0]), CeilingsRequest, serve, RefusedError, MemoryError)


def serve(request: CeilingsRequest, began: int) -> tuple[Ceilings, MaskProof | None]:
    """Measure the ceilings in this process."""
    directory = library_directory()
    prove = switched_off(installed_runtime(), request.variant.clear)
    xnnpack = Xnnpack(directory, request.threads)
    proof = prove()

    def compiled(candidate: ProbeCandidate[SubgraphBuilder]) -> GraphRuntime:
        graph = SubgraphBuilder(xnnpack)
        try:
            candidate.build(graph)
            return graph.compile()
        finally:
            graph.delete()

    graphs, versions = SubgraphProbes(xnnpack.threads, request.again), {"executorch": version("executorch")}
    return measured_ceilings(request, graphs, compiled, versions, began), proof


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
