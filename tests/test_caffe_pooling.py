"""Caffe pooling, beside loops written from its definition."""

import itertools

import numpy as np
import pytest
from caffe_models import layer, run, text

from pelton.errors import ModelError
from pelton.importers import load

LOWEST = np.finfo(np.float32).min


def windows(size, kernel, stride, pad, any_pad, floor=False):
    """(start, end in the padded image) of the windows along one axis, as in PoolingLayer::Reshape and Forward_cpu."""
    room = (size + 2 * pad - kernel) / stride
    count = int(np.floor(room) if floor else np.ceil(room)) + 1
    if any_pad and not floor and (count - 1) * stride >= size + pad:
        count -= 1
    return [(i * stride - pad, min(i * stride - pad + kernel, size + pad)) for i in range(count)]


def pooled(x, method, kernel, stride, pad, floor=False):
    rows, columns = (windows(d, k, s, p, any(pad), floor) for d, k, s, p in zip(x.shape[2:], kernel, stride, pad))
    y = np.zeros((*x.shape[:2], len(rows), len(columns)))
    mask = np.zeros_like(y)
    for (i, (top, bottom)), (j, (left, right)) in itertools.product(enumerate(rows), enumerate(columns)):
        counted = (bottom - top) * (right - left)
        top, left = max(top, 0), max(left, 0)
        part = x[:, :, top : min(bottom, x.shape[2]), left : min(right, x.shape[3])].astype(np.float64)
        if method == "MAX":
            y[:, :, i, j] = part.max((2, 3), initial=LOWEST)
            if part.size:
                first = part.reshape(*x.shape[:2], -1).argmax(-1)
                row, column = np.divmod(first, part.shape[3])
                mask[:, :, i, j] = (row + top) * x.shape[3] + column + left
        elif method == "AVE":
            y[:, :, i, j] = part.sum((2, 3)) / counted if part.size else 0
        else:
            y[:, :, i, j] = (part * part).sum((2, 3)) / part.sum((2, 3)) if part.size else 0
    return y, mask


SIZES = [(7, 9), (8, 6), (5, 5), (3, 11)]
WINDOWS = [
    (kernel, stride, pad)
    for kernel, stride, pad in itertools.product((1, 2, 3, 5), (1, 2, 3), (0, 1, 2))
    if pad < kernel
]


@pytest.mark.parametrize("method", ["MAX", "AVE", "STOCHASTIC"])
def test_sizes_are_rounded_up_and_padding_counts(method):
    rng = np.random.default_rng(0)
    for size, (kernel, stride, pad) in itertools.product(SIZES, WINDOWS):
        if kernel > min(size) + 2 * pad or (method == "STOCHASTIC" and pad):
            continue
        x = rng.standard_normal((2, 3, *size)).astype(np.float32)
        x = np.abs(x) if method == "STOCHASTIC" else x
        for floor in (False, True):
            params = f"pool: {method} kernel_size: {kernel} stride: {stride} pad: {pad}"
            params += " round_mode: FLOOR" if floor else ""
            _, _, found = run(text(x.shape, layer("Pooling", f"pooling_param {{ {params} }}")), {"x": x})
            want, _ = pooled(x, method, (kernel,) * 2, (stride,) * 2, (pad,) * 2, floor)
            assert found["y"].shape == want.shape, params
            np.testing.assert_allclose(found["y"], want, rtol=1e-5, atol=1e-6, err_msg=f"{size} {params}")


@pytest.mark.parametrize("method", ["MAX", "AVE"])
def test_axes_differ_and_either_padding_drops_the_last_windows(method):
    for kernel, stride, pad in [((3, 2), (2, 1), (0, 1)), ((1, 3), (2, 2), (0, 1)), ((2, 5), (3, 4), (1, 0))]:
        names = zip(("kernel", "stride", "pad"), (kernel, stride, pad))
        params = " ".join(f"{name}_h: {h} {name}_w: {w}" for name, (h, w) in names)
        net = text((1, 2, 8, 10), layer("Pooling", f"pooling_param {{ pool: {method} {params} }}"))
        given, _, found = run(net)
        want, _ = pooled(given["x"], method, kernel, stride, pad)
        np.testing.assert_allclose(found["y"], want, rtol=1e-5, atol=1e-6, err_msg=params)


