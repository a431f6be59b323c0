"""Networks of Keras, by tf2onnx: pip install tensorflow-cpu tf2onnx onnxruntime; python keras_nets.py [NAME…]"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
import tf2onnx  # noqa: E402
from keep import Made, export, run  # noqa: E402
from keras import layers  # noqa: E402

ROWS = (1, 2)


def made(model: Any, *shapes: tuple, dtype: Any = np.float32, high: int = 0) -> Made:
    """The model's form in ONNX with a dynamic batch, and with weights other than the initial ones, so that batch norms
    and biases change something."""
    r = np.random.default_rng(7)

    def changed(i: int, w: np.ndarray) -> np.ndarray:
        if w.ndim == 1 and i % 2:
            return np.abs(w) * 0.5 + 0.5
        noise = r.normal(0, 0.3, w.shape).astype(w.dtype)
        return noise + w if w.ndim == 1 else noise

    model.set_weights([changed(i, w) for i, w in enumerate(model.get_weights())])
    names = [f"x{i}" for i in range(len(shapes))]

    @tf.function(input_signature=[tf.TensorSpec([None, *s], dtype, name=n) for s, n in zip(shapes, names)])
    def call(*given: Any) -> Any:
        return model(list(given) if len(given) > 1 else given[0], training=False)

    proto, _ = tf2onnx.convert.from_function(call, input_signature=call.input_signature, opset=17)
    feeds = []
    for rows in ROWS:
        sizes = [(rows, *(5 + rows if d is None else d for d in s)) for s in shapes]
        feeds.append(
            {
                n: r.integers(0, high, s).astype(dtype) if high else r.standard_normal(s).astype(dtype)
                for n, s in zip(names, sizes)
            }
        )
    return proto, feeds, [[np.asarray(y) for y in tf.nest.flatten(call(*map(tf.constant, f.values())))] for f in feeds]


def stacked(*of: Any) -> Any:
    return keras.Sequential([*of])


def conv(channels: int, size: int = 3, **more: Any) -> Any:
    return layers.Conv2D(channels, size, **{"padding": "same", "activation": "relu", **more})


@export
def keras_conv() -> Made:
    """Images with their channels last, pads of TensorFlow, a head that flattens."""
    return made(
        stacked(
            keras.Input((12, 12, 3)),
            conv(6, strides=2),
            layers.BatchNormalization(),
            layers.MaxPooling2D(3, 2, padding="same"),
            conv(8),
            layers.AveragePooling2D(2),
            layers.Flatten(),
            layers.Dense(5, activation="softmax"),
        ),
        (12, 12, 3),
    )


@export
def keras_mobile() -> Made:
    """Depthwise convolutions, swish and hard sigmoid, squeeze and excitation."""
    x = inputs = keras.Input((8, 8, 4))
    y = layers.Conv2D(12, 1, use_bias=False)(x)
    y = layers.Activation("swish")(layers.BatchNormalization()(y))
    y = layers.DepthwiseConv2D(3, padding="same", strides=1)(y)
    y = layers.ReLU(max_value=6.0)(y)
    s = layers.GlobalAveragePooling2D(keepdims=True)(y)
    s = layers.Dense(12, activation="hard_sigmoid")(layers.Dense(4, activation="relu")(s))
    y = layers.Conv2D(4, 1)(layers.Multiply()([y, s]))
    y = layers.Add()([x, y])
    y = layers.SeparableConv2D(6, 5, strides=2, padding="same")(y)
    return made(keras.Model(inputs, layers.Dense(3)(layers.GlobalMaxPooling2D()(y))), (8, 8, 4))


@export
def keras_pads() -> Made:
    """Asymmetric pads, crops, a norm over channels."""
    return made(
        stacked(
            keras.Input((11, 11, 2)),
            layers.ZeroPadding2D(((0, 1), (2, 1))),
            conv(4),
            layers.Cropping2D(((1, 0), (0, 2))),
            layers.LayerNormalization(),
            conv(3, 1),
        ),
        (11, 11, 2),
    )


@export
def keras_upscaled() -> Made:
    """A small encoder and decoder: resizing both ways, transposed convolution, a skip."""
    x = inputs = keras.Input((8, 8, 3))
    low = conv(6, strides=2)(x)
    y = layers.UpSampling2D(2, interpolation="bilinear")(conv(6)(low))
    z = layers.UpSampling2D(2, interpolation="nearest")(low)
    t = layers.Conv2DTranspose(4, 3, strides=2, padding="same")(low)
    return made(keras.Model(inputs, conv(2, activation="sigmoid")(layers.Concatenate()([x, y, z, t]))), (8, 8, 3))


@export
def keras_resized() -> Made:
    """Images of any size, resized as tf.image does."""

    class Resized(layers.Layer):
        def call(self, x: Any) -> Any:
            shape = tf.shape(x)
            return tf.image.resize(x, [shape[1] * 2, shape[2] + 3], method="bilinear")

    return made(stacked(keras.Input((None, None, 2)), conv(3), Resized(), layers.Conv2D(2, 3)), (None, None, 2))


@export
def keras_conv1d() -> Made:
    return made(
        stacked(
            keras.Input((None, 4)),
            layers.Conv1D(6, 3, padding="causal", dilation_rate=2, activation="elu"),
            layers.Conv1D(5, 3, strides=2),
            layers.GlobalMaxPooling1D(),
            layers.Dense(2, activation="tanh"),
        ),
        (None, 4),
    )


@export
def keras_conv3d() -> Made:
    return made(
        stacked(
            keras.Input((4, 6, 6, 2)),
            layers.Conv3D(3, 3, padding="same", activation="relu"),
            layers.MaxPooling3D(2),
            layers.Conv3D(2, 2),
        ),
        (4, 6, 6, 2),
    )


@export
def keras_lstm() -> Made:
    return made(
        stacked(keras.Input((None, 4)), layers.LSTM(6, return_sequences=True), layers.LSTM(5), layers.Dense(3)),
        (None, 4),
    )


@export
def keras_gru() -> Made:
    return made(
        stacked(
            keras.Input((None, 4)),
            layers.GRU(6, return_sequences=True),
            layers.GRU(5, reset_after=False),
            layers.Dense(3),
        ),
        (None, 4),
    )


@export
def keras_bidirectional() -> Made:
    """Words to classes: an embedding, a network in both directions, a mask aside."""
    return made(
        stacked(
            keras.Input((None,), dtype="int32"),
            layers.Embedding(30, 6),
            layers.Bidirectional(layers.LSTM(5, return_sequences=True)),
            layers.Bidirectional(layers.GRU(4)),
            layers.Dense(4, activation="softmax"),
        ),
        (None,),
        dtype=np.int32,
        high=30,
    )


@export
def keras_rnn() -> Made:
    return made(
        stacked(
            keras.Input((7, 3)),
            layers.SimpleRNN(5, return_sequences=True, go_backwards=True),
            layers.TimeDistributed(layers.Dense(2)),
        ),
        (7, 3),
    )


@export
def keras_masked() -> Made:
    """Words of sentences of several lengths: what is 0 does not count."""
    return made(
        stacked(
            keras.Input((None,), dtype="int32"),
            layers.Embedding(20, 5, mask_zero=True),
            layers.LSTM(4),
            layers.Dense(2),
        ),
        (None,),
        dtype=np.int32,
        high=20,
    )


@export
def keras_attention() -> Made:
    x = inputs = keras.Input((None, 8))
    y = layers.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)
    y = layers.LayerNormalization()(layers.Add()([x, y]))
    y = layers.Dense(8)(layers.Dense(12, activation="swish")(y))
    return made(keras.Model(inputs, layers.GlobalAveragePooling1D()(y)), (None, 8))


@export
def keras_functions() -> Made:
    """What people write in lambdas: einsum, gather, one-hot, top-k, segments, cumulative sums, where."""

    class Mixed(layers.Layer):
        def call(self, x: Any) -> Any:
            values, places = tf.math.top_k(x, k=3)
            hot = tf.one_hot(places, 6)
            mixed = tf.einsum("bkc,bc->bk", hot, x) + tf.cumsum(values, axis=-1, exclusive=True)
            chosen = tf.gather(x, tf.argsort(x, axis=-1)[:, :2], batch_dims=1)
            safe = tf.where(x > 0, tf.math.log(tf.abs(x) + 1), tf.math.exp(-tf.abs(x)))
            parts = tf.reshape(tf.transpose(tf.reshape(safe, [-1, 2, 3]), [0, 2, 1]), [-1, 6])
            return tf.concat(
                [mixed, chosen, tf.reverse(parts, [1]), tf.math.reduce_logsumexp(x, -1, keepdims=True)], -1
            )

    return made(stacked(keras.Input((6,)), Mixed()), (6,))


if __name__ == "__main__":
    run()
