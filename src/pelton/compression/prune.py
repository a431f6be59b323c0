"""Weights that become 0: those of least size, or of least size times that of their inputs.

With calibration data the score of a weight is |w| · ‖x‖, compared within each row (Wanda: Sun et al., "A Simple and
Effective Pruning Approach for Large Language Models", 2023); without, |w|, compared within the layer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from pelton.errors import InputError

Array = np.ndarray[Any, Any]
LARGEST_GROUP = 64


@dataclass(frozen=True)
class Sparsity:
    """The weights to prune: a share of all, or of each `group` consecutive ones of a row so that `kept` are left."""

    share: float
    kept: int = 0
    group: int = 0

    def __str__(self) -> str:
        return f"{self.kept}:{self.group}" if self.group else f"{self.share:g}"


def read_sparsity(text: object) -> Sparsity:
    """Reads 0.8 (a share from 0 to 1, exclusive) or "2:4" (2 of each 4 weights stay); InputError for others."""
    if match := re.fullmatch(r"(\d{1,2}):(\d{1,2})", str(text)):
        kept, group = map(int, match.groups())
        if 0 < kept < group <= LARGEST_GROUP:
            return Sparsity(1 - kept / group, kept, group)
    else:
        try:
            share = float(str(text))
        except ValueError:
            share = 0.0
        if 0 < share < 1:
            return Sparsity(share)
    raise InputError(f"sparsity is a share of weights such as 0.8, or 2:4 for 2 of each 4 weights, got {text!r}")


def pruned_weights(rows: Array, sparsity: Sparsity, moments: Array | None = None) -> Array:
    """Returns True for the weights to prune of rows [rows, inner]. moments: Σ x xᵀ of the inputs, [inner, inner]."""
    score = np.abs(np.asarray(rows, np.float64))
    if moments is not None:
        score = score * np.sqrt(np.maximum(np.diag(moments), 0))
    if sparsity.group:
        missing = -rows.shape[1] % sparsity.group
        # padding has the lowest scores: it is pruned first
        cut = np.pad(score, ((0, 0), (0, missing)), constant_values=-1).reshape(len(rows), -1, sparsity.group)
        return _lowest(cut, sparsity.group - sparsity.kept).reshape(len(rows), -1)[:, : rows.shape[1]]
    if moments is not None:
        return _lowest(score, round(sparsity.share * rows.shape[1]))
    return _lowest(score.reshape(1, -1), round(sparsity.share * rows.size)).reshape(rows.shape)


def _lowest(score: Array, count: int) -> Array:
    """Returns True for the `count` lowest scores along the last axis; of equal ones the first."""
    order = np.argsort(score, axis=-1, kind="stable")
    lowest = np.zeros(score.shape, bool)
    np.put_along_axis(lowest, order[..., :count], True, axis=-1)
    return lowest
