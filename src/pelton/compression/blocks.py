"""Rows of weights as integers of few bits, in blocks with a scale and perhaps a zero point each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from pelton.ir.types import DType

# Parts of a block's range that the search tries: of both ends, or of each with zero points.
PARTS = (*np.linspace(0.4, 1.0, 25), 7 / 8)
PAIRS = tuple(product(np.linspace(0.5, 1.0, 6), repeat=2))
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class WeightGrid:
    """The numbers that a block can hold: integers of `bits`, symmetric around 0 or with a zero point for each block of
    `block` elements along a row."""

    bits: int
    block: int
    zero_points: bool = False

    @property
    def lowest(self) -> int:
        return 0 if self.zero_points else -(1 << (self.bits - 1))

    @property
    def highest(self) -> int:
        return self.lowest + (1 << self.bits) - 1

    @property
    def dtype(self) -> DType:
        """The element type of the codes."""
        return {(4, False): DType.I4, (4, True): DType.U4, (8, False): DType.I8, (8, True): DType.U8}[
            self.bits, self.zero_points
        ]

    @property
    def storage(self) -> type[np.generic]:
        """The type of codes in memory."""
        return np.uint8 if self.zero_points else np.int8

    def blocks(self, inner: int) -> int:
        """Returns the number of blocks in a row of so many elements."""
        return -(-inner // self.block)


@dataclass(frozen=True)
class Scales:
    """Scale and zero point of each block: f32[rows, blocks], and integers of the same shape, 0 if symmetric."""

    grid: WeightGrid
    scale: Array
    zero: Array

    def at(self, column: int) -> tuple[Array, Array]:
        """Returns the scales and zero points of a column's block, as [rows]."""
        place = column // self.grid.block
        return self.scale[:, place], self.zero[:, place]

    def spread(self, inner: int) -> tuple[Array, Array]:
        """Returns scale and zero point of each element, as [rows, inner]."""
        place = np.arange(inner) // self.grid.block
        return self.scale[:, place], self.zero[:, place]

    def codes(self, rows: Array) -> Array:
        """Returns the nearest codes of rows of weights, [rows, inner]."""
        scale, zero = self.spread(rows.shape[1])
        near = np.rint(rows / scale.astype(np.float64)) + zero
        return np.clip(near, self.grid.lowest, self.grid.highest).astype(self.grid.storage)


@dataclass(frozen=True)
class PackedRows:
    """Rows of weights of few bits. codes: bytes [rows, inner]; (code − zero) · scale is the weight."""

    scales: Scales
    codes: Array

    @property
    def grid(self) -> WeightGrid:
        return self.scales.grid

    def weights(self) -> Array:
        """Returns the weights as f32[rows, inner], rounded once, as every runtime computes them."""
        scale, zero = self.scales.spread(self.codes.shape[1])
        return (self.codes.astype(np.int16) - zero).astype(np.float32) * scale

    def divided(self, by: Array) -> PackedRows:
        """Returns the rows divided by these numbers, [rows]: scales alone change."""
        scale = (self.scales.scale / by[:, None]).astype(np.float32)
        return replace(self, scales=replace(self.scales, scale=scale))

    @property
    def nbytes(self) -> int:
        """The bytes of codes, scales and zero points in a file."""
        zeros = self.scales.zero.size * self.grid.bits / 8 if self.grid.zero_points else 0
        return int(np.ceil(self.codes.size * self.grid.bits / 8) + 4 * self.scales.scale.size + np.ceil(zeros))


def find_scales(rows: Array, grid: WeightGrid, importance: Array | None = None, clip: bool = True) -> Scales:
    """Returns the scales of rows [rows, inner].

    Without `clip`, each block's largest weight is the largest number, as plain rounding to nearest has it; with it, the
    scale is the one of these parts with the least squared error, weighted by the importance of the columns, [inner].
    """
    count, inner = rows.shape
    blocks = grid.blocks(inner)
    missing = blocks * grid.block - inner
    cut = np.pad(np.asarray(rows, np.float64), ((0, 0), (0, missing))).reshape(count, blocks, grid.block)
    weight = np.pad(np.ones(inner) if importance is None else importance, (0, missing)).reshape(blocks, grid.block)
    low, high = np.minimum(cut.min(2), 0), np.maximum(cut.max(2), 0)
    best = _scales(grid, low, high)
    if not clip:
        return best
    least = _error(cut, best, weight)
    for below, above in PAIRS if grid.zero_points else zip(PARTS, PARTS):
        tried = _scales(grid, below * low, above * high)
        error = _error(cut, tried, weight)
        better = error < least
        least = np.where(better, error, least)
        best = replace(
            best, scale=np.where(better, tried.scale, best.scale), zero=np.where(better, tried.zero, best.zero)
        )
    return best


def _scales(grid: WeightGrid, low: Array, high: Array) -> Scales:
    """Returns the scales that map these ranges to the numbers of a grid."""
    if grid.zero_points:
        scale = (high - low) / (grid.highest - grid.lowest)
        scale = _safe(scale)
        zero = np.clip(np.rint(-low / scale), grid.lowest, grid.highest).astype(np.int16)
        return Scales(grid, scale, zero)
    scale = _safe(np.maximum(-low, high) / grid.highest)
    return Scales(grid, scale, np.zeros(scale.shape, np.int16))


def _safe(scale: Array) -> Array:
    """Returns scales as f32, 1 for blocks of zeros and those too small for a normal number."""
    scale = scale.astype(np.float32)
    return np.where(scale >= np.finfo(np.float32).tiny, scale, np.float32(1))


def _error(cut: Array, scales: Scales, weight: Array) -> Array:
    """Returns the weighted squared error of each block of [rows, blocks, block]."""
    scale, zero, grid = scales.scale[..., None], scales.zero[..., None], scales.grid
    near = np.clip(np.rint(cut / scale) + zero, grid.lowest, grid.highest) - zero
    return (np.square(near * scale - cut) * weight).sum(2)


def round_to_nearest(rows: Array, scales: Scales) -> PackedRows:
    """Returns rows rounded to the nearest number of their block."""
    return PackedRows(scales, scales.codes(rows))
