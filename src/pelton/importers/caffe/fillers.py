"""Random weights, drawn like those of Caffe's fillers."""

from __future__ import annotations

import math

import numpy as np

from .schema import Message, message_class


def fill(filler: Message, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Draws an f32 array by a `FillerParameter`; raises ValueError for a type unknown or unfit for the shape."""
    kind, count = filler.type, math.prod(shape)
    first, second = (*shape, 1, 1)[:2]
    if kind == "constant":
        return np.full(shape, filler.value, np.float32)
    if kind == "uniform":
        return _uniform(rng, shape, filler.min, max(filler.min, filler.max))
    if kind == "gaussian":
        drawn = rng.standard_normal(shape, np.float32)
        drawn *= np.float32(filler.std)
        drawn += np.float32(filler.mean)
        if filler.sparse >= 0:  # expected number of nonzero weights per output
            drawn *= rng.random(shape, np.float32) < filler.sparse / max(1, first)
        return drawn
    if kind == "positive_unitball":
        drawn = rng.random(shape, np.float32).reshape(first, -1)
        drawn /= drawn.sum(1, keepdims=True)
        return drawn.reshape(shape)
    inputs, outputs = count // max(1, first), count // max(1, second)
    fan = max(1, {0: inputs, 1: outputs, 2: (inputs + outputs) / 2}[filler.variance_norm])
    if kind == "xavier":  # Glorot and Bengio 2010
        bound = math.sqrt(3 / fan)
        return _uniform(rng, shape, -bound, bound)
    if kind == "msra":  # He et al. 2015
        drawn = rng.standard_normal(shape, np.float32)
        drawn *= np.float32(math.sqrt(2 / fan))
        return drawn
    if kind == "bilinear":
        return _bilinear(shape)
    raise ValueError(f"has the unknown filler {kind!r}; set weights=")


def _uniform(rng: np.random.Generator, shape: tuple[int, ...], low: float, high: float) -> np.ndarray:
    """Draws f32 numbers from a range, without a copy in f64."""
    drawn = rng.random(shape, np.float32)
    drawn *= np.float32(high - low)
    drawn += np.float32(low)
    return drawn


def default(kind: str, value: float = 0.0) -> Message:
    """Returns the filler of a type."""
    return message_class("FillerParameter")(type=kind, value=value)


def _bilinear(shape: tuple[int, ...]) -> np.ndarray:
    """Returns weights of a deconvolution that interpolates between pixels."""
    if len(shape) != 4 or shape[2] != shape[3]:
        raise ValueError(f"needs square windows for the filler 'bilinear', got weights of shape {list(shape)}")
    half = math.ceil(shape[2] / 2)
    centre = (2 * half - 1 - half % 2) / (2 * half)
    along = 1 - np.abs(np.arange(shape[2]) / half - centre)
    return np.broadcast_to(np.outer(along, along), shape).astype(np.float32)
