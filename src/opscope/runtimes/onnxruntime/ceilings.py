"""The process that measures ONNX Runtime's ceilings, with the argument ``REQUEST``.

Every candidate is a session of its own, which is made in a few milliseconds. The graph that a session saves tells which
nodes run.

The models are protocol buffers, written field by field; numbers of fields are those of
:mod:`opscope.runtimes.onnxruntime.onnx_file`. Only what these models need is written: one graph, tensors of fixed
sizes, attributes that are whole numbers or lists of them.
"""

from __future__ import annotations

import math
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from opscope.experiment.protocol import CeilingsRequest
from opscope.machine.switch.switch import proof
from opscope.program.ceilings import Dispatch, KernelClass, MacCeiling, Pattern
from opscope.program.structure.exported import Tensor
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
from opscope.runtimes.onnxruntime.installed import PACKAGE, imported_onnxruntime, installed_onnxruntime
from opscope.runtimes.onnxruntime.onnx_file import read_onnx
from opscope.runtimes.onnxruntime.options import CPU

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opscope.bundle.manifest import MaskProof
    from opscope.experiment.tensors import Array
    from opscope.program.ceilings import Ceilings
    from opscope.runtimes.ceilings.probes import ProbeCandidate, Sizes

    Attributes: TypeAlias = Mapping[str, int | Sequence[int]]


_VERSION, _OPERATORS = 8, 17
"""Of the intermediate representation and of the operators: those that ONNX Runtime 1.12 and later read."""
_VARINT, _BYTES = 0, 2
_SEVEN, _MORE = 7, 0x80
_NUMBER, _NUMBERS = 2, 7  # types of an attribute
_TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7}
_SEED = 1


def _drawn(tensor: Tensor) -> Array:
    """What an input is filled with."""
    drawn = np.random.default_rng(_SEED)
    if tensor.dtype == "float32":
        return drawn.random(tensor.shape, np.float32)
    limits = np.iinfo(tensor.dtype)
    return drawn.integers(limits.min, limits.max, tensor.shape, tensor.dtype, endpoint=True)


class OnnxBuilder:
    """A model in the making."""

    def __init__(self) -> None:
        self.inputs: dict[str, Tensor] = {}
        self.outputs: list[str] = []
        self._nodes: list[bytes] = []
        self._stored: list[bytes] = []
        self._made = 0

    def given(self, dims: Sequence[int], dtype: str = "float32") -> str:
        """An input; returns its name."""
        name = f"in{len(self.inputs)}"
        self.inputs[name] = Tensor(list(dims), dtype)
        return name

    def stored(self, values: Array) -> str:
        """A constant; returns its name."""
        name = f"w{len(self._stored)}"
        dims = b"".join(_number(1, size) for size in values.shape)
        kind = _number(2, _TYPES[values.dtype.name])
        self._stored.append(dims + kind + _text(8, name) + _field(9, np.ascontiguousarray(values).tobytes()))
        return name

    def weights(self, dims: Sequence[int], dtype: str = "float32") -> str:
        """Constant numbers; returns their name. They differ from each other, since equal ones are stored once."""
        drawn, count = np.random.default_rng(len(self._stored)), math.prod(dims)
        if dtype == "float32":
            return self.stored(((drawn.random(count, np.float32) - np.float32(0.5)) / 8).reshape(dims))
        return self.stored(drawn.integers(-64, 64, count, np.int8).reshape(dims))

    def add(
        self, operator: str, inputs: Sequence[str], attributes: Mapping[str, int | Sequence[int]] | None = None
    ) -> str:
        """Add a node; returns its output."""
        name, self._made = f"t{self._made}", self._made + 1
        parts = [_text(1, one) for one in inputs]
        parts += [_text(2, name), _text(3, f"n{name}"), _text(4, operator)]
        parts += [_field(5, _attribute(key, value)) for key, value in (attributes or {}).items()]
        self._nodes.append(b"".join(parts))
        return name

    def leaves(self, name: str) -> None:
        """Declare an output; its type is left to the runtime."""
        self.outputs.append(name)

    def content(self) -> bytes:
        """The .onnx."""
        graph = [_field(1, node) for node in self._nodes]
        graph += [_text(2, "ceilings"), *(_field(5, one) for one in self._stored)]
        graph += [_field(11, _value(name, one)) for name, one in self.inputs.items()]
        graph += [_field(12, _text(1, name)) for name in self.outputs]
        opset = _text(1, "") + _number(2, _OPERATORS)
        return _number(1, _VERSION) + _field(7, b"".join(graph)) + _field(8, opset)


