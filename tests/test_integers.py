"""Operators in integers, and those that quantize dynamically: engines equal integers in numpy."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import MICROSOFT

import pelton
from pelton.diagnose.explain import explain
from pelton.targets import BUILT
from pelton.backends.cpu.check import lacks

TARGETS = [f"cpu:{isa}" for isa in BUILT if not lacks(isa)]
KINDS = {"float32": TensorProto.FLOAT, "uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "int32": TensorProto.INT32}


def model(nodes, fed: dict[str, np.ndarray], held: dict[str, np.ndarray], outputs: dict[str, str]) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(k, KINDS[v.dtype.name], v.shape) for k, v in fed.items()],
        [helper.make_tensor_value_info(k, KINDS[v], None) for k, v in outputs.items()],
        [numpy_helper.from_array(v, k) for k, v in held.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def extremes(rng, dtype, *shape: int) -> np.ndarray:
    """All numbers of a type of bytes, half of them its largest and least."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return np.where(rng.random(shape) < 0.5, rng.choice([low, high], shape), rng.integers(low, high + 1, shape)).astype(
        dtype
    )


def skewed(rng, *shape: int) -> np.ndarray:
    """u8 weights as a quantizer writes them: most are near the middle, one is the least and one the largest."""
    w = np.clip(rng.normal(121, 20, shape).round(), 0, 255).astype(np.uint8)
    w.flat[0], w.flat[-1] = 0, 255
    return w


