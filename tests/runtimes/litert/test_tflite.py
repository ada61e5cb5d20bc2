"""LiteRT programs: what a file holds, and what a damaged one gives."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random

import msgspec
import pytest

from opscope.core.errors import TraceFormatError
from opscope.program.xnnpack.graph import QuantisationKind
from opscope.runtimes.litert.lowering import lowered
from opscope.runtimes.litert.tflite import decode_tflite, read_tflite

MODELS = Path(__file__).parents[2] / "data" / "tflite"


def test_operators_with_their_options() -> None:
    """The operators in order, with what the file says of each."""
    graph = read_tflite(MODELS / "cnn.tflite").subgraphs[0]
    assert [operator.name for operator in graph.operators] == [
        *("CONV_2D", "DEPTHWISE_CONV_2D", "CONV_2D", "ADD", "MEAN", "FULLY_CONNECTED")
    ]
    first = graph.operators[0]
    assert (first.options.activation, first.options.strides, first.options.same) == ("RELU", (2, 2), True)
    data, weights = (graph.tensors[number] for number in first.inputs[:2])
    assert (data.shape, data.dtype.name, data.constant) == ((1, 16, 16, 3), "float32", False)
    assert (weights.shape, weights.bytes, weights.constant) == ((8, 3, 3, 3), 8 * 3 * 3 * 3 * 4, True)
    axes = graph.tensors[graph.operators[4].inputs[1]]
    assert axes.values == (1, 2)


def test_quantisation_of_a_tensor_and_of_its_channels() -> None:
    """One scale with its zero point, and one for each channel."""
    graph = read_tflite(MODELS / "cnn_int8.tflite").subgraphs[0]
    convolution = next(operator for operator in graph.operators if operator.name == "CONV_2D")
    data, weights = (graph.tensors[number].quantisation for number in convolution.inputs[:2])
    assert (data.kind, data.channel) == (QuantisationKind.PER_TENSOR, None)
    assert data.scale is not None
    assert (weights.kind, weights.scales, weights.scale, weights.channel) == (QuantisationKind.PER_CHANNEL, 8, None, 0)


def test_a_file_cut_off_anywhere_is_refused() -> None:
    """No length gives anything but an error of the format, or the whole model where only padding is gone."""
    whole = (MODELS / "outside.tflite").read_bytes()
    model = decode_tflite(whole, "whole")
    for length in range(len(whole)):
        with suppress(TraceFormatError):
            cut = decode_tflite(whole[:length], "cut")
            assert [g.operators for g in cut.subgraphs] == [g.operators for g in model.subgraphs]


@pytest.mark.parametrize("name", ["outside", "cnn_int8", "attention"])
def test_changed_bytes_are_read_or_refused(name: str) -> None:
    """Damage ends in an error of the format or in a model that can be lowered."""
    whole, random = (MODELS / f"{name}.tflite").read_bytes(), Random(7)
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(random.randint(1, 4)):
            damaged[random.randrange(8, len(damaged))] = random.choice((0, 1, 127, 128, 255, random.randrange(256)))
        with suppress(TraceFormatError):
            model = decode_tflite(bytes(damaged), "damaged")
            lowered(model)
            lowered(model, delegated=False)


@pytest.mark.parametrize("name", ["DEQUANTIZE", "FULLY_CONNECTED", "TRANSPOSE_CONV", "ADD"])
def test_an_operator_without_inputs_stays_outside(name: str) -> None:
    """A damaged file can list an operator without its inputs."""
    model = read_tflite(MODELS / "mlp.tflite")
    graph = model.subgraphs[0]
    bare = msgspec.structs.replace(graph.operators[0], name=name, inputs=())
    damaged = msgspec.structs.replace(graph, operators=(bare, *graph.operators[1:]))
    method = lowered(msgspec.structs.replace(model, subgraphs=(damaged,))).methods["serving_default"]
    assert "missing" in (method.reasons or {})[0].text


def test_another_version_is_refused() -> None:
    """A version of the schema that was never seen may mean anything."""
    whole = bytearray((MODELS / "mlp.tflite").read_bytes())
    place = int.from_bytes(whole[:4], "little")
    table = place - int.from_bytes(whole[place : place + 4], "little", signed=True)
    field = place + int.from_bytes(whole[table + 4 : table + 6], "little")
    whole[field] = 4
    with pytest.raises(TraceFormatError, match="unsupported schema version 4"):
        decode_tflite(bytes(whole), "other")


def test_another_file_is_named(tmp_path: Path) -> None:
    """What is not a .tflite is refused by its first bytes."""
    path = tmp_path / "model.tflite"
    path.write_bytes(b"GGUF" * 8)
    with pytest.raises(TraceFormatError, match="a GGUF model"):
        read_tflite(path)
