"""Rounding with compensation of its error, by the second moments of a layer's inputs.

GPTQ (Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers", 2022) rounds
column by column and moves each error into the columns that follow. Rounds of coordinate descent then revisit every
column (Behdin et al., "QuantEase", 2023).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .blocks import PackedRows, Scales

DAMPING = 0.01  # of the mean second moment
ROUNDS = 4  # of coordinate descent
LAZY = 64  # columns whose errors reach the ones behind them together
Array = np.ndarray[Any, Any]


def damped(moments: Array) -> Array:
    """Returns second moments that have an inverse: columns without inputs get a moment of 1, all others a part of the
    mean more."""
    out = np.array(moments, np.float64)
    diagonal = np.einsum("ii->i", out)
    dead = diagonal <= 0
    diagonal[dead] = 1
    diagonal += DAMPING * float(diagonal[~dead].mean() if not dead.all() else 1)
    return out


def compensate(
    rows: Array, scales: Scales, moments: Array, ordered: bool = False, pruned: Array | None = None
) -> PackedRows:
    """Returns rows [rows, inner] rounded to the grid of their scales, by GPTQ. moments: as `damped` returns them.
    ordered: columns with the largest moments come first. pruned: True for weights that become 0 (as in SparseGPT)."""
    inner = rows.shape[1]
    order = np.argsort(-np.diag(moments), kind="stable") if ordered else np.arange(inner)
    factor = np.linalg.cholesky(np.linalg.inv(moments[np.ix_(order, order)])).T  # upper
    scale, zero = (a[:, order].astype(np.float64) for a in scales.spread(inner))
    left, codes = np.array(rows[:, order], np.float64), np.zeros(rows.shape, scales.grid.storage)
    low, high = scales.grid.lowest, scales.grid.highest
    for first in range(0, inner, LAZY):
        last = min(first + LAZY, inner)
        errors = np.zeros((len(rows), last - first))
        for i in range(first, last):
            code = np.clip(np.rint(left[:, i] / scale[:, i]) + zero[:, i], low, high)
            if pruned is not None:
                code = np.where(pruned[:, order[i]], zero[:, i], code)
            codes[:, order[i]] = code
            error = (left[:, i] - (code - zero[:, i]) * scale[:, i]) / factor[i, i]
            left[:, i + 1 : last] -= error[:, None] * factor[i, i + 1 : last]
            errors[:, i - first] = error
        left[:, last:] -= errors @ factor[first:last, last:]
    return PackedRows(scales, codes)


def descend(
    rows: Array, packed: PackedRows, moments: Array, rounds: int = ROUNDS, pruned: Array | None = None
) -> PackedRows:
    """Returns the weights after rounds of coordinate descent: each column takes the code that is best for the others,
    so that the output error never grows."""
    inner = rows.shape[1]
    scale, zero = (a.astype(np.float64) for a in packed.scales.spread(inner))
    low, high = packed.grid.lowest, packed.grid.highest
    codes = packed.codes.astype(np.float64)
    off = rows - (codes - zero) * scale  # what is missing
    for _ in range(rounds):
        pull = off @ moments
        changed = 0
        for first in range(0, inner, LAZY):
            last = min(first + LAZY, inner)
            before = off[:, first:last].copy()
            part = pull[:, first:last]
            for i in range(first, last):
                best = (codes[:, i] - zero[:, i]) * scale[:, i] + part[:, i - first] / moments[i, i]
                code = np.clip(np.rint(best / scale[:, i]) + zero[:, i], low, high)
                if pruned is not None:
                    code = np.where(pruned[:, i], codes[:, i], code)
                step = (codes[:, i] - code) * scale[:, i]
                if step.any():
                    changed += int((step != 0).sum())
                    off[:, i] += step
                    codes[:, i] = code
                    part += step[:, None] * moments[i, first:last]
            pull[:, last:] += (off[:, first:last] - before) @ moments[first:last, last:]
        if not changed:
            break
    return PackedRows(packed.scales, codes.astype(packed.grid.storage))


def fit_scales(rows: Array, packed: PackedRows, moments: Array) -> PackedRows:
    """Returns the same codes with the scales of least output error, block after block: each is the quotient of two
    products with what the other blocks leave over."""
    inner, block = rows.shape[1], packed.grid.block
    scale = packed.scales.scale.astype(np.float64)
    signed = packed.codes - packed.scales.spread(inner)[1].astype(np.float64)
    off = rows - signed * scale[:, np.arange(inner) // block]
    for b in range(scale.shape[1]):
        at = slice(b * block, min((b + 1) * block, inner))
        part = signed[:, at]
        pull = off @ moments[:, at]
        own = np.einsum("ij,ij->i", part @ moments[at, at], part)
        step = np.divide(np.einsum("ij,ij->i", pull, part), own, out=np.zeros(len(rows)), where=own > 0)
        step = np.where(scale[:, b] + step > 0, step, 0)
        scale[:, b] += step
        off[:, at] -= part * step[:, None]
    fitted = Scales(packed.grid, scale.astype(np.float32), packed.scales.zero)
    return PackedRows(fitted, packed.codes)
