"""Models whose batch is open, as converters of Keras leave it: work is that of the batch that ran."""

from __future__ import annotations

from pathlib import Path

import pytest

from installed import needs_litert
from litert_builder import GraphBuilder, ModelBuilder
from opscope.api import analyze, profile
from opscope.experiment.planned import Settings

pytestmark = needs_litert
SIZE, CHANNELS, FILTERS, CLASSES = 16, 3, 8, 10
SETTINGS = {"rounds": 1, "runs": 3, "warmup": 1, "ablate": ("none",), "ceilings": False, "lock": "warn"}


def network(*, open_axes: tuple[int, ...] = (0,)) -> bytes:
    """Write a convolution, a mean over the image and a dense layer, whose activations leave some axes open."""
    model = ModelBuilder()
    graph = model.graph()
    image = graph.given("f32", (1, SIZE, SIZE, CHANNELS))
    strides = {"strideW": 1, "strideH": 1, "dilationWFactor": 1, "dilationHFactor": 1}
    weights = [graph.weights("f32", (FILTERS, 3, 3, CHANNELS)), graph.weights("f32", (FILTERS,))]
    features = graph.made("f32", (1, SIZE, SIZE, FILTERS))
    graph.add("CONV_2D", [image, *weights], features, "Conv2DOptions", {"padding": 0, **strides})
    pooled = graph.made("f32", (1, FILTERS))
    graph.add("MEAN", [features, graph.numbers([1, 2])], pooled, "ReducerOptions", {"keepDims": False})
    scores = graph.made("f32", (1, CLASSES))
    dense = [graph.weights("f32", (CLASSES, FILTERS)), graph.weights("f32", (CLASSES,))]
    graph.add("FULLY_CONNECTED", [pooled, *dense], scores, "FullyConnectedOptions", {})
    graph.leaves(scores)
    leave_open(graph, (image, features, pooled, scores), open_axes)
    return model.content()


def leave_open(graph: GraphBuilder, tensors: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """State no size of some axes, where a tensor has them."""
    for number in tensors:
        tensor = graph.graph.tensors[number]
        tensor.shapeSignature = [-1 if axis in axes else size for axis, size in enumerate(tensor.shape)]


@pytest.mark.parametrize("batch", [1, 3])
def test_work_is_that_of_the_batch_that_ran(tmp_path: Path, batch: int) -> None:
    """Multiply-accumulates by hand: each image has a convolution of 3x3 and a dense layer."""
    path = tmp_path / "network.tflite"
    path.write_bytes(network())
    sizes = f"float32[{batch},{SIZE},{SIZE},{CHANNELS}]"
    profile(path, settings=Settings(**SETTINGS, input=(sizes,)), out=tmp_path / "out")
    operators = analyze(tmp_path / "out").operators
    macs = {operator.kind: operator.macs for operator in operators if operator.macs}
    assert sorted(macs.values()) == [batch * FILTERS * CLASSES, batch * SIZE * SIZE * FILTERS * 9 * CHANNELS]
    assert all(operator.bytes for operator in operators if operator.backend == "XNNPACK")
