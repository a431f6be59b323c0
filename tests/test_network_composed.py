"""Layers composed of operators, or with fewer operands than theirs, against numpy."""

import numpy as np
import pytest

import pelton
from pelton.errors import InputError
from pelton.importers.network import imported
from pelton.ir.evaluate import evaluate

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def outputs(net, **feeds):
    """By the reference; types that the network says are those that come out."""
    found = evaluate(imported(net, {k: a.shape for k, a in feeds.items()}).graph, feeds)
    for name, t in net.outputs.items():
        assert found[name].dtype == t.dtype.numpy and found[name].ndim == t.rank
    return found


def one(layer, *arrays, dynamic=True):
    """What a layer gives for arrays, whose first sizes are dynamic."""
    net = pelton.Network()
    given = []
    for i, a in enumerate(arrays):
        shape = (f"n{i}", *a.shape[1:]) if dynamic and a.ndim else a.shape
        given.append(net.input(f"x{i}", shape, pelton.plugins.DType.of(a)))
    found = layer(net, *given)
    for i, y in enumerate(found if isinstance(found, tuple) else (found,)):
        net.output(y, f"y{i}")
    return list(outputs(net, **{f"x{i}": a for i, a in enumerate(arrays)}).values())


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


X = normal(4, 5, 6)
I = RNG.integers(-9, 9, (4, 5)).astype(np.int32)  # noqa: E741
LAYERS = {
    "cast": (lambda n, x: n.cast(x, "i32"), lambda x: x.astype(np.int32)),
    "clip_low": (lambda n, x: n.clip(x, 0.5), lambda x: np.maximum(x, np.float32(0.5))),
    "clip_high": (lambda n, x: n.clip(x, high=0.5), lambda x: np.minimum(x, np.float32(0.5))),
    "scale": (
        lambda n, x: n.scale(x, np.arange(1.0, 6.0, dtype=np.float32), 3.0, 2),
        lambda x: (x * np.arange(1, 6)[:, None] + 3) ** 2,
    ),
    "full": (lambda n, x: n.full(2.5, x.shape[:2]) + x[..., 0], lambda x: x[..., 0] + 2.5),
    "iota": (lambda n, x: n.iota(x.shape[0], "f32"), lambda x: np.arange(len(x)).astype(np.float32)),
    "shape_of": (lambda n, x: n.shape_of(x), lambda x: np.array(x.shape)),
    "stack": (lambda n, x: n.stack([x, x + 1], axis=-1), lambda x: np.stack([x, x + 1], -1)),
    "unstack": (lambda n, x: n.unstack(x, 1), lambda x: tuple(x[:, i] for i in range(5))),
    "tile": (lambda n, x: n.tile(x, (2, 1, 3)), lambda x: np.tile(x, (2, 1, 3))),
    "flip": (lambda n, x: n.flip(x, (0, -1)), lambda x: x[::-1, :, ::-1]),
    "flip_one": (lambda n, x: n.flip(x, 1), lambda x: x[:, ::-1]),
    **{
        f"roll_{axis}_{shift}": (
            lambda n, x, shift=shift, axis=axis: n.roll(x, shift, axis),
            lambda x, shift=shift, axis=axis: np.roll(x, shift, axis),
        )
        for axis, shifts in ((0, (1, -1, 0)), (1, (2, -2, 5, 13, -6)))
        for shift in shifts
    },
    "upsample": (lambda n, x: n.upsample(x, 2), lambda x: x.repeat(2, 2)),
    "reduce_sum": (lambda n, x: n.reduce_sum(x), lambda x: x.sum(keepdims=True)),
    "reduce_mean": (lambda n, x: n.reduce_mean(x, -1, False), lambda x: x.mean(-1)),
    "reduce_max": (lambda n, x: n.reduce_max(x, (0, 2)), lambda x: x.max((0, 2), keepdims=True)),
    "reduce_min": (lambda n, x: n.reduce_min(x, keepdims=False), lambda x: x.min()),
    "reduce_prod": (lambda n, x: n.reduce_prod(x, 1), lambda x: x.prod(1, keepdims=True)),
    "reduce_l1": (lambda n, x: n.reduce_l1(x, 1), lambda x: abs(x).sum(1, keepdims=True)),
    "reduce_l2": (lambda n, x: n.reduce_l2(x, 1), lambda x: np.sqrt((x * x).sum(1, keepdims=True))),
    "reduce_sum_square": (lambda n, x: n.reduce_sum_square(x, 1), lambda x: (x * x).sum(1, keepdims=True)),
    "reduce_log_sum": (lambda n, x: n.reduce_log_sum(abs(x), 1), lambda x: np.log(abs(x).sum(1, keepdims=True))),
    "reduce_log_sum_exp": (lambda n, x: n.reduce_log_sum_exp(x, 1), lambda x: np.log(np.exp(x).sum(1, keepdims=True))),
    "layer_norm": (
        lambda n, x: n.layer_norm(x),
        lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5),
    ),
    "rms_norm": (lambda n, x: n.rms_norm(x), lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)),
    "instance_norm": (
        lambda n, x: n.instance_norm(x, bias=np.ones(5, np.float32)),
        lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) + 1,
    ),
    "group_norm": (
        lambda n, x: n.group_norm(x, groups=1),
        lambda x: (x - x.mean((1, 2), keepdims=True)) / np.sqrt(x.var((1, 2), keepdims=True) + 1e-5),
    ),
    "l2_normalize": (lambda n, x: n.l2_normalize(x), lambda x: x / np.sqrt((x * x).sum(-1, keepdims=True))),
    "top_k": (lambda n, x: n.top_k(x, 3), lambda x: (np.sort(x)[..., :-4:-1], np.argsort(x)[..., :-4:-1])),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_what_numpy_says(name):
    layer, want = LAYERS[name]
    expected = want(X)
    for got, array in zip(one(layer, X), expected if isinstance(expected, tuple) else (expected,), strict=True):
        assert got.shape == np.shape(array)
        np.testing.assert_allclose(got, array, rtol=1e-4, atol=1e-5)


