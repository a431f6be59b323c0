"""Second moments of a layer's inputs, and the error of its outputs by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pelton.quantize.accuracy_bound import Feed

from .compensate import damped
from .layers import WeightLayer
from .simulation import Simulation

# Part of the way to the weights that undo the error of the inputs; all of it would fit the calibration data alone.
SHIFT = 0.5
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Moments:
    """Sums over the rows of calibration data, f64[inner, inner]: Σ x xᵀ of the inputs behind compressed layers, `own`,
    of those in the original program, `original`, and of both, `cross`, Σ own originalᵀ."""

    own: Array
    original: Array
    cross: Array

    def error(self, rows: Array, compressed: Array) -> float:
        """Returns the power of the difference of a layer's outputs from the original ones, divided by their power, for
        the weights [rows, inner] and compressed ones. The difference of the inputs counts."""
        wide = np.asarray(compressed, np.float64)
        power = float(np.einsum("ij,ij->", rows @ self.original, rows))
        both = float(np.einsum("ij,ij->", wide @ self.cross, rows))
        rest = power - 2 * both + float(np.einsum("ij,ij->", wide @ self.own, wide))
        return max(rest, 0.0) / power if power > 0 else 0.0

    def target(self, rows: Array) -> Array:
        """Returns the weights to round: shifted so that they undo a part of the difference of the inputs (Li et al.,
        "GPTAQ: Efficient Finetuning-Free Quantization for Asymmetric Calibration", 2025)."""
        shift = np.linalg.solve(damped(self.own), (self.cross - self.own) @ rows.T)
        return rows + SHIFT * shift.T

    def scaled(self, gain: Array) -> Moments:
        """Returns the moments of inputs divided by `gain`, [inner]."""
        by = np.outer(gain, gain)
        return Moments(self.own / by, self.original / by, self.cross / by)


def measure(
    simulation: Simulation, layer: WeightLayer, feeds: Sequence[Feed], weights: Mapping[WeightLayer, Array]
) -> Moments:
    """Returns the moments of a layer's inputs, with these weights in front of it and with the original ones."""
    own: Any = 0.0
    original: Any = 0.0
    cross: Any = 0.0
    for feed in feeds:
        simulation.run(feed, {})
        before = simulation.rows(layer, feed)
        simulation.run(feed, weights)
        after = simulation.rows(layer, feed)
        own = own + (after.T @ after).astype(np.float64)
        original = original + (before.T @ before).astype(np.float64)
        cross = cross + (after.T @ before).astype(np.float64)
    return Moments(own, original, cross)
