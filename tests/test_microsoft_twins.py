"""ONNX Runtime's operators that equal one or a few operators of ONNX, beside numpy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from microsoft import Cases, check_refusal, floats, judge, node
from onnx import helper
from onnx_models import MICROSOFT, model, one_node

from pelton.importers.onnx.load import load
from pelton.importers.onnx.microsoft.twins import TWINS
from pelton.ir.evaluate import evaluate
from pelton.ir.text import to_text

CASES = Cases()


# --- operators of ONNX under another name


@pytest.mark.parametrize(
    "op, operands, attrs",
    [
        ("GatherND", ("f32[2, 4, 7]", np.array([[0, 1], [1, -2]])), {}),
        ("GatherND", ("i64[2, 4, 7]", "i64[3, 1]"), {}),
        ("GridSample", ("f32[2, 3, 5, 6]", "f32[2, 4, 3, 2]"), {}),
        ("GridSample", ("f32[1, 3, 5, 6]", "f32[1, 4, 3, 2]"), {"mode": "bicubic", "padding_mode": "reflection"}),
        ("Pad", ("f32[2, 3]", np.array([0, 1, 2, 0])), {}),
        ("Pad", ("f32[2, 3]", np.array([[0, -1, 2, 1]]), np.array([3], np.float32)), {}),
        ("Pad", ("f32[2, 3]", np.array([1, 1, 0, 1])), {"mode": "reflect"}),
        ("Trilu", ("f64[2, 4, 5]",), {}),
        ("Trilu", ("i64[4, 5]", np.int64(-1)), {"upper": 0}),
        ("Trilu", ("f32[4, 5]", "i64[]"), {}),
    ],
)
def test_twins_read_as_operators_of_onnx(op, operands, attrs):
    standard, opset = TWINS[op]
    ours, theirs = (
        one_node(op, *operands, domain=MICROSOFT, **attrs),
        one_node(standard, *operands, opset=opset, **attrs),
    )
    assert to_text(load(ours).graph, data=True) == to_text(load(theirs).graph, data=True)


@CASES.add
def gather_nd(rng):
    x, at = floats(rng, 2, 4, 7), np.array([[0, 1], [1, -2]])
    return node("GatherND", [("fed", x), at], [x[[0, 1], [1, -2]]])


@CASES.add
def grid_sample_at_corners(rng):
    x, corner = floats(rng, 1, 3, 5, 6), np.array([[[[-1, -1], [1, 1]]]], np.float32)
    return node("GridSample", [("fed", x), ("fed", corner)], [x[:, :, [[0, 4]], [[0, 5]]]], align_corners=1)


@CASES.add
def pad(rng):
    x = floats(rng, 2, 3, 4)
    want = np.pad(x, ((0, 0), (0, 0), (1, 2)), constant_values=3)
    return node("Pad", [("fed", x), np.array([[0, 0, 1, 0, 0, 2]]), np.array([3], np.float32)], [want])


@CASES.add
def trilu(rng):
    x = floats(rng, 2, 4, 6)
    return node("Trilu", [("fed", x), np.array(-1)], [np.tril(x, -1)], upper=0)


@CASES.add
def range_without_a_step(rng):
    return node("Range", [np.array([2], np.int32), np.array([7], np.int32)], [np.arange(2, 7)])


@CASES.add
def range_down(rng):
    return node("Range", [np.float32(9), np.float32(1), np.float32(-2.5)], [np.arange(9, 1, -2.5)])


@CASES.add
def sample(rng):
    x = floats(rng, 2, 3)
    return node("SampleOp", [("fed", x)], [x])


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_expanded_dims(axis):
    judge(lambda rng: node("ExpandDims", [("fed", x := floats(rng, 2, 3)), np.int32(axis)], [np.expand_dims(x, axis)]))


@CASES.add
def expanded_in_the_middle(rng):
    x = floats(rng, 2, 3)
    return node("ExpandDims", [("fed", x), np.array([1], np.int32)], [x[:, None]])


@CASES.add
def unfolded(rng):
    x = floats(rng, 3, 8, 5)
    windows = np.lib.stride_tricks.sliding_window_view(x, 3, 1)[:, ::2]
    return node("UnfoldTensor", [("fed", x)], [windows], dim=1, size=3, step=2)


@CASES.add
def unfolded_integers_along_the_last_axis(rng):
    x = rng.integers(-9, 9, (2, 7))
    return node("UnfoldTensor", [("fed", x)], [np.lib.stride_tricks.sliding_window_view(x, 7, -1)], size=7)


# --- matrices


@CASES.add
def inverse(rng):
    x = (floats(rng, 2, 5, 5) + 5 * np.eye(5)).astype(np.float32)
    return node("Inverse", [("fed", x)], [np.linalg.inv(x.astype(np.float64))])


@pytest.mark.parametrize("op", ["MemcpyFromHost", "MemcpyToHost"])
def test_copies_between_devices_are_none(op):
    graph = load(one_node(op, "f32[3]")).graph
    assert not any(n.op.kind == "foreign" for n in graph.nodes)
    assert evaluate(graph, {"x0": np.arange(3.0)})["y0"].tolist() == [0, 1, 2]


def test_a_matrix_without_an_inverse_is_nan_beside_others():
    x = np.stack([np.ones((3, 3)), 2 * np.eye(3)]).astype(np.float32)
    found = evaluate(load(one_node("Inverse", "f32[2, 3, 3]", domain=MICROSOFT)).graph, {"x0": x})["y0"]
    assert np.isnan(found[0]).all() and np.array_equal(found[1], np.eye(3) / 2)


@CASES.add
def products_of_16_bits(rng):
    a, b = (rng.integers(-20000, 20000, s).astype(np.int16) for s in ((2, 3, 5), (5, 4)))
    want = (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)
    return node("MatMulInteger16", [("fed", a), b], [want])


@CASES.add
def distances(rng):
    a, b = floats(rng, 5, 7), floats(rng, 3, 7)
    apart = a[:, None].astype(np.float64) - b
    return node("CDist", [("fed", a), ("fed", b)], [np.sqrt((apart**2).sum(-1))], metric="euclidean")


@CASES.add
def squared_distances_of_close_rows(rng):
    a = 1000 + floats(rng, 5, 7)
    b = a[:3] + np.float32(2**-6)
    apart = a[:, None].astype(np.float64) - b
    return node("CDist", [("fed", a), ("fed", b)], [(apart**2).sum(-1)])


@CASES.add
def sparse_to_dense_product(rng):
    a, b = rng.integers(-9, 9, (3, 4)), rng.integers(-9, 9, (3, 5))
    return node("SparseToDenseMatMul", [a, ("fed", b)], [a.T @ b], transA=1)


def test_sparse_matrices_multiply_dense_ones():
    rng = np.random.default_rng(0)
    values, at, b = floats(rng, 4), np.array([1, 5, 6, 11]), floats(rng, 5, 3)
    a = np.zeros(12, np.float32)
    a[at] = values
    m = model(
        [helper.make_node("SparseToDenseMatMul", ["a", "b"], ["y"], "n", domain=MICROSOFT, transB=1, alpha=0.5)],
        {"b": "f32[5, 3]"},
        ["y"],
        domains={MICROSOFT: 1},
    )
    held = helper.make_tensor("a", 1, [4], values), helper.make_tensor("at", 7, [4], at)
    m.graph.sparse_initializer.append(helper.make_sparse_tensor(*held, [4, 3]))
    found = evaluate(load(m).graph, {"b": b})["y"]
    assert np.allclose(found, 0.5 * a.reshape(4, 3) @ b.T, atol=1e-6)


# --- windows


def taps(x, kernel, strides, pads, fill):
    """[..., outputs of each axis, taps of each axis], of the last two axes."""
    x = np.pad(x, [(0, 0)] * (x.ndim - 2) + [(pads[0], pads[2]), (pads[1], pads[3])], constant_values=fill)
    return np.lib.stride_tricks.sliding_window_view(x, kernel, (-2, -1))[..., :: strides[0], :: strides[1], :, :]


@CASES.add
def largest_of_channels_last(rng):
    x = rng.integers(-100, 100, (2, 7, 8, 3)).astype(np.int8)
    want = taps(x.transpose(0, 3, 1, 2), (3, 2), (2, 1), (1, 0, 1, 1), -128).max((-1, -2)).transpose(0, 2, 3, 1)
    return node("NhwcMaxPool", [("fed", x)], [want], kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1])


@pytest.mark.parametrize("last", [0, 1])
def test_quantized_convolutions_of_either_layout(last):
    judge(lambda rng: quantized_convolution(rng, last))


@CASES.add
def quantized_convolution(rng, last=1):
    x, w = rng.integers(0, 255, (2, 3, 5, 6)).astype(np.uint8), rng.integers(-90, 90, (4, 3, 3, 2)).astype(np.int8)
    scales, bias = rng.uniform(0.01, 0.02, 4).astype(np.float32), rng.integers(-900, 900, 4).astype(np.int32)
    found = taps((x.astype(np.float64) - 120) * 0.02, (3, 2), (2, 1), (1, 0, 1, 1), 0)
    y = np.einsum("bcijkl,ockl->boij", found, w * scales[:, None, None, None].astype(np.float64))
    y += (bias * 0.02 * scales)[:, None, None]
    want = np.clip(np.round(y / 0.1) + 110, 0, 255).astype(np.uint8)
    if last:
        x, want = x.transpose(0, 2, 3, 1), want.transpose(0, 2, 3, 1)
    operands = [("fed", x), np.float32(0.02), np.uint8(120), w, scales, np.zeros(4, np.int8)]
    operands += [np.float32(0.1), np.uint8(110), bias]
    return node("QLinearConv", operands, [want], strides=[2, 1], pads=[1, 0, 1, 1], channels_last=last)


@CASES.add
def transposed_convolution_with_pads_as_input(rng):
    x, w, pads = floats(rng, 1, 2, 4, 5), floats(rng, 2, 3, 3, 2), (1, 0, 0, 1)
    y = np.zeros((1, 3, 2 * 3 + 3, 4 + 2))
    for i, j in product(range(4), range(5)):
        y[:, :, 2 * i : 2 * i + 3, j : j + 2] += np.einsum("bc,cokl->bokl", x[:, :, i, j].astype(np.float64), w)
    want = y[:, :, pads[0] : y.shape[2] - pads[2], pads[1] : y.shape[3] - pads[3]]
    return node("ConvTransposeWithDynamicPads", [("fed", x), w, np.array(pads)], [want], strides=[2, 1])


def masked(x, mask, kernel, strides, pads):
    """By loops, as ONNX Runtime documents it in its code: a row of a window ends where the mask is 0, element 0 has no
    mask, and the mask of image i begins at i · size, modulo the number of images of the mask."""
    size, images = x.shape[2] * x.shape[3], mask.shape[0] * mask.shape[1]
    out = [(d + a + b - k) // s + 1 for d, a, b, k, s in zip(x.shape[2:], pads, pads[2:], kernel, strides)]
    y = np.full((*x.shape[:2], *out), np.finfo(np.float32).min)
    for image, (i, j) in product(range(x.shape[0] * x.shape[1]), product(*map(range, out))):
        shown = mask.reshape(-1)[image * size % images :]
        n, c = divmod(image, x.shape[1])
        for h, left in product(range(kernel[0]), [j * strides[1] - pads[1]]):
            row = i * strides[0] - pads[0] + h
            for column in range(max(left, 0), min(left + kernel[1], x.shape[3])) if 0 <= row < x.shape[2] else ():
                at = row * x.shape[3] + column
                if at and not shown[at]:
                    break
                y[n, c, i, j] = max(y[n, c, i, j], x[n, c, row, column])
    return y


@pytest.mark.parametrize("images", [(1, 1), (2, 3)])
def test_masked_windows(images):
    def make(rng):
        x, mask = floats(rng, 2, 3, 6, 7), rng.integers(0, 3, (*images, 6, 7)).astype(np.int32)
        how = dict(kernel_shape=[2, 3], strides=[2, 1], pads=[1, 1, 0, 1])
        return node("MaxpoolWithMask", [("fed", x), ("fed", mask)], [masked(x, mask, *map(tuple, how.values()))], **how)

    judge(make)


@CASES.add
def windows_of_a_line_that_a_mask_ends(rng):
    x, mask = floats(rng, 1, 2, 9), np.array([[[1, 1, 0, 1, 1, 1, 1, 0, 1]]], np.int32)
    least = np.finfo(np.float32).min
    want = np.stack([x[:, :, :2].max(-1), np.full((1, 2), least), x[:, :, 4:7].max(-1), x[:, :, 6]], -1)
    return node("MaxpoolWithMask", [("fed", x), ("fed", mask)], [want], kernel_shape=[3], strides=[2])


def cropped(x, boxes, batch, size, mode, fill):
    y = np.full((len(boxes), x.shape[1], *size), fill, np.float64)
    for n, box in enumerate(boxes):
        lines = []
        for axis, count in enumerate(size):
            a, b = (float(np.float32(v)) * (x.shape[2 + axis] - 1) for v in (box[axis], box[axis + 2]))
            lines.append(np.linspace(a, b, count) if count > 1 else [(a + b) / 2])
        for (i, v), (j, h) in product(enumerate(lines[0]), enumerate(lines[1])):
            if 0 <= v <= x.shape[2] - 1 and 0 <= h <= x.shape[3] - 1:
                image = x[batch[n]].astype(np.float64)
                if mode == "nearest":
                    y[n, :, i, j] = image[:, int(v + 0.5), int(h + 0.5)]
                    continue
                (t, down), (le, right) = ((int(p), p - int(p)) for p in (v, h))
                rows = [image[:, min(t + k, x.shape[2] - 1)] for k in (0, 1)]
                across = [r[:, le] * (1 - right) + r[:, min(le + 1, x.shape[3] - 1)] * right for r in rows]
                y[n, :, i, j] = across[0] * (1 - down) + across[1] * down
    return y


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
@pytest.mark.parametrize("size", [(3, 4), (1, 5), (6, 1)])
def test_crops_are_resized(mode, size):
    def make(rng):
        x, boxes = floats(rng, 2, 3, 7, 6), rng.uniform(-0.1, 1.1, (4, 4)).astype(np.float32)
        boxes[0], batch = (0, 0, 1, 1), np.array([1, 0, 1, 0], np.int32)
        want = cropped(x, boxes, batch, size, mode, 0.5)
        operands = [("fed", x), ("fed", boxes), ("fed", batch), np.array(size, np.int32)]
        return node("CropAndResize", operands, [want], mode=mode, extrapolation_value=0.5)

    judge(make)


@CASES.add
def crop_and_resize(rng):
    x, boxes, batch = floats(rng, 1, 2, 5, 5), np.array([[0.9, 0.8, 0.1, 0.3]], np.float32), np.zeros(1, np.int32)
    want = cropped(x, boxes, batch, (4, 3), "bilinear", 0)
    return node("CropAndResize", [("fed", x), ("fed", boxes), ("fed", batch), np.array([4, 3], np.int32)], [want])


@pytest.mark.parametrize("name", CASES)
def test_as_documented(name):
    judge(CASES[name])


@pytest.mark.parametrize(
    "says, make",
    [
        (
            "has no attribute 'dims'",
            lambda rng: node("UnfoldTensor", [("fed", floats(rng, 3))], [None], size=2, dims=1),
        ),
        ("needs 1 inputs, got 2", lambda rng: node("Inverse", [("fed", floats(rng, 3, 3))] * 2, [None])),
        ("size from 1 to 3", lambda rng: node("UnfoldTensor", [("fed", floats(rng, 3))], [None], size=4)),
        ("matrices as high as wide", lambda rng: node("Inverse", [("fed", floats(rng, 3, 2))], [None])),
        ("metric euclidean", lambda rng: node("CDist", [("fed", floats(rng, 3, 3))] * 2, [None], metric="cosine")),
        ("an axis between -3 and 2", lambda rng: node("ExpandDims", [("fed", floats(rng, 3, 3)), np.int32(3)], [None])),
    ],
)
def test_refusals(says, make):
    check_refusal(make, says)


def test_values_decide_what_is_read():
    """The axis, pads and sizes of crops may be inputs of the model."""
    m = one_node("ExpandDims", "f32[2, 3]", "i32[]", domain=MICROSOFT)
    assert load(m, values={"x1": np.int32(1)}).graph.outputs[0].type.shape == (2, 1, 3)
    m = one_node("Pad", "f32[2, 3]", "i64[4]", domain=MICROSOFT)
    assert load(m, values={"x1": np.array([1, 0, 0, 2])}).graph.outputs[0].type.shape == (3, 5)
    operands = "f32[1, 2, 5, 5]", "f32[2, 4]", "i32[2]", "i32[2]"
    m = one_node("CropAndResize", *operands, domain=MICROSOFT)
    assert load(m, values={"x3": np.array([4, 3], np.int32)}).graph.outputs[0].type.shape == (2, 2, 4, 3)
