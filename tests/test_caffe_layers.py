"""Caffe layers, beside numpy written from their definitions."""

import math

import numpy as np
import pytest
from caffe_models import layer, run, text

import pelton
from pelton.importers import load

SHAPE = (2, 6, 5, 7)


def per_channel(a):
    return a.reshape(-1, 1, 1)


def convolved(x, w, b=0.0, stride=1, pad=0, dilation=1, group=1):
    """Σ over the window, by its definition."""
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    reach = [(k - 1) * dilation + 1 for k in w.shape[2:]]
    sizes = [(d - r) // stride + 1 for d, r in zip(x.shape[2:], reach)]
    y = np.zeros((x.shape[0], w.shape[0], *sizes))
    each = w.shape[0] // group
    for i, j in np.ndindex(*sizes):
        window = x[:, :, i * stride :, j * stride :][:, :, : reach[0] : dilation, : reach[1] : dilation]
        for g in range(group):
            channels = slice(g * w.shape[1], (g + 1) * w.shape[1])
            of = w[g * each : (g + 1) * each]
            y[:, g * each : (g + 1) * each, i, j] = np.einsum("nchw,mchw->nm", window[:, channels], of)
    return y + per_channel(np.asarray(b))


def deconvolved(x, w, b, stride, pad, group=1):
    """Each element adds its filter to the output."""
    each, outputs = x.shape[1] // group, w.shape[1]
    y = np.zeros((x.shape[0], outputs * group, *((d - 1) * stride + k for d, k in zip(x.shape[2:], w.shape[2:]))))
    for i, j in np.ndindex(*x.shape[2:]):
        for g in range(group):
            part = np.einsum("nc,cmhw->nmhw", x[:, g * each : (g + 1) * each, i, j], w[g * each : (g + 1) * each])
            rows, columns = (slice(at * stride, at * stride + k) for at, k in zip((i, j), w.shape[2:]))
            y[:, g * outputs : (g + 1) * outputs, rows, columns] += part
    inside = slice(pad, -pad) if pad else slice(None)
    return y[:, :, inside, inside] + per_channel(b)


def across_channels(x, size, alpha, beta, k=1.0):
    squares = np.pad(x.astype(np.float64) ** 2, [(0, 0), (size // 2,) * 2, (0, 0), (0, 0)])
    return x / (k + alpha / size * sum(squares[:, i : i + x.shape[1]] for i in range(size))) ** beta


def within_channel(x, size, alpha, beta):
    squares = np.pad(x.astype(np.float64) ** 2, [(0, 0), (0, 0), (size // 2,) * 2, (size // 2,) * 2])
    total = sum(squares[:, :, i : i + x.shape[2], j : j + x.shape[3]] for i in range(size) for j in range(size))
    return x * (1 + alpha * total / size**2) ** -beta


def normalized(x, axes, eps=1e-9):
    centred = x - x.mean(axes, keepdims=True)
    return centred / (np.sqrt((centred**2).mean(axes, keepdims=True)) + eps)


def stretched(x, sizes):
    """Linear between the corners."""
    for axis, size in zip((2, 3), sizes):
        at = np.arange(size) * (x.shape[axis] - 1) / max(1, size - 1)
        low = np.minimum(np.floor(at).astype(int), x.shape[axis] - 1)
        high, t = np.minimum(low + 1, x.shape[axis] - 1), (at - low).reshape((-1,) + (1,) * (3 - axis))
        x = np.take(x, low, axis) * (1 - t) + np.take(x, high, axis) * t
    return x


def softmax(x, axis=1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def largest(x, count):
    """Indices of the largest, the last of equals first."""
    return np.argsort(-x[..., ::-1], -1, kind="stable")[..., :count] * -1 + x.shape[-1] - 1


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


CASES = [  # type, params, f(x, *blobs)
    ("AbsVal", "", np.abs),
    ("ArgMax", "argmax_param { axis: 2 top_k: 3 }", lambda x: np.swapaxes(largest(np.swapaxes(x, 2, 3), 3), 2, 3)),
    ("ArgMax", "argmax_param { top_k: 4 }", lambda x: largest(x.reshape(2, -1), 4).reshape(2, 1, 4)),
    (
        "ArgMax",
        "argmax_param { out_max_val: true top_k: 2 }",
        lambda x: np.stack([largest(x.reshape(2, -1), 2), -np.sort(-x.reshape(2, -1))[:, :2]], 1),
    ),
    ("ArgMax", "argmax_param { out_max_val: true axis: -1 }", lambda x: x.max(-1, keepdims=True)),
    (
        "BN",
        'bn_param { slope_filler { type: "uniform" min: 1 max: 2 } eps: 0.1 frozen: true }',
        lambda x, a, b, m, v: (x - per_channel(m)) / np.sqrt(per_channel(v) + 0.1) * per_channel(a) + per_channel(b),
    ),
    ("BN", "bn_param { bn_mode: INFERENCE }", lambda x, a, b: x * per_channel(a) + per_channel(b)),
    ("BN", "", lambda x, a, b: normalized(x, (0, 2, 3)) * per_channel(a) + per_channel(b)),
    ("BNLL", "", lambda x: np.log1p(np.exp(x))),
    ("BatchNorm", "", lambda x, m, v, f: (x - per_channel(m / f)) / np.sqrt(per_channel(v / f) + 1e-5)),
    (
        "BatchNorm",
        "batch_norm_param { eps: 0.1 }",
        lambda x, m, v, f: (x - per_channel(m / f)) / np.sqrt(per_channel(v / f) + 0.1),
    ),
    (
        "BatchNorm",
        "batch_norm_param { use_global_stats: false }",
        lambda x, *_: (x - x.mean((0, 2, 3), keepdims=True)) / np.sqrt(x.var((0, 2, 3), keepdims=True) + 1e-5),
    ),
    ("Bias", "", lambda x, b: x + per_channel(b)),
    ("Bias", "bias_param { axis: -2 num_axes: -1 }", lambda x, b: x + b),
    ("Clip", "clip_param { min: -0.5 max: 1 }", lambda x: x.clip(-0.5, 1)),
    ("Concat", "", lambda x: x),
    (
        "Convolution",
        "convolution_param { num_output: 4 kernel_size: 3 pad: 1 stride: 2 }",
        lambda x, w, b: convolved(x, w, b, 2, 1),
    ),
    (
        "Convolution",
        "convolution_param { num_output: 4 kernel_h: 2 kernel_w: 3 dilation: 2 group: 2 bias_term: false }",
        lambda x, w: convolved(x, w, dilation=2, group=2),
    ),
    (
        "ConvolutionDepthwise",
        "convolution_param { num_output: 12 kernel_size: 3 }",
        lambda x, w, b: convolved(x, w, b, group=6),
    ),
    (
        "Deconvolution",
        "convolution_param { num_output: 4 kernel_size: 4 stride: 2 pad: 1 }",
        lambda x, w, b: deconvolved(x, w, b, 2, 1),
    ),
    (
        "Deconvolution",
        "convolution_param { num_output: 6 kernel_size: 3 stride: 3 group: 3 }",
        lambda x, w, b: deconvolved(x, w, b, 3, 0, 3),
    ),
    ("Dropout", "dropout_param { dropout_ratio: 0.9 }", lambda x: x),
    ("ELU", "elu_param { alpha: 0.5 }", lambda x: np.where(x > 0, x, 0.5 * np.expm1(x))),
    ("Exp", "", np.exp),
    ("Exp", "exp_param { base: 2 scale: 0.5 shift: 0.1 }", lambda x: 2 ** (0.1 + 0.5 * x)),
    ("Flatten", "", lambda x: x.reshape(2, -1)),
    ("Flatten", "flatten_param { axis: -3 end_axis: 2 }", lambda x: x.reshape(2, 30, 7)),
    (
        "Im2col",
        "convolution_param { kernel_size: 2 stride: 2 }",
        lambda x: np.stack([x[:, :, i : i + 3 : 2, j : j + 5 : 2] for i in (0, 1) for j in (0, 1)], 2).reshape(
            2, 24, 2, 3
        ),
    ),
    ("InnerProduct", "inner_product_param { num_output: 5 }", lambda x, w, b: x.reshape(2, -1) @ w.T + b),
    ("InnerProduct", "inner_product_param { num_output: 5 axis: -1 bias_term: false }", lambda x, w: x @ w.T),
    (
        "InnerProduct",
        "inner_product_param { num_output: 5 axis: 2 transpose: true }",
        lambda x, w, b: x.reshape(2, 6, -1) @ w + b,
    ),
    ("Interp", "interp_param { height: 9 width: 4 }", lambda x: stretched(x, (9, 4))),
    ("Interp", "interp_param { zoom_factor: 3 pad_beg: -1 }", lambda x: stretched(x[:, :, 1:, 1:], (10, 16))),
    ("Interp", "interp_param { shrink_factor: 2 zoom_factor: 2 }", lambda x: stretched(x, (5, 7))),
    ("LRN", "lrn_param { local_size: 3 alpha: 0.3 beta: 0.5 k: 2 }", lambda x: across_channels(x, 3, 0.3, 0.5, 2)),
    ("LRN", "", lambda x: across_channels(x, 5, 1, 0.75)),
    (
        "LRN",
        "lrn_param { local_size: 3 alpha: 0.3 norm_region: WITHIN_CHANNEL }",
        lambda x: within_channel(x, 3, 0.3, 0.75),
    ),
    ("Log", "log_param { shift: 9 scale: 0.5 base: 10 }", lambda x: np.log10(9 + 0.5 * x)),
    ("MVN", "", lambda x: normalized(x, (2, 3))),
    ("MVN", "mvn_param { across_channels: true eps: 0.5 }", lambda x: normalized(x, (1, 2, 3), 0.5)),
    ("MVN", "mvn_param { normalize_variance: false }", lambda x: x - x.mean((2, 3), keepdims=True)),
    ("Normalize", "", lambda x, s: x / np.sqrt((x**2).sum((1, 2, 3), keepdims=True)) * s),
    (
        "Normalize",
        "norm_param { across_spatial: false channel_shared: false eps: 0.1 scale_filler { value: 20 } }",
        lambda x, s: x / np.sqrt((x**2).sum(1, keepdims=True) + 0.1) * per_channel(s),
    ),
    ("PReLU", "", lambda x, s: np.where(x > 0, x, per_channel(s) * x)),
    ("PReLU", "prelu_param { channel_shared: true }", lambda x, s: np.where(x > 0, x, s * x)),
    ("Permute", "permute_param { order: 2 order: 0 }", lambda x: x.transpose(2, 0, 1, 3)),
    ("Power", "power_param { power: 3 scale: -0.5 shift: 1 }", lambda x: (1 - 0.5 * x) ** 3),
    ("Power", "power_param { shift: 1 }", lambda x: 1 + x),
    ("Power", "", lambda x: x),
    ("ReLU", "", lambda x: np.maximum(x, 0)),
    ("ReLU", "relu_param { negative_slope: 0.2 }", lambda x: np.where(x > 0, x, 0.2 * x)),
    ("ReLU6", "", lambda x: x.clip(0, 6)),
    ("Reduction", "reduction_param { operation: ASUM axis: 2 coeff: 3 }", lambda x: 3 * np.abs(x).sum((2, 3))),
    ("Reduction", "reduction_param { operation: SUMSQ }", lambda x: (x**2).sum()),
    ("Reduction", "reduction_param { operation: MEAN axis: -1 }", lambda x: x.mean(-1)),
    ("Reduction", "reduction_param { axis: 1 }", lambda x: x.sum((1, 2, 3))),
    ("Reshape", "reshape_param { shape { dim: 0 dim: -1 dim: 7 } }", lambda x: x.reshape(2, 30, 7)),
    ("Reshape", "reshape_param { shape { dim: 3 dim: 2 } axis: 1 num_axes: 1 }", lambda x: x.reshape(2, 3, 2, 5, 7)),
    ("Reshape", "reshape_param { shape { dim: 1 } axis: -1 num_axes: 0 }", lambda x: x[..., None]),
    ("Scale", "", lambda x, s: x * per_channel(s)),
    ("Scale", "scale_param { axis: -3 num_axes: 2 bias_term: true }", lambda x, s, b: x * s[..., None] + b[..., None]),
    ("Scale", "scale_param { num_axes: 0 bias_term: true }", lambda x, s, b: x * s + b),
    ("ShuffleChannel", "shuffle_channel_param { group: 3 }", lambda x: x[:, [0, 2, 4, 1, 3, 5]]),
    ("Sigmoid", "", sigmoid),
    ("Softmax", "", softmax),
    ("Softmax", "softmax_param { axis: -1 }", lambda x: softmax(x, 3)),
    ("SigmoidCrossEntropyLoss", "", sigmoid),
    ("SoftmaxWithLoss", "", softmax),
    ("Split", "", lambda x: x),
    ("Swish", "swish_param { beta: 2 }", lambda x: x * sigmoid(2 * x)),
    ("TanH", "", np.tanh),
    ("Threshold", "threshold_param { threshold: 0.5 }", lambda x: x > 0.5),
    ("Tile", "tile_param { axis: 2 tiles: 3 }", lambda x: np.tile(x, (1, 1, 3, 1))),
    ("Upsample", "upsample_param { scale: 3 }", lambda x: x.repeat(3, 2).repeat(3, 3)),
]


@pytest.mark.parametrize("kind, params, define", CASES, ids=lambda a: a if isinstance(a, str) else "")
def test_of_one_bottom(kind, params, define, tmp_path):
    given, blobs, found = run(text(SHAPE, layer(kind, params)), path=tmp_path / "net.caffemodel")
    exact = [a.astype(np.float64) for a in (given["x"], *blobs.get("y", []))]
    want = np.asarray(define(*exact))
    assert found["y"].shape == want.shape
    np.testing.assert_allclose(found["y"], want, rtol=2e-5, atol=2e-5)


def test_of_several_bottoms(tmp_path):
    shapes = {
        "x": (2, 6, 3, 4),
        "y": (2, 6, 3, 4),
        "z": (2, 6, 3, 4),
        "s": (6, 3),
        "c": (2, 6, 1, 1),
        "small": (2, 6, 2, 2),
    }
    cases = {
        "sum": (
            layer("Eltwise", "eltwise_param { coeff: 0.5 coeff: -2 coeff: 1 }", ("x", "y", "z")),
            lambda g: 0.5 * g["x"] - 2 * g["y"] + g["z"],
        ),
        "product": (
            layer("Eltwise", "eltwise_param { operation: PROD }", ("x", "y", "z")),
            lambda g: g["x"] * g["y"] * g["z"],
        ),
        "maximum": (
            layer("Eltwise", "eltwise_param { operation: MAX }", ("x", "y", "z")),
            lambda g: np.maximum(np.maximum(g["x"], g["y"]), g["z"]),
        ),
        "concat": (
            layer("Concat", "concat_param { axis: -2 }", ("x", "y", "z")),
            lambda g: np.concatenate([g["x"], g["y"], g["z"]], 2),
        ),
        "concat_dim": (
            layer("Concat", "concat_param { concat_dim: 0 }", ("x", "y")),
            lambda g: np.concatenate([g["x"], g["y"]]),
        ),
        "scale": (layer("Scale", "scale_param { axis: 1 }", ("x", "s")), lambda g: g["x"] * g["s"][..., None]),
        "bias": (layer("Bias", "bias_param { axis: 1 }", ("x", "s")), lambda g: g["x"] + g["s"][..., None]),
        "axpy": (layer("Axpy", "", ("c", "x", "y")), lambda g: g["c"] * g["x"] + g["y"]),
        "crop": (layer("Crop", "crop_param { offset: 1 offset: 2 }", ("x", "small")), lambda g: g["x"][:, :, 1:3, 2:4]),
        "resized": (layer("Interp", "", ("x", "small")), lambda g: stretched(g["x"], (2, 2))),
    }
    for name, (one, define) in cases.items():
        read = {b: s for b, s in shapes.items() if f'bottom: "{b}"' in one}
        given, _, found = run(text(read, one.replace('top: "y"', 'top: "out"')))
        np.testing.assert_allclose(found["out"], define(given), rtol=1e-5, atol=1e-6, err_msg=name)


def test_slices_and_splits():
    for params, points in (
        ("slice_point: 1 slice_point: 4", (1, 4)),
        ("", (2, 4)),
        ("slice_dim: 1 slice_point: 2 slice_point: 3", (2, 3)),
    ):
        given, _, found = run(text(SHAPE, layer("Slice", f"slice_param {{ {params} }}", tops=("a", "b", "c"))))
        for name, part in zip("abc", np.split(given["x"], points, 1)):
            assert np.array_equal(found[name], part), params


def test_tables_of_words(tmp_path):
    ids = np.float32([[3, 0], [4, 4], [1, 2]])
    net = text((3, 2), layer("Embed", "embed_param { input_dim: 5 num_output: 7 }"))
    _, blobs, found = run(net, {"x": ids}, tmp_path / "net.caffemodel")
    table, bias = blobs["y"]
    np.testing.assert_allclose(found["y"], table[ids.astype(int)] + bias, rtol=1e-5)


def test_parameters_are_blobs(tmp_path):
    net = text((2, 3), layer("Parameter", "parameter_param { shape { dim: 2 dim: 3 } }", (), ("p",)))
    net += "\n" + layer("Eltwise", "", ("x", "p"))
    given, blobs, found = run(net, path=tmp_path / "net.caffemodel")
    np.testing.assert_allclose(found["y"], given["x"] + blobs["p"][0], rtol=1e-6)
    net = text((2, 3), layer("Parameter", "parameter_param { shape { } }", (), ("p",)))
    (number,) = load(net.encode()).graph.constants.values()
    assert number.shape == () and number != 0


def test_convolutions_over_one_and_three_axes(tmp_path):
    for shape, kernel in (((2, 4, 9), (3,)), ((1, 4, 5, 4, 6), (2, 3, 2))):
        sizes = " ".join(f"kernel_size: {k}" for k in kernel)
        net = text(shape, layer("Convolution", f"convolution_param {{ num_output: 3 {sizes} stride: 2 }}"))
        given, blobs, found = run(net, path=tmp_path / "net.caffemodel")
        weight, bias = blobs["y"]
        space = [range(0, d - k + 1, 2) for d, k in zip(shape[2:], kernel)]
        want = np.zeros((shape[0], 3, *map(len, space)))
        for at in np.ndindex(*map(len, space)):
            window = given["x"][(..., *(slice(s[i], s[i] + k) for s, i, k in zip(space, at, kernel)))]
            want[(..., *at)] = window.reshape(shape[0], -1) @ weight.reshape(3, -1).T + bias
        np.testing.assert_allclose(found["y"], want, rtol=1e-5, atol=1e-5)


def test_regions_of_interest():
    net = text(
        {"x": (2, 3, 8, 8), "rois": (2, 5)},
        layer("ROIPooling", "roi_pooling_param { pooled_h: 2 pooled_w: 2 spatial_scale: 0.5 }", ("x", "rois")),
    )
    rois = np.float32([[1, 0, 0, 14, 14], [0, 4, 4, 10, 10]])
    given, _, found = run(net, {"rois": rois})
    x = given["x"]
    np.testing.assert_allclose(found["y"][0, :, 1, 0], x[1, :, 4:8, 0:4].max((1, 2)), rtol=1e-6)
    np.testing.assert_allclose(found["y"][1, :, 0, 1], x[0, :, 2:4, 4:6].max((1, 2)), rtol=1e-6)


@pytest.mark.parametrize("exposed", [False, True])
@pytest.mark.parametrize("kind", ["RNN", "LSTM"])
def test_recurrent_layers_begin_anew_where_they_are_told(kind, exposed, tmp_path):
    steps, batch, size = 5, 2, 4
    states = exposed * {"RNN": 1, "LSTM": 2}[kind]
    shapes = {"x": (steps, batch, 3, 2), "cont": (steps, batch), **{f"s{i}": (1, batch, size) for i in range(states)}}
    params = f"recurrent_param {{ num_output: {size} expose_hidden: {str(exposed).lower()} }}"
    net = text(shapes, layer(kind, params, tuple(shapes), ("y", *(f"t{i}" for i in range(states)))))
    cont = np.float32([[0, 1], [1, 1], [1, 0], [0, 1], [1, 1]])
    given, blobs, found = run(net, {"cont": cont}, tmp_path / "net.caffemodel")
    w, b, u, *rest = (a.astype(np.float64) for a in blobs["y"])
    h, c = (given[f"s{i}"][0] if f"s{i}" in given else np.zeros((batch, size)) for i in range(2))
    want = []
    for x, going in zip(given["x"].reshape(steps, batch, -1), cont[..., None]):
        gates = x @ w.T + b + (h * going) @ u.T
        if kind == "RNN":
            h = np.tanh(gates)
            want.append(np.tanh(h @ rest[0].T + rest[1]))
        else:
            i, f, o, g = np.split(gates, 4, 1)
            c = going * sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            want.append(h)
    np.testing.assert_allclose(found["y"], want, rtol=1e-5, atol=1e-6)
    for i, state in enumerate((h, c)[:states]):
        np.testing.assert_allclose(found[f"t{i}"][0], state, rtol=1e-5, atol=1e-6)


def test_layers_in_place_and_shared_by_several_bottoms(tmp_path):
    """One convolution of two images, and layers that go on with a blob under its name."""
    net = text(
        {"x": (1, 3, 4, 4), "z": (1, 3, 4, 4)},
        layer("Convolution", "convolution_param { num_output: 2 kernel_size: 1 }", ("x", "z"), ("a", "b")),
        'layer { name: "r" type: "ReLU" bottom: "a" top: "a" }',
        'layer { name: "p" type: "Power" bottom: "a" top: "a" power_param { scale: 3 } }',
        layer("Eltwise", "", ("a", "b")),
    )
    given, blobs, found = run(net, path=tmp_path / "net.caffemodel")
    a, b = (convolved(given[name], *blobs["a"]) for name in "xz")
    assert list(found) == ["y"]
    np.testing.assert_allclose(found["y"], 3 * np.maximum(a, 0) + b, rtol=1e-5, atol=1e-6)


def test_a_layer_that_does_nothing_at_inference_names_what_it_is_given():
    net = text((2, 4), layer("ReLU", tops=("a",)), layer("Dropout", "", ("a",), ("a",)).replace('"a"', '"drop"', 1))
    for name in ("a", "drop"):
        assert len(load(net.encode(), outputs=[name]).graph.outputs) == 1


def test_an_engine_of_it_computes_the_same_for_any_batch(tmp_path):
    path = tmp_path / "net.prototxt"
    path.write_text(
        text(
            (1, 3, 9, 9),
            layer("Convolution", "convolution_param { num_output: 8 kernel_size: 3 pad: 1 }", tops=("c",)),
            layer("BatchNorm", "", ("c",), ("n",)),
            layer("Pooling", "pooling_param { kernel_size: 3 stride: 2 }", ("n",), ("p",)),
            layer("InnerProduct", "inner_product_param { num_output: 5 }", ("p",), ("f",)),
            layer("Softmax", "", ("f",)),
        )
    )
    engine = pelton.build(path, shapes={"x": "1..2..4x3x9x9"}, level=0, threads=1)
    graph = load(path, shapes={"x": (4, 3, 9, 9)}).graph
    from pelton.ir.evaluate import evaluate

    for batch in (1, 3, 4):
        x = np.random.default_rng(batch).standard_normal((4, 3, 9, 9)).astype(np.float32)
        want = evaluate(graph, {"x": x})["y"]
        np.testing.assert_allclose(engine.run({"x": x[:batch]})["y"], want[:batch], rtol=1e-4, atol=1e-5)
    assert math.isclose(float(want.sum()), 4, rel_tol=1e-4)