def _value(name: str, tensor: Tensor) -> bytes:
    sizes = b"".join(_field(1, _number(1, size)) for size in tensor.shape)
    described = _number(1, _TYPES[tensor.dtype]) + _field(2, sizes)
    return _text(1, name) + _field(2, _field(1, described))


def _attribute(name: str, value: int | Sequence[int]) -> bytes:
    if isinstance(value, int):
        return _text(1, name) + _number(3, value) + _number(20, _NUMBER)
    return _text(1, name) + b"".join(_number(8, one) for one in value) + _number(20, _NUMBERS)


def _text(number: int, value: str) -> bytes:
    return _field(number, value.encode())


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value & (1 << 64) - 1)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= _MORE:
        found.append(value & (_MORE - 1) | _MORE)
        value >>= _SEVEN
    found.append(value)
    return bytes(found)


_SHAPES: dict[KernelClass, list[Sequence[Sizes]]] = {
    KernelClass.GEMM: [GEMMS[:2]],
    KernelClass.CONV: [CONVOLUTIONS[:2], [(1, 28, 128, 128, 1), (1, 14, 256, 256, 1)]],
    KernelClass.DWCONV: [[(*shape, 3) for shape in DEPTHWISE[:2]], [(*DEPTHWISE[0], 5)]],
    KernelClass.SUBCONV: [TRANSPOSED[::2]],
    KernelClass.BMM: [MATMULS],
}
# Output and input channels, chained.
_GEMVS = ((128, 128), (512, 512))
_GEMV_CHANNELS = 1024
"""Of int8, whose products cannot be chained; those of the output are for each thread."""
_LAYOUTS = frozenset({"ReorderInput", "ReorderOutput", "Transpose"})
"""Nodes that lay data out anew at either end of convolutions in a row."""

