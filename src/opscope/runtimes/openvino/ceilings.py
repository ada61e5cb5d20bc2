"""The process that measures OpenVINO's ceilings, with the argument ``REQUEST``.

Every candidate is a model that OpenVINO's own operators build, compiled as programs are. The compiled model tells which
nodes run, each with its kernel. Functions in a row become one node that keeps what it computes in registers: what
arithmetic alone allows.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from opscope.experiment.protocol import CeilingsRequest
from opscope.machine.switch.switch import proof
from opscope.program.ceilings import Dispatch, KernelClass, Pattern
from opscope.runtimes.ceilings.probes import (
    CONVOLUTIONS,
    DEPTHWISE,
    GEMMS,
    MATMULS,
    OPENING_PATIENCE,
    ROW,
    TRANSPOSED,
    Probe,
    ProbeGraphs,
    RefusedError,
    element_candidate,
)
from opscope.runtimes.ceilings.process import measured_ceilings
from opscope.runtimes.child import answer_request
from opscope.runtimes.openvino.installed import PACKAGE, imported_openvino, installed_openvino, properties, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opscope.bundle.manifest import MaskProof
    from opscope.experiment.tensors import Array
    from opscope.program.ceilings import Ceilings
    from opscope.runtimes.ceilings.probes import ProbeCandidate, Sizes

_SEED = 1
_LEVELS = 256
_OPERATORS = "openvino.opset13"
"""The newest set that every release has which was tried."""


class OpenVinoBuilder:
    """A model in the making."""

    def __init__(self, package: Any) -> None:  # noqa: ANN401 - the package has no types for its operators
        self.package, self.op = package, import_module(_OPERATORS)
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.nodes = 0
        """How many must run one by one."""
        self._random = np.random.default_rng(_SEED)

    def given(self, dims: Sequence[int]) -> Any:  # noqa: ANN401 - likewise
        """An input of floats."""
        self.inputs.append(self.op.parameter(list(dims), np.float32))
        return self.inputs[-1]

    def weights(self, dims: Sequence[int], dtype: str) -> Any:  # noqa: ANN401 - likewise
        """Constant numbers; of int8 as models have them, which are floats once they are scaled."""
        if dtype == "f32":
            return self.op.constant((self._random.random(tuple(dims), np.float32) - np.float32(0.5)) / 8)
        stored = self.op.constant(self._random.integers(-64, 64, tuple(dims), np.int8))
        return self.op.multiply(self.op.convert(stored, "f32"), self.op.constant(np.float32(1 / 512)))

    def rounded(self, value: Any) -> Any:  # noqa: ANN401 - likewise
        """The value with the steps of an int8 one."""
        low, high = (self.op.constant(np.float32(bound)) for bound in (-1.0, 127 / 128))
        return self.op.fake_quantize(value, low, high, low, high, _LEVELS)

    def whole(self, numbers: Sequence[int]) -> Any:  # noqa: ANN401 - likewise
        """Constant axes."""
        return self.op.constant(np.array(numbers, np.int64))

    def model(self) -> Any:  # noqa: ANN401 - likewise
        """What was built."""
        return self.package.Model([self.op.result(one) for one in self.outputs], self.inputs)

    def arrays(self) -> list[Array]:
        """What inputs are filled with."""
        return [self._random.random(tuple(one.get_shape()), np.float32) for one in self.inputs]


_SHAPES: dict[KernelClass, list[Sequence[Sizes]]] = {
    KernelClass.GEMM: [GEMMS[:2]],
    KernelClass.CONV: [CONVOLUTIONS[:2], [(1, 28, 128, 128, 1), (1, 14, 256, 256, 1)]],
    KernelClass.DWCONV: [[(*shape, 3) for shape in DEPTHWISE[:2]], [(*DEPTHWISE[0], 5)]],
    KernelClass.SUBCONV: [TRANSPOSED[::2]],
    KernelClass.BMM: [MATMULS],
}
# Output and input channels, chained.
_GEMVS = ((128, 128), (512, 512))
_AROUND = frozenset({"Reorder", "FakeQuantize", "Transpose", "Subgraph", "Eltwise", "Convert"})
"""Nodes at either end of products in a row: layouts, and steps of int8."""
_FUNCTIONS = frozenset({"Subgraph", "Eltwise", "Math"})
"""What functions run as, whichever they are."""
_UNARY = {
    "Abs": "abs",
    "Elu": "elu",
    "Erf": "erf",
    "Exp": "exp",
    "Gelu": "gelu",
    "HSigmoid": "hsigmoid",
    "HSwish": "hswish",
    "HardSigmoid": "hard_sigmoid",
    "Clamp": "clamp",
    "Relu": "relu",
    "Sigmoid": "sigmoid",
    "Sqrt": "sqrt",
    "Swish": "swish",
    "Tanh": "tanh",
}
_BINARY = {"Add": "add", "Divide": "divide", "Maximum": "maximum", "Multiply": "multiply", "Subtract": "subtract"}
_MORE: dict[str, tuple[Any, ...]] = {
    "Clamp": (0.25, 0.75),
    "Elu": (1.0,),
    "Gelu": ("erf",),
    "HardSigmoid": (np.float32(0.2), np.float32(0.5)),
}
# Elements for each thread: they stay in the smaller caches.
_ELEMENTS, _IN_A_ROW = (16_384, 65_536), 32
_POOLED, _POOLED_AT_ONCE = (16, 16), 1 << 20
_PASSED_AT_ONCE, _MOST_PASSES = 1 << 23, 64
_SUMS = ("reduce_sum", "reduce_max", "reduce_min", "reduce_mean", "reduce_l1", "reduce_l2")
_SPLITS = (1, 2, 4, 8)
"""Parts of a row that are summed."""


class PluginProbes(ProbeGraphs[OpenVinoBuilder]):
    """Probes of the kernels of OpenVINO's plugin for the CPU."""

    multiplying = (
        (("f32", "qs8"), (KernelClass.GEMM, KernelClass.GEMV, KernelClass.CONV, KernelClass.DWCONV)),
        (("f32",), (KernelClass.SUBCONV, KernelClass.BMM)),
    )
    channels_last = False
    operators = {  # noqa: RUF012 - never changed
        Pattern.READ: "Reduce",
        Pattern.COPY: "Pad",
        Dispatch.SERIAL: "Softmax",
        Dispatch.PARALLEL: "Softmax",
    }
    macs_at_once = 1 << 20
    tiny_at_once = 256
    patience = OPENING_PATIENCE
    largest_set, share_of_memory = 1 << 26, 16
    convolutions_in_a_row = 4
    """So that laying out the data anew at either end takes little of the time."""

    def shapes(self, kernel: KernelClass, dtype: str) -> list[list[Sizes]]:  # noqa: ARG002 - the same for all types
        """One row with square weights."""
        if kernel is not KernelClass.GEMV:
            return [self.per_thread(shapes) for shapes in _SHAPES[kernel]]
        return [[(1, *sizes) for sizes in _GEMVS]]

    def product(self, graph: OpenVinoBuilder, dtype: str, sizes: Sizes, times: int) -> None:
        """Each product of the one before, with weights of its own."""
        rows, outputs, inputs = sizes
        last, graph.nodes = graph.given((rows, inputs)), times
        for _ in range(times):
            last = last if dtype == "f32" else graph.rounded(last)
            last = graph.op.matmul(last, graph.weights((outputs, inputs), dtype), False, True)  # noqa: FBT003 - which side is transposed
        graph.outputs.append(last)

    def convolution(self, graph: OpenVinoBuilder, dtype: str, image: Sizes, filters: Sizes) -> None:
        """Some in a row."""
        pads = [filters[-1] // 2] * 2
        last, graph.nodes = graph.given(image), self.convolutions_in_a_row
        for _ in range(self.convolutions_in_a_row):
            last = last if dtype == "f32" else graph.rounded(last)
            last = graph.op.convolution(last, graph.weights(filters, dtype), [1, 1], pads, pads, [1, 1])
        graph.outputs.append(last)

    def depthwise(self, graph: OpenVinoBuilder, dtype: str, image: Sizes, filters: Sizes) -> None:
        """Likewise, with a group for each channel."""
        pads = [filters[-1] // 2] * 2
        last, graph.nodes = graph.given(image), self.convolutions_in_a_row
        for _ in range(self.convolutions_in_a_row):
            last = last if dtype == "f32" else graph.rounded(last)
            weights = graph.weights((filters[0], 1, *filters[1:]), dtype)
            last = graph.op.group_convolution(last, weights, [1, 1], pads, pads, [1, 1])
        graph.outputs.append(last)

    def transposed(self, graph: OpenVinoBuilder, dtype: str, image: Sizes, filters: Sizes) -> None:
        """With a stride of 2."""
        pads = [filters[-1] // 2 - 1] * 2
        values = graph.given(image), graph.weights(filters, dtype)
        options = {"strides": [2, 2], "pads_begin": pads, "pads_end": pads, "dilations": [1, 1]}
        graph.outputs.append(graph.op.convolution_backprop_data(*values, **options))

    def matmul(self, graph: OpenVinoBuilder, dtype: str, sizes: Sizes) -> None:  # noqa: ARG002 - floats
        """Both factors are inputs."""
        count, rows, columns, inner = sizes
        factors = graph.given((count, rows, inner)), graph.given((count, inner, columns))
        graph.outputs.append(graph.op.matmul(*factors, False, False))  # noqa: FBT003 - neither side is transposed

    def elements(self) -> Iterator[Probe[OpenVinoBuilder]]:
        """Functions of floats."""
        counts = [count * self.threads for count in _ELEMENTS]
        for function in (*_UNARY, *_BINARY):
            candidates = [_chained(function, count) for count in counts]
            yield Probe(candidates, _is_function)
        yield Probe([_soft(count) for count in counts], partial(self.is_operator, operator="Softmax"))
        yield Probe([_pooled(count) for count in counts], partial(self.is_operator, operator="Reduce"))

    def passes(self, pattern: Pattern, size: int) -> int:
        """Updates are not measured: functions in a row become one."""
        if pattern is Pattern.UPDATE:
            return 0
        most = len(_SPLITS) * len(_SUMS) if pattern is Pattern.READ else _MOST_PASSES
        return max(1, min(most, _PASSED_AT_ONCE // size))

    def passing(self, graph: OpenVinoBuilder, pattern: Pattern, dims: Sizes, times: int) -> None:
        """Sums of the same tensor, or copies in a row, each with rows that move on by one."""
        last, graph.nodes = graph.given(dims), times
        if pattern is Pattern.READ:
            # Each is another function, or of another shape: equal ones would be taken for one.
            for split, function in itertools.islice(itertools.product(_SPLITS, _SUMS), times):
                given = graph.op.reshape(last, graph.whole([dims[0] * split, dims[1] // split]), False)  # noqa: FBT003 - zeros
                graph.outputs.append(getattr(graph.op, function)(given, graph.whole([1]), False))  # noqa: FBT003 - axes go
            return
        for _ in range(times):
            last = graph.op.pad(last, [1, 0], [-1, 0], "constant")
        graph.outputs.append(last)

    def rows_to_sum(self, numbers: int) -> int:
        """As many as there are, whatever the threads."""
        return numbers // ROW

    def tiny(self, graph: OpenVinoBuilder, dispatch: Dispatch, dims: Sizes) -> None:  # noqa: ARG002 - one operator for both
        """In a row."""
        last, graph.nodes = graph.given(dims), self.tiny_at_once
        for _ in range(self.tiny_at_once):
            last = graph.op.softmax(last, 1)
        graph.outputs.append(last)

    def is_operator(self, name: str, operator: str) -> bool:
        """By the kind of the node."""
        return name.partition(" ")[0] == operator

    def multiplies(self, name: str, dtype: str, kernel: KernelClass) -> bool:
        """By the kind of the node, and of int8 by its kernel."""
        node, _, ran = name.partition(" ")
        if node in _AROUND:
            return True
        wanted = {
            KernelClass.SUBCONV: "Deconvolution",
            KernelClass.CONV: "Convolution",
            KernelClass.DWCONV: "Convolution",
            KernelClass.BMM: "MatMul",
        }.get(kernel, "FullyConnected")
        return node == wanted and ran.lower().endswith(("_i8", "_u8") if dtype == "qs8" else "_f32")


def _is_function(name: str) -> bool:
    return name.partition(" ")[0] in _FUNCTIONS


def _chained(function: str, count: int) -> ProbeCandidate[OpenVinoBuilder]:
    """The function of its own output, again and again; one of two values takes a second input each time."""
    dims = (count // ROW, ROW)

    def build(graph: OpenVinoBuilder) -> None:
        last = graph.given(dims)
        second = (graph.given(dims),) if function in _BINARY else _MORE.get(function, ())
        make = getattr(graph.op, (_UNARY | _BINARY)[function])
        for _ in range(_IN_A_ROW):
            last = make(last, *second)
        graph.outputs.append(last)

    return element_candidate(function, "f32", dims, _IN_A_ROW, build)


def _soft(count: int) -> ProbeCandidate[OpenVinoBuilder]:
    dims = (count // ROW, ROW)

    def build(graph: OpenVinoBuilder) -> None:
        last, graph.nodes = graph.given(dims), _IN_A_ROW
        for _ in range(_IN_A_ROW):
            last = graph.op.softmax(last, 1)
        graph.outputs.append(last)

    return element_candidate("Softmax", "f32", dims, _IN_A_ROW, build)


def _pooled(count: int) -> ProbeCandidate[OpenVinoBuilder]:
    """Means of images, several of their own."""
    dims, times = (1, count // math.prod(_POOLED), *_POOLED), max(1, _POOLED_AT_ONCE // count)

    def build(graph: OpenVinoBuilder) -> None:
        graph.nodes = times
        for _ in range(times):
            graph.outputs.append(graph.op.reduce_mean(graph.given(dims), graph.whole([2, 3]), True))  # noqa: FBT003 - axes stay

    return element_candidate("ReduceMean", "f32", dims, times, build)


def main(arguments: Sequence[str]) -> int:
    """Answer one request; see :func:`opscope.runtimes.child.answer_request`."""
    return answer_request(Path(arguments[0]), CeilingsRequest, serve, RefusedError, MemoryError)


def serve(request: CeilingsRequest, began: int) -> tuple[Ceilings, MaskProof | None]:
    """Measure the ceilings in this process."""
    versions, package = {PACKAGE: installed_openvino().version}, imported_openvino()
    graphs, core = PluginProbes(request.threads, request.again), package.Core()
    ceilings = measured_ceilings(
        request, graphs, lambda one: _Runner(package, core, one, request.threads), versions, began
    )
    # Kernels are chosen when models are compiled: asked behind that, the counters hold all questions.
    return ceilings, proof(Path(request.record)) if request.record is not None else None


class _Runner:
    """A request of a candidate, its inputs set; refused where the plugin refuses the model."""

    def __init__(self, package: Any, core: Any, candidate: ProbeCandidate[OpenVinoBuilder], threads: int) -> None:  # noqa: ANN401 - it has no types
        try:
            graph = OpenVinoBuilder(package)
            candidate.build(graph)
            settings = {**properties(None), "INFERENCE_NUM_THREADS": str(threads)}
            compiled = core.compile_model(graph.model(), "CPU", settings)
            self._request = compiled.create_infer_request()
            # The request reads them where they are: these names keep them there.
            self._arrays = graph.arrays()
            self._values = [package.Tensor(array, shared_memory=True) for array in self._arrays]
            for port, value in zip(compiled.inputs, self._values, strict=True):
                self._request.set_tensor(port, value)
        except (RuntimeError, TypeError, AttributeError) as error:  # what it refuses, and operators it lacks
            raise RefusedError(
                "compile_model", str(error).strip().splitlines()[-1] if str(error) else "no reason"
            ) from error
        told = (node.get_rt_info() for node in compiled.get_runtime_model().get_ordered_ops())
        nodes = ((text_of(own["layerType"]), text_of(own["primitiveType"])) for own in told)
        self.operators = [f"{kind} {kernel}" for kind, kernel in nodes if kind not in _NOT_RUN]
        ran = sum(name.partition(" ")[0] not in _AROUND for name in self.operators)
        if ran < graph.nodes:
            raise RefusedError("compile_model", f"{ran} of {graph.nodes} nodes run by themselves")

    def invoke(self) -> None:
        self._request.infer()

    def delete(self) -> None:
        with contextlib.suppress(AttributeError):
            del self._request


_NOT_RUN = frozenset({"Input", "Output", "Const", "Parameter", "Result", "Reshape", "Constant"})
"""What takes no time of its own."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
