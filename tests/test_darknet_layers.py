"""Darknet layers beside its sources' definitions, in numpy."""

import struct

import numpy as np
import pytest

import pelton
from pelton import importers
from pelton.ir.evaluate import evaluate

RNG = np.random.default_rng(0)
PJREDDIE, ALEXEYAB, TRANSPOSED = (0, 2, 0), (0, 2, 5), (0, 2000, 0)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def logistic(x):
    return 1 / (1 + np.exp(-x))


def net(layers, c=4, h=6, w=6, **more):
    options = "".join(f"{k}={v}\n" for k, v in dict(channels=c, height=h, width=w, **more).items())
    return f"[net]\n{options}{layers}".encode()


def run(tmp_path, text, x, arrays=(), version=PJREDDIE):
    """What a program gives for weights of these arrays."""
    path = tmp_path / "net.weights"
    seen = struct.pack("<q" if version[0] * 10 + version[1] >= 2 else "<i", 64000)
    data = b"".join(np.asarray(a, "<f4").tobytes() for a in arrays)
    path.write_bytes(struct.pack("<3i", *version) + seen + data)
    graph = importers.load(importers.ModelFiles(text, path), {"data": x.shape}).graph
    found = list(evaluate(graph, {"data": x}).values())
    return found[0] if len(found) == 1 else found


def check(found, want):
    assert found.shape == want.shape
    np.testing.assert_allclose(found, want, rtol=2e-4, atol=2e-5 * max(np.abs(want).max(), 1))


def convolve(x, weights, stride=1, pad=0, dilation=1):
    """By the definition, in f64."""
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    k = weights.shape[-1]
    rows, columns = ((n - (k - 1) * dilation - 1) // stride + 1 for n in x.shape[2:])
    y = np.zeros((len(x), len(weights), rows, columns))
    for i in range(rows):
        for j in range(columns):
            window = x[:, :, i * stride :, j * stride :][:, :, : (k - 1) * dilation + 1, : (k - 1) * dilation + 1]
            y[:, :, i, j] = np.einsum("bcij,ocij->bo", window[:, :, ::dilation, ::dilation], weights)
    return y


ACTIVATIONS = {
    "linear": lambda x: x,
    "logistic": logistic,
    "loggy": lambda x: 2 * logistic(x) - 1,
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "elu": lambda x: np.where(x >= 0, x, np.expm1(x)),
    "selu": lambda x: np.where(x >= 0, 1.0507 * x, 1.0507 * 1.6732 * np.expm1(x)),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(0.797885 * x + 0.035677 * x**3)),
    "relie": lambda x: np.where(x > 0, x, 0.01 * x),
    "ramp": lambda x: x * (x > 0) + 0.1 * x,
    "leaky": lambda x: np.where(x > 0, x, 0.1 * x),
    "revleaky": lambda x: np.where(x > 0, x, 0.1 * x),
    "tanh": np.tanh,
    "plse": lambda x: np.where(x < -4, 0.01 * (x + 4), np.where(x > 4, 0.01 * (x - 4) + 1, 0.125 * x + 0.5)),
    "stair": lambda x: np.where(np.floor(x) % 2 == 0, np.floor(x / 2), (x - np.floor(x)) + np.floor(x / 2)),
    "hardtan": lambda x: np.clip(x, -1, 1),
    "lhtan": lambda x: np.where(x < 0, 0.001 * x, np.where(x > 1, 0.001 * (x - 1) + 1, x)),
    "swish": lambda x: x * logistic(x),
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "hard_mish": lambda x: np.where(x > 0, x, np.where(x > -2, x * x / 2 + x, 0)),
    "normalize_channels": lambda x: np.maximum(x, 0) / (np.maximum(x, 0).sum(1, keepdims=True) + 1e-4),
    "normalize_channels_softmax": lambda x: np.exp(x) / (np.exp(x).sum(1, keepdims=True) + 1e-4),
    "normalize_channels_softmax_maxval": lambda x: (
        np.exp(x - x.max(1, keepdims=True)) / (np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True) + 1e-4)
    ),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(tmp_path, name):
    x = np.float32(RNG.uniform(-7, 7, (2, 4, 6, 6)))
    check(run(tmp_path, net(f"[activation]\nactivation={name}\n"), x), ACTIVATIONS[name](x.astype(np.float64)))


def test_convolutions_with_dilation_flipped_and_shared_weights(tmp_path):
    x, w1, b1, w2, b2 = normal(2, 4, 6, 6), normal(4, 4, 3, 3), normal(4), normal(5, 4, 3, 3), normal(5)
    text = net(
        "[convolutional]\nfilters=4\nsize=3\npad=1\ndilation=2\nactivation=tanh\n"
        "[convolutional]\nshare_index=-1\nfilters=4\nsize=3\nstride=1\npadding=1\nactivation=linear\n"
        "[convolutional]\nfilters=5\nsize=3\nstride_x=2\nstride_y=2\nflipped=1\n"
    )
    flipped = w2.reshape(5, -1).T
    y = np.tanh(convolve(x, w1, pad=2, dilation=2) + b1[:, None, None])
    y = convolve(y, w1, pad=1) + b1[:, None, None]
    y = logistic(convolve(y, w2, stride=2) + b2[:, None, None])
    check(run(tmp_path, text, x, (b1, w1, b2, flipped)), y)


