"""Softmax and the normalizations: batch, layer, RMS, instance, group, local response."""

from __future__ import annotations

import math

import numpy as np

from pelton.ir.types import TensorType

from .math import add, div, mul, sqrt, sub
from .op import composite, expect, expect_equal, structured
from .reduce import reduce_mean
from .shape import reshape


def _check_axis(x: TensorType, axis: int) -> None:
    expect(0 <= axis < x.rank, f"needs an axis from 0 to {x.rank - 1}, got {axis}")


def _check_channels(x: TensorType, *statistics: TensorType) -> None:
    """Checks that x is [batch, channels, …] and every statistic [channels]."""
    expect(x.dtype.is_float and x.rank >= 2, "needs a floating-point input of rank 2 and more: batch, channels, …")
    for s in statistics:
        expect(s.rank == 1 and s.dtype is x.dtype, f"needs statistics of type {x.with_shape(x.shape[1:2])}")
        expect_equal(x.shape[1], s.shape[0], f"needs statistics of type {x.with_shape(x.shape[1:2])}")


def _per_channel(rank: int, statistic, channels: int):
    """Reshapes a term from [channels] to [channels, 1, …], which broadcasts against [batch, channels, …]."""
    return statistic if rank == 2 else reshape(statistic, shape=(channels, *[1] * (rank - 2)))


def _normalised(x, axes: tuple[int, ...], epsilon: float):
    """Builds (x − mean) / √(variance + ε) over the axes."""
    centred = sub(x, reduce_mean(x, axes=axes, keepdims=True))
    variance = reduce_mean(mul(centred, centred), axes=axes, keepdims=True)
    return div(centred, sqrt(add(variance, epsilon)))


def _normalise(x: np.ndarray, axes: tuple[int, ...], epsilon: float) -> np.ndarray:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon) if x.size else x


@structured(
    "Softmax",
    examples=(
        ("f32[5, 13]", dict(axis=1)),
        ("f32[2, 3, 7, 5]", dict(axis=1)),
        ("f32[3, 1009]", dict(axis=1)),
        ("f32[7]", dict(axis=0)),
    ),
)
class softmax:
    """Yᵢ = e^(Xᵢ − max X) / Σⱼ e^(Xⱼ − max X) along an axis."""

    def infer(x: TensorType, *, axis: int) -> TensorType:
        expect(x.dtype.is_float, "needs floating point")
        _check_axis(x, axis)
        return x

    def reference(x, *, axis):
        e = np.exp(x - x.max(axis, keepdims=True, initial=-np.inf))
        return e / e.sum(axis, keepdims=True)

    def flops(x: TensorType, *, axis: int) -> int:
        return 5 * x.size  # maximum, difference, exponential, sum, quotient


@structured(
    "LogSoftmax",
    examples=(("f32[5, 13]", dict(axis=1)), ("f32[2, 3, 7, 5]", dict(axis=2)), ("f32[3, 1009]", dict(axis=1))),
)
class log_softmax:
    """Yᵢ = Xᵢ − max X − log Σⱼ e^(Xⱼ − max X) along an axis."""

    def infer(x: TensorType, *, axis: int) -> TensorType:
        expect(x.dtype.is_float, "needs floating point")
        _check_axis(x, axis)
        return x

    def reference(x, *, axis):
        shifted = x - x.max(axis, keepdims=True, initial=-np.inf)
        return shifted - np.log(np.exp(shifted).sum(axis, keepdims=True))

    def flops(x: TensorType, *, axis: int) -> int:
        return 5 * x.size


