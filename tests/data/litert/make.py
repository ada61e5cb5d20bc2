"""Makes the small LiteRT models beside this file: ``pip install tensorflow-cpu``, then ``python make.py``.

No test runs it. ``tiny_fp32`` and ``tiny_int8`` are one network: a convolution, a depthwise one, a 1x1 one, a mean and
a dense layer. ``partial`` has a cumulative sum between two convolutions, which XNNPACK does not take.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf  # type: ignore[import-not-found]  # not a dependency of the project

HERE = Path(__file__).parent
LITE = tf.lite
rng = np.random.default_rng(0)


def weights(*shape: int) -> tf.Tensor:
    """Constants of a seed."""
    return tf.constant(rng.standard_normal(shape).astype("float32") * 0.2)


STEM, DEPTHWISE, POINTWISE, DENSE = weights(3, 3, 3, 16), weights(3, 3, 16, 1), weights(1, 1, 16, 32), weights(32, 10)
TURN, BACK = weights(16, 8), weights(8, 16)


def image(batch: int | None = 1) -> list[tf.TensorSpec]:
    """One image."""
    return [tf.TensorSpec((batch, 32, 32, 3), tf.float32, name="image")]


@tf.function(input_signature=image())
def tiny(picture: tf.Tensor) -> tf.Tensor:
    """The network of the first two."""
    found = tf.nn.relu(tf.nn.conv2d(picture, STEM, 2, "SAME"))
    found = tf.nn.relu(tf.nn.depthwise_conv2d(found, DEPTHWISE, [1, 1, 1, 1], "SAME"))
    found = tf.nn.relu(tf.nn.conv2d(found, POINTWISE, 1, "SAME"))
    return tf.matmul(tf.reduce_mean(found, [1, 2]), DENSE)


@tf.function(input_signature=image())
def partial(picture: tf.Tensor) -> tf.Tensor:
    """With an operator between that the delegate leaves out."""
    found = tf.cumsum(tf.nn.relu(tf.nn.conv2d(picture, STEM, 2, "SAME")), axis=1)
    return tf.reduce_mean(tf.nn.conv2d(found, POINTWISE, 1, "SAME"), [1, 2])


@tf.function(input_signature=image(None))
def dynamic(picture: tf.Tensor) -> tf.Tensor:
    """Of any batch size."""
    return tf.nn.conv2d(picture, STEM, 2, "SAME")


@tf.function(input_signature=[tf.TensorSpec((4, 16), tf.float32, name="rows")])
def loop(rows: tf.Tensor) -> tf.Tensor:
    """A loop of five rounds between two products; its body has operators in and outside of the delegate."""
    start = tf.matmul(rows, tf.matmul(TURN, BACK))
    _, found = tf.while_loop(
        lambda turn, _: turn < 5,
        lambda turn, now: (turn + 1, tf.tanh(tf.matmul(now, tf.matmul(TURN, BACK))) + tf.cumsum(now, 1)),
        (tf.constant(0), start),
    )
    return tf.matmul(found, TURN)


@tf.function(input_signature=[tf.TensorSpec((4, 16), tf.float32, name="rows")])
def choice(rows: tf.Tensor) -> tf.Tensor:
    """One of two graphs, by a sum."""
    start = tf.matmul(rows, tf.matmul(TURN, BACK))
    found = tf.cond(tf.reduce_sum(rows) > 0.0, lambda: tf.exp(start), lambda: tf.cumsum(start, 1))
    return tf.matmul(found, TURN)


@tf.function(input_signature=[tf.TensorSpec((1, 4, 4), tf.float32, name="matrix")])
def flex(matrix: tf.Tensor) -> tf.Tensor:
    """With an operator of TensorFlow itself."""
    return tf.linalg.inv(matrix)


class Codec(tf.Module):  # type: ignore[misc]  # likewise
    """Two signatures."""

    @tf.function(input_signature=[tf.TensorSpec((2, 16), tf.float32, name="x")])
    def encode(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        """One input."""
        return {"code": tf.matmul(x, TURN)}

    @tf.function(
        input_signature=[tf.TensorSpec((2, 8), tf.float32, name="c"), tf.TensorSpec((2, 8), tf.float32, name="b")]
    )
    def decode(self, c: tf.Tensor, b: tf.Tensor) -> dict[str, tf.Tensor]:
        """Two inputs."""
        return {"text": tf.matmul(c + b, BACK)}


def converter(function: tf.types.experimental.PolymorphicFunction) -> LITE.TFLiteConverter:
    """Of one function."""
    return LITE.TFLiteConverter.from_concrete_functions([function.get_concrete_function()])


def quantised() -> LITE.TFLiteConverter:
    """Of the network, int8 throughout."""
    found = converter(tiny)
    found.optimizations = [LITE.Optimize.DEFAULT]
    found.representative_dataset = lambda: ([rng.random((1, 32, 32, 3)).astype("float32")] for _ in range(8))
    found.target_spec.supported_ops = [LITE.OpsSet.TFLITE_BUILTINS_INT8]
    return found


def main() -> None:
    """Write all of them."""
    codec, selected = Codec(), converter(flex)
    selected.target_spec.supported_ops = [LITE.OpsSet.TFLITE_BUILTINS, LITE.OpsSet.SELECT_TF_OPS]
    place = tempfile.mkdtemp()
    tf.saved_model.save(codec, place, signatures={"encode": codec.encode, "decode": codec.decode})
    made = {
        "tiny_fp32": converter(tiny),
        "tiny_int8": quantised(),
        "partial": converter(partial),
        "dynamic": converter(dynamic),
        "loop": converter(loop),
        "choice": converter(choice),
        "two_signatures": LITE.TFLiteConverter.from_saved_model(place),
        "flex": selected,
    }
    for name, one in made.items():
        (HERE / f"{name}.tflite").write_bytes(one.convert())


main()
