"""Host functions with data-dependent sizes, against definitions: box suppression, and unique elements."""

from __future__ import annotations

import numpy as np
import pytest
from script_models import ints

from pelton.reference import functions as data

IOU, SCORE = 0.4, 0.3  # boxes that overlap more are suppressed; those that score no more than this are left out


def suppressed(boxes: np.ndarray, scores: np.ndarray, limit: int) -> list[tuple[int, int, int]]:
    """By definition, box by box."""
    found = []
    for b, c in np.ndindex(scores.shape[:2]):
        kept: list[int] = []
        for i in sorted(np.flatnonzero(scores[b, c] > SCORE), key=lambda i: -scores[b, c, i]):

            def overlap(j: int, a=boxes[b, i], b=b) -> float:
                o = boxes[b, j]
                low, high = np.maximum(a[:2], o[:2]), np.minimum(a[2:], o[2:])
                common = np.prod(np.maximum(high - low, 0))
                return common / (np.prod(a[2:] - a[:2]) + np.prod(o[2:] - o[:2]) - common)

            if len(kept) < limit and all(overlap(j) <= IOU for j in kept):
                kept.append(int(i))
        found += [(b, c, i) for i in kept]
    return found


@pytest.mark.parametrize("limit", [0, 3, 100])
def test_suppression(limit):
    rng = np.random.default_rng(limit)
    low = rng.uniform(0, 1, (2, 60, 2))
    boxes = np.concatenate([low, low + rng.uniform(0.05, 0.6, (2, 60, 2))], 2).astype(np.float32)
    scores = rng.uniform(0, 1, (2, 3, 60)).astype(np.float32)
    limits = (ints(limit), np.array([IOU], np.float32), np.array([SCORE], np.float32))
    (found,) = data.non_max_suppression(boxes, scores, *limits)
    assert found.dtype == np.int64
    assert [tuple(map(int, row)) for row in found] == suppressed(boxes, scores, limit)
    flipped = boxes[..., [2, 3, 0, 1]]  # any two opposite corners will do
    (of_flipped,) = data.non_max_suppression(flipped, scores, *limits)
    assert np.array_equal(of_flipped, found)


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("in_order", [True, False])
def test_unique(axis, in_order):
    x = np.random.default_rng(0).integers(0, 3, (7, 2)).astype(np.float32)
    values, first, back, count = data.unique(x, axis, in_order)
    flat, of = (x.reshape(-1), values) if axis is None else (np.moveaxis(x, axis, 0), np.moveaxis(values, axis, 0))
    assert np.array_equal(of[back], flat) and np.array_equal(flat[first], of) and count.sum() == len(flat)
    assert in_order or list(first) == sorted(first)
    assert data.unique(np.empty((0, 2), np.float32), 0)[0].shape == (0, 2)
