"""All one-node models in tests of the ONNX importer's readers, and expected outputs where the reference evaluator has
none."""

from __future__ import annotations

import math

import numpy as np
from onnx_cases_elements import ELEMENTWISE, REDUCTIONS
from onnx_cases_images import images, transforms
from onnx_cases_layers import attention_and_recurrence, norms, products, quantization, windows
from onnx_cases_ml import CLASSICAL, TRAINING_STEPS
from onnx_cases_shapes import INDICES, SHAPES
from onnx_models import MICROSOFT
from onnx_operands import TRAINING, Draws, f32, i64

DRAWS = Draws(5)

# (op, operands…, attributes and opset): operands that are types are inputs, arrays are constants
CASES: list[tuple] = [
    *ELEMENTWISE,
    *products(DRAWS),
    *windows(DRAWS),
    *norms(DRAWS),
    *REDUCTIONS,
    *SHAPES,
    *INDICES,
    *transforms(DRAWS),
    *images(DRAWS),
    *quantization(DRAWS),
    *attention_and_recurrence(DRAWS),
    *TRAINING_STEPS,
    *CLASSICAL,
]

# The reference evaluator differs from the specification on these, or lacks them: the last item computes the expected
# output from the inputs, in float64.

SHAPE, FEATURES = "f32[2, 6, 4]", "f32[2, 6, 2, 2]"
SCALE, BIAS, MATRIX, KERNEL = (DRAWS.weights(*shape) for shape in ((4,), (4,), (5, 4), (3, 6, 1)))
FUSED = {"domain": MICROSOFT}


def softmax(x, axes=-1):
    e = np.exp(x)
    return e / e.sum(axes, keepdims=True)


def normalized(x, axis=-1, epsilon=1e-5):
    return (x - x.mean(axis, keepdims=True)) / np.sqrt(x.var(axis, keepdims=True) + epsilon)


def rms(x, epsilon=1e-5):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)


def erf_gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def tanh_gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def by_kernel(x):
    return np.einsum("bci,mc->bmi", x, KERNEL[:, :, 0].astype(np.float64))


def response(x):
    squares = np.pad(x * x, ((0, 0), (1, 1), (0, 0), (0, 0)))
    return x / (1.5 + 0.1 / 3 * (squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:])) ** 0.6


TABLE = np.linspace(0, 1, 20, dtype=np.float32).reshape(10, 2)


def rotated(x, at):
    """[batch, rows, depth], two pairs of elements as halves, from position `at` on."""
    a, b, cos, sin = x[..., :2], x[..., 2:4], TABLE[at : at + x.shape[-2]], -TABLE[at : at + x.shape[-2]]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 4:]], -1)


def replaced(x):
    y = x.copy()
    y[0, 0, 3], y[0, 0, 0] = 7, 8
    return y


