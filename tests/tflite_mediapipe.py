"""MediaPipe's operators in numpy, after their definitions in mediapipe/util/tflite/operations."""

from __future__ import annotations

import math

import numpy as np


def transform_matrix(points, options):
    p = points.reshape(-1, 3).astype(np.float64)
    left, right = p[options["left_rotation_idx"]], p[options["right_rotation_idx"]]
    r = options["target_rotation_radians"] - math.atan2(right[1] - left[1], right[0] - left[0])
    turned = p[options["subset_idxs"], :2] @ np.asarray([[math.cos(r), math.sin(r)], [-math.sin(r), math.cos(r)]])
    low, high = turned.min(0), turned.max(0)
    back = np.asarray([[math.cos(r), math.sin(r)], [-math.sin(r), math.cos(r)]])
    crop = back @ ((low + high) / 2)

    def shift(x, y):
        m = np.eye(4)
        m[:2, 3] = x, y
        return m

    rotation, scale = np.eye(4), np.eye(4)
    rotation[:2, :2] = back
    scale[0, 0] = options["scale_x"] * (high - low)[0] / options["output_width"]
    scale[1, 1] = options["scale_y"] * (high - low)[1] / options["output_height"]
    return (shift(*crop) @ rotation @ scale @ shift(-options["output_width"] / 2, -options["output_height"] / 2))[None]


def transform_tensor(image, matrix, options):
    _, height, width, channels = image.shape
    out = np.zeros((1, options["output_height"], options["output_width"], channels))
    rows = matrix[0, :2].astype(np.float64).copy()
    rows[:, 3] += rows[:, 0] * 0.5 + rows[:, 1] * 0.5 - 0.5
    for i in range(out.shape[1]):
        for j in range(out.shape[2]):
            x, y = rows @ (j, i, 0, 1)
            if 0 <= x <= width - 1 and 0 <= y <= height - 1:
                for row, b in ((math.floor(y), 1 - y % 1), (math.floor(y) + 1, y % 1)):
                    for column, a in ((math.floor(x), 1 - x % 1), (math.floor(x) + 1, x % 1)):
                        if row < height and column < width:
                            out[0, i, j] += a * b * image[0, row, column]
    return out


def transform_landmarks(points, matrix, _):
    flat = np.concatenate([points[0, :, :2], np.zeros((points.shape[1], 1)), np.ones((points.shape[1], 1))], 1)
    return np.concatenate([flat @ matrix[0, :2].T, points[0, :, 2:]], 1)[None]


def transposed_convolution(x, w, b, stride):
    """SAME: without the first half of what reaches out."""
    _, height, width, _ = x.shape
    (kh, kw), out = w.shape[1:3], []
    pads = [max(0, k - (d - 1) % stride - 1) for k, d in zip((kh, kw), (height, width))]
    full = np.zeros((1, stride * (height - 1) + kh, stride * (width - 1) + kw, len(w)))
    for i in range(height):
        for j in range(width):
            part = np.einsum("c,oklc->klo", x[0, i, j].astype(np.float64), w)
            full[0, i * stride : i * stride + kh, j * stride : j * stride + kw] += part
    (top, left), out = (p // 2 for p in pads), full
    return out[:, top : out.shape[1] - (pads[0] - top), left : out.shape[2] - (pads[1] - left)] + b


REFERENCES = {
    "Landmarks2TransformMatrix": transform_matrix,
    "TransformTensorBilinear": transform_tensor,
    "TransformLandmarks": transform_landmarks,
}