def convolved(x, w, bias, strides, pads, dilations, group) -> np.ndarray:
    """Of integers in i64, over padding of 0."""
    x = np.pad(x.astype(np.int64), [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])])
    n, *size, m, per = x.shape[0], *x.shape[2:], *w.shape[:2]
    oh, ow = ((s - (k - 1) * d - 1) // t + 1 for s, k, d, t in zip(size, w.shape[2:], dilations, strides))
    y = np.zeros((n, m, oh, ow), np.int64) + bias
    for g in range(group):
        own = slice(g * m // group, (g + 1) * m // group)
        for i, j in np.ndindex(*w.shape[2:]):
            top, left = i * dilations[0], j * dilations[1]
            part = x[:, g * per : (g + 1) * per, top:, left:][:, :, :: strides[0], :: strides[1]][:, :, :oh, :ow]
            y[:, own] += np.einsum("nchw,mc->nmhw", part, w[own, :, i, j].astype(np.int64))
    return y


def by_range(x: np.ndarray) -> tuple[np.ndarray, np.float32, int]:
    """DynamicQuantizeLinear, in f32 as it is written."""
    low, high = np.minimum(x.min(), np.float32(0)), np.maximum(x.max(), np.float32(0))
    scale = (high - low if high > low else np.float32(1)) / np.float32(255)
    zero = int(np.rint(np.clip(-low / scale, 0, 255)))
    return np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8), scale, zero


def run(made: onnx.ModelProto, feeds: dict[str, np.ndarray], target: str) -> dict[str, np.ndarray]:
    return pelton.build(made, level=0, target=target, threads=2).run(feeds)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("of", ["uint8", "int8"])
@pytest.mark.parametrize(
    "rows, weights, zero",
    [
        ((7, 58), "int8", "one"),
        ((2, 3, 125), "int8", "none"),
        ((5, 3), "int8", "per column"),
        ((40, 125), "uint8", "one"),
        ((3, 61), "uint8", "fixed"),
        ((6, 5), "int8", "per row"),
        ((5, 58), "whole", "one"),
        ((9, 125), "whole", "per row"),
    ],
)
def test_matmul_integer(rows, weights, zero, of, target):
    rng, inner, columns = np.random.default_rng(1), rows[-1], 35
    x = extremes(rng, of, *rows)
    w = extremes(rng, "int8", inner, columns) // 2 if weights == "int8" else skewed(rng, inner, columns)
    w = extremes(rng, "uint8", inner, columns) if weights == "whole" else w
    zw = {"uint8": np.array(121, np.uint8), "int8": np.array(3, np.int8), "whole": np.array(7, np.uint8)}[weights]
    if zero == "per column":
        zw = rng.integers(-9, 9, columns).astype(np.int8)
    zx = extremes(rng, of, rows[-2]) if zero == "per row" else np.array(rng.choice(x.reshape(-1)), of)
    fed, held, names = {"x": x}, {"w": w}, ["x", "w"]
    if zero != "none":
        (held if zero == "fixed" else fed)["zx"] = zx
        held["zw"], names = zw, ["x", "w", "zx", "zw"]
    else:
        zx, zw = np.array(0), np.array(0)
    made = model([helper.make_node("MatMulInteger", names, ["y"])], fed, held, {"y": "int32"})
    assert "integer_matmul_of_differences" in explain(made).report.passes[0].fired
    wide = x.astype(np.int64) - (zx.astype(np.int64).reshape(-1, 1) if zx.size > 1 else zx.astype(np.int64))
    assert np.array_equal(run(made, fed, target)["y"], wide @ (w.astype(np.int64) - zw))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("of", ["uint8", "int8"])
@pytest.mark.parametrize(
    "shape, filters, window, weights, fixed",
    [
        ((1, 3, 11, 13), (5, 3, 3, 3), ((2, 2), (1, 1, 1, 1), (1, 1), 1), "int8", False),
        ((2, 5, 9, 7), (58, 5, 3, 2), ((1, 2), (2, 0, 1, 1), (1, 1), 1), "uint8", False),
        ((1, 125, 4, 5), (24, 125, 1, 1), ((1, 1), (0, 0, 0, 0), (1, 1), 1), "uint8", False),
        ((1, 58, 5, 6), (7, 58, 3, 3), ((1, 1), (2, 2, 2, 2), (2, 2), 1), "uint8", True),
        ((1, 6, 9, 8), (10, 3, 3, 3), ((1, 1), (1, 1, 1, 1), (1, 1), 2), "int8", False),
        ((1, 5, 7, 9), (5, 1, 3, 3), ((1, 1), (1, 1, 1, 1), (1, 1), 5), "int8", False),
        ((2, 13, 7, 5), (19, 13, 3, 3), ((2, 1), (1, 1, 1, 0), (1, 1), 1), "whole", False),
    ],
)
def test_conv_integer(shape, filters, window, weights, fixed, of, target):
    rng, (strides, pads, dilations, group) = np.random.default_rng(2), window
    x, zx = extremes(rng, of, *shape), extremes(rng, of, 1).reshape(())
    w = skewed(rng, *filters) if weights == "uint8" else extremes(rng, "int8", *filters)
    w = extremes(rng, "uint8", *filters) if weights == "whole" else w
    zw = np.zeros((), np.int8) if weights == "int8" else rng.integers(119, 124, filters[0]).astype(np.uint8)
    fed, held = {"x": x, "zx": zx}, {"w": w, "zw": zw}
    if fixed:
        held["zx"] = fed.pop("zx")
    attrs = dict(strides=strides, pads=pads, dilations=dilations, group=group)
    made = model([helper.make_node("ConvInteger", ["x", "w", "zx", "zw"], ["y"], **attrs)], fed, held, {"y": "int32"})
    assert "integer_convolution_of_differences" in explain(made).report.passes[0].fired
    around = w.astype(np.int64) - zw.astype(np.int64).reshape(-1, 1, 1, 1)
    want = convolved(x.astype(np.int64) - int(zx), around, 0, strides, pads, dilations, group)
    assert np.array_equal(run(made, fed, target)["y"], want)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shift, spread", [(0, 1), (5, 1), (-7, 2), (0, 0), (0, 1e-30)])
def test_a_layer_as_a_dynamic_quantizer_writes_it(shift, spread, target):
    """Bytes, scale, zero point and sums are equal; the result is rounded once for each of its operations."""
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((1, 5, 9, 8)) * spread + shift).astype(np.float32)
    w, zw, sw = skewed(rng, 58, 5, 3, 3), np.array(121, np.uint8), np.array(0.02, np.float32)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("ConvInteger", ["q", "w", "z", "zw"], ["sums"], pads=[1, 1, 1, 1]),
        helper.make_node("Cast", ["sums"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["s", "sw"], ["scale"]),
        helper.make_node("Mul", ["f", "scale"], ["y"]),
    ]
    outputs = dict(q="uint8", s="float32", z="uint8", sums="int32", y="float32")
    made = model(nodes, {"x": x}, {"w": w, "zw": zw, "sw": sw}, outputs)
    q, s, z = by_range(x)
    sums = convolved(q.astype(np.int64) - z, w.astype(np.int64) - 121, 0, (1, 1), (1, 1, 1, 1), (1, 1), 1)
    want = dict(q=q, s=s, z=np.uint8(z), sums=sums, y=sums.astype(np.float32) * (s * sw))
    found = run(made, {"x": x}, target)
    for name in ("q", "s", "z", "sums"):
        assert np.array_equal(found[name], want[name]), name
    np.testing.assert_allclose(found["y"], want["y"], rtol=1e-6, atol=0)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("columns", [3, 58, 125])
