"""Native non-maximum suppression: the same as `reference.functions.non_max_suppression`."""

from __future__ import annotations

import numpy as np

from pelton.system.memory import address

from pelton.native import library


def non_max_suppression(
    boxes: np.ndarray,
    scores: np.ndarray,
    maximum: np.ndarray | None = None,
    overlap: np.ndarray | None = None,
    minimum: np.ndarray | None = None,
    center: bool = False,
) -> tuple[np.ndarray]:
    """Returns i64[count, 3] of (batch, class, box), best first, for boxes [batch, n, 4] and scores [batch, class, n].

    maximum: boxes per class; overlap: largest intersection over union; minimum: exclusive lower bound of scores. Raises
    ValueError for boxes and scores of other shapes, and for an invalid overlap.
    """
    if (
        boxes.ndim != 3
        or scores.ndim != 3
        or boxes.shape != (scores.shape[0], scores.shape[2], 4)
        or boxes.shape[1] >= 1 << 31
    ):
        raise ValueError(
            f"boxes [batch, n, 4] and scores [batch, class, n] are needed, got {list(boxes.shape)} and"
            f" {list(scores.shape)}"
        )
    n = boxes.shape[1]
    limit = 0 if maximum is None else max(0, min(int(maximum.reshape(-1)[0]), n))
    bound, floor = (0.0 if x is None else float(x.reshape(-1)[0]) for x in (overlap, minimum))
    if not 0 <= bound <= 1:
        raise ValueError(f"NonMaxSuppression needs an overlap between 0 and 1, got {bound}")
    if center:
        low, high = boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2
    else:
        low, high = np.minimum(boxes[..., :2], boxes[..., 2:]), np.maximum(boxes[..., :2], boxes[..., 2:])
    corners = np.ascontiguousarray(np.concatenate([low, high], -1), np.float32)
    scores = np.ascontiguousarray(scores, np.float32)
    heap, held, kept = np.empty(n, np.int32), np.empty(5 * limit, np.float32), np.empty(limit, np.int64)
    rows = [np.empty((0, 3), np.int64)]
    for b in range(scores.shape[0]) if limit else ():
        for c in range(scores.shape[1]):
            count = library().pelton_suppress(
                address(corners[b]),
                address(scores[b, c]),
                n,
                bound,
                floor,
                minimum is None,
                limit,
                address(heap),
                address(held),
                address(kept),
            )
            rows.append(np.stack([np.full(count, b), np.full(count, c), kept[:count]], 1))
    return (np.concatenate(rows),)
