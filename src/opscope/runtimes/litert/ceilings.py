"""The process that measures LiteRT's ceilings, with the argument ``REQUEST``.

All candidates of a part are signatures of one model: opening a model takes longer than running it. A second model of
the same, with the profiler, tells which operators run.

The models are made with the schema that LiteRT's package ships. The schema is the flatbuffer's own,
https://github.com/google-ai-edge/LiteRT, ``tflite/converter/schema/schema.fbs``.
"""

from __future__ import annotations

import math
import sys
import tempfile
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from opscope.core.errors import RunError
from opscope.experiment.protocol import CeilingsRequest
from opscope.machine.switch.switch import proof
from opscope.program.ceilings import Dispatch, KernelClass, Pattern, operator_name
from opscope.runtimes.ceilings.probes import (
    CONVOLUTIONS,
    DEPTHWISE,
    DEPTHWISE_FILTERS,
    GEMMS,
    MATMULS,
    MEAN_IMAGE,
    OPENING_PATIENCE,
    ROW,
    TRANSPOSED,
    Probe,
    RefusedError,
    XnnpackGraphs,
    element_candidate,
)
from opscope.runtimes.ceilings.process import measured_ceilings
from opscope.runtimes.child import answer_request
from opscope.runtimes.litert.c_api import DELEGATE, CompiledModel, check_status
from opscope.runtimes.litert.installed import PACKAGE, installed_litert
from opscope.runtimes.litert.trace import DELEGATE_OP, OPERATOR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from opscope.bundle.manifest import MaskProof
    from opscope.experiment.tensors import Array
    from opscope.program.ceilings import Ceilings
    from opscope.runtimes.ceilings.probes import ProbeCandidate, Sizes

    Candidate: TypeAlias = "ProbeCandidate[GraphBuilder]"


SCHEMA_MODULE = "ai_edge_litert.schema_py_generated"
ABSENT = -1
"""In place of a tensor that an operator does without."""

_NAMES = {"f32": "FLOAT32", "qs8": "INT8", "i32": "INT32"}
_SCALE, _WIDE_SCALE = 1 / 128, 1 / 8
_SEED = 1