def test_dynamic_quantize_matmul(columns, target):
    rng = np.random.default_rng(4)
    x, w = rng.standard_normal((2, 13, 61)).astype(np.float32), skewed(rng, 61, columns)
    scale, zero = rng.uniform(0.01, 0.02, columns).astype(np.float32), np.full(columns, 121, np.uint8)
    c = rng.standard_normal(columns).astype(np.float32)
    nodes = [helper.make_node("DynamicQuantizeMatMul", ["x", "w", "s", "z", "c"], ["y"], domain=MICROSOFT)]
    made = model(nodes, {"x": x}, dict(w=w, s=scale, z=zero, c=c), {"y": "float32"})
    q, s, z = by_range(x)
    want = (q.astype(np.int64) - z) @ (w.astype(np.int64) - 121) * (np.float64(s) * scale) + c
    np.testing.assert_allclose(run(made, {"x": x}, target)["y"], want, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("per_column", [False, True])
def test_gemm_of_turned_weights(per_column, target):
    """As classifiers end: weights lie with their outputs first."""
    rng, columns = np.random.default_rng(5), 58
    x, w = extremes(rng, "uint8", 7, 125), extremes(rng, "int8", columns, 125)
    sx, zx = np.array(0.04, np.float32), np.array(131, np.uint8)
    sw = rng.uniform(0.01, 0.02, columns if per_column else ()).astype(np.float32)
    c = rng.standard_normal(columns).astype(np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "sx", "zx"], ["a"]),
        helper.make_node("DequantizeLinear", ["w", "sw"], ["b"], axis=0),
        helper.make_node("Gemm", ["a", "b", "c"], ["y"], transB=1),
    ]
    made = model(nodes, {"x": x}, dict(w=w, sx=sx, zx=zx, sw=sw, c=c), {"y": "float32"})
    assert "integer_matmul" in explain(made).report.passes[0].fired
    want = (x.astype(np.int64) - 131) @ w.T.astype(np.int64) * (np.float64(sx) * sw) + c
    np.testing.assert_allclose(run(made, {"x": x}, target)["y"], want, rtol=2e-6, atol=1e-5)


@pytest.mark.parametrize("isa, tables", [("x86_64_v3", [2 * 3 * (1 + 16)]), ("x86_64_v4_vnni", [])])
def test_tables_are_what_kernels_address_by_and_not_weights_of_bytes(isa, tables, tmp_path):
    """Tables are verified at every load: lists of steps (of 64 channels, for 3 panels of outputs) and picked places,
    but no weights."""
    rng = np.random.default_rng(0)
    w = np.clip(rng.normal(0, 36, (64, 37)).round(), -127, 127).astype(np.int8)
    fed, held = dict(x=extremes(rng, np.uint8, 6, 64)), dict(w=w, i=np.array([4, 0, 3], np.int64))
    nodes = [
        helper.make_node("MatMulInteger", ["x", "w"], ["s"]),
        helper.make_node("Gather", ["s", "i"], ["y"]),
    ]
    built = model(nodes, fed, held, dict(y="int32"))
    engine = pelton.build(built, level=0, target=f"cpu:{isa}", cache_dir=tmp_path)
    picked = held["i"].nbytes
    assert sorted(b.size for b in engine.plain.buffers if b.kind == "table") == sorted([*tables, picked])
