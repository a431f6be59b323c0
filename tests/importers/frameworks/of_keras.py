"""Writes small models, one layer or a few each, in both formats, in the Python that has Keras: of_keras.py FOLDER, each
with inputs and outputs."""

import os
import sys

import keras
import numpy as np
from keras import Input, Model, ops
from keras import layers as L
from keras_layers import of_layers


def on_one(layer, shape):
    x = Input(shape, name="x")
    return Model(x, layer(x))


def of_graphs():
    """name → a model with several inputs, outputs, or layers."""
    a, b, c = Input((4, 6), name="a"), Input((4, 6), name="b"), Input((6,), name="c")
    for kind in (L.Add, L.Subtract, L.Multiply, L.Average, L.Maximum, L.Minimum):
        yield kind.__name__.lower(), Model([a, b], kind()([a, b]))
    yield "add_ranks", Model([a, b, c], L.Add()([a, b, c]))
    yield "concatenate", Model([a, b], [L.Concatenate()([a, b]), L.Concatenate(axis=1)([a, b])])
    dots = [L.Dot(axes=2)([a, b]), L.Dot(axes=(2, 2), normalize=True)([a, b]), L.Dot(axes=(1, 1))([a, b])]
    yield "dot", Model([a, b, c], [*dots, L.Dot(axes=(2, 1))([a, c]), L.Dot(axes=1)([c, c])])
    im, more = Input((6, 7, 4), name="im"), Input((1, 1, 5), name="more")
    x = L.Conv2D(5, 3, padding="same")(im)
    yield "broadcast", Model([im, more], L.Multiply()([x, more]) + L.Conv2D(5, 1)(im) * 2.0 - more)
    yield "image_concat", Model(im, L.Concatenate()([x, im, L.MaxPooling2D(3, 1, "same")(im)]))
    yield "image_concat_rows", Model(im, L.Concatenate(axis=1)([x, L.Conv2D(5, 1)(im)]))
    q, v = Input((5, 8), name="q"), Input((7, 8), name="v")
    yield "mha", Model([q, v], L.MultiHeadAttention(2, 3)(q, v))
    yield "mha_value", Model([q, v], L.MultiHeadAttention(2, 3, value_dim=5, output_shape=6, use_bias=False)(q, v, v))
    yield "mha_causal", Model(q, L.MultiHeadAttention(2, 4)(q, q, use_causal_mask=True))
    mask = Input((5, 7), name="mask", dtype="bool")
    yield "mha_mask", Model([q, v, mask], L.MultiHeadAttention(2, 4)(q, v, attention_mask=mask))
    yield "gqa", Model([q, v], L.GroupQueryAttention(3, 4, 2)(q, v))
    yield "attention", Model([q, v], [L.Attention()([q, v]), L.Attention(use_scale=True)([q, v, v])])
    yield "attention_concat", Model([q, v], L.Attention(score_mode="concat", use_scale=True)([q, v]))
    yield "attention_causal", Model([q, v], L.Attention()([q, v], use_causal_mask=True))
    yield "attention_additive", Model([q, v], [L.AdditiveAttention()([q, v]), L.AdditiveAttention(False)([q, v])])
    words = Input((9,), dtype="int32", name="words")
    yield "embedding", Model(words, L.Embedding(30, 5)(words))
    yield "embedding_masked", Model(words, L.Flatten()(L.Embedding(30, 5, mask_zero=True)(words)))
    yield "embedding_sequential", keras.Sequential([L.Input((9,), dtype="int32"), L.Embedding(30, 5), L.LSTM(4)])
    yield "masking", Model(a, L.Dense(3)(L.Masking(0.5)(L.ReLU(max_value=0.5)(a) * 0 + 0.5) + a))
    shared, norm = L.Dense(6, activation="tanh"), L.BatchNormalization()
    yield "shared", Model([a, b], shared(norm(shared(a))) + shared(b))
    inner = Model(a, [L.Dense(5)(a), L.BatchNormalization()(L.Dense(6)(a))], name="inner")
    one, two = inner(b)
    three, _ = inner(two)
    yield "nested", Model(b, [one, two, three])
    stack = keras.Sequential([L.Dense(6), L.BatchNormalization(trainable=False), L.Dense(6)], name="stack")
    yield "nested_sequential", Model([a, b], [stack(a), stack(b)])
    deep = keras.Sequential([stack, L.Dense(4)])
    yield "nested_deep", keras.Sequential([L.Input((4, 6)), deep, L.LayerNormalization()])
    frozen = keras.Sequential([L.Dense(6), L.BatchNormalization(), L.Dense(6), L.BatchNormalization()])
    frozen.trainable = False
    yield "nested_frozen", Model([a], frozen(a))
    yield "nested_trained", Model([a], keras.Sequential([L.Dense(6), L.BatchNormalization(), L.Dense(6)])(a))
    yield "dicts", Model({"a": a, "b": b}, {"z": L.Dense(3)(a), "y": L.Dense(2)(b), "x": a + b})
    h = L.LSTM(5, return_state=True)(a)
    yield "states", Model([a, b], [L.LSTM(5)(b, initial_state=h[1:]), L.GRU(5)(b, initial_state=h[1])])
    both = L.Bidirectional(L.GRU(5, return_state=True))(a)
    yield "states_both", Model([a, b], L.Bidirectional(L.GRU(5))(b, initial_state=both[1:]))
    yield "input_is_output", Model([a, b], [a, L.ReLU()(b)])
    yield "same_output_twice", Model(a, [L.Dense(3, name="y")(a)] * 2)
    free = Input((None, None, 3), name="free")
    x = L.Conv2D(4, 3, strides=2, padding="same", activation="relu")(free)
    yield "free_image", Model(free, L.Dense(3)(L.GlobalAveragePooling2D()(L.UpSampling2D()(x))))
    yield "fixed_batch", Model(*(lambda i: (i, L.Dense(4)(i)))(Input(batch_shape=(2, 6), name="i")))
    yield "sequential_built_later", _built(keras.Sequential([L.Dense(5), L.ReLU()]), (None, 6))
    inner = keras.Sequential([L.Dense(5), L.ReLU()])
    yield "nested_last", keras.Sequential([L.Input((6,)), L.Dense(4), inner])


