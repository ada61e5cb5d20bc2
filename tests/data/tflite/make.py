"""Make the small .tflite files beside this script, each with a known order of operators.

Run it with an environment of its own that has tensorflow-cpu 2.21.0 (the package never needs it):

    python tests/data/tflite/make.py tests/data/tflite
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable

L = tf.keras.layers
IMAGE = (1, 16, 16, 3)


def _weights(*shape: int) -> tf.Tensor:
    return tf.constant(np.random.default_rng(sum(shape)).standard_normal(shape).astype("f") * 0.1)


def _conv(x: tf.Tensor, out: int, size: int = 3, stride: int = 1, padding: str = "SAME") -> tf.Tensor:
    return tf.nn.bias_add(tf.nn.conv2d(x, _weights(size, size, x.shape[-1], out), stride, padding), _weights(out))


def _depthwise(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.relu6(tf.nn.depthwise_conv2d(x, _weights(3, 3, x.shape[-1], 1), [1, 1, 1, 1], "SAME"))


def _dense(x: tf.Tensor, out: int) -> tf.Tensor:
    return tf.matmul(x, _weights(x.shape[-1], out)) + _weights(out)


def cnn(x: tf.Tensor) -> tf.Tensor:
    """Convolutions with a residual, a mean and a layer."""
    x = tf.nn.relu(_conv(x, 8, stride=2))
    y = _conv(_depthwise(x), 8, 1)
    return _dense(tf.reduce_mean(x + y, [1, 2]), 4)


def pooled(x: tf.Tensor) -> tf.Tensor:
    """Two poolings; quantised, the average stays outside of the delegate."""
    x = tf.nn.max_pool2d(_conv(x, 4), 2, 2, "VALID")
    return tf.nn.avg_pool2d(x, 2, 2, "VALID")


def mlp(x: tf.Tensor) -> tf.Tensor:
    """Two layers and a softmax; quantised, the softmax stays outside."""
    return tf.nn.softmax(_dense(tf.nn.relu(_dense(x, 16)), 8))


def branches(x: tf.Tensor) -> tf.Tensor:
    """Two convolutions joined."""
    return tf.concat([_conv(x, 4, 1), _conv(x, 4, 3)], -1) * 0.5


def padded(x: tf.Tensor) -> tf.Tensor:
    """A padding that XNNPACK fuses into the convolution."""
    return _conv(tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]), 4, stride=2, padding="VALID")


def activations(x: tf.Tensor) -> tf.Tensor:
    """Unary operators and sums."""
    return tf.nn.sigmoid(x) + tf.nn.tanh(x) - tf.nn.elu(x)


def hardswish(x: tf.Tensor) -> tf.Tensor:
    """A pattern that the converter makes one operator."""
    x = _conv(x, 4)
    return x * tf.nn.relu6(x + 3.0) * (1 / 6)


def leaky(x: tf.Tensor) -> tf.Tensor:
    """A slope for negative inputs."""
    return tf.nn.leaky_relu(_conv(x, 4), 0.1)


def transposed(x: tf.Tensor) -> tf.Tensor:
    """A transposed convolution."""
    return tf.nn.conv2d_transpose(x, _weights(2, 2, 4, 3), (1, 32, 32, 4), 2, "SAME")


def resized(x: tf.Tensor) -> tf.Tensor:
    """A bilinear resizing."""
    return tf.compat.v1.image.resize_bilinear(_conv(x, 4), (32, 32), half_pixel_centers=True)


def attention(x: tf.Tensor) -> tf.Tensor:
    """Two products of computed matrices."""
    scores = tf.nn.softmax(tf.matmul(x, x, transpose_b=True) * 0.25)
    return tf.matmul(scores, x)


def layout(x: tf.Tensor) -> tf.Tensor:
    """A transpose and a reshape."""
    return tf.reshape(tf.transpose(x, [0, 3, 1, 2]), (1, 3, 256)) + 1.0


def outside(x: tf.Tensor) -> tf.Tensor:
    """The cumulative sum stays outside of the delegate and cuts it in two."""
    return _conv(tf.cumsum(_conv(x, 4), 1), 4)


def unary(x: tf.Tensor) -> tf.Tensor:
    """Elementary functions."""
    return tf.sqrt(tf.abs(x)) + tf.exp(-tf.square(x))


def difference(x: tf.Tensor) -> tf.Tensor:
    """A squared difference."""
    return tf.math.squared_difference(_conv(x, 4), _conv(x, 4, 1))


def sliced(x: tf.Tensor) -> tf.Tensor:
    """A slice of an image."""
    return tf.slice(_conv(x, 4), [0, 2, 2, 0], [1, 8, 8, 4]) / 2.0


def prelu(x: tf.Tensor) -> tf.Tensor:
    """Maximum and minimum."""
    return tf.maximum(x, 0.0) + tf.minimum(x, 0.0) * 0.3


def cropped(x: tf.Tensor) -> tf.Tensor:
    """A slice that the converter writes with strides of 1."""
    return _conv(x, 4)[:, 2:10, 1:-1, :] + 1.0


def strided(x: tf.Tensor) -> tf.Tensor:
    """Slices that stay outside: one passes over rows, one drops a dimension."""
    return _conv(x, 4)[:, 2:10:2] + _conv(x, 4, 1)[:, 3, :, :]


def blocks(x: tf.Tensor) -> tf.Tensor:
    """Depth to space and back."""
    return tf.nn.space_to_depth(tf.nn.depth_to_space(_conv(x, 8), 2), 2) + 1.0


def parts(x: tf.Tensor) -> tf.Tensor:
    """A tensor cut into three; into five it stays outside."""
    first, second, third = tf.split(_conv(x, 6), 3, -1)
    others = tf.split(_conv(x, 10), 5, -1)
    return first * second - third + others[0] * others[4]


def reduced(x: tf.Tensor) -> tf.Tensor:
    """Sums, largest and smallest values."""
    return tf.reduce_sum(_conv(x, 4), [1, 2]) + tf.reduce_max(_conv(x, 4), [1, 2]) - tf.reduce_min(_conv(x, 4), [1, 2])


def rounded(x: tf.Tensor) -> tf.Tensor:
    """To whole numbers."""
    return tf.round(_conv(x, 4) * 3.0)


def joined(x: tf.Tensor) -> tf.Tensor:
    """Six tensors, of which the delegate joins five at most."""
    return tf.concat([_conv(x, channels, 1) for channels in range(1, 7)], -1)


def norm(x: tf.Tensor) -> tf.Tensor:
    """A layer norm; quantised, the sum with its small constant stays outside, since the scales differ too much."""
    centred = x - tf.reduce_mean(x, -1, keepdims=True)
    squares = tf.math.squared_difference(x, tf.reduce_mean(x, -1, keepdims=True))
    return centred * tf.math.rsqrt(tf.reduce_mean(squares, -1, keepdims=True) + 1e-5)


def wide(x: tf.Tensor) -> tf.Tensor:
    """Filters large enough to be stored in 8 bits: of a convolution, one of a pixel, a transposed one and a layer."""
    x = _conv(tf.nn.relu(_conv(x, 64)), 64, 1)
    x = tf.nn.conv2d_transpose(x, _weights(4, 4, 16, 64), (1, 32, 32, 16), 2, "SAME")
    return _dense(tf.reduce_mean(_conv(x, 64, 1), [1, 2]), 32)


def halves(x: tf.Tensor) -> tf.Tensor:
    """Weights of float16, unpacked before anything can run: the first operators stay outside."""
    return _dense(tf.expand_dims(tf.cumsum(tf.nn.relu(tf.cumsum(x, 1)), 1), 1), 16)


def sparse(x: tf.Tensor) -> tf.Tensor:
    """Weights that are mostly zero, stored sparse and made dense when the model is loaded."""
    weights = np.zeros((1, 1, 16, 16), "f")
    weights[0, 0, np.arange(16), np.arange(16)] = 0.5
    x = tf.nn.relu(_conv(x, 16))
    return tf.nn.relu(tf.nn.conv2d(x, tf.constant(weights), 1, "SAME") + 0.25)


MODELS: dict[str, tuple[Callable[[tf.Tensor], tf.Tensor], tuple[int, ...]]] = {
    "cnn": (cnn, IMAGE),
    "images": (cnn, (1, 224, 224, 3)),
    "pooled": (pooled, IMAGE),
    "mlp": (mlp, (2, 32)),
    "branches": (branches, IMAGE),
    "padded": (padded, IMAGE),
    "activations": (activations, (1, 64)),
    "hardswish": (hardswish, IMAGE),
    "leaky": (leaky, IMAGE),
    "transposed": (transposed, IMAGE),
    "resized": (resized, IMAGE),
    "attention": (attention, (1, 8, 16)),
    "layout": (layout, IMAGE),
    "outside": (outside, IMAGE),
    "unary": (unary, (1, 64)),
    "difference": (difference, IMAGE),
    "sliced": (sliced, IMAGE),
    "prelu": (prelu, (1, 64)),
    "cropped": (cropped, IMAGE),
    "strided": (strided, IMAGE),
    "blocks": (blocks, IMAGE),
    "parts": (parts, IMAGE),
    "reduced": (reduced, IMAGE),
    "rounded": (rounded, IMAGE),
    "joined": (joined, IMAGE),
    "norm": (norm, (2, 8, 32)),
    "sparse": (sparse, IMAGE),
    "wide": (wide, IMAGE),
    "halves": (halves, (1, 32)),
}
HALVES = ("halves",)
DYNAMIC = ("wide",)
"""Whose weights are stored in 8 bits and whose data are quantised at run time; others have too few weights for it."""
QUANTISED = ("cnn", "pooled", "mlp", "branches", "cropped", "blocks", "reduced", "norm")
SPARSE = ("sparse",)


def convert(name: str, *, quantised: bool, dynamic: bool = False) -> bytes:
    """The bytes of a model."""
    function, shape = MODELS[name]
    traced = tf.function(function, input_signature=[tf.TensorSpec(shape, tf.float32, name="x")])
    converter = tf.lite.TFLiteConverter.from_concrete_functions([traced.get_concrete_function()])
    if name in SPARSE:
        converter.optimizations = [tf.lite.Optimize.EXPERIMENTAL_SPARSITY]
    if name in HALVES:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.target_spec.supported_types = [tf.float16]
    if dynamic:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if quantised:
        samples = np.random.default_rng(0).random((8, *shape)).astype("f")
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ([sample] for sample in samples)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    return bytes(converter.convert())


def main(folder: Path) -> None:
    """Write every model."""
    for name in MODELS.keys() - set(DYNAMIC):
        (folder / f"{name}.tflite").write_bytes(convert(name, quantised=False))
    for name in QUANTISED:
        (folder / f"{name}_int8.tflite").write_bytes(convert(name, quantised=True))
    for name in DYNAMIC:
        (folder / f"{name}_dynamic.tflite").write_bytes(convert(name, quantised=False, dynamic=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
