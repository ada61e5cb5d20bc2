"""Makes two models that LiteRT's compiled-model API refuses and its Interpreter runs. Needs ai-edge-litert.

    python tests/data/litert/interpreted.py

``stateful`` has a recurrent layer, whose state is a variable tensor. ``topk`` is told at run time how many of the
largest values it looks for, so that the sizes of its outputs are known after a call only.
"""

from __future__ import annotations

from pathlib import Path

from opscope.runtimes.litert.ceilings.graphs import ABSENT, GraphBuilder, ModelBuilder

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


def _dense(graph: GraphBuilder, given: int, outputs: int) -> int:
    values = [given, graph.weights("f32", (outputs, WIDTH)), ABSENT]
    return graph.add("FULLY_CONNECTED", values, graph.made("f32", (1, outputs)), "FullyConnectedOptions")


_TANH = 4

if __name__ == "__main__":
    for make in (stateful, topk):
        Path(__file__).with_name(f"{make.__name__}.tflite").write_bytes(make())