@pytest.mark.parametrize("version", [PJREDDIE, TRANSPOSED, (0, 1, 0), (1001, 0, 0)])
def test_matrix_products_and_every_header(tmp_path, version):
    x, w, b = normal(3, 4, 6, 6), normal(7, 144), normal(7)
    scale, mean, variance = normal(7), normal(7), RNG.uniform(0.5, 2, 7)
    y = ((x.reshape(3, -1) @ w.T) - mean) / np.sqrt(variance) * scale + b
    stored = w.T if max(version) > 1000 else w
    text = net("[connected]\noutput=7\nbatch_normalize=1\nactivation=leaky\n[dropout]\n[cost]\n")
    found = run(tmp_path, text, x, (b, stored, scale, mean, variance), version)
    check(found, ACTIVATIONS["leaky"](y))


@pytest.mark.parametrize("version", [PJREDDIE, ALEXEYAB])
def test_batch_norm_of_its_own(tmp_path, version):
    x, scale, mean, variance, bias = normal(2, 4, 6, 6), normal(4), normal(4), RNG.uniform(0.5, 2, 4), normal(4)
    arrays = (bias, scale, mean, variance) if version is ALEXEYAB else (scale, mean, variance)
    y = (x - mean[:, None, None]) / np.sqrt(variance)[:, None, None] * scale[:, None, None]
    y = y + bias[:, None, None] if version is ALEXEYAB else y
    check(run(tmp_path, net("[batchnorm]\n"), x, arrays, version), y)


@pytest.mark.parametrize("size, stride, pad", [(3, 1, 1), (3, 2, 1), (2, 2, 0), (5, 1, 0)])
def test_local_layers(tmp_path, size, stride, pad):
    x = normal(2, 4, 6, 6)
    padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    n = (6 + 2 * pad - size) // stride + 1
    w, b = normal(n * n, 3, 4, size, size), normal(3, n, n)
    y = np.zeros((2, 3, n, n))
    for i in range(n):
        for j in range(n):
            window = padded[:, :, i * stride : i * stride + size, j * stride : j * stride + size]
            y[:, :, i, j] = np.einsum("bcij,ocij->bo", window, w[i * n + j])
    text = net(f"[local]\nfilters=3\nsize={size}\nstride={stride}\npad={pad}\nactivation=linear\n")
    check(run(tmp_path, text, x, (b, w)), y + b)


