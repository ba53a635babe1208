"""Freezes the TensorFlow graphs beside it, with the weights left out: python export_tensorflow.py.

Needs tensorflow-cpu 2.21; no accelerator. Weights are random and never written. TensorFlow's own
shapes stay in the files as `_output_shapes`; autopar works out those of what it knows by itself.
"""

from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

FOLDER = Path(__file__).parent
LARGEST = 64  # elements of the constants that stay: shapes, axes, scales
BATCH, TOKENS, HIDDEN, HEADS, VOCABULARY = 4, 32, 64, 4, 1000


def variable(*shape: int) -> tf.Variable:
    return tf.Variable(tf.random.normal(shape))


class Transformer(tf.Module):
    """Two layers as BERT's first code had them: products on rows, norms in single operators."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = variable(VOCABULARY, HIDDEN), variable(TOKENS, HIDDEN)
        self.layers = [
            {
                "qkvo": [variable(HIDDEN, HIDDEN) for _ in range(4)],
                "bias": [variable(HIDDEN) for _ in range(4)],
                "up": variable(HIDDEN, 4 * HIDDEN), "up_bias": variable(4 * HIDDEN),
                "down": variable(4 * HIDDEN, HIDDEN), "down_bias": variable(HIDDEN),
                "gain": [variable(HIDDEN) for _ in range(2)],
                "shift": [variable(HIDDEN) for _ in range(2)],
            }
            for _ in range(2)
        ]  # fmt: skip

    @staticmethod
    def norm(x: tf.Tensor, gain: tf.Variable, shift: tf.Variable) -> tf.Tensor:
        mean = tf.reduce_mean(x, -1, keepdims=True)
        variance = tf.reduce_mean(tf.math.squared_difference(x, mean), -1, keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + 1e-6) * gain + shift

    @tf.function(input_signature=[tf.TensorSpec([None, TOKENS], tf.int32, name="ids")])
    def logits(self, ids: tf.Tensor) -> tf.Tensor:
        batch = tf.shape(ids)[0]
        x = tf.gather(self.table, ids) + self.places[tf.newaxis]
        x = tf.reshape(x, [batch * TOKENS, HIDDEN])
        for layer in self.layers:
            q, k, v = (
                tf.transpose(
                    tf.reshape(
                        tf.nn.bias_add(x @ weight, bias), [batch, TOKENS, HEADS, HIDDEN // HEADS]
                    ),
                    [0, 2, 1, 3],
                )
                for weight, bias in zip(layer["qkvo"][:3], layer["bias"][:3], strict=True)
            )
            scores = tf.matmul(q, k, transpose_b=True) * (HIDDEN // HEADS) ** -0.5
            mixed = tf.transpose(tf.nn.softmax(scores) @ v, [0, 2, 1, 3])
            mixed = tf.reshape(mixed, [-1, HIDDEN]) @ layer["qkvo"][3] + layer["bias"][3]
            x = self.norm(x + mixed, layer["gain"][0], layer["shift"][0])
            up = tf.nn.gelu(x @ layer["up"] + layer["up_bias"])
            down = up @ layer["down"] + layer["down_bias"]
            x = self.norm(x + down, layer["gain"][1], layer["shift"][1])
        first = tf.squeeze(tf.reshape(x, [batch, TOKENS, HIDDEN])[:, 0:1], 1)
        return tf.matmul(first, self.table, transpose_b=True)


class Images(tf.Module):
    """The operators of image networks: residual, depthwise and side-by-side convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.same = variable(7, 7, 3, 16), variable(3, 3, 16, 16)
        self.down, self.short = variable(3, 3, 16, 32), variable(1, 1, 16, 32)
        self.depth, self.point = variable(3, 3, 32, 2), variable(1, 1, 64, 32)
        self.bias, self.head = variable(32), variable(64, 10)
        self.norms = {size: [variable(size) for _ in range(4)] for size in (16, 32)}

    def norm(self, x: tf.Tensor) -> tf.Tensor:
        gain, shift, mean, variance = self.norms[x.shape[-1]]
        y, _, _ = tf.compat.v1.nn.fused_batch_norm(
            x, gain, shift, mean, variance, is_training=False
        )
        return y

    @tf.function(input_signature=[tf.TensorSpec([None, 64, 64, 3], tf.float32, name="image")])
    def classes(self, image: tf.Tensor) -> tf.Tensor:
        x = tf.pad(image, [[0, 0], [3, 3], [3, 3], [0, 0]])
        x = tf.nn.relu(self.norm(tf.nn.conv2d(x, self.stem, 2, "VALID")))
        x = tf.nn.max_pool2d(x, 3, 2, "SAME")
        x = x + self.norm(tf.nn.conv2d(x, self.same, 1, "SAME"))
        short = tf.nn.conv2d(x, self.short, 2, "SAME")
        x = tf.nn.relu(self.norm(tf.nn.conv2d(x, self.down, 2, "SAME")) + short)
        x = tf.nn.relu6(tf.nn.depthwise_conv2d(x, self.depth, [1, 1, 1, 1], "SAME"))
        x = tf.nn.bias_add(tf.nn.conv2d(x, self.point, 1, "SAME"), self.bias)
        x = tf.concat([x, tf.nn.avg_pool2d(x, 3, 1, "SAME")], -1)
        x = tf.reduce_mean(x, [1, 2])
        values, places = tf.math.top_k(tf.nn.softmax(x @ self.head), 3)
        left, right = tf.unstack(tf.stack([values, tf.cast(places, tf.float32)], 1), axis=1)
        return tf.concat(tf.split(left * right, 3, -1), 0)


def stripped(function: tf.types.experimental.ConcreteFunction) -> tf.compat.v1.GraphDef:
    """Returns a function frozen, without weights."""
    frozen = convert_variables_to_constants_v2(function)
    definition = frozen.graph.as_graph_def(add_shapes=True)
    definition.ClearField("library")
    for node in definition.node:
        node.ClearField("experimental_debug_info")
        tensor = node.attr["value"].tensor
        if node.op == "Const" and np.prod([dim.size for dim in tensor.tensor_shape.dim]) > LARGEST:
            tensor.ClearField("tensor_content")
            tensor.ClearField("float_val")
    return definition


def save(name: str, function: tf.types.experimental.ConcreteFunction) -> None:
    data = stripped(function).SerializeToString(deterministic=True)
    (FOLDER / f"{name}.pb").write_bytes(data)


if __name__ == "__main__":
    transformer = Transformer()
    save("bert-2-layers", transformer.logits.get_concrete_function())
    images = Images()
    save("images", images.classes.get_concrete_function())
