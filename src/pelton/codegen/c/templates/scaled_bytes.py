"""Detects weights representable as scaled int8."""

from __future__ import annotations

import zlib

import numpy as np

LEVELS = 128  # steps of the largest weight: 127, or 128 below zero
Bytes = tuple[np.ndarray, np.ndarray]
_FOUND: dict[tuple, Bytes | None] = {}  # per layer, since templates are asked repeatedly


def in_bytes(r: np.ndarray) -> Bytes | None:
    """Returns i8 [direction, row, column] and scales [direction, row] whose products, rounded to f32, are the weights,
    with one scale per direction or row; or None."""
    if np.unique(np.abs(r[0, 0])).size > LEVELS + 1:  # most other weights fail this test
        return None
    key = r.shape, zlib.crc32(np.ascontiguousarray(r).data)
    if key not in _FOUND:
        for groups in (r.shape[0], r.shape[0] * r.shape[1]):
            factors = _by_groups(r.reshape(groups, -1).astype(np.float64))
            if factors is not None:
                w, scales = factors
                _FOUND[key] = (
                    w.reshape(r.shape),
                    np.repeat(scales, r.shape[0] * r.shape[1] // groups).reshape(r.shape[:2]),
                )
                break
        else:
            _FOUND[key] = None
    return _FOUND[key]


def _by_groups(rows: np.ndarray) -> Bytes | None:
    """Returns the same for rows with a scale each."""
    steps = np.zeros(len(rows))
    for i, row in enumerate(rows):
        step = _step(row)
        if step is None:
            return None
        steps[i] = step
    return np.rint(rows / np.where(steps == 0, 1, steps)[:, None]).astype(np.int8), steps


def _step(row: np.ndarray) -> float | None:
    """Returns a number whose multiples, from -128 to 127 times, are these up to rounding; or None."""
    sizes = np.unique(np.abs(row))
    if sizes.size > LEVELS + 1:
        return None
    most = LEVELS if row.max() < sizes[-1] else LEVELS - 1
    for count in dict.fromkeys((most, LEVELS - 1, *range(1, LEVELS))):
        step = sizes[-1] / count
        if np.all(np.abs(np.rint(sizes / (step or 1)) * step - sizes) <= 2.0**-22 * sizes):
            return _step_in_f32(sizes, step)
    return None


def _step_in_f32(sizes: np.ndarray, step: float) -> float:
    """Returns the f32 nearest to a step whose multiples, rounded to f32, equal these exactly; else the step."""
    near = np.float32(step)
    for tried in (near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(np.inf))):
        if np.array_equal(np.rint(sizes / (step or 1)).astype(np.float32) * tried, sizes.astype(np.float32)):
            return float(tried)
    return step
