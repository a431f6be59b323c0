"""Writes models of Keras and TensorFlow, in the Python that has TensorFlow: of_tensorflow.py FOLDER, each with inputs
of two batches and its outputs."""

import os
import shutil
import sys

import keras
import numpy as np
import tensorflow as tf

BATCHES = (1, 3)
tf1 = tf.compat.v1


def record(folder, name, model, inputs, run):
    """inputs: names → shapes without the batch, or arrays of all batches; run(feeds) → arrays in the order of the
    outputs."""
    rng, arrays = np.random.default_rng(len(name)), {"model": np.array(model)}
    for batch in BATCHES:
        feeds = {
            n: given[:batch] if isinstance(given, np.ndarray) else rng.standard_normal((batch, *given)).astype("f")
            for n, given in inputs.items()
        }
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


def of_words(folder):
    """Models that read numbers of words: of any count of them, with a mask, and with the words themselves."""
    numbers = np.random.default_rng(8).integers(1, 1000, (max(BATCHES), 17)).astype("i4")
    layers, words = keras.layers, keras.Input((None,), dtype="int32", name="words")
    h = layers.Bidirectional(layers.LSTM(24, return_sequences=True))(layers.Embedding(1000, 32)(words))
    text = trained(keras.Model(words, layers.Dense(3, activation="softmax")(layers.GRU(16)(h))))
    words = keras.Input((17,), dtype="int32", name="words")
    masked = trained(keras.Model(words, layers.LSTM(24)(layers.Embedding(1000, 32, mask_zero=True)(words))))
    padded = np.where(np.arange(17) < 9, numbers, 0)
    for name, model, given in (("text", text, numbers), ("masked", masked, padded)):
        model.save(os.path.join(folder, f"{name}.keras"))
        record(folder, f"{name}.keras", f"{name}.keras", {"words": given}, lambda feeds, m=model: [m(feeds["words"])])
    masked.save(os.path.join(folder, "masked.h5"))
    text.export(os.path.join(folder, "text_saved"), verbose=False)
    record(folder, "text_saved", "text_saved", {"words": numbers}, lambda feeds: [text(feeds["words"])])
    words = keras.Input((), dtype="string", name="words")
    model = keras.Model(words, layers.TextVectorization(output_sequence_length=8, vocabulary=["a", "b"])(words))
    model.save(os.path.join(folder, "strings.keras"))
    model.export(os.path.join(folder, "strings_saved"), verbose=False)


class Several(tf.Module):
    """A module with several functions, without a default one."""

    def __init__(self):
        super().__init__()
        self.matrix = tf.Variable(np.random.default_rng(9).standard_normal((8, 4)).astype("f"))

    @tf.function(input_signature=[tf.TensorSpec([None, 8], tf.float32, "x")])
    def encode(self, x):
        return {"code": tf.matmul(x, self.matrix)}

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, "z"), tf.TensorSpec([None, 4], tf.float32, "a")])
    def decode(self, z, a):
        return {"x": tf.matmul(z / a, self.matrix, transpose_b=True), "norm": tf.norm(z, axis=-1)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
    def parse(self, text):
        return {"number": tf.strings.to_number(text)}


class Looped(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, "x")])
    def __call__(self, x):
        while tf.reduce_max(tf.abs(x)) > 0.3:
            x = tf.tanh(x) * 0.9
        return {"y": x}


class Table(tf.Module):
    def __init__(self):
        super().__init__()
        values = tf.lookup.KeyValueTensorInitializer(tf.constant([1, 2], tf.int64), tf.constant([10.0, 20.0]))
        self.table = tf.lookup.StaticHashTable(values, -1.0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64, "keys")])
    def __call__(self, keys):
        return {"values": self.table.lookup(keys)}


class Counting(tf.Module):
    def __init__(self):
        super().__init__()
        self.sum = tf.Variable(0.0)

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, "x")])
    def __call__(self, x):
        self.sum.assign_add(tf.reduce_sum(x))
        return {"y": x + self.sum}


def of_signatures(folder):
    """SavedModels of several signatures, of none, of loops, tables and state, and one as TensorFlow 1 saves them for
    its hub: without tags."""
    path = os.path.join(folder, "several_saved")
    module = Several()
    tf.saved_model.save(module, path, signatures={n: getattr(module, n) for n in ("encode", "decode", "parse")})
    tf.saved_model.save(module, os.path.join(folder, "unsigned_saved"), signatures={})
    looped, table = Looped(), Table()
    tf.saved_model.save(looped, os.path.join(folder, "loop_saved"), signatures=looped.__call__)
    tf.saved_model.save(table, os.path.join(folder, "table_saved"), signatures=table.__call__)
    counting = Counting()
    tf.saved_model.save(counting, os.path.join(folder, "counting_saved"), signatures=counting.__call__)
    for name, inputs, function in (
        ("several_saved#encode", {"x": (8,)}, module.encode),
        ("several_saved#decode", {"z": (4,), "a": (4,)}, module.decode),
        ("loop_saved", {"x": (4,)}, looped.__call__),
    ):

        def run(feeds, function=function):
            found = function(**{n: tf.constant(x) for n, x in feeds.items()})
            return [found[key] for key in sorted(found)]

        record(folder, name, name, inputs, run)
    graph, name = tf1.Graph(), "tensorflow1_saved"
    with graph.as_default(), tf1.Session() as session:
        images = tf1.placeholder(tf.float32, [None, 6], "placeholder")
        variable = tf1.get_variable("w", initializer=np.random.default_rng(2).standard_normal((6, 3)).astype("f"))
        y = tf.nn.relu(images @ variable)
        session.run(tf1.global_variables_initializer())
        info = tf1.saved_model.build_tensor_info
        signature = tf1.saved_model.build_signature_def({"images": info(images)}, {"default": info(y)})
        builder = tf1.saved_model.Builder(os.path.join(folder, name))
        builder.add_meta_graph_and_variables(session, [], {"default": signature})
        builder.save()
        record(folder, name, name, {"images": (6,)}, lambda feeds: [session.run(y, {images: feeds["images"]})])


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
        y = tf1.placeholder_with_default(y, y.shape, "given_or_computed")
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
            "frozen.pb",
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
    os.mkdir(os.path.join(folder, "truncated_saved"))
    whole = os.path.join(folder, "module_saved")
    ignored = shutil.ignore_patterns("variables")
    shutil.copytree(whole, os.path.join(folder, "without_variables_saved"), ignore=ignored)
    cut = shutil.copytree(whole, os.path.join(folder, "truncated_variables_saved"))
    os.truncate(os.path.join(cut, "variables", "variables.data-00000-of-00001"), 0)
    for name, whole in (
        ("truncated.keras", "lstm.keras"),
        ("truncated.h5", "lstm.h5"),
        ("truncated.pb", "frozen.pb"),
        ("truncated_saved/saved_model.pb", "module_saved/saved_model.pb"),
    ):
        with open(os.path.join(folder, whole), "rb") as file, open(os.path.join(folder, name), "wb") as cut:
            cut.write(file.read()[: -os.path.getsize(file.name) // 3])


def main(folder):
    of_keras(folder)
    of_words(folder)
    of_signatures(folder)
    of_tensorflow(folder)
    refused(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