class ModelBuilder:
    """A model in the making; its graphs are added one by one."""

    def __init__(self) -> None:
        self.schema: Any = import_module(SCHEMA_MODULE)
        self._model = self.schema.ModelT()
        self._model.version = 3
        self._model.buffers = [self.schema.BufferT()]
        self._model.operatorCodes, self._model.subgraphs, self._model.signatureDefs = [], [], []
        self._codes: dict[int, int] = {}

    def graph(self) -> GraphBuilder:
        """A further graph, empty."""
        found = GraphBuilder(self)
        self._model.subgraphs.append(found.graph)
        return found

    def code(self, operator: str) -> int:
        """Number of an operator among those of the model."""
        value = getattr(self.schema.BuiltinOperator, operator)
        if value not in self._codes:
            code = self.schema.OperatorCodeT()
            code.builtinCode, code.deprecatedBuiltinCode = value, min(value, 127)
            code.version = _VERSIONS.get(operator, 1)
            self._model.operatorCodes.append(code)
            self._codes[value] = len(self._codes)
        return self._codes[value]

    def buffer(self, data: Array) -> int:
        """Number of a buffer with these bytes."""
        made = self.schema.BufferT()
        made.data = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
        self._model.buffers.append(made)
        return len(self._model.buffers) - 1

    def content(self) -> bytes:
        """The .tflite; its signatures are called ``0``, ``1`` and so on, in the order of the graphs."""
        flatbuffers: Any = import_module("flatbuffers")
        self._model.signatureDefs = [self._signature(number) for number in range(len(self._model.subgraphs))]
        builder = flatbuffers.Builder(1 << 16)
        builder.Finish(self._model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def _signature(self, number: int) -> Any:  # noqa: ANN401 - of the schema, which has no types
        made, graph = self.schema.SignatureDefT(), self._model.subgraphs[number]
        made.signatureKey, made.subgraphIndex = str(number), number
        made.inputs, made.outputs = self._named("in", graph.inputs), self._named("out", graph.outputs)
        return made

    def _named(self, side: str, tensors: Sequence[int]) -> list[Any]:
        found = []
        for place, tensor in enumerate(tensors):
            named = self.schema.TensorMapT()
            named.name, named.tensorIndex = f"{side}{place}", tensor
            found.append(named)
        return found


class GraphBuilder:
    """One graph of a model in the making."""

    def __init__(self, model: ModelBuilder) -> None:
        self._model = model
        self.graph: Any = model.schema.SubGraphT()
        self.graph.tensors, self.graph.operators, self.graph.inputs, self.graph.outputs = [], [], [], []

    def given(self, dtype: str, dims: Sequence[int]) -> int:
        """An input of the graph."""
        self.graph.inputs.append(self.made(dtype, dims))
        return int(self.graph.inputs[-1])

    def leaves(self, *tensors: int) -> None:
        """Declare outputs of the graph."""
        self.graph.outputs += tensors

    def made(self, dtype: str, dims: Sequence[int], scale: float = _SCALE, zero: int = 0) -> int:
        """A tensor that is computed; ``scale`` and ``zero`` are of int8."""
        return self._tensor(dtype, dims, 0, [scale], zero)

    def numbers(self, values: Sequence[int]) -> int:
        """A stored list of whole numbers, such as axes or sizes."""
        return self._tensor("i32", (len(values),), self._model.buffer(np.array(values, np.int32)))

    def weights(self, dtype: str, dims: Sequence[int], axis: int = 0) -> int:
        """Stored weights, with a scale for each channel of an axis where they are int8."""
        drawn, count = np.random.default_rng(_SEED), math.prod(dims)
        if dtype == "f32":
            return self._tensor(dtype, dims, self._model.buffer(drawn.random(count, np.float32)))
        values = drawn.integers(-127, 128, count, np.int8)
        return self._tensor(dtype, dims, self._model.buffer(values), [_SCALE] * dims[axis], 0, axis)

    def bias(self, channels: int) -> int:
        """A stored bias of int8 kernels, all zeros."""
        values = self._model.buffer(np.zeros(channels, np.int32))
        return self._tensor("i32", (channels,), values, [_SCALE * _SCALE] * channels)

    def add(
        self,
        operator: str,
        inputs: Sequence[int],
        output: int,
        options: str | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> int:
        """Add an operator; returns its output."""
        schema = self._model.schema
        made = schema.OperatorT()
        made.opcodeIndex, made.inputs, made.outputs = self._model.code(operator), list(inputs), [output]
        if options is not None:
            made.builtinOptionsType = getattr(schema.BuiltinOptions, options)
            made.builtinOptions = getattr(schema, f"{options}T")()
            for name, value in (fields or {}).items():
                setattr(made.builtinOptions, name, value)
        self.graph.operators.append(made)
        return output

    def _tensor(
        self, dtype: str, dims: Sequence[int], buffer: int, scales: Sequence[float] = (), zero: int = 0, axis: int = 0
    ) -> int:
        schema = self._model.schema
        made = schema.TensorT()
        made.shape, made.buffer, made.name = list(dims), buffer, f"t{len(self.graph.tensors)}"
        made.type = getattr(schema.TensorType, _NAMES[dtype])
        if scales and dtype != "f32":
            made.quantization = schema.QuantizationParametersT()
            made.quantization.scale, made.quantization.zeroPoint = list(scales), [zero] * len(scales)
            made.quantization.quantizedDimension = axis
        self.graph.tensors.append(made)
        return len(self.graph.tensors) - 1


# Versions of operators that take int8 and weights of several scales; the others have one version that will do.
_VERSIONS = {
    "FULLY_CONNECTED": 5,
    "CONV_2D": 5,
    "DEPTHWISE_CONV_2D": 6,
    "TRANSPOSE_CONV": 3,
    "BATCH_MATMUL": 3,
    **dict.fromkeys(("ADD", "DEQUANTIZE", "LOGISTIC", "MEAN", "MUL", "SUB", "TANH"), 2),
}


_TYPES = {"f32": ("f32", "f32"), "qs8": ("qs8", "qs8"), "qd8": ("f32", "qs8")}
"""Types of activations and weights; activations of ``qd8`` are quantised at run time."""
_SHAPES: dict[KernelClass, list[Sequence[Sizes]]] = {
    KernelClass.GEMM: [GEMMS[::2]],
    KernelClass.IGEMM: [CONVOLUTIONS[:2]],
    KernelClass.SUBCONV: [TRANSPOSED[::2]],
    KernelClass.DWCONV: [[(*shape, width) for shape in DEPTHWISE] for width in DEPTHWISE_FILTERS],
    KernelClass.BMM: [MATMULS],
}
# Output and input channels, chained.
_GEMVS = ((128, 128), (512, 512))

# Elements for each thread: they stay in the smaller caches.
_ELEMENTS = (4_096, 16_384)
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
_BINARY = {"Add": ("ADD", "AddOptions"), "Subtract": ("SUB", "SubOptions"), "Multiply": ("MUL", "MulOptions")}
_ALSO_QUANTISED = ("Add", "Multiply")
# XNNPACK's operators that the delegate joins when they follow each other: each reads the same tensor and has an output
# of its own. LiteRT's operator, types of its input and its output, scale and zero point of an int8 output.
_APART = (
    ("Clamp", "RELU6", "f32", "f32", (1 / 128, 0)),
    ("Square", "SQUARE", "f32", "f32", (1 / 128, 0)),
    ("Convert to qs8", "QUANTIZE", "f32", "qs8", (1 / 128, 0)),
    ("Convert to f32", "DEQUANTIZE", "qs8", "f32", (1 / 128, 0)),
    ("Sigmoid", "LOGISTIC", "qs8", "qs8", (1 / 256, -128)),
    ("TanH", "TANH", "qs8", "qs8", (1 / 128, 0)),
)
_TIMES_APART, _ELEMENTS_APART = 8, (16_384, 65_536)
_LOOKUP = "Invalid Unary Op"
"""What XNNPACK calls a function of int8 that it looks up in a table."""

_PASSED_AT_ONCE, _UPDATES = 1 << 22, 8
# A smaller copy is over before calling the runtime is.
_SMALLEST_COPY = 1 << 21


class SignatureProbes(XnnpackGraphs[GraphBuilder]):
    """Probes of LiteRT's delegate."""

    multiplying = (
        (tuple(_TYPES), (KernelClass.GEMM, KernelClass.GEMV, KernelClass.IGEMM)),
        (("f32", "qs8"), (KernelClass.SUBCONV, KernelClass.DWCONV, KernelClass.BMM)),
    )
    operators = {  # noqa: RUF012 - never changed
        Pattern.READ: "Sum",
        Pattern.UPDATE: "Abs",
        Pattern.COPY: "Static Reshape",
        Dispatch.SERIAL: "Abs",
        Dispatch.PARALLEL: "Softmax",
    }
    macs_at_once = 1 << 20
    tiny_at_once = 256
    patience = OPENING_PATIENCE
    largest_set, share_of_memory = 1 << 27, 16

    def shapes(self, kernel: KernelClass, dtype: str) -> list[list[Sizes]]:  # noqa: ARG002 - the same for all
        """Of one row with square weights, whatever the threads."""
        if kernel is KernelClass.GEMV:
            return [[(1, *channels) for channels in _GEMVS]]
        return [self.per_thread(shapes) for shapes in _SHAPES[kernel]]

    def product(self, graph: GraphBuilder, dtype: str, sizes: Sizes, times: int) -> None:
        """Each product of the one before; the delegate packs the weights anew for each."""
        (rows, outputs, inputs), (activation, weight) = sizes, _TYPES[dtype]
        last, weights = graph.given(activation, (rows, inputs)), graph.weights(weight, (outputs, inputs))
        fields = {"keepNumDims": True}
        for _ in range(times):
            values = last, weights, graph.bias(outputs) if activation == "qs8" else ABSENT
            left = graph.made(activation, (rows, outputs))
            last = graph.add("FULLY_CONNECTED", values, left, "FullyConnectedOptions", fields)
        graph.leaves(last)

    def convolution(self, graph: GraphBuilder, dtype: str, image: Sizes, filters: Sizes) -> None:
        """With a bias, which it cannot do without."""
        activation, weight = _TYPES[dtype]
        values = [graph.given(activation, image), graph.weights(weight, filters), _bias(graph, activation, filters[0])]
        left = graph.made(activation, (*image[:3], filters[0]))
        graph.leaves(graph.add("CONV_2D", values, left, "Conv2DOptions", {"strideW": 1, "strideH": 1}))

    def depthwise(self, graph: GraphBuilder, dtype: str, image: Sizes, filters: Sizes) -> None:
        """One output for each channel."""
        (activation, weight), channels = _TYPES[dtype], image[-1]
        values = [graph.given(activation, image), graph.weights(weight, filters, axis=3)]
        values.append(_bias(graph, activation, channels))
        fields = {"strideW": 1, "strideH": 1, "depthMultiplier": 1}
        left = graph.made(activation, image)
        graph.leaves(graph.add("DEPTHWISE_CONV_2D", values, left, "DepthwiseConv2DOptions", fields))

    def transposed(self, graph: GraphBuilder, dtype: str, image: Sizes, filters: Sizes) -> None:
        """With a stride of 2."""
        (activation, weight), (images, side, *_) = _TYPES[dtype], image
        made = (images, 2 * side, 2 * side, filters[0])
        values = [graph.numbers(made), graph.weights(weight, filters), graph.given(activation, image)]
        left, fields = graph.made(activation, made), {"strideW": 2, "strideH": 2}
        graph.leaves(graph.add("TRANSPOSE_CONV", values, left, "TransposeConvOptions", fields))

    def matmul(self, graph: GraphBuilder, dtype: str, sizes: Sizes) -> None:
        """The second factor lies column by column."""
        (count, rows, columns, inner), (activation, _) = sizes, _TYPES[dtype]
        factors = graph.given(activation, (count, rows, inner)), graph.given(activation, (count, columns, inner))
        left = graph.made(activation, (count, rows, columns))
        graph.leaves(graph.add("BATCH_MATMUL", factors, left, "BatchMatMulOptions", {"adjY": True}))

    def elements(self) -> Iterator[Probe[GraphBuilder]]:
        """Functions in a row or apart, and means."""
        counts = [count * self.threads for count in _ELEMENTS]
        for function in (*_UNARY, *_BINARY):
            for dtype in ("f32", "qs8") if function in _ALSO_QUANTISED else ("f32",):
                candidates = [_chained(function, dtype, count) for count in counts]
                yield Probe(candidates, partial(_is_function, function=function, dtype=dtype))
        for function, operator, source, target, scale in _APART:
            candidates = [
                _apart(function, operator, source, target, scale, count * self.threads) for count in _ELEMENTS_APART
            ]
            yield Probe(candidates, partial(_is_function, function=function, dtype=source))
        for dtype in ("f32", "qs8"):
            candidates = [_mean(dtype, count) for count in counts]
            yield Probe(candidates, partial(_is_function, function="Mean", dtype=dtype))

    def passes(self, pattern: Pattern, size: int) -> int:
        """A copy stands alone, and only where it takes long enough."""
        passes = _PASSED_AT_ONCE // size
        if pattern is Pattern.COPY:
            return int(size >= _SMALLEST_COPY)
        return max(1, min(32, passes)) if pattern is Pattern.READ else max(_UPDATES, min(64, passes))

    def passing(self, graph: GraphBuilder, pattern: Pattern, dims: Sizes, times: int) -> None:
        """Sums of the same tensor, functions in a row, which the delegate computes in place, or a change of shape."""
        if pattern is Pattern.READ:
            given, axes = graph.given("f32", dims), graph.numbers((1,))
            for _ in range(times):
                left = graph.made("f32", dims[:1])
                graph.leaves(graph.add("SUM", (given, axes), left, "ReducerOptions", {"keepDims": False}))
        elif pattern is Pattern.UPDATE:
            last = graph.given("f32", dims)
            for _ in range(times):
                last = graph.add("ABS", (last,), graph.made("f32", dims))
            graph.leaves(last)
        else:
            count = math.prod(dims)
            given, sizes = graph.given("f32", (1, count)), graph.numbers((count,))
            left = graph.made("f32", (count,))
            graph.leaves(graph.add("RESHAPE", (given, sizes), left, "ReshapeOptions", {"newShape": [count]}))

    def tiny(self, graph: GraphBuilder, dispatch: Dispatch, dims: Sizes) -> None:
        """In a row."""
        operator, options, fields = _UNARY[self.operators[dispatch]]
        last = graph.given("f32", dims)
        for _ in range(self.tiny_at_once):
            last = graph.add(operator, (last,), graph.made("f32", dims), options, fields)
        graph.leaves(last)


def _bias(graph: GraphBuilder, activation: str, channels: int) -> int:
    return graph.bias(channels) if activation == "qs8" else graph.weights("f32", (channels,))


def _is_function(name: str, function: str, dtype: str) -> bool:
    """Whether an event is of a function; one of int8 may be looked up. Targets of conversions do not count."""
    operator = operator_name(name).partition(" to ")[0]
    return operator == function.partition(" to ")[0] or (dtype == "qs8" and operator == _LOOKUP)


def _chained(function: str, dtype: str, count: int) -> ProbeCandidate[GraphBuilder]:
    """The operator on its own output, again and again; a sum adds the input each time."""
    dims = (count // ROW, ROW)
    operator, options, fields = (*_BINARY[function], {}) if function in _BINARY else _UNARY[function]

    def build(graph: GraphBuilder) -> None:
        last = graph.given(dtype, dims)
        second = [graph.given(dtype, dims)] if function in _BINARY else []
        for _ in range(_CHAIN):
            last = graph.add(operator, (last, *second), graph.made(dtype, dims), options, fields)
        graph.leaves(last)

    return element_candidate(function, dtype, dims, _CHAIN, build)


def _apart(
    function: str, operator: str, source: str, target: str, scale: tuple[float, int], count: int
) -> ProbeCandidate[GraphBuilder]:
    dims = (count // ROW, ROW)

    def build(graph: GraphBuilder) -> None:
        given = graph.given(source, dims)
        for _ in range(_TIMES_APART):
            graph.leaves(graph.add(operator, (given,), graph.made(target, dims, *scale)))

    return element_candidate(function, source, dims, _TIMES_APART, build)


def _mean(dtype: str, count: int) -> ProbeCandidate[GraphBuilder]:
    dims = (1, *MEAN_IMAGE, count // math.prod(MEAN_IMAGE))

    def build(graph: GraphBuilder) -> None:
        given, axes = graph.given(dtype, dims), graph.numbers((1, 2))
        for _ in range(_TIMES_APART):
            left = graph.made(dtype, (1, dims[-1]))
            graph.leaves(graph.add("MEAN", (given, axes), left, "ReducerOptions", {"keepDims": False}))

    return element_candidate("Mean", dtype, dims, _TIMES_APART, build)


_FUNCTION = "LiteRtRunCompiledModel"


def main(arguments: Sequence[str]) -> int:
    """Answer one request; see :func:`opscope.runtimes.child.answer_request`."""
    return answer_request(Path(arguments[0]), CeilingsRequest, serve, RefusedError, MemoryError)


def serve(request: CeilingsRequest, began: int) -> tuple[Ceilings, MaskProof | None]:
    """Measure the ceilings in this process."""
    installed, graphs = installed_litert(), SignatureProbes(request.threads, request.again)
    models = _Models(installed.library, request.threads, graphs.probes)
    ceilings = measured_ceilings(request, graphs, models.runner, {PACKAGE: installed.version}, began)
    # Kernels are chosen when models are opened: asked behind that, the counters hold all questions.
    return ceilings, proof(Path(request.record)) if request.record is not None else None


class _Runner:
    """A signature that can be run."""

    def __init__(self, run: Callable[[], int], operators: Sequence[str]) -> None:
        self._run, self.operators = run, operators

    def invoke(self) -> None:
        status = self._run()
        if status:
            raise RefusedError(_FUNCTION, f"status {status}")

    def delete(self) -> None:
        """Its memory is the model's, which lives as long as the process."""


class _Models:
    """The candidates of all probes as signatures of models, one for each kind of ceiling, made when first asked for."""

    def __init__(self, library: Path, threads: int, probes: Sequence[Probe[GraphBuilder]]) -> None:
        self._library, self._threads = library, threads
        self._parts: dict[str, list[Candidate]] = {}
        for probe in probes:
            for candidate in probe.candidates:
                self._parts.setdefault(_part(candidate), []).append(candidate)
        self._runners: dict[str, dict[int, _Runner] | str] = {}
        self._kept: list[CompiledModel] = []

    def runner(self, candidate: Candidate) -> _Runner:
        """What runs a candidate."""
        part = _part(candidate)
        if part not in self._runners:
            self._runners[part] = self._opened(self._parts[part])
        runners = self._runners[part]
        if isinstance(runners, str):
            raise RefusedError("LiteRtCreateCompiledModel", runners)
        return runners[id(candidate)]

    def _opened(self, candidates: Sequence[Candidate]) -> dict[int, _Runner] | str:
        """Runners by candidate, or why there are none."""
        model = ModelBuilder()
        for candidate in candidates:
            candidate.build(model.graph())
        with tempfile.TemporaryDirectory(dir=".") as directory:
            file = Path(directory) / "ceilings.tflite"
            file.write_bytes(model.content())
            try:
                names = self._names(file)
                opened = self._model(file, profiled=False)
                calls = opened.calls()
            except RunError as error:
                return error.problem
        self._kept.append(opened)
        runners = [_Runner(calls[str(number)].run, own) for number, own in enumerate(names)]
        return {id(one): runner for one, runner in zip(candidates, runners, strict=True)}

    def _names(self, file: Path) -> list[list[str]]:
        """Names of the operators that each signature runs."""
        model, names = self._model(file, profiled=True), []
        for call in model.calls().values():
            model.profile()
            check_status(call.run(), _FUNCTION)
            names.append([event.tag for event in model.events() if event.type in (OPERATOR, DELEGATE_OP)])
        model.close()
        return names

    def _model(self, file: Path, *, profiled: bool) -> CompiledModel:
        return CompiledModel(self._library, str(file), DELEGATE, self._threads, profiled=profiled)


def _part(candidate: Candidate) -> str:
    """Candidates of one part share a model."""
    ceiling = candidate.ceiling
    return f"{type(ceiling).__name__} {getattr(ceiling, 'dtype', '')}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
