"""Keras layers beside their definitions in numpy, from handwritten files."""

import keras_files as made
import numpy as np
import pytest

from pelton.importers import keras
from pelton.importers.network import imported
from pelton.ir.evaluate import evaluate

RNG = np.random.default_rng()


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def run(data, feeds, shapes=True):
    """What a program gives, in the order of its outputs."""
    sizes = {name: x.shape for name, x in feeds.items()} if shapes else {}
    graph = imported(keras.read(data, sizes), sizes).graph
    found = evaluate(graph, feeds)
    return [found[v.name] for v in graph.outputs]


def one(kind, x, variables=(), path="", **config):
    """What a layer gives for one input. variables: its own ones in order; path: where they are below the layer."""
    model = made.functional(
        [made.given("x", *x.shape[1:]), made.layer(kind, "a_layer", "x", **config)], ["x"], ["a_layer"]
    )
    place = f"layers/{keras.snake_case(kind)}{path}/vars"
    return run(made.archive(model, {f"{place}/{i}": a for i, a in enumerate(variables)}), {"x": x})


def check(found, want):
    assert found.shape == want.shape
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5 * max(np.abs(want).max(), 1))


# --- windows


def windows(x, size, strides, dilations, padding, fill=0.0):
    """Windows of [batch, space…, channels]: [batch, places…, taps…, channels]."""
    pads = []
    for n, k, s, d in zip(x.shape[1:-1], size, strides, dilations):
        reach = (k - 1) * d + 1
        total = max((-(-n // s) - 1) * s + reach - n, 0)
        pads.append({"same": (total // 2, total - total // 2), "causal": (reach - 1, 0)}.get(padding, (0, 0)))
    x = np.pad(x.astype(np.float64), [(0, 0), *pads, (0, 0)], constant_values=fill)
    axes = tuple(range(1, x.ndim - 1))
    reach = [(k - 1) * d + 1 for k, d in zip(size, dilations)]
    view = np.lib.stride_tricks.sliding_window_view(x, reach, axes)
    places = tuple(slice(None, None, s) for s in strides)
    taps = tuple(slice(None, None, d) for d in dilations)
    return np.moveaxis(view[(slice(None), *places, slice(None), *taps)], len(axes) + 1, -1)


CONVOLUTIONS = [
    *(
        (1, (13,), (3,), (2,), (1,), "causal"),
        (1, (12,), (4,), (1,), (2,), "same"),
        (1, (9,), (2,), (3,), (1,), "valid"),
    ),
    *((2, (9, 12), (3, 2), (2, 2), (1, 1), "same"), (2, (9, 12), (3, 3), (1, 1), (2, 3), "same")),
    *((2, (8, 7), (4, 1), (3, 2), (1, 1), "valid"), (3, (5, 6, 4), (2, 3, 1), (2, 1, 3), (1, 1, 1), "same")),
]


@pytest.mark.parametrize("axes, space, size, strides, dilations, padding", CONVOLUTIONS)
@pytest.mark.parametrize("first", [False, True])
def test_convolution(axes, space, size, strides, dilations, padding, first):
    x, w, b = normal(2, *space, 6), normal(*size, 3, 4), normal(4)
    parts = windows(x, size, strides, dilations, padding)
    want = np.concatenate(
        [np.tensordot(parts[..., g : g + 3], w[..., g // 3 * 2 : g // 3 * 2 + 2], axes + 1) for g in (0, 3)], -1
    )
    want = np.maximum(want + b, 0)
    options = dict(filters=4, kernel_size=size, strides=strides, dilation_rate=dilations, padding=padding, groups=2)
    options |= dict(activation="relu", data_format="channels_first" if first else "channels_last")
    given = np.moveaxis(x, -1, 1) if first else x
    (found,) = one(f"Conv{axes}D", given, [w, b], **options)
    check(np.moveaxis(found, 1, -1) if first else found, want)


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_depthwise_and_separable_convolution(padding):
    x, w, p = normal(2, 9, 8, 3), normal(3, 2, 3, 2), normal(1, 1, 6, 5)
    parts = windows(x, (3, 2), (2, 2), (1, 1), padding)
    want = np.einsum("bijklc,klcm->bijcm", parts, w)
    want = want.reshape(*want.shape[:3], 6)
    options = dict(kernel_size=[3, 2], strides=[2, 2], dilation_rate=[1, 1], padding=padding, depth_multiplier=2)
    check(one("DepthwiseConv2D", x, [w], use_bias=False, **options)[0], want)
    b = normal(5)
    check(one("SeparableConv2D", x, [w, p, b], filters=5, **options)[0], want @ p[0, 0] + b)


@pytest.mark.parametrize("padding, extra", [("same", None), ("valid", None), ("same", 1), ("valid", 1)])
@pytest.mark.parametrize("size, stride", [(3, 2), (2, 3), (4, 1)])
def test_transposed_convolution(padding, extra, size, stride):
    if extra is not None and extra >= stride:
        pytest.skip("Keras has less output padding than stride")
    n = 6
    x, w, b = normal(2, n, 3), normal(size, 4, 3), normal(4)
    full = np.zeros((2, (n - 1) * stride + size, 4))
    for i in range(n):
        full[:, i * stride : i * stride + size] += np.einsum("bc,koc->bko", x[:, i], w)
    if extra is None:
        out = n * stride if padding == "same" else (n - 1) * stride + max(size, stride)
    else:
        out = (n - 1) * stride + (size if padding == "valid" else size % 2) + extra
    cut = max(full.shape[1] - out, 0)
    want = np.pad(full, ((0, 0), (0, out), (0, 0)))[:, cut // 2 : cut // 2 + out] + b
    options = dict(filters=4, kernel_size=[size], strides=[stride], dilation_rate=[1], padding=padding)
    check(one("Conv1DTranspose", x, [w, b], output_padding=extra, **options)[0], want)


@pytest.mark.parametrize("kind", ["MaxPooling2D", "AveragePooling2D"])
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_pools(kind, padding):
    x = normal(2, 9, 8, 3)
    parts = windows(x, (3, 2), (2, 3), (1, 1), padding, fill=np.nan)
    want = (np.nanmax if "Max" in kind else np.nanmean)(parts, axis=(3, 4))
    options = dict(pool_size=[3, 2], strides=[2, 3], padding=padding)
    check(one(kind, x, **options)[0], want)
    check(one(kind, np.moveaxis(x, -1, 1), data_format="channels_first", **options)[0], np.moveaxis(want, -1, 1))
    whole = (np.max if "Max" in kind else np.mean)(x, axis=(1, 2))
    check(one("Global" + kind, x, keepdims=False)[0], whole)


# --- products, normalization


def test_products():
    x, w, b = normal(2, 3, 5), normal(5, 4), normal(4)
    check(one("Dense", x, [w, b], units=4, activation="tanh", use_bias=True)[0], np.tanh(x @ w + b))
    kernel, bias = normal(5, 2, 3), normal(2, 3)
    options = dict(equation="abc,cde->abde", output_shape=[None, 2, 3], bias_axes="de")
    check(one("EinsumDense", x, [kernel, bias], **options)[0], np.einsum("abc,cde->abde", x, kernel) + bias)
    table, words = normal(9, 4), RNG.integers(0, 9, (2, 6)).astype(np.int32)
    model = [made.given("x", 6, dtype="int32"), made.layer("Embedding", "e", "x", input_dim=9, output_dim=4)]
    data = made.archive(made.functional(model, ["x"], ["e"]), {"layers/embedding/vars/0": table})
    check(run(data, {"x": words})[0], table[words])


@pytest.mark.parametrize("axis", [1, 2, -1, [3]])
def test_batch_norm(axis):
    x = normal(2, 4, 5, 3)
    a = axis[0] if isinstance(axis, list) else axis
    n = x.shape[a]
    gamma, beta, mean, variance = normal(n), normal(n), normal(n), RNG.uniform(0.5, 2, n).astype(np.float32)
    along = [-1 if i == a % 4 else 1 for i in range(4)]
    gamma_, beta_, mean_, variance_ = (v.reshape(along) for v in (gamma, beta, mean, variance))
    want = (x - mean_) / np.sqrt(variance_ + 0.01) * gamma_ + beta_
    check(one("BatchNormalization", x, [gamma, beta, mean, variance], axis=axis, epsilon=0.01)[0], want)
    want = (x - mean_) / np.sqrt(variance_ + 0.01)
    bare = dict(axis=axis, epsilon=0.01, center=False, scale=False)
    check(one("BatchNormalization", x, [mean, variance], **bare)[0], want)


def test_other_normalizations():
    x = normal(2, 4, 5, 6)

    def moments(v, axes):
        return v.mean(axes, keepdims=True), v.var(axes, keepdims=True)

    gamma, beta = normal(5, 6), normal(5, 6)
    mean, variance = moments(x, (2, 3))
    found = one("LayerNormalization", x, [gamma, beta], axis=[2, 3], epsilon=1e-3)[0]
    check(found, (x - mean) / np.sqrt(variance + 1e-3) * gamma + beta)
    gamma, beta = normal(6), normal(6)
    mean, variance = moments(x.reshape(2, 4, 5, 3, 2), (1, 2, 4))
    want = ((x.reshape(2, 4, 5, 3, 2) - mean) / np.sqrt(variance + 1e-3)).reshape(x.shape) * gamma + beta
    check(one("GroupNormalization", x, [gamma, beta], groups=3, axis=-1, epsilon=1e-3)[0], want)
    check(one("UnitNormalization", x, axis=[1, -1])[0], x / np.sqrt((x * x).sum((1, 3), keepdims=True)))
    mean, variance = normal(6), RNG.uniform(0.5, 2, 6).astype(np.float32)
    found = one("Normalization", x, [mean, variance, np.int64(7)], axis=[-1], mean=None, variance=None)[0]
    check(found, (x - mean) / np.sqrt(variance))
    check(one("Rescaling", x, scale=[1, 2, 3, 4, 5, 6], offset=0.5)[0], x * np.arange(1, 7) + 0.5)


# --- activations


@pytest.mark.parametrize(
    "kind, config, want",
    [
        ("ReLU", dict(max_value=0.7, negative_slope=0.2, threshold=0.3), lambda x: np.where(x < 0.3, (x - 0.3) / 5, x)),
        ("LeakyReLU", dict(negative_slope=0.1), lambda x: np.where(x < 0, x / 10, x)),
        ("LeakyReLU", dict(alpha=0.1), lambda x: np.where(x < 0, x / 10, x)),
        ("ELU", dict(alpha=0.5), lambda x: np.where(x < 0, np.expm1(x) / 2, x)),
        ("ThresholdedReLU", dict(theta=0.4), lambda x: np.where(x > 0.4, x, 0)),
        ("Softmax", dict(axis=1), lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True)),
        ("Activation", dict(activation="swish"), lambda x: x / (1 + np.exp(-x))),
        ("Activation", dict(activation="softsign"), lambda x: x / (1 + np.abs(x))),
        ("Activation", dict(activation="hard_sigmoid"), lambda x: np.clip(x / 6 + 0.5, 0, 1)),
        ("Activation", dict(activation="soft_shrink"), lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0)),
        ("Activation", dict(activation="squareplus"), lambda x: (x + np.sqrt(x * x + 4)) / 2),
    ],
)
def test_activations(kind, config, want):
    x = normal(3, 4, 5)
    want = want(x.astype(np.float64))
    check(one(kind, x, **config)[0], np.minimum(want, 0.7) if "max_value" in config else want)


def test_prelu_and_what_files_of_keras_2_mean():
    x, slope = normal(3, 4, 5), normal(1, 5)
    check(one("PReLU", x, [slope], shared_axes=[1])[0], np.where(x < 0, x * slope, x))
    model = [made.given("x", 4, 5), made.layer("Activation", "y", "x", activation="hard_sigmoid")]
    data = made.archive(made.functional(model, ["x"], ["y"]), {}, version="2.15.0")
    check(run(data, {"x": x})[0], np.clip(x * 0.2 + 0.5, 0, 1))


# --- sequences


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(x, w, u, b, backwards=False):
    h = c = np.zeros((len(x), u.shape[0]))
    steps = []
    for t in range(x.shape[1])[:: -1 if backwards else 1]:
        i, f, g, o = np.split(x[:, t] @ w + h @ u + b, 4, -1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        steps.append(h)
    return np.stack(steps, 1), h, c


def gru(x, w, u, b, after):
    n = u.shape[0]
    h = np.zeros((len(x), n))
    own, other = b if after else (b, np.zeros_like(b))
    for t in range(x.shape[1]):
        a, r = x[:, t] @ w + own, h @ u + other
        z, reset = sigmoid(a[:, :n] + r[:, :n]), sigmoid(a[:, n : 2 * n] + r[:, n : 2 * n])
        inner = reset * r[:, 2 * n :] if after else (reset * h) @ u[:, 2 * n :]
        h = z * h + (1 - z) * np.tanh(a[:, 2 * n :] + inner)
    return h


RNN = dict(units=4, activation="tanh", recurrent_activation="sigmoid", use_bias=True, unroll=False, stateful=False)


@pytest.mark.parametrize("backwards", [False, True])
def test_lstm(backwards):
    x, w, u, b = normal(2, 6, 3), normal(3, 16), normal(4, 16), normal(16)
    steps, h, c = lstm(x, w, u, b, backwards)
    options = dict(RNN, return_sequences=True, return_state=True, go_backwards=backwards)
    model = [made.given("x", 6, 3), made.layer("LSTM", "y", "x", **options)]
    config = made.functional(model, ["x"], [["y", 0, 0], ["y", 0, 1], ["y", 0, 2]])
    data = made.archive(config, {f"layers/lstm/cell/vars/{i}": v for i, v in enumerate((w, u, b))})
    for found, want in zip(run(data, {"x": x}), (steps, h, c), strict=True):
        check(found, want)


@pytest.mark.parametrize("after", [False, True])
def test_gru(after):
    x, w, u, b = normal(2, 6, 3), normal(3, 12), normal(4, 12), normal(2, 12) if after else normal(12)
    check(one("GRU", x, [w, u, b], "/cell", reset_after=after, **RNN)[0], gru(x, w, u, b, after))


@pytest.mark.parametrize("mode", ["concat", "sum", "mul", "ave"])
def test_bidirectional(mode):
    x, both = normal(2, 6, 3), [(normal(3, 16), normal(4, 16), normal(16)) for _ in range(2)]
    ahead, back = lstm(x, *both[0])[0], lstm(x, *both[1], backwards=True)[0][:, ::-1]
    want = {"concat": np.concatenate([ahead, back], -1), "sum": ahead + back, "mul": ahead * back}
    want["ave"] = want["sum"] / 2
    inner = made.layer("LSTM", "inner", **dict(RNN, return_sequences=True))
    model = [made.given("x", 6, 3), made.layer("Bidirectional", "y", "x", layer=inner, merge_mode=mode)]
    arrays = {
        f"layers/bidirectional/{d}_layer/cell/vars/{i}": v
        for d, three in zip(("forward", "backward"), both)
        for i, v in enumerate(three)
    }
    check(run(made.archive(made.functional(model, ["x"], ["y"]), arrays), {"x": x})[0], want[mode])


def test_attention():
    q, v = normal(2, 5, 6), normal(2, 7, 6)
    kernels = [normal(6, 2, 3) for _ in range(3)]
    biases, out, last = [normal(2, 3) for _ in range(3)], normal(2, 3, 6), normal(6)
    a, b, c = (np.einsum("btd,dhk->bhtk", t, k) + i[:, None] for t, k, i in zip((q, v, v), kernels, biases))
    scores = a @ b.swapaxes(2, 3) / np.sqrt(3)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    want = np.einsum("bhtk,hkd->btd", weights @ c, out) + last
    heads = made.layer("MultiHeadAttention", "y", num_heads=2, key_dim=3, value_dim=3, use_bias=True)
    heads["inbound_nodes"] = [{"args": [made.tensors("q"), made.tensors("v")], "kwargs": {}}]
    config = made.functional([made.given("q", 5, 6), made.given("v", 7, 6), heads], ["q", "v"], ["y"])
    arrays = {}
    for part, kernel, bias in zip(("query", "key", "value", "output"), [*kernels, out], [*biases, last]):
        arrays |= {f"layers/multi_head_attention/_{part}_dense/vars/{i}": x for i, x in enumerate((kernel, bias))}
    check(run(made.archive(config, arrays), {"q": q, "v": v})[0], want)
