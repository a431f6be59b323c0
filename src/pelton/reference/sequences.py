"""Operators on sequences whose results have data-dependent lengths: alignments, and predicted tokens."""

from __future__ import annotations

import numpy as np


def warped(costs: np.ndarray) -> tuple[np.ndarray]:
    """Returns the cheapest path through a matrix of costs, corner to corner: i32 [2, steps], rows and columns.

    Each step goes down, right, or both; to both only if neither other way is as cheap, and to the right on ties. The
    sums are of 32 bits: they decide. They are computed by diagonals, whose elements do not depend on each other.
    """
    if costs.ndim != 2 and not (costs.ndim == 3 and costs.shape[0] == 1):
        raise ValueError(f"needs costs [rows, columns] or [1, rows, columns], got {list(costs.shape)}")
    rows, columns = int(costs.shape[-2]), int(costs.shape[-1])
    costs = costs.reshape(rows, columns).astype(np.float32)
    total = np.full((rows + 1, columns + 1), np.inf, np.float32)
    came = np.full((rows + 1, columns + 1), 2, np.int8)  # 0: from both, 1: from above, 2: from the left
    total[0, 0] = 0
    for diagonal in range(2, rows + columns + 1):
        i = np.arange(max(1, diagonal - columns), min(rows, diagonal - 1) + 1)
        j = diagonal - i
        both, above, left = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
        way = np.where((both < above) & (both < left), 0, np.where((above < both) & (above < left), 1, 2))
        total[i, j] = np.choose(way, (both, above, left)) + costs[i - 1, j - 1]
        came[i, j] = way
    path, row, column = list[tuple[int, int]](), rows, columns
    while row > 0 and column > 0:
        path.append((row - 1, column - 1))
        step = came[row, column]
        row, column = row - int(step != 2), column - int(step != 1)
    return (np.ascontiguousarray(np.array(path[::-1], np.int32).reshape(-1, 2).T),)


def bifurcated(
    source: np.ndarray,
    current: np.ndarray,
    matched: np.ndarray,
    predicted: np.ndarray | None = None,
    shortest: int = 1,
    longest: int = 3,
) -> tuple[np.ndarray, np.ndarray]:
    """Appends predicted tokens to the current ones, up to the first that differs from the source after its matched
    position; returns them with the position in the source after their last n-gram, if it occurs once (else −1)."""
    tokens = current
    if predicted is not None:
        rest = source[matched.item() :]
        if matched.item() < 0 or predicted.size != rest.size + 1:
            raise ValueError(
                f"needs {rest.size + 1} predicted tokens behind index {matched.item()}, got {predicted.size}"
            )
        differs = np.flatnonzero(predicted[:-1] != rest)
        tokens = np.concatenate([current, predicted[: (differs[0] if differs.size else rest.size) + 1]])
    position = -1
    for length in range(shortest, min(longest, tokens.size) + 1):
        windows = (
            np.lib.stride_tricks.sliding_window_view(source, length) if source.size >= length else np.empty((0, 1))
        )
        places = np.flatnonzero((windows == tokens[tokens.size - length :]).all(1))
        if not places.size:
            break
        position = int(places[0]) + length
        if position >= source.size:
            break
        if places.size > 1:
            position = -1
    return tokens, np.full(matched.shape, position, np.int64)