BY_HAND = [
    ("Softmax", SHAPE, {"opset": 11}, lambda x: softmax(x, (1, 2))),
    ("LogSoftmax", SHAPE, {"opset": 9, "axis": 1}, lambda x: np.log(softmax(x, (1, 2)))),
    ("Hardmax", SHAPE, {"opset": 11}, lambda x: x == x.max((1, 2), keepdims=True)),
    (
        "GroupNormalization",
        SHAPE,
        SCALE[:2],
        BIAS[:2],
        {"num_groups": 2, "opset": 18},
        lambda x: (normalized(x.reshape(2, 2, 12)) * SCALE[:2, None] + BIAS[:2, None]).reshape(2, 6, 4),
    ),
    ("LayerNormalization", SHAPE, SCALE, BIAS, {"opset": 11}, lambda x: normalized(x) * SCALE + BIAS),
    ("LayerNormalization", SHAPE, SCALE, BIAS, FUSED, lambda x: normalized(x) * SCALE + BIAS),
    ("SimplifiedLayerNormalization", SHAPE, SCALE, {}, lambda x: rms(x) * SCALE),
    ("SimplifiedLayerNormalization", SHAPE, SCALE, FUSED, lambda x: rms(x) * SCALE),
    (
        "SkipLayerNormalization",
        SHAPE,
        SHAPE,
        SCALE,
        BIAS,
        BIAS,
        FUSED,
        lambda x, skip: normalized(x + skip + BIAS, epsilon=1e-12) * SCALE + BIAS,
    ),
    ("SkipSimplifiedLayerNormalization", SHAPE, SHAPE, SCALE, FUSED, lambda x, skip: rms(x + skip, 1e-12) * SCALE),
    ("Gelu", SHAPE, FUSED, erf_gelu),
    ("BiasGelu", SHAPE, BIAS, FUSED, lambda x: erf_gelu(x + BIAS)),
    ("FastGelu", SHAPE, BIAS, FUSED, lambda x: tanh_gelu(x + BIAS)),
    ("FastGelu", SHAPE, FUSED, tanh_gelu),
    ("QuickGelu", SHAPE, FUSED, lambda x: x / (1 + np.exp(-1.702 * x))),
    ("RotaryEmbedding", SHAPE, i64(3), TABLE, -TABLE, FUSED, lambda x: rotated(x, 3)),
    (
        "RotaryEmbedding",
        "f32[1, 3, 4, 5]",
        np.arange(4).reshape(1, 4),
        TABLE,
        -TABLE,
        {**FUSED, "rotary_embedding_dim": 4, "num_heads": 3},
        lambda x: rotated(x, 0),
    ),
    ("FusedMatMul", SHAPE, MATRIX, {**FUSED, "transB": 1}, lambda x: x @ MATRIX.T),
    ("TransposeMatMul", SHAPE, MATRIX.T, {**FUSED, "alpha": 2.0}, lambda x: 2 * x @ MATRIX.T),
    ("FusedConv", SHAPE, KERNEL, FUSED, by_kernel),
    (
        "FusedConv",
        SHAPE,
        KERNEL,
        np.zeros(3, np.float32),
        "f32[2, 3, 4]",
        {**FUSED, "activation": "Relu"},
        lambda x, z: np.maximum(by_kernel(x) + z, 0),
    ),
    (
        "FusedConv",
        SHAPE,
        KERNEL,
        {**FUSED, "activation": "LeakyRelu", "activation_params": [0.1]},
        lambda x: np.maximum(by_kernel(x), 0.1 * by_kernel(x)),
    ),
    (
        "FusedConv",
        SHAPE,
        KERNEL,
        {**FUSED, "activation": "Clip", "activation_params": [-0.1, 0.2]},
        lambda x: np.clip(by_kernel(x), -0.1, 0.2),
    ),
    (
        "FusedConv",
        SHAPE,
        KERNEL,
        {**FUSED, "activation": "HardSigmoid", "activation_params": [0.3, 0.4]},
        lambda x: np.clip(0.3 * by_kernel(x) + 0.4, 0, 1),
    ),
    (
        "ConvTranspose",
        SHAPE,
        KERNEL.reshape(6, 3, 1),
        {"group": 2},
        lambda x: np.concatenate(
            [
                np.einsum("bci,cm->bmi", x[:, c : c + 3], KERNEL.reshape(6, 3)[c : c + 3].astype(np.float64))
                for c in (0, 3)
            ],
            1,
        ),
    ),
    ("Upsample", FEATURES, {"scales": [1.0, 1.0, 2.0, 3.0], "opset": 7}, lambda x: x.repeat(2, 2).repeat(3, 3)),
    ("Resize", FEATURES, f32(1, 1, 2, 2), {"opset": 10}, lambda x: x.repeat(2, 2).repeat(2, 3)),
    ("TopK", SHAPE, {"k": 2, "opset": 9}, lambda x: -np.sort(-x, -1)[..., :2]),
    (
        "Pad",
        SHAPE,
        {"pads": [0, 0, 1, 0, 0, 0], "value": 2.0, "opset": 9},
        lambda x: np.pad(x, ((0, 0), (0, 0), (1, 0)), constant_values=2),
    ),
    ("Pad", SHAPE, i64(0, 1, -1, 0, 0, 0), {}, lambda x: np.pad(x, ((0, 0), (1, 0), (0, 0)))[..., 1:]),
    ("LRN", FEATURES, {"size": 3, "alpha": 0.1, "beta": 0.6, "bias": 1.5}, response),
    (
        "MaxRoiPool",
        "f32[2, 3, 4, 6]",
        f32(1, 0, 0, 5, 3, 0, 2, 1, 3, 2).reshape(2, 5),
        {"pooled_shape": [2, 2], "spatial_scale": 1.0},
        lambda x: np.stack([x[1].reshape(3, 2, 2, 2, 3).max((2, 4)), x[0, :, 1:3, 2:4]]),
    ),
    ("GlobalLpPool", SHAPE, {"p": 1}, lambda x: x.sum(2, keepdims=True)),
    ("GlobalLpPool", SHAPE, {}, lambda x: np.sqrt((x * x).sum(2, keepdims=True))),
    ("GlobalMaxPool", SHAPE, {}, lambda x: x.max(2, keepdims=True)),
    (
        "Adam",
        "f32[]",
        np.int64(4),
        *["f32[3]"] * 4,
        {**TRAINING, "alpha": 0.9, "beta": 0.99, "epsilon": 1e-3, "norm_coefficient_post": 0.1},
        lambda rate, x, g, v, h: (
            0.9
            * (
                x
                - rate
                * np.sqrt(1 - 0.99**4)
                / (1 - 0.9**4)
                * (0.9 * v + 0.1 * g)
                / (np.sqrt(0.99 * h + 0.01 * g * g) + 1e-3)
            )
        ),
    ),
    ("Scatter", SHAPE, np.array([[[3, 0]]]), f32(7, 8).reshape(1, 1, 2), {"axis": 2, "opset": 10}, replaced),
    ("OneHot", "f32[3]", f32(3), f32(0, 2), {"axis": 0}, lambda x: np.array([[2, 2, 2], [0, 0, 0], [0, 0, 0]])),
    (
        "MatMulInteger",
        "i8[3, 4]",
        np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.int8),
        np.array([1, 2, 3], np.int8),
        np.array([1, 2], np.int8),
        {},
        lambda x: (x - [[1], [2], [3]]) @ np.array([[0, 0], [2, 2], [4, 4], [6, 6]]),
    ),
    *(
        (
            "BatchNormalization",
            SHAPE,
            *[np.full(6, v, np.float32) for v in (2, 3, 4, 0.25)],
            {"opset": opset, "epsilon": 0.0},
            lambda x: (x - 4) * 4 + 3,
        )
        for opset in (7, 9, 14)
    ),
    # operators that opset 10 removed
    ("Affine", SHAPE, {"opset": 7, "alpha": 2.0, "beta": 0.5}, lambda x: 2 * x + 0.5),
    ("Affine", SHAPE, {"opset": 9}, lambda x: x),
    ("Affine", SHAPE, {"opset": 5, "alpha": 2.0}, lambda x: 2 * x),  # beside what the onnx package converts
    ("Scale", SHAPE, {"opset": 7, "scale": 3.0}, lambda x: 3 * x),
    ("ScaledTanh", SHAPE, {"opset": 7, "alpha": 2.0, "beta": 0.5}, lambda x: 2 * np.tanh(0.5 * x)),
    ("ParametricSoftplus", SHAPE, {"opset": 7, "alpha": 2.0, "beta": 5.0}, lambda x: 2 * np.log1p(np.exp(5 * x))),
    (
        "ImageScaler",
        "f32[2, 3, 4, 5]",
        {"opset": 7, "scale": 0.5, "bias": [0.1, 0.2, 0.3]},
        lambda x: 0.5 * x + np.array([0.1, 0.2, 0.3])[:, None, None],
    ),
    ("Crop", "f32[2, 3, 7, 8]", {"opset": 7, "border": [1, 0, 2, 3]}, lambda x: x[:, :, :4, 1:6]),
    ("Crop", "f32[2, 3, 7, 8]", {"opset": 9, "border": [1, 2, 0, 0], "scale": [4, 3]}, lambda x: x[:, :, 2:6, 1:4]),
    ("DynamicSlice", SHAPE, i64(0, 1, -3), i64(2, 100, -1), {"opset": 7}, lambda x: x[:, 1:, -3:-1]),
    ("DynamicSlice", SHAPE, i64(-2), i64(2**31 - 1), i64(1), {"opset": 9}, lambda x: x[:, -2:]),
    ("ThresholdedRelu", SHAPE, {"opset": 9, "alpha": 0.3}, lambda x: np.where(x > np.float32(0.3), x, 0)),
]