@structured(
    "LRN",
    examples=(
        ("f32[2, 7, 5, 3]", dict(size=5, alpha=1e-2, beta=0.75, bias=1.0)),
        ("f32[1, 58, 3, 3]", dict(size=4, alpha=0.1, beta=0.5, bias=2.0)),
    ),
)
class lrn:
    """Y[n, c] = X[n, c] / (bias + alpha / size · Σ X[n, c′]²)^beta, c′ in the `size` channels around c."""

    def infer(x: TensorType, *, size: int, alpha: float, beta: float, bias: float) -> TensorType:
        expect(x.dtype.is_float and x.rank >= 2, "needs a floating-point input of rank 2 and more: batch, channels, …")
        expect(size >= 1, f"needs a size of 1 and more, got {size}")
        return x

    def reference(x, *, size, alpha, beta, bias):
        channels, before = x.shape[1], (size - 1) // 2
        squares = np.pad(x * x, [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)])
        total = sum(squares[:, k : k + channels] for k in range(size))
        return x / (bias + alpha / size * total) ** beta

    def flops(x: TensorType, *, size: int, **attrs) -> int:
        return (size + 5) * x.size


@composite(
    "BatchNormalization",
    domain=(0.3, 3.0),
    examples=(
        ("f32[2, 3, 5, 7]", "f32[3]", "f32[3]", "f32[3]", "f32[3]"),
        ("f32[5, 58]", "f32[58]", "f32[58]", "f32[58]", "f32[58]", dict(epsilon=1e-3)),
    ),
)
class batch_norm:
    """Y = (X − mean) / √(var + ε) · scale + bias, all per channel (axis 1)."""

    def infer(
        x: TensorType, scale: TensorType, bias: TensorType, mean: TensorType, var: TensorType, *, epsilon: float = 1e-5
    ) -> TensorType:
        _check_channels(x, scale, bias, mean, var)
        return x

    def expand(x, scale, bias, mean, var, *, epsilon):
        rank, channels = x.type.rank, x.type.shape[1]
        factor = div(scale, sqrt(add(var, epsilon)))
        centred = sub(x, _per_channel(rank, mean, channels))
        return add(mul(centred, _per_channel(rank, factor, channels)), _per_channel(rank, bias, channels))

    def reference(x, scale, bias, mean, var, *, epsilon=1e-5):
        scale, bias, mean, var = (s.reshape(-1, *[1] * (x.ndim - 2)) for s in (scale, bias, mean, var))
        return (x - mean) / np.sqrt(var + epsilon) * scale + bias


@composite(
    "LayerNormalization",
    examples=(
        ("f32[2, 5, 58]", "f32[58]", "f32[58]", dict(axis=2)),
        ("f32[3, 7, 5]", "f32[7, 5]", "f32[7, 5]", dict(axis=1, epsilon=1e-3)),
    ),
)
class layer_norm:
    """Y = (X − mean X) / √(var X + ε) · scale + bias over the axes from `axis` on."""

    def infer(x: TensorType, scale: TensorType, bias: TensorType, *, axis: int, epsilon: float = 1e-5) -> TensorType:
        _check_scale(x, axis, scale, bias)
        return x

    def expand(x, scale, bias, *, axis, epsilon):
        return add(mul(_normalised(x, tuple(range(axis, x.type.rank)), epsilon), scale), bias)

    def reference(x, scale, bias, *, axis, epsilon=1e-5):
        return _normalise(x, tuple(range(axis, x.ndim)), epsilon) * scale + bias

    def flops(x: TensorType, scale: TensorType, bias: TensorType, **attrs) -> int:
        return 7 * x.size


@composite(
    "RMSNormalization",
    examples=(("f32[2, 5, 58]", "f32[58]", dict(axis=2)), ("f32[3, 7, 5]", "f32[7, 5]", dict(axis=1, epsilon=1e-3))),
)
class rms_norm:
    """Y = X / √(mean X² + ε) · scale over the axes from `axis` on."""

    def infer(x: TensorType, scale: TensorType, *, axis: int, epsilon: float = 1e-5) -> TensorType:
        _check_scale(x, axis, scale)
        return x

    def expand(x, scale, *, axis, epsilon):
        power = reduce_mean(mul(x, x), axes=tuple(range(axis, x.type.rank)), keepdims=True)
        return mul(div(x, sqrt(add(power, epsilon))), scale)

    def reference(x, scale, *, axis, epsilon=1e-5):
        return x / np.sqrt((x * x).mean(tuple(range(axis, x.ndim)), keepdims=True) + epsilon) * scale if x.size else x

    def flops(x: TensorType, scale: TensorType, **attrs) -> int:
        return 4 * x.size


