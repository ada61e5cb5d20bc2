"""Makes ``mediapipe.tflite``: the custom operators that MediaPipe's models call, between others. Needs ai-edge-litert.

    python tests/data/litert/mediapipe.py

Their options are the bytes of C structures: ``TfLitePoolParams`` and ``TfLiteTransposeConvParams``.
"""

from __future__ import annotations

import struct
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

VALID = 2


class _Maker:
    """A model with one graph."""

    def __init__(self) -> None:
        self.schema: Any = import_module("ai_edge_litert.schema_py_generated")
        self.model = self.schema.ModelT()
        self.graph = self.schema.SubGraphT()
        self.model.version, self.model.buffers = 3, [self.schema.BufferT()]
        self.model.operatorCodes, self.model.subgraphs = [], [self.graph]
        self.graph.tensors, self.graph.operators = [], []

    def tensor(self, name: str, shape: tuple[int, ...], data: np.ndarray[Any, Any] | None = None) -> int:
        """Number of a new tensor."""
        made = self.schema.TensorT()
        made.name, made.shape, made.type = name, list(shape), self.schema.TensorType.FLOAT32
        if data is not None:
            content = self.schema.BufferT()
            content.data = np.frombuffer(data.astype(np.float32).tobytes(), np.uint8)
            self.model.buffers.append(content)
            made.buffer = len(self.model.buffers) - 1
        self.graph.tensors.append(made)
        return len(self.graph.tensors) - 1

    def operator(self, name: str, inputs: list[int], outputs: list[int], options: bytes = b"") -> None:
        """A custom operator with these options, or a built-in one without any."""
        code, made = self.schema.OperatorCodeT(), self.schema.OperatorT()
        custom = bool(options)
        code.builtinCode = self.schema.BuiltinOperator.CUSTOM if custom else getattr(self.schema.BuiltinOperator, name)
        code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), 1
        if custom:
            code.customCode = name
            made.customOptions = np.frombuffer(options, np.uint8)
        self.model.operatorCodes.append(code)
        made.opcodeIndex, made.inputs, made.outputs = len(self.model.operatorCodes) - 1, inputs, outputs
        self.graph.operators.append(made)


def content() -> bytes:
    """Maxima with their places, put back to these places, and a transposed convolution with a bias."""
    make, random = _Maker(), np.random.default_rng(1)
    image = make.tensor("image", (1, 8, 8, 4))
    most, places = make.tensor("most", (1, 4, 4, 4)), make.tensor("places", (1, 4, 4, 4))
    tanh, back = make.tensor("tanh", (1, 4, 4, 4)), make.tensor("back", (1, 8, 8, 4))
    weights = make.tensor("weights", (3, 2, 2, 4), random.standard_normal((3, 2, 2, 4)))
    bias, larger = make.tensor("bias", (3,), random.standard_normal(3)), make.tensor("larger", (1, 16, 16, 3))
    pool = struct.pack("<10i", VALID, 2, 2, 2, 2, 0, 0, 0, 0, 0)
    make.operator("MaxPoolingWithArgmax2D", [image], [most, places], pool)
    make.operator("TANH", [most], [tanh])
    make.operator("MaxUnpooling2D", [tanh, places], [back], pool)
    make.operator("Convolution2DTransposeBias", [back, weights, bias], [larger], struct.pack("<5i", VALID, 2, 2, 0, 0))
    make.graph.inputs, make.graph.outputs = [image], [larger]
    builder = import_module("flatbuffers").Builder(1 << 14)
    builder.Finish(make.model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


if __name__ == "__main__":
    Path(__file__).with_suffix(".tflite").write_bytes(content())
