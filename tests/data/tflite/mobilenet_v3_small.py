"""Make mobilenet_v3_small.tflite: the registered model of that name, with its own seeded weights, for LiteRT.

The weights come out of PyTorch, the .tflite out of tensorflow; the two environments need not be the same:

    python tests/data/tflite/mobilenet_v3_small.py weights weights.npz          (opscope[export])
    python tests/data/tflite/mobilenet_v3_small.py convert weights.npz DIRECTORY (tensorflow-cpu 2.21.0, numpy)
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

Weights = dict[str, Any]


def weights(out: Path) -> None:
    """Write kernels and biases by layer, batch norms folded into the convolutions before them."""
    import torch

    from opscope.runtimes.executorch.export.models.mobilenet_v3 import ConvNormAct, build

    module, found = build().module, {}
    for layer in module.modules():
        if isinstance(layer, ConvNormAct):
            folded = torch.nn.utils.fuse_conv_bn_eval(layer[0], layer[1])
            layer[0], layer[1] = folded, torch.nn.Identity()
    for name, layer in module.named_modules():
        if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
            found[f"{name}.weight"] = layer.weight.detach().numpy()
            found[f"{name}.bias"] = layer.bias.detach().numpy()
    np.savez(out, **found)


def convert(kept: Weights, out: Path) -> None:  # noqa: C901 - the network is one function after the other
    """Write the network as a .tflite for images of shape (1, 224, 224, 3)."""
    import tensorflow as tf

    blocks = (
        # kernel, stride, squeeze-and-excite, hard swish, residual, expansion: table 2 of the paper
        (3, 2, True, False, False, False),
        (3, 2, False, False, False, True),
        (3, 1, False, False, True, True),
        (5, 2, True, True, False, True),
        (5, 1, True, True, True, True),
        (5, 1, True, True, True, True),
        (5, 1, True, True, False, True),
        (5, 1, True, True, True, True),
        (5, 2, True, True, False, True),
        (5, 1, True, True, True, True),
        (5, 1, True, True, True, True),
    )

    def hard_sigmoid(x: Any) -> Any:
        return tf.nn.relu6(x + 3.0) * (1 / 6)

    def hard_swish(x: Any) -> Any:
        return x * hard_sigmoid(x)

    def conv(x: Any, name: str, stride: int = 1) -> Any:
        kernel = kept[f"{name}.weight"]
        pad = kernel.shape[-1] // 2
        x = tf.pad(x, [[0, 0], [pad, pad], [pad, pad], [0, 0]]) if pad else x
        if kernel.shape[1] == 1 and kernel.shape[0] == x.shape[-1] and pad:
            y = tf.nn.depthwise_conv2d(x, kernel.transpose(2, 3, 0, 1), [1, stride, stride, 1], "VALID")
        else:
            y = tf.nn.conv2d(x, kernel.transpose(2, 3, 1, 0), stride, "VALID")
        return tf.nn.bias_add(y, kept[f"{name}.bias"])

    def squeezed(x: Any, name: str) -> Any:
        pooled = tf.reduce_mean(x, [1, 2], keepdims=True)
        return x * hard_sigmoid(conv(tf.nn.relu(conv(pooled, f"{name}.reduce")), f"{name}.expand"))

    def block(x: Any, name: str, row: tuple[Any, ...]) -> Any:
        _, stride, squeeze, swish, residual, expands = row
        act, y, at = (hard_swish if swish else tf.nn.relu), x, 0
        if expands:
            y, at = act(conv(y, f"{name}.layers.{at}.0")), at + 1
        y, at = act(conv(y, f"{name}.layers.{at}.0", stride)), at + 1
        if squeeze:
            y, at = squeezed(y, f"{name}.layers.{at}"), at + 1
        y = conv(y, f"{name}.layers.{at}.0")
        return x + y if residual else y

    def network(image: Any) -> Any:
        x = hard_swish(conv(image, "features.0.0", 2))
        for number, row in enumerate(blocks, 1):
            x = block(x, f"features.{number}", row)
        x = hard_swish(conv(x, f"features.{len(blocks) + 1}.0"))
        x = tf.reduce_mean(x, [1, 2])
        x = hard_swish(tf.matmul(x, kept["classifier.0.weight"].T) + kept["classifier.0.bias"])
        return tf.matmul(x, kept["classifier.2.weight"].T) + kept["classifier.2.bias"]

    spec = tf.TensorSpec((1, 224, 224, 3), tf.float32, name="image")
    traced = tf.function(network, input_signature=[spec])
    converter = tf.lite.TFLiteConverter.from_concrete_functions([traced.get_concrete_function()])
    (out / "mobilenet_v3_small.tflite").write_bytes(converter.convert())


if __name__ == "__main__":
    step, file, *rest = sys.argv[1:]
    if step == "weights":
        weights(Path(file))
    else:
        with np.load(file) as arrays:
            convert(dict(arrays), Path(rest[0]))
