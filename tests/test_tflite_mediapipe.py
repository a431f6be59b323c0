"""Custom operators of MediaPipe in TFLite models, beside references of their definitions."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from tflite_flexbuffers import options
from tflite_mediapipe import transform_landmarks, transform_matrix, transform_tensor, transposed_convolution
from tflite_models import ModelWriter

from pelton.errors import ModelError
from pelton.importers.network import imported
from pelton.importers.tflite import flexbuffer, read
from pelton.ir.evaluate import evaluate

RNG = np.random.default_rng(11)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def run(name, feeds, shape, custom, version=2):
    w = ModelWriter()
    given = [w.main.input(x.shape, name=f"x{i}") for i, x in enumerate(feeds)]
    w.main.op(name, given, [w.main.output(shape, name="y")], custom=custom, version=version)
    graph = imported(read(w.bytes())).graph
    return evaluate(graph, {f"x{i}": x for i, x in enumerate(feeds)})["y"]


CROP = dict(
    left_rotation_idx=2,
    right_rotation_idx=5,
    output_width=16,
    output_height=8,
    scale_x=1.5,
    scale_y=2.0,
    target_rotation_radians=0.25,
    subset_idxs=[0, 3, 1, 6, 6],
)


def test_options_are_read_as_they_are_written():
    assert flexbuffer.loads(options(**CROP)) == CROP


@pytest.mark.parametrize("turn", range(4))
def test_the_matrix_of_a_crop(turn):
    """Whatever the quadrant of the angle between the two points."""
    points = normal(1, 7, 3)
    points[0, 5, :2] = points[0, 2, :2] + np.asarray([(1, 0.5), (-1, 0.5), (-1, -0.5), (1, -0.5)][turn])
    found = run("Landmarks2TransformMatrix", [points], (1, 4, 4), options(**CROP))
    np.testing.assert_allclose(found, transform_matrix(points, CROP), rtol=1e-4, atol=1e-5)


def test_an_image_by_a_matrix():
    """Some elements come from outside of the image, the outermost from its border."""
    image, matrix = normal(1, 9, 11, 3), np.eye(4, dtype=np.float32)[None]
    matrix[0, 0], matrix[0, 1] = (0.9, 0.3, 5, 1.2), (-0.2, 1.1, 5, -0.7)
    size = dict(output_height=10, output_width=12)
    found = run("TransformTensorBilinear", [image, matrix], (1, 10, 12, 3), options(**size))
    want = transform_tensor(image, matrix, size)
    assert 10 < (want == 0).all(-1).sum() < 110
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)
    same = np.eye(4, dtype=np.float32)[None]
    size = dict(output_height=9, output_width=11)
    found = run("TransformTensorBilinear", [image, same], (1, 9, 11, 3), options(**size))
    np.testing.assert_allclose(found, image, rtol=1e-6)


@pytest.mark.parametrize("axes", [2, 3])
def test_points_by_a_matrix(axes):
    points, matrix = normal(1, 6, axes), normal(1, 4, 4)
    found = run("TransformLandmarks", [points, matrix], (1, 6, axes), b"\0")
    np.testing.assert_allclose(found, transform_landmarks(points, matrix, {}), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel, stride", [(2, 2), (3, 2), (4, 3)])
def test_a_transposed_convolution_with_bias(kernel, stride):
    x, w, b = normal(1, 5, 4, 6), normal(2, kernel, kernel, 6), normal(2)
    want = transposed_convolution(x, w, b, stride)
    found = run("Convolution2DTransposeBias", [x, w, b], want.shape, struct.pack("<iii", 1, stride, stride), 1)
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name, custom, said",
    [
        ("Landmarks2TransformMatrix", options(**{**CROP, "subset_idxs": [99]}), "with those of its options"),
        ("Landmarks2TransformMatrix", options(left_rotation_idx=1), "needs numbers as its options"),
        ("Landmarks2TransformMatrix", b"\1\2\3\4", "options"),
        ("Convolution2DTransposeBias", b"\0" * 12, "has the padding 0"),
        ("Convolution2DTransposeBias", b"\0" * 5, "options of 12 bytes"),
    ],
)
def test_damaged_options_are_refused(name, custom, said):
    with pytest.raises(ModelError, match=said):
        run(name, [normal(1, 7, 3)], (1, 4, 4), custom)
    with pytest.raises(ModelError, match="of version 1 is not supported"):
        run("TransformLandmarks", [normal(1, 7, 3)], (1, 7, 3), b"\0", version=1)
