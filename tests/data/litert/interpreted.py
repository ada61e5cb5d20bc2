"""Makes models that LiteRT's compiled-model API refuses and its Interpreter runs. Needs ai-edge-litert.

    PYTHONPATH=tests/support python tests/data/litert/interpreted.py

``stateful`` has a recurrent layer, whose state is a variable tensor. ``topk`` is told at run time how many of the
largest values it looks for, so that the sizes of its outputs are known after a call only. ``detection`` ends as models
for object detection do, with a custom operator that LiteRT has, whose outputs the file gives no sizes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flatbuffers import flexbuffers  # type: ignore[import-untyped]  # it has no types

from litert_builder import ABSENT, GraphBuilder, ModelBuilder

WIDTH = 32


def stateful() -> bytes:
    """A dense layer, a recurrent one, and a dense one."""
    model = ModelBuilder()
    graph = model.graph()
    dense = _dense(graph, graph.given("f32", (1, WIDTH)), WIDTH)
    state = graph.made("f32", (1, WIDTH))
    graph.graph.tensors[state].isVariable = True
    inputs = [dense, *(graph.weights("f32", (WIDTH, WIDTH)) for _ in range(2)), graph.weights("f32", (WIDTH,)), state]
    left = graph.made("f32", (1, WIDTH))
    recurrent = graph.add("RNN", inputs, left, "RNNOptions", {"fusedActivationFunction": _TANH})
    graph.leaves(_dense(graph, recurrent, 4))
    return model.content()


def topk() -> bytes:
    """A dense layer, and the largest values of what it gives with their places."""
    model = ModelBuilder()
    graph = model.graph()
    dense = _dense(graph, graph.given("f32", (1, WIDTH)), WIDTH)
    count, values, places = graph.given("i32", (1,)), graph.made("f32", (1, 1)), graph.made("i32", (1, 1))
    graph.graph.tensors[count].shape = []
    for tensor in (values, places):
        graph.graph.tensors[tensor].shapeSignature = [1, -1]
    graph.add("TOPK_V2", [dense, count], values, "TopKV2Options")
    graph.graph.operators[-1].outputs = [values, places]
    graph.leaves(values, places)
    return model.content()


def detection() -> bytes:
    """Boxes from two dense layers, sorted by their scores."""
    model = _CustomModel()
    graph = model.graph()
    given = graph.given("f32", (_ANCHORS, WIDTH))
    boxes = _reshaped(graph, _dense(graph, given, 4), (1, _ANCHORS, 4))
    scores = _reshaped(graph, _dense(graph, given, 3), (1, _ANCHORS, 3))
    anchors = graph.weights("f32", (_ANCHORS, 4))
    outputs = [graph.made("f32", ()) for _ in range(4)]
    graph.add("CUSTOM", [boxes, scores, anchors], outputs[0])
    operator = graph.graph.operators[-1]
    options = {
        **dict.fromkeys(("x_scale", "y_scale", "h_scale", "w_scale"), 1.0),
        **dict.fromkeys(("nms_score_threshold", "nms_iou_threshold"), 0.5),
        "max_detections": 4,
        "max_classes_per_detection": 1,
        "num_classes": 2,
    }
    operator.outputs, operator.customOptions = outputs, np.frombuffer(flexbuffers.Dumps(options), np.uint8)
    graph.leaves(*outputs)
    return model.content()


class _CustomModel(ModelBuilder):
    """A model whose custom operators are all of one name."""

    def content(self) -> bytes:
        """The .tflite."""
        for code in self._model.operatorCodes:
            if code.builtinCode == self.schema.BuiltinOperator.CUSTOM:
                code.customCode = "TFLite_Detection_PostProcess"
        return super().content()


def _reshaped(graph: GraphBuilder, given: int, sizes: tuple[int, ...]) -> int:
    left = graph.made("f32", sizes)
    return graph.add("RESHAPE", (given, graph.numbers(sizes)), left, "ReshapeOptions", {"newShape": list(sizes)})


def _dense(graph: GraphBuilder, given: int, outputs: int) -> int:
    values = [given, graph.weights("f32", (outputs, WIDTH)), ABSENT]
    return graph.add("FULLY_CONNECTED", values, graph.made("f32", (1, outputs)), "FullyConnectedOptions")


_TANH, _ANCHORS = 4, 16

if __name__ == "__main__":
    for make in (stateful, topk, detection):
        Path(__file__).with_name(f"{make.__name__}.tflite").write_bytes(make())