def _check_scale(x: TensorType, axis: int, *factors: TensorType) -> None:
    """Checks that every factor broadcasts to x."""
    expect(x.dtype.is_float, "needs floating point")
    _check_axis(x, axis)
    expect(all(f.dtype is x.dtype for f in factors), "needs operands of one element type")
    for f in factors:
        expect(f.rank <= x.rank, f"needs scale and bias that broadcast to {x}")
        for d, n in zip(reversed(f.shape), reversed(x.shape)):
            expect_equal(n if d != 1 else 1, d, f"needs scale and bias that broadcast to {x}")


@composite(
    "InstanceNormalization",
    examples=(("f32[2, 3, 5, 7]", "f32[3]", "f32[3]"), ("f32[1, 58, 13]", "f32[58]", "f32[58]", dict(epsilon=1e-3))),
)
class instance_norm:
    """Y = (X − mean X) / √(var X + ε) · scale + bias, for each batch element and channel over its space."""

    def infer(x: TensorType, scale: TensorType, bias: TensorType, *, epsilon: float = 1e-5) -> TensorType:
        expect(x.rank >= 3, "needs an input of rank 3 and more: batch, channels, space")
        _check_channels(x, scale, bias)
        return x

    def expand(x, scale, bias, *, epsilon):
        rank, channels = x.type.rank, x.type.shape[1]
        normalised = _normalised(x, tuple(range(2, rank)), epsilon)
        return add(mul(normalised, _per_channel(rank, scale, channels)), _per_channel(rank, bias, channels))

    def reference(x, scale, bias, *, epsilon=1e-5):
        shape = (-1, *[1] * (x.ndim - 2))
        return _normalise(x, tuple(range(2, x.ndim)), epsilon) * scale.reshape(shape) + bias.reshape(shape)

    def flops(x: TensorType, scale: TensorType, bias: TensorType, **attrs) -> int:
        return 7 * x.size


@composite(
    "GroupNormalization",
    examples=(
        ("f32[2, 6, 5, 7]", "f32[6]", "f32[6]", dict(groups=3)),
        ("f32[1, 58, 13]", "f32[58]", "f32[58]", dict(groups=2, epsilon=1e-3)),
    ),
)
class group_norm:
    """Y = (X − mean X) / √(var X + ε) · scale + bias, for each batch element over a group of channels and their space;
    scale and bias per channel."""

    def infer(x: TensorType, scale: TensorType, bias: TensorType, *, groups: int, epsilon: float = 1e-5) -> TensorType:
        _check_channels(x, scale, bias)
        expect(groups >= 1, f"needs groups, got {groups}")
        expect_equal(x.shape[1] % groups, 0, f"needs channels divisible by the {groups} groups, got {x.shape[1]}")
        return x

    def expand(x, scale, bias, *, groups, epsilon):
        rank, channels = x.type.rank, x.type.shape[1]
        grouped = reshape(x, shape=(x.type.shape[0], groups, math.prod(x.type.shape[1:]) // groups))
        normalised = reshape(_normalised(grouped, (2,), epsilon), shape=x.type.shape)
        return add(mul(normalised, _per_channel(rank, scale, channels)), _per_channel(rank, bias, channels))

    def reference(x, scale, bias, *, groups, epsilon=1e-5):
        shape = (-1, *[1] * (x.ndim - 2))
        grouped = x.reshape(x.shape[0], groups, x.size // max(1, x.shape[0] * groups))
        return _normalise(grouped, (2,), epsilon).reshape(x.shape) * scale.reshape(shape) + bias.reshape(shape)

    def flops(x: TensorType, scale: TensorType, bias: TensorType, **attrs) -> int:
        return 7 * x.size
