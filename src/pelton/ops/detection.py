"""Selects a detector's boxes: the best of each class, without those that overlap better ones."""

from __future__ import annotations

import numpy as np

from pelton.ir.types import TensorType

from .op import expect, expect_equal, structured


def _kept_classes(classes: int, background: int) -> int:
    return classes - (0 <= background < classes)


def _areas(boxes: np.ndarray) -> np.ndarray:
    """Returns the areas of boxes [n, 4]; boxes that end before they start have area 0."""
    sides = boxes[:, 2:] - boxes[:, :2]
    return np.where((sides < 0).any(1), 0, sides.prod(1))


def _overlaps(box: np.ndarray, area: float, others: np.ndarray, areas: np.ndarray) -> np.ndarray:
    """Returns the intersection over union of a box with others [n, 4]."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    shared = np.where((sides <= 0).any(1), 0, sides.prod(1))
    union = area + areas - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=shared > 0)


def suppress(boxes: np.ndarray, overlap: float, eta: float = 1.0) -> list[int]:
    """Returns the boxes [n, 4], best first, that overlap no earlier kept box by more than `overlap`. Each kept box
    multiplies `overlap` by `eta` while it is above one half."""
    areas, kept = _areas(boxes), list[int]()
    for i in range(len(boxes)):
        if not (_overlaps(boxes[i], areas[i], boxes[kept], areas[kept]) > overlap).any():
            kept.append(i)
            if eta < 1 and overlap > 0.5:
                overlap *= eta
    return kept


@structured(
    position_operand=0,
    examples=(
        ("f32[2, 1, 9, 4]", "f32[2, 3, 9]", dict(threshold=0.2, overlap=0.4, background=0, top_k=7, keep=5)),
        ("f32[1, 2, 17, 4]", "f32[1, 2, 17]", dict(threshold=-1.0, overlap=0.7, eta=0.8)),
    ),
)
class detections:
    """Rows [1, 1, batch · keep, 7] of (image, label, score, x₁, y₁, x₂, y₂), by labels, the best first.

    boxes [batch, 1 or classes, n, 4] are corners, scores [batch, classes, n]. Of each class but the `background`, the
    `top_k` boxes that score above the threshold are taken, and of these, those that overlap with no better one by more
    than `overlap` (intersection over union); of all classes of an image, the best `keep`. −1 is no limit. Rows without
    a box are at the end of an image's, with image −1 and zeros. As DetectionOutput of SSD (Liu et al. 2016).
    """

    def infer(
        boxes: TensorType,
        scores: TensorType,
        *,
        threshold: float,
        overlap: float,
        background: int = -1,
        top_k: int = -1,
        keep: int = -1,
        eta: float = 1.0,
    ) -> TensorType:
        expect(boxes.rank == 4 and scores.rank == 3, "needs boxes [batch, sets, n, 4] and scores [batch, classes, n]")
        expect(boxes.dtype.is_float and boxes.dtype is scores.dtype, "needs floating point of one type")
        expect_equal(
            (boxes.shape[0], boxes.shape[2], boxes.shape[3]), (scores.shape[0], scores.shape[2], 4), "needs 4 · n ends"
        )
        classes = scores.shape[1]
        expect(boxes.shape[1] in (1, classes), f"needs one set of boxes, or {classes}, got {boxes.shape[1]}")
        expect(top_k >= -1 and keep >= -1, f"needs numbers of boxes of 0 and more, or -1, got {top_k} and {keep}")
        return boxes.with_shape((1, 1, boxes.shape[0] * rows(scores.shape[2], classes, background, top_k, keep), 7))

    def reference(boxes, scores, *, threshold, overlap, background=-1, top_k=-1, keep=-1, eta=1.0):
        batch, classes, n = scores.shape
        table = np.zeros((batch, rows(n, classes, background, top_k, keep), 7), boxes.dtype)
        table[:, :, 0] = -1
        for image in range(batch):
            picked = []  # (class, box)
            for c in range(classes):
                if c == background:
                    continue
                order = np.argsort(-scores[image, c], kind="stable")
                order = order[scores[image, c, order] > threshold][: None if top_k < 0 else top_k]
                kept = suppress(boxes[image, c % boxes.shape[1], order], overlap, eta)
                picked += [(c, i) for i in order[kept]]
            if 0 <= keep < len(picked):
                best = np.argsort([-scores[image, c, i] for c, i in picked], kind="stable")[:keep]
                picked = [picked[k] for k in sorted(best)]
            for row, (c, i) in zip(table[image], picked):
                row[:] = (image, c, scores[image, c, i], *boxes[image, c % boxes.shape[1], i])
        return table.reshape(1, 1, -1, 7)


def rows(n: int, classes: int, background: int, top_k: int, keep: int) -> int:
    """Returns the largest number of kept boxes of an image with n boxes for each class."""
    most = (n if top_k < 0 else min(n, top_k)) * _kept_classes(classes, background)
    return most if keep < 0 else min(keep, most)
