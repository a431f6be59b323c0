"""Suppression of boxes that overlap better ones, as a function of arrays."""

from __future__ import annotations

import numpy as np


def non_max_suppression(
    boxes: np.ndarray,
    scores: np.ndarray,
    max_boxes: np.ndarray | None = None,
    overlap: np.ndarray | None = None,
    min_score: np.ndarray | None = None,
    center: bool = False,
) -> tuple[np.ndarray, ...]:
    """Returns [count, 3] of (batch, class, box), best first: at most `max_boxes` per class of boxes [batch, n, 4], with
    scores [batch, class, n] above `min_score`, that no better one of their class overlaps by more than `overlap`
    (intersection over union). A box is two corners (y, x, y, x), or `center`: (x, y, width, height)."""
    limit = 0 if max_boxes is None else int(max_boxes.reshape(-1)[0])
    bound = np.float32(0 if overlap is None else overlap.reshape(-1)[0])
    if not 0 <= bound <= 1:
        raise ValueError(f"NonMaxSuppression needs an overlap between 0 and 1, got {bound}")
    floor = None if min_score is None else min_score.reshape(-1)[0]
    picks: list[np.ndarray] = []
    for b, (every, by_class) in enumerate(zip(boxes, scores)):
        if center:
            low, high = every[:, :2] - every[:, 2:] / 2, every[:, :2] + every[:, 2:] / 2
        else:
            low, high = np.minimum(every[:, :2], every[:, 2:]), np.maximum(every[:, :2], every[:, 2:])
        for c, score in enumerate(by_class):
            taken = np.arange(score.size) if floor is None else np.flatnonzero(score > floor)
            order = taken[np.argsort(-score[taken], kind="stable")]
            kept = _apart(low[order], high[order], bound, limit)
            picks.append(np.stack([np.full(kept.size, b), np.full(kept.size, c), order[kept]], 1))
    return (np.concatenate(picks).astype(np.int64) if picks else np.empty((0, 3), np.int64),)


def _apart(low: np.ndarray, high: np.ndarray, bound: np.float32, limit: int) -> np.ndarray:
    """Returns the boxes, best first, that no earlier one overlaps too much; one pass over the rest per kept box."""
    y0, x0, y1, x1 = (np.ascontiguousarray(a, np.float32) for a in (low[:, 0], low[:, 1], high[:, 0], high[:, 1]))
    area, rest, kept = (y1 - y0) * (x1 - x0), np.arange(len(low)), list[int]()
    with np.errstate(all="ignore"):
        while rest.size and len(kept) < limit:
            kept.append(int(rest[0]))
            width = np.minimum(x1, x1[0])
            width -= np.maximum(x0, x0[0])
            height = np.minimum(y1, y1[0])
            height -= np.maximum(y0, y0[0])
            common = np.maximum(width, 0) * np.maximum(height, 0)
            # boxes without a common part or without area are apart for any bound
            apart = ~(common / (area + area[0] - common) > bound) | (common <= 0) | (area <= 0) | bool(area[0] <= 0)
            apart[0] = False
            rest, y0, x0, y1, x1, area = (a[apart] for a in (rest, y0, x0, y1, x1, area))
    return np.array(kept, np.int64)