_UNARY = ("Abs", "Clip", "Erf", "Exp", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Softmax", "Sqrt", "Tanh")
_BINARY = ("Add", "Div", "Mul", "Sub")
# Elements for each thread: they stay in the smaller caches.
_ELEMENTS, _ELEMENTS_AT_ONCE = (16_384, 65_536), 1 << 20
_POOLED = (16, 16)
_PASSED_AT_ONCE, _LEAST_PASSES, _MOST_PASSES = 1 << 23, 2, 64


class NodeProbes(ProbeGraphs[OnnxBuilder]):
    """Probes of ONNX Runtime's kernels."""

    multiplying = (
        (("f32", "qs8"), (KernelClass.GEMM, KernelClass.GEMV, KernelClass.CONV, KernelClass.DWCONV)),
        (("f32",), (KernelClass.SUBCONV, KernelClass.BMM)),
    )
    channels_last = False
    operators = {  # noqa: RUF012 - never changed
        Pattern.READ: "ReduceSum",
        Pattern.UPDATE: "Abs",
        Pattern.COPY: "Concat",
        Dispatch.SERIAL: "Abs",
        Dispatch.PARALLEL: "Softmax",
    }
    macs_at_once = 1 << 22
    tiny_at_once = 256
    patience = OPENING_PATIENCE
    largest_set, share_of_memory = 1 << 26, 16
    convolutions_in_a_row = 4
    """So that laying out the data anew at either end takes little of the time."""

    def shapes(self, kernel: KernelClass, dtype: str) -> list[list[Sizes]]:
        """One row with square weights of floats."""
        if kernel is not KernelClass.GEMV:
            return [self.per_thread(shapes) for shapes in _SHAPES[kernel]]
        channels = _GEMVS if dtype == "f32" else ((self.threads * _GEMV_CHANNELS, _GEMV_CHANNELS),)
        return [[(1, *sizes) for sizes in channels]]

    def times(self, dtype: str, macs: int) -> int:
        """Products of int8 have no int8 output, so none can follow."""
        return super().times(dtype, macs) if dtype == "f32" else 1

    def product(self, graph: OnnxBuilder, dtype: str, sizes: Sizes, times: int) -> None:
        """Each product of the one before, with weights of its own."""
        rows, outputs, inputs = sizes
        if dtype == "f32":
            last = graph.given((rows, inputs))
            for _ in range(times):
                last = graph.add("MatMul", (last, graph.weights((inputs, outputs))))
            graph.leaves(last)
        else:
            zeros = graph.stored(np.array(128, np.uint8)), graph.stored(np.array(0, np.int8))
            factors = graph.given((rows, inputs), "uint8"), graph.weights((inputs, outputs), "int8")
            graph.leaves(graph.add("MatMulInteger", (*factors, *zeros)))

    def convolution(self, graph: OnnxBuilder, dtype: str, image: Sizes, filters: Sizes) -> None:
        """Some in a row."""
        floats, width = dtype == "f32", filters[-1]
        group = 1 if filters[1] == image[1] else image[1]
        options: dict[str, int | Sequence[int]] = {
            "group": group,
            "kernel_shape": (width, width),
            "pads": (width // 2,) * 4,
        }
        last = graph.given(image, "float32" if floats else "uint8")
        scale, zero = graph.stored(np.array(1 / 128, np.float32)), graph.stored(np.array(128, np.uint8))
        zero_of_weights = graph.stored(np.array(0, np.int8))
        for _ in range(self.convolutions_in_a_row):
            weights = graph.weights(filters, "float32" if floats else "int8")
            values = (last, weights) if floats else (last, scale, zero, weights, scale, zero_of_weights, scale, zero)
            last = graph.add("Conv" if floats else "QLinearConv", values, options)
        graph.leaves(last)

    depthwise = convolution

    def transposed(self, graph: OnnxBuilder, dtype: str, image: Sizes, filters: Sizes) -> None:  # noqa: ARG002 - floats
        """With a stride of 2."""
        width, values = filters[-1], (graph.given(image), graph.weights(filters))
        options = {"kernel_shape": (width, width), "strides": (2, 2), "pads": (width // 2 - 1,) * 4}
        graph.leaves(graph.add("ConvTranspose", values, options))

    def matmul(self, graph: OnnxBuilder, dtype: str, sizes: Sizes) -> None:  # noqa: ARG002 - floats
        """Both factors are inputs."""
        count, rows, columns, inner = sizes
        graph.leaves(graph.add("MatMul", (graph.given((count, rows, inner)), graph.given((count, inner, columns)))))

    def elements(self) -> Iterator[Probe[OnnxBuilder]]:
        """Functions of floats."""
        counts = [count * self.threads for count in _ELEMENTS]
        for function in (*_UNARY, *_BINARY):
            candidates = [_chained(function, count) for count in counts]
            if function in _BINARY:
                candidates.append(_chained(function, counts[-1], scalar=True))
            yield Probe(candidates, partial(self.is_operator, operator=function))
        pooling = "GlobalAveragePool"
        yield Probe([_pooled(pooling, count) for count in counts], partial(self.is_operator, operator=pooling))

    def passes(self, pattern: Pattern, size: int) -> int:
        """One update or copy alone would be taken out of the graph."""
        least = 1 if pattern is Pattern.READ else _LEAST_PASSES
        return max(least, min(_MOST_PASSES, _PASSED_AT_ONCE // size))

    def passing(self, graph: OnnxBuilder, pattern: Pattern, dims: Sizes, times: int) -> None:
        """Sums of the same tensor, or nodes in a row, each of which writes in the place of its input or beside it."""
        last = graph.given(dims)
        if pattern is Pattern.READ:
            axes = graph.stored(np.array([1], np.int64))
            for _ in range(times):
                graph.leaves(graph.add(self.operators[pattern], (last, axes), {"keepdims": 0}))
            return
        for _ in range(times):
            last = graph.add(self.operators[pattern], (last,), {"axis": 0} if pattern is Pattern.COPY else None)
        graph.leaves(last)

    def rows_to_sum(self, numbers: int) -> int:
        """As many as there are, whatever the threads."""
        return numbers // ROW

    def tiny(self, graph: OnnxBuilder, dispatch: Dispatch, dims: Sizes) -> None:
        """In a row."""
        last = graph.given(dims)
        for _ in range(self.tiny_at_once):
            last = graph.add(self.operators[dispatch], (last,))
        graph.leaves(last)

    def is_operator(self, name: str, operator: str) -> bool:
        """By the kind of the node."""
        return name == operator or name in _LAYOUTS

    def multiplies(self, name: str, dtype: str, kernel: KernelClass) -> bool:
        """Likewise."""
        if kernel is KernelClass.SUBCONV:
            return self.is_operator(name, "ConvTranspose")
        if kernel in (KernelClass.CONV, KernelClass.DWCONV):
            return self.is_operator(name, "Conv" if dtype == "f32" else "QLinearConv")
        return self.is_operator(name, "MatMul" if dtype == "f32" else "MatMulInteger")


def keeps_graph(candidate: ProbeCandidate[OnnxBuilder]) -> bool:
    """Whether the graph must run as it is: nodes that pass over memory alike would be taken for one."""
    return not isinstance(candidate.ceiling, MacCeiling)


def _chained(function: str, count: int, *, scalar: bool = False) -> ProbeCandidate[OnnxBuilder]:
    """The node on its own output, again and again; a sum adds a second input each time, or a single number."""
    dims, times = (count // ROW, ROW), max(1, _ELEMENTS_AT_ONCE // count)

    def build(graph: OnnxBuilder) -> None:
        last = graph.given(dims)
        second = [graph.given((1, 1) if scalar else dims)] if function in _BINARY else []
        if function == "Clip":
            second = [graph.stored(np.array(bound, np.float32)) for bound in (0.25, 0.75)]
        for _ in range(times):
            last = graph.add(function, (last, *second))
        graph.leaves(last)

    return element_candidate(function, "f32", dims, times, build, scalar=scalar)


def _pooled(function: str, count: int) -> ProbeCandidate[OnnxBuilder]:
    dims, times = (1, count // math.prod(_POOLED), *_POOLED), max(1, _ELEMENTS_AT_ONCE // count)

    def build(graph: OnnxBuilder) -> None:
        given = graph.given(dims)
        for _ in range(times):
            graph.leaves(graph.add(function, (given,)))

    return element_candidate(function, "f32", dims, times, build)


_QUIET = 4


def main(arguments: Sequence[str]) -> int:
    """Answer one request; see :func:`opscope.runtimes.child.answer_request`."""
    return answer_request(Path(arguments[0]), CeilingsRequest, serve, RefusedError, MemoryError)


def serve(request: CeilingsRequest, began: int) -> tuple[Ceilings, MaskProof | None]:
    """Measure the ceilings in this process."""
    versions, package = {PACKAGE: installed_onnxruntime().version}, imported_onnxruntime()
    graphs = NodeProbes(request.threads, request.again)
    ceilings = measured_ceilings(request, graphs, lambda one: _Runner(package, one, request.threads), versions, began)
    # Kernels are chosen when sessions are made: asked behind that, the counters hold all questions.
    return ceilings, proof(Path(request.record)) if request.record is not None else None


class _Runner:
    """A session of a candidate, its inputs and outputs bound; refused where the session refuses the model."""

    def __init__(self, runtime: Any, candidate: ProbeCandidate[OnnxBuilder], threads: int) -> None:  # noqa: ANN401 - it has no types
        model = OnnxBuilder()
        candidate.build(model)
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = _QUIET
        if keeps_graph(candidate):
            options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            self._session, self.operators = _opened(runtime, model.content(), options)
            # The session reads them where they are: these names keep them there.
            self._arrays = [_drawn(one) for one in model.inputs.values()]
            self._values = [runtime.OrtValue.ortvalue_from_numpy(array) for array in self._arrays]
            self._binding = self._session.io_binding()
            for name, value in zip(model.inputs, self._values, strict=True):
                self._binding.bind_ortvalue_input(name, value)
            for name in model.outputs:
                self._binding.bind_output(name)
        except Exception as error:  # the errors of the runtime are of classes of its own, all of them Exceptions
            raise RefusedError("InferenceSession", str(error)) from error

    def invoke(self) -> None:
        self._session.run_with_iobinding(self._binding)

    def delete(self) -> None:
        del self._binding, self._session


def _opened(runtime: Any, content: bytes, options: Any) -> tuple[Any, list[str]]:  # noqa: ANN401 - likewise
    """A session, and the nodes that it runs."""
    with tempfile.TemporaryDirectory(dir=".") as directory:
        file = Path(directory) / "optimised.onnx"
        options.optimized_model_filepath = str(file)
        session = runtime.InferenceSession(content, options, providers=[CPU])
        return session, [node.op for node in read_onnx(file).graph.nodes]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
