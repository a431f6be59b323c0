"""One-node models of ONNX operators for signals and feature maps: Fourier transforms, resizing and sampling."""

from __future__ import annotations

import numpy as np
from onnx_operands import IMAGE, Draws, f32, i64


def transforms(draws: Draws) -> list[tuple]:
    """Fourier transforms."""
    weights = draws.weights
    return [
        *(("DFT", "f32[2, 30, 1]", {"opset": 20, "onesided": one}) for one in (0, 1)),
        *(
            ("DFT", "f32[2, 3, 97, 2]", np.int64(size), np.int64(2), {"opset": 20, "inverse": inverse})
            for inverse in (0, 1)
            for size in (97, 80, 144)
        ),
        ("DFT", "f32[2, 9, 2]", {"opset": 20, "inverse": 1, "onesided": 1}),
        ("DFT", "f32[3, 12, 5, 1]", {"opset": 17, "axis": 1}),
        *(
            ("DFT", "f32[2, 1200, 1]", np.int64(size), {"opset": 20, "onesided": one})
            for one in (0, 1)
            for size in (600, 1031, 2062)
        ),
        ("DFT", "f32[1031, 2, 2]", None, np.int64(0), {"opset": 20, "inverse": 1}),
        ("STFT", "f32[2, 100, 1]", np.int64(7), weights(20), np.int64(20), {}),
        ("STFT", "f32[1, 50, 2]", np.int64(5), None, np.int64(16), {"onesided": 0}),
    ]


def images(draws: Draws) -> list[tuple]:
    """Resizing, sampling, regions of interest and blocks of feature maps."""
    weights = draws.weights
    return [
        ("DepthToSpace", "f32[1, 8, 2, 3]", {"blocksize": 2}),
        ("DepthToSpace", "f32[1, 8, 2, 3]", {"blocksize": 2, "mode": "CRD"}),
        ("SpaceToDepth", "f32[1, 2, 4, 6]", {"blocksize": 2}),
        ("Upsample", "f32[1, 2, 3, 3]", f32(1, 1, 2, 3), {"opset": 9}),
        ("Resize", "f32[1, 1, 4, 4]", None, f32(1, 1, 2, 2), {}),
        ("Resize", "f32[1, 1, 4, 4]", None, None, i64(1, 1, 6, 3), {"mode": "linear"}),
        (
            "Resize",
            "f32[1, 1, 4, 4]",
            None,
            f32(1, 1, 0.5, 2),
            {
                "mode": "cubic",
                "coordinate_transformation_mode": "asymmetric",
                "cubic_coeff_a": -0.5,
                "exclude_outside": 1,
            },
        ),
        (
            "Resize",
            "f32[1, 1, 4, 5]",
            None,
            None,
            i64(8, 8),
            {"opset": 18, "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"},
        ),
        ("Resize", "f32[1, 1, 4, 4]", None, f32(1, 1, 0.6, 0.6), {"mode": "linear", "antialias": 1, "opset": 18}),
        ("Resize", "u8[1, 1, 4, 4]", None, f32(1, 1, 0.6, 1.6), {"mode": "linear", "opset": 18}),
        (
            "Resize",
            "f32[1, 2, 4, 5]",
            f32(0.1, -0.2, 1.1, 0.6),
            None,
            i64(3, 4),
            {
                "coordinate_transformation_mode": "tf_crop_and_resize",
                "mode": "linear",
                "axes": [2, 3],
                "extrapolation_value": 9.0,
                "opset": 18,
            },
        ),
        (
            "GridSample",
            "f32[1, 2, 4, 5]",
            "f32[1, 3, 2, 2]",
            {"mode": "cubic", "padding_mode": "reflection", "opset": 20},
        ),
        ("GridSample", "f32[1, 2, 2, 4, 5]", "f32[1, 3, 2, 2, 3]", {"align_corners": 1, "opset": 20}),
        (
            "RoiAlign",
            "f32[2, 3, 5, 5]",
            f32(0, 1, 9, 7, 2, 2, 5, 5).reshape(2, 4),
            i64(1, 0),
            {"output_height": 2, "output_width": 3, "spatial_scale": 0.5},
        ),
        (
            "RoiAlign",
            "f32[2, 3, 5, 5]",
            f32(0, 1, 4, 3).reshape(1, 4),
            i64(1),
            {"output_height": 2, "output_width": 2, "sampling_ratio": 2, "mode": "max"},
        ),
        ("AffineGrid", "f32[2, 2, 3]", i64(2, 3, 4, 5), {"opset": 20}),
        ("AffineGrid", "f32[2, 3, 4]", i64(2, 3, 4, 5, 6), {"align_corners": 1, "opset": 20}),
        ("CenterCropPad", "f32[4, 7, 3]", i64(7, 2), {"axes": [0, -2], "opset": 18}),
        ("Col2Im", "f32[2, 12, 12]", i64(5, 5), i64(2, 3), {"opset": 18}),
        ("Col2Im", "f32[1, 8, 8]", i64(4, 3, 5), i64(1, 2, 2), {"strides": [2, 1, 2], "opset": 18}),
        (
            "MaxUnpool",
            "f32[1, 1, 2, 2]",
            np.array([[[[5, 7], [13, 15]]]]),
            i64(1, 1, 5, 5),
            {"kernel_shape": [2, 2], "strides": [2, 2]},
        ),
        ("LpPool", IMAGE, {"kernel_shape": [3, 3], "strides": [2, 2], "p": 3, "ceil_mode": 1, "opset": 18}),
        ("DeformConv", "f32[1, 2, 4, 5]", weights(3, 2, 2, 2), "f32[1, 8, 3, 4]", {"opset": 19}),
        ("Resize", "f32[1, 1, 4, 4]", f32(), f32(1, 1, 1, 1), {"opset": 11}),
    ]
