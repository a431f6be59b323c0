"""Run by the Python that has TensorFlow: of_tensorflow.py FOLDER writes models of Keras and TensorFlow, each with
inputs of two batches and what it gives for them."""

import os
import sys

import keras
import numpy as np
import tensorflow as tf

BATCHES = (1, 3)
tf1 = tf.compat.v1


def record(folder, name, model, inputs, run):
    """inputs: names → shapes without the batch; run(feeds) → arrays in the order of the outputs."""
    rng, arrays = np.random.default_rng(len(name)), {"model": np.array(model)}
    for batch in BATCHES:
        feeds = {n: rng.standard_normal((batch, *shape)).astype(np.float32) for n, shape in inputs.items()}
        arrays.update({f"{batch}/in/{n}": x for n, x in feeds.items()})
        arrays.update({f"{batch}/out/{i}": np.asarray(y) for i, y in enumerate(run(feeds))})
    np.savez(os.path.join(folder, f"{name}.npz"), **arrays)


def trained(model):
    """The model with numbers in place of the ones and zeros that batch norms begin with."""
    rng = np.random.default_rng(5)
    for w in model.weights:
        if "variance" in w.path or "gamma" in w.path:
            w.assign(rng.uniform(0.7, 1.3, w.shape))
        elif "mean" in w.path or "beta" in w.path or "bias" in w.path:
            w.assign(rng.normal(0, 0.2, w.shape))
    return model


def keras_models():
    applications = keras.applications
    yield "mobilenet_v2", applications.MobileNetV2(weights=None, input_shape=(96, 96, 3), classifier_activation=None)
    yield "resnet50", applications.ResNet50(weights=None, input_shape=(97, 97, 3), classifier_activation=None)
    yield (
        "efficientnet_b0",
        applications.EfficientNetB0(weights=None, input_shape=(112, 112, 3), classifier_activation=None),
    )
    words = keras.Input((19, 24), name="words")
    h = keras.layers.LSTM(31, return_sequences=True)(words)
    h = keras.layers.Bidirectional(keras.layers.LSTM(17))(h)
    yield "lstm", keras.Model(words, keras.layers.Dense(5, activation="softmax", name="tag")(h))
    image, more = keras.Input((33, 29, 2), name="image"), keras.Input((7,), name="more")
    h = keras.layers.SeparableConv2D(12, 3, strides=2, activation="swish")(image)
    h = keras.layers.GlobalMaxPooling2D()(keras.layers.LayerNormalization()(h))
    h = keras.layers.Concatenate()([h, keras.layers.Dense(9, activation="gelu")(more)])
    yield (
        "two_inputs",
        keras.Model([image, more], [keras.layers.Dense(4, name="a")(h), keras.layers.Softmax(name="b")(h)]),
    )
    tokens = keras.Input((21, 32), name="tokens")
    h = keras.layers.MultiHeadAttention(4, 8)(tokens, tokens)
    h = keras.layers.LayerNormalization()(h + tokens)
    yield "attention", keras.Model(tokens, keras.layers.GRU(11, name="state")(h))


def of_keras(folder):
    for name, model in keras_models():
        trained(model).save(os.path.join(folder, f"{name}.keras"))
        # layers compute constants of their own from weights when these are loaded
        model = keras.saving.load_model(os.path.join(folder, f"{name}.keras"))
        names = [t.name for t in model.inputs]
        shapes = {n: t.shape[1:] for n, t in zip(names, model.inputs)}

        def run(feeds, model=model, names=names):
            given = [feeds[n] for n in names]
            out = model(given if len(given) > 1 else given[0], training=False)
            return out if isinstance(out, (list, tuple)) else [out]

        record(folder, f"{name}.keras", f"{name}.keras", shapes, run)
        if name in ("mobilenet_v2", "lstm"):
            model.save(os.path.join(folder, f"{name}.h5"))
            record(folder, f"{name}.h5", f"{name}.h5", shapes, run)
        if name in ("resnet50", "two_inputs"):
            model.export(os.path.join(folder, f"{name}_saved"), verbose=False)
            record(folder, f"{name}_saved", f"{name}_saved", shapes, run)


class Layered(tf.Module):
    """A module without Keras, as Sonnet writes them."""

    def __init__(self):
        super().__init__()
        rng = np.random.default_rng(6)
        self.filters = tf.Variable(rng.standard_normal((5, 5, 3, 16)).astype("f") * 0.1)
        self.matrix = tf.Variable(rng.standard_normal((16, 6)).astype("f"))

    @tf.function(input_signature=[tf.TensorSpec([None, 41, 37, 3], tf.float32, "picture")])
    def __call__(self, x):
        y = tf.nn.leaky_relu(tf.nn.conv2d(x, self.filters, 3, "SAME"), 0.1)
        y = tf.nn.avg_pool2d(y, 3, 2, "SAME")
        return {"classes": tf.nn.log_softmax(tf.reduce_mean(y, [1, 2]) @ self.matrix)}


def of_tensorflow(folder):
    module = Layered()
    tf.saved_model.save(module, os.path.join(folder, "module_saved"), signatures=module.__call__)
    record(
        folder,
        "module_saved",
        "module_saved",
        {"picture": (41, 37, 3)},
        lambda feeds: [module(tf.constant(feeds["picture"]))["classes"]],
    )
    rng, graph = np.random.default_rng(7), tf1.Graph()
    with graph.as_default(), tf1.Session() as session:
        x = tf1.placeholder(tf.float32, [None, 45, 51, 3], "picture")
        filters = tf1.Variable(rng.standard_normal((3, 3, 3, 10)).astype("f") * 0.2)
        y = tf1.nn.fused_batch_norm(tf.nn.conv2d(x, filters, 2, "SAME"), *np.ones((2, 10), "f"), is_training=True)[0]
        y = tf.nn.depthwise_conv2d(
            tf.nn.relu6(y), tf1.Variable(rng.standard_normal((3, 3, 10, 1)).astype("f")), [1] * 4, "VALID"
        )
        y = tf.reshape(tf1.image.resize_bilinear(y, [8, 9]), [-1, 720])
        scores = tf.identity(tf.tanh(y @ tf1.Variable(rng.standard_normal((720, 5)).astype("f") * 0.02)), "scores")
        session.run(tf1.global_variables_initializer())
        frozen = tf1.graph_util.convert_variables_to_constants(session, session.graph_def, ["scores"])
        with open(os.path.join(folder, "frozen.pb"), "wb") as file:
            file.write(frozen.SerializeToString())
        with open(os.path.join(folder, "unfrozen.pb"), "wb") as file:
            file.write(session.graph_def.SerializeToString())
        record(
            folder,
            "frozen",
            "frozen.pb",
            {"picture": (45, 51, 3)},
            lambda feeds: [session.run(scores, {x: feeds["picture"]})],
        )


@keras.saving.register_keras_serializable("tests")
class Doubled(keras.layers.Layer):
    def call(self, x):
        return 2 * x


def refused(folder):
    """Models that carry code, or need code that they do not carry."""
    x = keras.Input((4,))
    for name, layer in (("lambda", keras.layers.Lambda(lambda x: x + 1)), ("own", Doubled())):
        model = keras.Model(x, layer(x))
        model.save(os.path.join(folder, f"{name}.keras"))
        model.save(os.path.join(folder, f"{name}.h5"))
    model = keras.Sequential([x, keras.layers.Dense(3)])
    model.save_weights(os.path.join(folder, "numbers.weights.h5"))


def main(folder):
    of_keras(folder)
    of_tensorflow(folder)
    refused(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