def test_integers_are_clipped_on_one_side():
    (got,) = one(lambda n, x: n.clip(x, low=-2), I)
    assert np.array_equal(got, np.maximum(I, -2))


@pytest.mark.parametrize(
    "equation, shapes",
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("ij->ji", [(3, 4)]),
        ("ijk->j", [(3, 4, 5)]),
        ("i,j->ij", [(3,), (4,)]),
        ("ij,ij->", [(3, 4), (3, 4)]),
        ("bij,bj", [(2, 3, 4), (2, 4)]),
        ("ab,bc,cd->da", [(2, 3), (3, 4), (4, 5)]),
        ("aib,ic,ad->bdc", [(2, 3, 4), (3, 5), (2, 6)]),
        ("ij,ij->ij", [(3, 4), (3, 4)]),
        ("xij,y->xj", [(2, 3, 4), (5,)]),
    ],
)
def test_einsum(equation, shapes):
    arrays = [normal(*s) for s in shapes]
    (got,) = one(lambda n, *xs: n.einsum(equation, *xs), *arrays, dynamic=False)
    np.testing.assert_allclose(got, np.einsum(equation, *arrays), rtol=1e-4, atol=1e-5)


def test_einsum_of_dynamic_sizes():
    net = pelton.Network()
    q, k = net.input("q", "f32[b, rows, 4]"), net.input("k", "f32[b, keys, 4]")
    net.output(net.einsum("bqd,bkd->kbq", q, k), "y")
    a, b = normal(2, 3, 4), normal(2, 7, 4)
    np.testing.assert_allclose(outputs(net, q=a, k=b)["y"], np.einsum("bqd,bkd->kbq", a, b), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mask", [None, "added", "bool", "causal"])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_attention(mask, heads):
    """With fewer heads of keys than of queries, in order: heads 0 and 1 of four read head 0 of two."""
    q, k, v = normal(2, 4, 5, 8), normal(2, heads, 6, 8), normal(2, heads, 6, 3)
    allowed = RNG.random((5, 6)) < 0.7
    allowed[:, 0] = True
    given = {"added": np.where(allowed, 0, -2.5).astype(np.float32), "bool": allowed}.get(mask)
    (got,) = one(lambda n, *xs: n.attention(*xs, given, causal=mask == "causal"), q, k, v, dynamic=False)
    whole_k, whole_v = k.repeat(4 // heads, 1), v.repeat(4 // heads, 1)
    scores = q @ whole_k.swapaxes(-1, -2) / np.sqrt(8)
    if mask == "added":
        scores = scores + given
    if mask in ("bool", "causal"):
        scores = np.where(allowed if mask == "bool" else np.tri(5, 6, dtype=bool), scores, -np.inf)
    np.testing.assert_allclose(got, softmax(scores) @ whole_v, rtol=1e-4, atol=1e-5)


def test_sequences_are_reversed_up_to_their_lengths():
    x, lengths = normal(5, 3, 2), np.array([5, 1, 3])
    (got,) = one(lambda n, x, lengths: n.reverse_sequence(x, lengths), x, lengths, dynamic=False)
    for b, length in enumerate(lengths):
        assert np.array_equal(got[:length, b], x[:length, b][::-1]) and np.array_equal(got[length:, b], x[length:, b])
    (other,) = one(
        lambda n, x, lengths: n.reverse_sequence(x, lengths, time_axis=1, batch_axis=0),
        x.swapaxes(0, 1).copy(),
        lengths,
        dynamic=False,
    )
    assert np.array_equal(other, got.swapaxes(0, 1))


@pytest.mark.parametrize("batch", ["n", 2])
def test_recurrent_layers_begin_with_zeros(batch):
    """Of what is left out; a cell of each, step by step."""
    hidden, inputs, x = 3, 4, normal(5, 2, 4)

    def sigmoid(v):
        return 1 / (1 + np.exp(-v))

    weights = {
        kind: (normal(1, g * hidden, inputs), normal(1, g * hidden, hidden))
        for kind, g in (("lstm", 4), ("gru", 3), ("rnn", 1))
    }
    net = pelton.Network()
    given = net.input("x", (5, batch, inputs))
    for kind, (w, r) in weights.items():
        net.output(getattr(net, kind)(given, w, r, name=kind)[0], kind)
    found = outputs(net, x=x)
    h = {kind: np.zeros((2, hidden)) for kind in weights}
    c = np.zeros((2, hidden))
    for t in range(5):
        w, r = (v[0] for v in weights["lstm"])
        i, o, f, g = np.split(x[t] @ w.T + h["lstm"] @ r.T, 4, -1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h["lstm"] = sigmoid(o) * np.tanh(c)
        w, r = (v[0] for v in weights["gru"])
        z, reset = np.split(sigmoid(x[t] @ w[:6].T + h["gru"] @ r[:6].T), 2, -1)
        n = np.tanh(x[t] @ w[6:].T + (reset * h["gru"]) @ r[6:].T)
        h["gru"] = (1 - z) * n + z * h["gru"]
        w, r = (v[0] for v in weights["rnn"])
        h["rnn"] = np.tanh(x[t] @ w.T + h["rnn"] @ r.T)
        for kind in weights:
            np.testing.assert_allclose(found[kind][t, 0], h[kind], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "wrong, reason",
    [
        (lambda n, x: n.einsum("ij,jk", x), "does not fit"),
        (lambda n, x: n.einsum("i...", x), "letters alone"),
        (lambda n, x: n.einsum("iij", x), "no letter twice"),
        (lambda n, x: n.einsum("ijk->z", x), "no letter twice"),
        (lambda n, x: n.einsum("ijk,jl", x, np.zeros((9, 2), np.float32)), "one size for 'j', got 5 and 9"),
        (lambda n, x: n.cast(x, "f33"), "no element type"),
        (lambda n, x: n.lstm(x, x, normal(2)), "needs x"),
        (lambda n, x: n.reduce_sum(x, 3), "axes from 0 to 2"),
        (lambda n, x: n.unstack(n.input("y", "f32[m, 2]")), "must be known"),
        (lambda n, x: n.top_k(x, 9), "needs k from 0 to 6"),
    ],
)
def test_wrong_layers_are_refused(wrong, reason):
    net = pelton.Network()
    with pytest.raises(pelton.InputError, match=reason):
        wrong(net, net.input("x", (4, 5, 6)))


def test_element_types_are_names_in_every_operator():
    net = pelton.Network()
    x, a, b = net.input("x", "f32[4]"), net.input("a", "u8[2, 3]"), net.input("b", "i8[3, 2]")
    assert net.quantize(x, 0.5, to="u8").dtype.value == "u8"
    assert net.matmul(a, b, accumulate="i32").dtype.value == "i32"
    with pytest.raises(InputError, match="u9"):
        net.quantize(x, 0.5, to="u9")
    for make in (lambda: net.cast(net.input("s", "string[3]"), "f32"), lambda: net.cast(x, "string")):
        with pytest.raises(InputError, match="cast is for numbers and bool"):
            make()
