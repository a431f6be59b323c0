"""Weights that share few values: the centres of k-means over all values of a layer."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
ROUNDS = 30
ENOUGH = 1e-6  # relative change of the centres at which they are final


def cluster(values: Array, count: int) -> tuple[Array, Array]:
    """Returns the centres f32[count] in ascending order, and the index of each value's nearest centre, u8 of the shape
    of `values`. A 0 among the values, as of pruned weights, stays 0.

    Lloyd's iteration over sorted values, from centres at equal shares of them: borders lie between neighbours, so a
    round is a search for these. count: up to 256; fewer centres if there are fewer values.
    """
    ordered = np.sort(np.asarray(values, np.float64).reshape(-1))
    zero = bool((ordered == 0).any())
    centres: Array = np.unique(ordered)
    if len(centres) > count:
        centres = np.unique(np.quantile(ordered, (np.arange(count) + 0.5) / count))
        sums = np.concatenate([[0.0], np.cumsum(ordered)])
        for _ in range(ROUNDS):
            borders = np.searchsorted(ordered, (centres[1:] + centres[:-1]) / 2)
            ends = np.concatenate([[0], borders, [len(ordered)]])
            sizes: Array = np.diff(ends)
            moved: Array = np.where(sizes > 0, np.diff(sums[ends]) / np.maximum(sizes, 1), centres)
            change, centres = np.abs(moved - centres).max(), moved
            if change <= ENOUGH * np.abs(centres).max():
                break
    if zero:
        centres[np.abs(centres).argmin()] = 0
    found = np.sort(centres.astype(np.float32))
    middles = (found[1:].astype(np.float64) + found[:-1]) / 2
    codes = np.searchsorted(middles, np.asarray(values, np.float64)).astype(np.uint8)
    return found, codes