@pytest.mark.parametrize("h, w", [(7, 6), (5, 8)])
@pytest.mark.parametrize("size, stride, padding", [(2, 2, 1), (2, 1, 1), (3, 2, 2), (3, 1, 2), (5, 3, 0), (3, 2, 3)])
@pytest.mark.parametrize("kind", ["maxpool", "local_avgpool"])
def test_pools(tmp_path, kind, size, stride, padding, h, w):
    x, begin = normal(2, 3, h, w), -(padding // 2)
    rows, columns = ((n + padding - size) // stride + 1 for n in (h, w))
    y = np.zeros((2, 3, rows, columns))
    for i in range(rows):
        for j in range(columns):
            top, left = begin + i * stride, begin + j * stride
            window = x[:, :, max(top, 0) : top + size, max(left, 0) : left + size]
            y[:, :, i, j] = window.max((2, 3)) if kind == "maxpool" else window.mean((2, 3))
    more = "" if padding == size - 1 else f"padding={padding}\n"
    check(run(tmp_path, net(f"[{kind}]\nsize={size}\nstride={stride}\n{more}", 3, h, w), x), y)


def reorganized(x, k, reverse):
    """The loop of reorg_cpu for one picture [c, h, w]."""
    c, h, w = x.shape
    flat, out = x.reshape(-1), np.zeros(x.size, x.dtype)
    for index in range(x.size):
        i, j, channel = index % w, index // w % h, index // (w * h)
        part, offset = channel % (c // (k * k)), channel // (c // (k * k))
        there = i * k + offset % k + w * k * (j * k + offset // k + h * k * part)
        if reverse:
            out[there] = flat[index]
        else:
            out[index] = flat[there]
    return out.reshape((c // (k * k), h * k, w * k) if reverse else (c * k * k, h // k, w // k))


@pytest.mark.parametrize("k, c, h, w", [(2, 8, 4, 6), (3, 9, 6, 3)])
@pytest.mark.parametrize("reverse", [0, 1])
def test_reorg_has_its_sizes_exchanged(tmp_path, k, c, h, w, reverse):
    x = normal(2, c, h, w)
    want = np.stack([reorganized(a, k, reverse) for a in x])
    check(run(tmp_path, net(f"[reorg]\nstride={k}\nreverse={reverse}\n", c, h, w), x), want)


def test_reorg3d_is_space_to_depth(tmp_path):
    x = normal(2, 3, 4, 6)
    want = x.reshape(2, 3, 2, 2, 3, 2).transpose(0, 3, 5, 1, 2, 4).reshape(2, 12, 2, 3)
    check(run(tmp_path, net("[reorg3d]\nstride=2\n", 3, 4, 6), x), want)


def test_shortcuts_from_larger_images_with_factors(tmp_path):
    x, w, b = normal(2, 4, 6, 6), normal(3, 4, 1, 1), normal(3)
    text = net(
        "[activation]\n[convolutional]\nfilters=3\nsize=1\nstride=2\nactivation=linear\n"
        "[shortcut]\nfrom=-2\nalpha=0.5\nbeta=2\nactivation=leaky\n"
    )
    y = convolve(x, w, 2) + b[:, None, None]
    check(run(tmp_path, text, x, (b, w)), ACTIVATIONS["leaky"](0.5 * y + 2 * x[:, :3, ::2, ::2]))


@pytest.mark.parametrize("norm", ["none", "relu", "softmax"])
@pytest.mark.parametrize("kind, count", [("per_feature", 1), ("per_channel", 4)])
def test_weighted_shortcuts(tmp_path, kind, count, norm):
    x, given = normal(2, 4, 6, 6), normal(3, count)
    text = net(
        "[activation]\n[activation]\nactivation=relu\n[activation]\nactivation=tanh\n"
        f"[shortcut]\nfrom=-2,0\nweights_type={kind}\nweights_normalization={norm}\n"
    )
    f = given
    if norm != "none":
        f = np.maximum(f, 0) if norm == "relu" else np.exp(f - f.max(0))
        f = f / (f.sum(0) + 1e-4)
    f = f[:, :, None, None]
    relu = np.maximum(x, 0)
    check(run(tmp_path, text, x, (given,), ALEXEYAB), np.tanh(relu) * f[0] + relu * f[1] + x * f[2])


def test_small_layers(tmp_path):
    x = normal(2, 4, 6, 6)
    for layers, want in {
        "[crop]\ncrop_height=3\ncrop_width=4\n": x[:, :, 1:4, 1:5] * 2 - 1,
        "[crop]\ncrop_height=3\ncrop_width=4\nnoadjust=1\nflip=1\n": x[:, :, 1:4, 1:5],
        "[upsample]\nstride=2\nscale=0.5\n": x.repeat(2, 2).repeat(2, 3) * 0.5,
        "[upsample]\nstride=-2\n": x.reshape(2, 4, 3, 2, 3, 2).sum((3, 5)),
        "[maxpool]\nmaxpool_depth=1\nout_channels=2\n": x.reshape(2, 2, 2, 6, 6).max(1),
        "[avgpool]\n": x.mean((2, 3), keepdims=True),
        "[route]\nlayers=-1,0\n": None,
        "[activation]\n[activation]\nactivation=relu\n[route]\nlayers=-1,0\ngroups=4\ngroup_id=2\n": np.concatenate(
            [np.maximum(x[:, 2:3], 0), x[:, 2:3]], 1
        ),
        "[activation]\n[logistic]\n[sam]\nfrom=0\nactivation=leaky\n": ACTIVATIONS["leaky"](x * logistic(x)),
        "[activation]\n[avgpool]\n[scale_channels]\nfrom=-2\n": x * x.mean((2, 3), keepdims=True),
    }.items():
        if want is None:
            with pytest.raises(pelton.ModelError, match="layers must name layers before"):
                run(tmp_path, net(layers), x)
        else:
            check(run(tmp_path, net(layers), x), want)
    e = np.exp(x.reshape(2, 9, 16) / 2)
    check(run(tmp_path, net("[softmax]\ngroups=9\ntemperature=2\n"), x), (e / e.sum(2, keepdims=True)).reshape(2, 144))


def test_one_engine_for_every_batch_and_another_size(tmp_path):
    text = net("[convolutional]\nfilters=3\nsize=3\npad=1\n[maxpool]\nsize=2\nstride=2\n", 3, 6, 6)
    w, b = normal(3, 3, 3, 3), normal(3)
    path = tmp_path / "net.weights"
    path.write_bytes(struct.pack("<3iq", *PJREDDIE, 0) + b.tobytes() + w.tobytes())
    engine = pelton.build(text, weights=path, shapes={"data": "1..2..5x3x8x10"}, level=0, threads=1)
    for batch in (1, 3):
        x = normal(batch, 3, 8, 10)
        y = logistic(convolve(x, w, pad=1) + b[:, None, None]).reshape(batch, 3, 4, 2, 5, 2).max((3, 5))
        check(engine.run({"data": x})["maxpool_1"], y)
    with pytest.raises(pelton.InputError, match="height and width of 'data' must be fixed"):
        pelton.build(text, shapes={"data": "1x3x8..16..32x8"})
