"""Make the small .onnx files beside this script.

Run it with an environment of its own that has onnx 1.23.2 (the package never needs it):

    python tests/data/onnx/make.py tests/data/onnx
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT8, INT64 = TensorProto.FLOAT, TensorProto.INT8, TensorProto.INT64
_ANY = np.random.default_rng(0)


class Graph:
    """Nodes and weights of a graph while it is written."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, name: str, values: np.ndarray) -> str:
        """A stored tensor."""
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def node(self, op: str, inputs: list[str], output: str, **options: object) -> str:
        """An operator, named by the layer path of its output."""
        name = f"/{output.replace('.', '/')}/{op}"
        self.nodes.append(helper.make_node(op, inputs, [output], name=name, **options))
        return output

    def conv(  # noqa: PLR0913 - the options of a convolution
        self, x: str, layer: str, given: int, made: int, size: int, *, groups: int = 1, stride: int = 1
    ) -> str:
        """A convolution with bias that keeps the size divided by the stride."""
        weight = (_ANY.standard_normal((made, given // groups, size, size)) * 0.2).astype("f")
        names = [x, self.weight(f"{layer}.weight", weight), self.weight(f"{layer}.bias", np.zeros(made, "f"))]
        pads, strides = [size // 2] * 4, [stride] * 2
        return self.node("Conv", names, layer, kernel_shape=[size, size], pads=pads, strides=strides, group=groups)

    def model(
        self, inputs: dict[str, tuple[int, list[object]]], outputs: dict[str, tuple[int, list[object]]]
    ) -> onnx.ModelProto:
        """The whole model."""
        sides = [
            [helper.make_tensor_value_info(name, *own) for name, own in side.items()] for side in (inputs, outputs)
        ]
        graph = helper.make_graph(self.nodes, "main", *sides, self.weights)
        found = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9, producer_name="opscope"
        )
        onnx.checker.check_model(found)
        return found


def cnn() -> onnx.ModelProto:
    """Convolutions with activations, a residual, pooling and a layer."""
    g = Graph()
    x = g.node("Relu", [g.conv("image", "stem", 3, 16, 3, stride=2)], "stem.act")
    x = g.node("Relu", [g.conv(x, "dw", 16, 16, 3, groups=16)], "dw.act")
    y = g.conv(x, "pw", 16, 16, 1)
    x = g.node("Add", [y, g.node("Relu", [g.conv(y, "conv", 16, 16, 3)], "conv.act")], "add")
    x = g.node("Flatten", [g.node("GlobalAveragePool", [x], "pool")], "flat")
    weight = (_ANY.standard_normal((16, 8)) * 0.2).astype("f")
    names = [x, g.weight("fc.weight", weight), g.weight("fc.bias", np.zeros(8, "f"))]
    g.node("Gemm", names, "logits")
    return g.model({"image": (FLOAT, [1, 3, 64, 64])}, {"logits": (FLOAT, [1, 8])})


def images() -> onnx.ModelProto:
    """The network of ``images.tflite``, whose images have their channels last."""
    g = Graph()
    x = g.node("Relu", [g.conv("x", "stem", 3, 8, 3, stride=2)], "stem.act")
    limits = [g.weight("least", np.zeros((), "f")), g.weight("most", np.full((), 6, "f"))]
    y = g.node("Clip", [g.conv(x, "dw", 8, 8, 3, groups=8), *limits], "dw.act")
    x = g.node("Add", [x, g.conv(y, "pw", 8, 8, 1)], "add")
    x = g.node("Flatten", [g.node("GlobalAveragePool", [x], "pool")], "flat")
    weight = (_ANY.standard_normal((8, 4)) * 0.2).astype("f")
    g.node("Gemm", [x, g.weight("fc.weight", weight), g.weight("fc.bias", np.zeros(4, "f"))], "logits")
    return g.model({"x": (FLOAT, [1, 3, 224, 224])}, {"logits": (FLOAT, [1, 4])})


def products(size: int = 256, layers: int = 4) -> onnx.ModelProto:
    """A chain of matrix products."""
    g, x = Graph(), "x"
    for layer in range(layers):
        weight = (_ANY.standard_normal((size, size)) / np.sqrt(size)).astype("f")
        x = g.node("MatMul", [x, g.weight(f"layers.{layer}.weight", np.round(weight, 1))], f"layers.{layer}.product")
        x = g.node("Tanh", [x], f"layers.{layer}.act")
    return g.model({"x": (FLOAT, [size, size])}, {x: (FLOAT, [size, size])})


def quantised(size: int = 64) -> onnx.ModelProto:
    """A product of int8, its data quantised when it runs."""
    g = Graph()
    g.nodes.append(
        helper.make_node(
            "DynamicQuantizeLinear", ["x"], ["x.int8", "x.scale", "x.zero"], name="/quantise/DynamicQuantizeLinear"
        )
    )
    weight = _ANY.integers(-100, 100, (size, size)).astype("int8")
    names = ["x.int8", g.weight("weight", weight), "x.zero", g.weight("weight.zero", np.zeros((), "int8"))]
    x = g.node("Cast", [g.node("MatMulInteger", names, "product")], "real", to=FLOAT)
    g.node("Mul", [x, "x.scale"], "y")
    return g.model({"x": (FLOAT, [size, size])}, {"y": (FLOAT, [size, size])})


def open_sizes() -> onnx.ModelProto:
    """Sizes that the caller chooses."""
    g = Graph()
    weight = g.weight("weight", _ANY.standard_normal((8, 4)).astype("f"))
    g.node("MatMul", ["x", weight], "y")
    return g.model({"x": (FLOAT, ["batch", 8])}, {"y": (FLOAT, ["batch", 4])})


def branch() -> onnx.ModelProto:
    """A condition, whose branches are graphs."""
    g = Graph()
    branches = {}
    for name, op in (("then_branch", "Exp"), ("else_branch", "Neg")):
        result = f"{op.lower()}.out"
        node = helper.make_node(op, ["x"], [result], name=f"/{name}/{op}")
        branches[name] = helper.make_graph([node], name, [], [helper.make_tensor_value_info(result, FLOAT, [4])])
    total = g.node("ReduceSum", ["x"], "total", keepdims=0)
    condition = g.node("Greater", [total, g.weight("zero", np.zeros((), "f"))], "condition")
    g.node("If", [condition], "y", **branches)
    return g.model({"x": (FLOAT, [4])}, {"y": (FLOAT, [4])})


MODELS = {
    "cnn": cnn,
    "images": images,
    "products": lambda: products(64, 2),
    "quantised": quantised,
    "open_sizes": open_sizes,
    "branch": branch,
}


def main(folder: Path) -> None:
    """Write every model, and one whose weights are in a file beside it."""
    for name, make in MODELS.items():
        (folder / f"{name}.onnx").write_bytes(make().SerializeToString())
    options = {"save_as_external_data": True, "location": "external.bin", "size_threshold": 0}
    onnx.save_model(open_sizes(), str(folder / "external.onnx"), **options)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
