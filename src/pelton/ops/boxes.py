"""Selection of boxes: non-maximum suppression to a fixed number of boxes per picture."""

from __future__ import annotations

import numpy as np

from pelton.ir.types import TensorType

from .op import expect, expect_equal, structured


@structured(
    position_operand=0,
    examples=(
        ("f32[2, 40, 4]", "f32[2, 3, 40]", dict(keep=9, score=0.5, overlap=0.2)),
        ("f32[1, 60, 4]", "f32[1, 4, 60]", dict(keep=50, overlap=0.3, top_k=11, background=0)),
        ("f32[2, 30, 4]", "f32[2, 5, 30]", dict(keep=12, score=-1.0, overlap=0.1, per_class=False, background=2)),
    ),
)
class multiclass_nms:
    """Y[b, i] = x₁, y₁, x₂, y₂, score and class of the box that is best after i others; with none left, 0 and class −1.

    boxes [batch, n, 4] are x₁, y₁, x₂, y₂, scores [batch, class, n]. Of each class but `background`, the boxes with
    scores above `score` are taken from the best on, the first `top_k` of them (0: all), unless the intersection with a
    box that was taken is more than `overlap` of the union; of all taken, the best `keep` are left. Of equal scores the
    lower class is first, then the lower box. per_class: boxes of different classes leave each other alone; without it a
    box has its best class alone, and of equal scores the lower box is first.
    """

    def infer(
        boxes: TensorType,
        scores: TensorType,
        *,
        keep: int,
        score: float = 0.0,
        overlap: float = 0.5,
        top_k: int = 0,
        background: int = -1,
        per_class: bool = True,
    ) -> TensorType:
        expect(boxes.rank == 3 and scores.rank == 3, "needs boxes [batch, n, 4] and scores [batch, class, n]")
        expect_equal(
            boxes.shape, (scores.shape[0], scores.shape[2], 4), "needs four numbers for each box that is scored"
        )
        expect(boxes.dtype.is_float and scores.dtype is boxes.dtype, "needs floating point of one type")
        expect(
            keep >= 1 and top_k >= 0, f"needs boxes to keep, and a top_k of 0 (all) and more, got {keep} and {top_k}"
        )
        expect(0 <= overlap <= 1, f"needs an overlap from 0 to 1, got {overlap}")
        return boxes.with_shape((boxes.shape[0], keep, 6))

    def reference(boxes, scores, *, keep, score=0.0, overlap=0.5, top_k=0, background=-1, per_class=True):
        y = np.zeros((len(boxes), keep, 6), boxes.dtype)
        y[..., 5] = -1
        for b, (corners, by_class) in enumerate(zip(boxes, np.where(np.isnan(scores), -np.inf, scores))):
            classes = np.array([c for c in range(len(by_class)) if c != background], np.int64)
            if not per_class and len(classes) and len(corners):
                best = classes[by_class[classes].argmax(0)]
                lists = [(best, by_class[best, np.arange(len(corners))])]
            else:
                lists = [(np.full(len(corners), c), by_class[c]) for c in classes]
            picks = []
            for labels, values in lists:
                order = np.argsort(-values, kind="stable")
                order = order[values[order] > score][: top_k or None]
                picks += [(-values[i], labels[i], i) for i in _suppressed(corners, order, overlap, keep)]
            for i, (negative, label, box) in enumerate(sorted(picks, key=lambda taken: taken[0])[:keep]):
                y[b, i] = *corners[box], -negative, label
        return y

    def flops(boxes: TensorType, scores: TensorType, **attrs) -> int:
        """Counts one comparison for each score: the number of compared pairs depends on the data."""
        return scores.size


def _suppressed(corners: np.ndarray, order: np.ndarray, overlap: float, most: int) -> list[int]:
    """Returns at most `most` boxes in order, without those that overlap an earlier one too much."""
    kept: list[int] = []
    low, high = corners[:, :2], corners[:, 2:]
    area = np.maximum(high - low, 0).prod(1)
    for i in order:
        if len(kept) == most:
            break
        sides = np.minimum(high[kept], high[i]) - np.maximum(low[kept], low[i])
        common = np.maximum(sides, 0).prod(1)
        if not (common > overlap * (area[kept] + area[i] - common)).any():
            kept.append(i)
    return kept