@pytest.mark.parametrize("method", ["MAX", "AVE"])
def test_one_window_larger_than_the_image(method):
    for kernel, stride, pad in ((9, 3, 0), (12, 4, 1), (1 << 31, (1 << 31) - 7, 2)):
        params = f"pool: {method} kernel_size: {kernel} stride: {stride} pad: {pad}"
        given, _, found = run(text((2, 3, 8, 7), layer("Pooling", f"pooling_param {{ {params} }}")))
        want, _ = pooled(given["x"], method, (kernel,) * 2, (stride,) * 2, (pad,) * 2)
        np.testing.assert_allclose(found["y"], want, rtol=1e-5, atol=1e-6, err_msg=params)


def test_over_the_whole_image():
    for method in ("MAX", "AVE"):
        net = text((2, 3, 5, 7), layer("Pooling", f"pooling_param {{ pool: {method} global_pooling: true }}"))
        given, _, found = run(net)
        want = given["x"].max((2, 3)) if method == "MAX" else given["x"].mean((2, 3))
        np.testing.assert_allclose(found["y"], want[..., None, None], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kernel, stride, pad", [(2, 2, 0), (3, 2, 1), (3, 2, 0)])
def test_the_second_top_says_where_the_largest_are_and_upsampling_puts_them_back(kernel, stride, pad):
    pool = layer("Pooling", f"pooling_param {{ kernel_size: {kernel} stride: {stride} pad: {pad} }}", tops=("y", "m"))
    same = [layer("Split", bottoms=(b,), tops=(t,)) for b, t in (("y", "values"), ("m", "mask"))]
    net = text((2, 3, 9, 7), pool, *same)
    given, _, found = run(net)
    want, mask = pooled(given["x"], "MAX", (kernel,) * 2, (stride,) * 2, (pad,) * 2)
    np.testing.assert_allclose(found["values"], want, rtol=1e-6)
    assert np.array_equal(found["mask"], mask)

    back = layer("Upsample", "upsample_param { upsample_h: 9 upsample_w: 7 }", ("y", "m"), ("z",))
    _, _, found = run(text((2, 3, 9, 7), pool, back))
    whole = np.zeros((6, 63))
    for row, (places, values) in enumerate(zip(mask.reshape(6, -1).astype(int), want.reshape(6, -1))):
        whole[row, places] = values
    np.testing.assert_allclose(found["z"].reshape(6, 63), whole, rtol=1e-6)


def test_pyramids_of_bins():
    given, _, found = run(text((2, 3, 9, 11), layer("SPP", "spp_param { pyramid_height: 3 pool: AVE }")))
    parts = []
    for bins in (1, 2, 4):
        kernel = [-(-d // bins) for d in (9, 11)]
        pad = [(k * bins - d + 1) // 2 for k, d in zip(kernel, (9, 11))]
        parts.append(pooled(given["x"], "AVE", kernel, kernel, pad)[0].reshape(2, -1))
    np.testing.assert_allclose(found["y"], np.concatenate(parts, 1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "params, reason",
    [
        ("kernel_size: 0", "needs a kernel and strides of 1 and more"),
        ("kernel_size: 3 stride: 0", "needs a kernel and strides of 1 and more"),
        ("kernel_size: 2 pad: 2", "less padding than the kernel"),
        ("kernel_size: 2 kernel_h: 3", "either kernel_size or kernel_h and kernel_w"),
        ("kernel_size: 40", "needs windows that fit"),
        ("kernel_size: 4294967295 stride: 9", "needs windows that fit"),
    ],
)
def test_windows_that_there_are_not(params, reason):
    net = text((1, 2, 8, 8), layer("Pooling", f"pooling_param {{ {params} }}"))
    with pytest.raises(ModelError, match=f"the prototxt:2: layer 'y' .Pooling. .*{reason}"):
        load(net.encode())