def _built(model, shape):
    model.build(shape)
    return model


def of_operations():
    a, b, im = Input((4, 6), name="a"), Input((4, 6), name="b"), Input((6, 5, 3), name="im")
    n, rows = np.linspace(-1, 1, 6).astype("f4"), np.linspace(-1, 1, 24).astype("f4").reshape(6, 4)
    yield "arithmetic", [2.0 - a, a / 3, a**2, -a, abs(a) + 1, a * b, a // 0.3, 1 / (a + 7), a % 0.7, a - n, b * n]
    yield "comparisons", [ops.where(a > b, a, 0.5), ops.where(a <= 0.1, 1.0, b), ops.maximum(a, 0.2) * ops.sign(b)]
    yield (
        "logic",
        [
            ops.cast(ops.logical_and(a > 0, b > 0), "float32"),
            ops.cast(ops.not_equal(ops.round(a), 0), "float32"),
            ops.where(ops.logical_not(ops.logical_or(a > 0, ops.equal(a, b))), a, b),
        ],
    )
    positive = ops.abs(a) + 0.1
    yield (
        "functions",
        [
            *(
                ops.exp(a),
                ops.log(positive),
                ops.sqrt(positive),
                ops.rsqrt(positive),
                ops.square(a),
                ops.sin(a),
                ops.cos(a),
            ),
            *(
                ops.tanh(a),
                ops.erf(a),
                ops.floor(a),
                ops.ceil(a),
                ops.log1p(positive),
                ops.expm1(a),
                ops.log2(positive),
            ),
            *(ops.arctan(a), ops.reciprocal(positive), ops.clip(a, -0.5, 0.7), ops.arcsinh(a), ops.log10(positive)),
        ],
    )
    yield (
        "activations",
        [
            *(ops.relu(a), ops.relu6(a * 9), ops.sigmoid(a), ops.softplus(a), ops.silu(a), ops.leaky_relu(a, 0.1)),
            *(ops.hard_sigmoid(a), ops.elu(a, 0.5), ops.selu(a), ops.gelu(a), ops.gelu(a, False), ops.softmax(a, 1)),
            *(ops.log_softmax(a), ops.hard_silu(a), ops.celu(a, 0.7), ops.softsign(a), ops.log_sigmoid(a)),
        ],
    )
    yield (
        "shapes",
        [
            *(
                ops.reshape(a, (-1, 24)),
                ops.reshape(a, (-1, 2, 12)),
                ops.transpose(a, (0, 2, 1)),
                ops.swapaxes(a, 1, 2),
            ),
            *(ops.concatenate([a, b], -1), ops.concatenate([a, b], 1), ops.stack([a, b], 1), ops.moveaxis(im, 3, 1)),
            *(ops.split(a, 2, axis=1)[1], ops.split(a, [1, 4], axis=2)[1], ops.squeeze(ops.expand_dims(a, 1), 1)),
            *(ops.tile(a, (1, 2, 3)), ops.repeat(a, 2, axis=1), ops.flip(a, 1), ops.roll(a, 2, 1)),
            *(ops.pad(a, [[0, 0], [1, 2], [0, 1]]), ops.pad(a, [[0, 0], [1, 2], [0, 1]], constant_values=3.0)),
            *(ops.pad(im, [[0, 0], [1, 1], [2, 1], [0, 0]], "reflect"), ops.expand_dims(a, (1, -1))),
        ],
    )
    yield (
        "picks",
        [
            *(a[:, 1:3, ::2], a[..., 0], a[:, None], a[:, -1], a[:, :, -2:], im[:, ::-1], im[:, 1:, :-1, 0]),
            *(ops.take(a, np.array([2, 0, 2]), axis=1), ops.take(a, 3, axis=-1), ops.tril(a), ops.triu(a, 1)),
        ],
    )
    yield (
        "reductions",
        [
            *(ops.mean(a, 1), ops.mean(im, (1, 2), keepdims=True), ops.sum(a, -1), ops.max(im, (1, 2)), ops.min(a, 1)),
            *(
                ops.prod(a, -1),
                ops.var(a, -1),
                ops.std(im, (1, 2), keepdims=True),
                ops.logsumexp(a, 1),
                ops.cumsum(a, 1),
            ),
            *(ops.norm(a, axis=-1), ops.normalize(a), ops.cast(ops.argmax(a, -1), "float32")),
            *(ops.cast(ops.argmin(a, 1), "float32"), ops.top_k(a, 3)[0], ops.one_hot(ops.argmax(a, -1), 6)),
        ],
    )
    yield (
        "products",
        [
            *(ops.matmul(a, ops.transpose(b, (0, 2, 1))), a @ ops.swapaxes(b, 1, 2), ops.dot(a, rows)),
            *(ops.einsum("bij,bkj->bik", a, b), ops.einsum("...x,xy->...y", a, rows)),
        ],
    )
    yield (
        "images",
        [
            *(ops.image.resize(im, (9, 4)), ops.image.resize(im, (3, 8), "nearest"), ops.max_pool(im, 2)),
            *(ops.average_pool(im, 3, 2, "same"), ops.conv(im, np.ones((3, 2, 3, 2), "f4"), padding="same")),
            ops.batch_normalization(im, n[:3], np.abs(n[:3]) + 0.1, -1, n[1:4], n[2:5]),
        ],
    )
    x = L.Conv2D(6, 3, padding="same")(im)
    yield (
        "on_images",
        [
            *(x * n, ops.mean(x, (1, 2)), ops.mean(x, -1, keepdims=True) * x, ops.concatenate([x, x + 1], 2)),
            *(ops.softmax(x), ops.max(x, -1), x[:, 1:, ::2], ops.cumsum(x, 2), ops.mean(x, 1), x * ops.sigmoid(x)),
        ],
    )


def applications():
    found = keras.applications
    for name, size in (
        *(("ResNet50", 64), ("ResNet50V2", 64), ("MobileNet", 64), ("MobileNetV2", 64), ("MobileNetV3Small", 64)),
        *(("EfficientNetB0", 64), ("EfficientNetV2B0", 64), ("DenseNet121", 64), ("InceptionV3", 96)),
        *(("Xception", 96), ("NASNetMobile", 96), ("ConvNeXtTiny", 64), ("VGG16", 48)),
    ):
        yield (
            name,
            getattr(found, name)(weights=None, input_shape=(size, size, 3), classes=17, classifier_activation=None),
        )


def randomize(model, rng):
    """Weights that are not those that layers begin with; variances and scales above 0."""
    for w in model.weights:
        path, shape = w.path.rpartition("/")[2], tuple(w.shape)
        if "int" in str(w.dtype):
            continue
        if "variance" in path or path in ("gamma", "scale"):
            w.assign(rng.uniform(0.6, 1.4, shape))
        elif path in ("kernel", "depthwise_kernel", "pointwise_kernel", "recurrent_kernel"):
            fan = max(1, int(np.prod(shape[:-1])))
            w.assign(rng.normal(0, 1.3 / np.sqrt(fan if "depthwise" not in path else np.prod(shape[:2])), shape))
        else:
            w.assign(rng.normal(0.1, 0.4, shape))
    for layer in model._flatten_layers():
        if hasattr(layer, "finalize_state"):
            layer.finalize_state()


def record(folder, name, model, kinds, size=None):
    rng = np.random.default_rng(abs(hash(name)) % 1000)
    randomize(model, rng)
    arrays = {}
    for x in model.inputs:
        name_of_input = x._keras_history.operation.name
        batch, *shape = x.shape
        shape = [batch or 3, *(d or 11 for d in shape)]
        if "int" in str(x.dtype):
            arrays[f"in/{name_of_input}"] = rng.integers(0, 30, shape).astype(x.dtype)
        elif str(x.dtype) == "bool":
            arrays[f"in/{name_of_input}"] = rng.random(shape) < 0.7
        else:
            arrays[f"in/{name_of_input}"] = rng.normal(0, 1, shape).astype("f4")
    given = list(arrays.values())
    if model.__class__.__name__ == "Functional" and isinstance(model.input, dict):
        given = [dict(zip(model.input, given))]
    found = keras.tree.flatten(model(given if len(given) > 1 else given[0], training=False))
    arrays |= {f"out/{i}": np.asarray(y) for i, y in enumerate(found)}
    for kind in kinds:
        path = os.path.join(folder, f"{name}.{kind}")
        model.save(path)
        np.savez(path + ".npz", **arrays)


def inputs_of(tensors):
    """The inputs that tensors depend on, by their names."""
    found, seen, stack = {}, set(), list(tensors)
    while stack:
        t = stack.pop()
        if id(t) not in seen:
            seen.add(id(t))
            operation, node, _ = t._keras_history
            if isinstance(operation, L.InputLayer):
                found[operation.name] = t
            stack += operation._inbound_nodes[node].input_tensors
    return [found[name] for name in sorted(found)]


def main(folder, only=""):
    keras.utils.set_random_seed(3)
    cases = [(name, lambda c=c: on_one(*c)) for name, c in of_layers().items()]
    cases += [(f"graph_{name}", lambda m=m: m) for name, m in of_graphs()]

    for name, ys in of_operations():
        cases.append((f"ops_{name}", lambda ys=ys: Model(inputs_of(ys), ys)))
    for name, make in cases:
        if only in name:
            # an .h5 file has no modules, without which Keras takes operations for layers
            record(
                folder, name, make(), ("keras",) if name.startswith("ops_") or "broadcast" in name else ("keras", "h5")
            )
    for name, model in applications():
        if only in name:
            record(folder, name, model, ("keras",))


if __name__ == "__main__":
    main(*sys.argv[1:])
