"""Normalizations, and layers that scale."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..config import LayerConfig
from ..held import HeldTensor, to_first
from ..reading import KerasReading, reads

EPSILON = 1e-7  # Keras' default


def _affine(layer: LayerConfig) -> list[str]:
    return [*["gamma"] * layer.flag("scale", True), *["beta"] * layer.flag("center", True)]


def _statistics(layer: LayerConfig) -> list[str]:
    return [*_affine(layer), "~moving_mean", "~moving_variance"]


@reads("BatchNormalization", variables=_statistics)
def batch_norm(r: KerasReading) -> HeldTensor:
    x = r.floats()
    axis = r.axis(r.layer.option("axis", -1), x.rank)
    size = r.number(x.shape[axis], "the size of its axis")
    r.layer.expect(renorm=False, renorm_clipping=None, virtual_batch_size=None)
    r.layer.ignore("momentum", "renorm_momentum", "synchronized", "fused")
    epsilon = r.layer.number("epsilon", 1e-3)
    gamma = r.variable("gamma", size) if r.layer.flag("scale", True) else np.ones(size, np.float32)
    beta = r.variable("beta", size) if r.layer.flag("center", True) else np.zeros(size, np.float32)
    mean, variance = r.variable("moving_mean", size), r.variable("moving_variance", size)
    if x.axis(axis) == 1:
        return x.mapped(lambda t: r.net.batch_norm(t, gamma, beta, mean, variance, epsilon=epsilon))
    factor = gamma.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon)
    shift = (beta - mean * factor).astype(np.float32)
    ones = [1] * (x.rank - 1 - x.axis(axis))
    return x.mapped(lambda t: t * factor.astype(np.float32).reshape(-1, *ones) + shift.reshape(-1, *ones))


@reads("LayerNormalization", variables=_affine)
def layer_norm(r: KerasReading) -> HeldTensor:
    x = r.floats()
    r.layer.expect(rms_scaling=False)
    axes = _axes(r, r.layer.option("axis", -1), x.rank)
    epsilon = r.layer.number("epsilon", 1e-3)
    shape = [r.number(x.shape[a], "the sizes of its axes") for a in axes]
    gamma = r.variable("gamma", *shape) if r.layer.flag("scale", True) else None
    beta = r.variable("beta", *shape) if r.layer.flag("center", True) else None
    t, trailing = x.tensor(), tuple(range(x.rank - len(axes), x.rank))
    if axes == trailing:
        return r.of(r.net.layer_norm(t, gamma, beta, axis=axes[0], epsilon=epsilon))
    # normalized along the last axes, then restored
    perm = [a for a in range(x.rank) if a not in axes] + list(axes)
    y = r.net.layer_norm(r.net.transpose(t, perm), gamma, beta, axis=x.rank - len(axes), epsilon=epsilon)
    return r.of(r.net.transpose(y, np.argsort(perm).tolist()))


@reads("RMSNormalization", variables=("scale",))
def rms_norm(r: KerasReading) -> HeldTensor:
    x = r.floats()
    axes = _axes(r, r.layer.option("axis", -1), x.rank)
    if axes != tuple(range(x.rank - len(axes), x.rank)):
        raise r.refuse(f"normalizes along the axes {list(axes)}, not the last ones")
    scale = r.variable("scale", *(r.number(x.shape[a], "the sizes of its axes") for a in axes))
    return r.of(r.net.rms_norm(x.tensor(), scale, axis=axes[0], epsilon=r.layer.number("epsilon", 1e-6)))


@reads("GroupNormalization", variables=_affine)
def group_norm(r: KerasReading) -> HeldTensor:
    x = r.floats()
    axis = r.axis(r.layer.option("axis", -1), x.rank)
    size = r.number(x.shape[axis], "the size of its axis")
    groups, epsilon = r.layer.integer("groups", 32, low=-1), r.layer.number("epsilon", 1e-3)
    groups = size if groups == -1 else groups
    gamma = r.variable("gamma", size) if r.layer.flag("scale", True) else None
    beta = r.variable("beta", size) if r.layer.flag("center", True) else None
    if axis not in (1, x.rank - 1) or x.rank < 2:
        raise r.refuse(f"normalizes along axis {axis} of {list(x.shape)}, which has no fixed size")
    t = x.tensor() if axis == 1 else x.image()
    wide = t if x.rank > 2 else r.net.unsqueeze(t, 2)
    y = r.net.group_norm(wide, gamma, beta, groups=groups, epsilon=epsilon)
    y = y if x.rank > 2 else r.net.squeeze(y, 2)
    return r.of(y) if axis == 1 else HeldTensor(r.net, first=y)


@reads("UnitNormalization")
def unit_norm(r: KerasReading) -> HeldTensor:
    """Divides by the root of the sum of squares: at least 1e-12, or 1e-6 in Keras 2."""
    x = r.floats()
    axes = tuple(x.axis(a) for a in _axes(r, r.layer.option("axis", -1), x.rank))
    least = 1e-12 if r.layer.version > 2 else 1e-6
    return x.mapped(lambda t: r.net.l2_normalize(t, axes, epsilon=least))


@reads("Rescaling")
def rescaling(r: KerasReading) -> HeldTensor:
    x = r.floats(casts=True)
    scale, offset = (_factor(r, name, default) for name, default in (("scale", 1.0), ("offset", 0.0)))
    if isinstance(scale, float) and isinstance(offset, float):
        return x.mapped(lambda t: t * scale + offset)
    return r.of(x.tensor() * scale + offset)


def _factor(r: KerasReading, name: str, default: float) -> float | np.ndarray:
    factor = np.asarray(r.layer.option(name, default))
    if factor.dtype.kind not in "fiu" or factor.ndim > 1:
        raise r.refuse(f"needs numbers as {name}, got {factor!r:.60}")
    return float(factor) if factor.ndim == 0 else factor.astype(np.float32)


def _moments(layer: LayerConfig) -> list[str]:
    return [] if layer.option("mean", None) is not None else ["~mean", "~variance", "~count"]


@reads("Normalization", variables=_moments)
def normalization(r: KerasReading) -> HeldTensor:
    """Computes (x − mean) / √variance, each along the axes that it keeps; the inverse with `invert`."""
    x, axis = r.floats(casts=True), r.layer.option("axis", -1)
    axes = () if axis is None else _axes(r, axis, x.rank)
    kept = [r.number(x.shape[a], "the sizes of its axes") for a in axes]
    shape = [x.shape[a] if a in axes else 1 for a in range(x.rank)]
    r.layer.ignore("variance")
    if _moments(r.layer):
        mean, variance = (r.variable(name, *kept) for name in ("mean", "variance"))
    else:
        mean, variance = (_spread(r, name, kept) for name in ("mean", "variance"))
    mean, variance = (a.reshape(shape).astype(np.float32) for a in (mean, variance))
    scale = np.maximum(np.sqrt(variance), np.float32(EPSILON))
    mean, scale = (a.transpose(to_first(x.rank)) if x.is_first else a for a in (mean, scale))
    if r.layer.flag("invert", False):
        return x.mapped(lambda t: t * scale + mean)
    return x.mapped(lambda t: (t - mean) / scale)


def _spread(r: KerasReading, name: str, kept: Sequence[int]) -> np.ndarray:
    """Returns numbers of the description, broadcast to the kept axes."""
    values = np.asarray(r.layer.option(name))
    if values.dtype.kind not in "fiu":
        raise r.refuse(f"needs numbers as {name}, got {values!r:.60}")
    values = values.reshape([d for d in values.shape if d != 1] or [1])
    if values.size == 1:
        return np.full(kept, values.reshape(()), np.float32)
    if values.size != math.prod(kept):
        raise r.refuse(f"needs a {name} for each of {list(kept)}, got {list(values.shape)}")
    return values.reshape(kept)


@reads("LayerScale", variables=("gamma",))
def layer_scale(r: KerasReading) -> HeldTensor:
    """Multiplies by a factor per channel, as in ConvNeXt."""
    x, size = r.floats(), r.layer.integer("projection_dim")
    r.layer.ignore("init_values")
    gamma = r.variable("gamma", size)
    ones = [1] * (x.rank - 1 - x.axis(x.rank - 1))
    return x.mapped(lambda t: t * gamma.reshape(-1, *ones))


def _axes(r: KerasReading, given: object, rank: int) -> tuple[int, ...]:
    """Returns axes from the front, in order, each once."""
    if not isinstance(given, (list, tuple)):
        given = [given]
    return tuple(sorted({r.axis(a, rank) for a in given}))
