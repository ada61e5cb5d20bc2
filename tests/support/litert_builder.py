"""Small .tflite models, made operator by operator.

They are made with the schema that LiteRT's package ships. The schema is the flatbuffer's own,
https://github.com/google-ai-edge/LiteRT, ``tflite/converter/schema/schema.fbs``.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opscope.experiment.tensors import Array

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

    def _signature(self, number: int) -> Any:
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
