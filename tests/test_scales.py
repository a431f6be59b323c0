"""Scales of Resize and Upsample are f32, and so are their products: 10 · 1.9 is 19, and 3 / 0.6 is 5."""

from __future__ import annotations

import math

import numpy as np
import pytest
from onnx_checks import check
from onnx_models import one_node

from pelton.importers.onnx.load import load
from pelton.ir.evaluate import evaluate
from pelton.passes import pipeline

F = np.float32
ROUNDINGS = {
    "round_prefer_floor": lambda x: math.ceil(x - F(0.5)),
    "round_prefer_ceil": lambda x: math.floor(x + F(0.5)),
    "floor": math.floor,
    "ceil": math.ceil,
}


def nearest(x: np.ndarray, axis: int, scale: float, coordinates: str, rounding: str) -> np.ndarray:
    """x resized along an axis, each number rounded to f32, as in ONNX Runtime."""
    size = x.shape[axis]
    at = [F(i) for i in range(math.floor(F(size) * F(scale)))]
    if coordinates == "asymmetric":
        places = [i / F(scale) for i in at]
    elif coordinates == "pytorch_half_pixel" and len(at) == 1:
        places = [F(0)]
    else:
        places = [(i + F(0.5)) / F(scale) - F(0.5) for i in at]
    return np.take(x, [min(max(ROUNDINGS[rounding](p), 0), size - 1) for p in places], axis)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("coordinates", ["asymmetric", "half_pixel", "pytorch_half_pixel"])
@pytest.mark.parametrize("scales", [(1.9, 0.6), (2.4, 1.1), (0.7, 1 / 3), (1.4, 0.3), (7 / 9, 1.0)], ids=str)
def test_a_scale_that_is_rounded_reads_what_f32_reads(scales, coordinates, rounding):
    how = dict(mode="nearest", coordinate_transformation_mode=coordinates, nearest_mode=rounding)
    x = np.random.default_rng(0).standard_normal((1, 2, 10, 9)).astype(np.float32)
    want = x
    for axis, scale in zip((2, 3), scales):
        want = nearest(want, axis, scale, coordinates, rounding)
    for shape in ("f32[1, 2, 10, 9]", "f32[n, 2, h, w]"):
        m = one_node("Resize", shape, None, np.array([1, 1, *scales], np.float32), **how)
        graph = load(m).graph
        for program in (graph, pipeline.run(graph)[0]):
            np.testing.assert_array_equal(evaluate(program, {"x0": x})["y0"], want)


@pytest.mark.parametrize("scales", [(1.9, 2.4), (1.7, 1.4)], ids=str)
def test_so_does_upsample(scales):
    x = np.random.default_rng(0).standard_normal((1, 2, 10, 15)).astype(np.float32)
    want = x
    for axis, scale in zip((2, 3), scales):
        want = nearest(want, axis, scale, "asymmetric", "floor")
    m = one_node("Upsample", "f32[1, 2, 10, 15]", opset=8, mode="nearest", scales=[1.0, 1.0, *scales])
    check(m, {"y0": want}, {"x0": x})
