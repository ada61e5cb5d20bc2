"""Names of layers from the tensors that operators leave, as converters write them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from opscope.api import analyze
from opscope.runtimes.litert.lowering import layer_names, layer_of
from opscope.runtimes.litert.tflite import read_tflite

DATA = Path(__file__).parents[2] / "data"


def named(operator: str, tensor: str) -> str:
    """The layer of an operator whose output is called so."""
    graph = read_tflite(DATA / "litert" / "partial.tflite").subgraphs[0]
    own = msgspec.structs.replace(graph.operators[0], name=operator)
    made = msgspec.structs.replace(graph.tensors[own.outputs[0]], name=tensor)
    tensors = tuple(made if place == own.outputs[0] else one for place, one in enumerate(graph.tensors))
    return layer_of(msgspec.structs.replace(graph, tensors=tensors), own).path


@pytest.mark.parametrize(
    ("operator", "tensor", "layer"),
    [
        (
            "CONV_2D",
            "model_1/model/bn_3/FusedBatchNormV3;model_1/model/dw_1/depthwise;model_1/model/conv_3/Conv2D",
            "conv_3",
        ),
        ("DEPTHWISE_CONV_2D", "re_lu_7/Relu6;bn_10/FusedBatchNormV3;dw_3/depthwise;conv_29/Conv2D", "dw_3"),
        ("CONV_2D", "StatefulPartitionedCall/BLOCK_2-1_CONV_1/Conv2D1", "BLOCK_2-1_CONV_1"),
        ("FULLY_CONNECTED", "encoder/layer_0/query/MatMul;encoder/layer_0/query/BiasAdd", "encoder.layer_0.query"),
        ("CONV_2D", "Relu6_7;add_8;Conv2D_14", "Conv2D_14"),
        ("ADD", "add_21__xeno_compat__1", "add_21__xeno_compat__1"),
        ("DEQUANTIZE", "conv2d_2/Kernel_dequantize", "conv2d_2.Kernel"),
        ("RESHAPE", "", ""),
        ("RESHAPE", ";;/", ""),
        ("RESHAPE", "x" * 9999, "x" * 200),
        ("CONV_2D", "net.Net/net.CausalConv_2;", "2"),
        ("CONV_2D", "net.Net/net.Norm_1;;net.Net/net.Causal_0;1", "0"),
        ("ADD", "net.Net/net.Norm_1;;net.Net/net.Causal_0;1", "1"),
        ("ADD", "net.Net/net._Hidden_BN_in_1;", "in_1"),
        ("ADD", "net.Net;", ""),
        ("ADD", "a.1/block/add", "a.1.block"),
        ("ADD", "model/block.1_x/add", "block.1_x"),
    ],
)
def test_a_layer_is_named_as_its_tensor_tells(operator: str, tensor: str, layer: str) -> None:
    """Without the operation and what called the model; an attribute begins behind its class."""
    assert named(operator, tensor) == layer


def test_reports_show_layers_of_a_trace() -> None:
    """Beside the kernels that ran, delegated or not."""
    trace, program = DATA / "litert" / "partial.litert.json", DATA / "litert" / "partial.tflite"
    names = {one.path for one in layer_names(read_tflite(program).subgraphs[0]).values()}
    shown = {row.module for row in analyze(trace, program=program).operators if row.module}
    assert shown
    assert shown <= names


def test_modules_of_pytorch_are_found_in_a_file_of_its_converter() -> None:
    """As the model names them, with their classes; a product is not called after what it took up."""
    graph = read_tflite(DATA / "tflite" / "torch_named.tflite").subgraphs[0]
    layers = layer_names(graph)
    named = [(graph.operators[number].name, own.path, own.types[-1:]) for number, own in layers.items()]
    conv, act = ("torch.nn.modules.conv.Conv2d",), ("torch.nn.modules.activation.Hardswish",)
    assert named[1:5] == [
        ("CONV_2D", "stem.conv_in", conv),
        ("HARD_SWISH", "stem.act", act),
        ("CONV_2D", "blocks.0.conv_in", conv),
        ("HARD_SWISH", "blocks.0.act", act),
    ]
    linear = ("torch.nn.modules.linear.Linear",)
    assert {("FULLY_CONNECTED", "head.0", linear), ("FULLY_CONNECTED", "head.2", linear)} <= set(named)
    sums = [number for number, operator in enumerate(graph.operators) if operator.name == "ADD"]
    assert sums
    assert not set(sums) & layers.keys()  # of the model itself, which is no layer
    assert layers[3].modules() == {
        "blocks": "torch.nn.modules.container.Sequential",
        "blocks.0": "__main__.Conv_Block",
        "blocks.0.conv_in": "torch.nn.modules.conv.Conv2d",
    }
