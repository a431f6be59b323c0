"""Box selection at the end of detectors, as defined in tensorflow/lite/kernels/detection_postprocess.cc."""

from __future__ import annotations

import math

import numpy as np

from pelton.ir.dims import is_known
from pelton.ir.types import I32
from pelton.network import NetworkTensor

from ..node import CUSTOM, Given, TFLiteReading, reads

SCALES = ("y_scale", "x_scale", "h_scale", "w_scale")
COUNTS = ("max_detections", "max_classes_per_detection", "num_classes")
DETECTIONS_PER_CLASS = 100  # default of the options
MOST = 1 << 20  # boxes


@reads("TFLite_Detection_PostProcess", domain=CUSTOM)
def detection_postprocess(n: TFLiteReading) -> tuple[Given, ...]:
    """Returns boxes [1, count, 4] of (y₁, x₁, y₂, x₂), their classes and scores [1, count], and their number f32[1],
    for encoded boxes [1, anchors, ≥ 4], scores [1, anchors, classes] and anchors [anchors, 4] of (y, x, h, w)."""
    encoded, scores, anchors = (n.input(i) for i in range(3))
    scales, (keep, per_box, classes) = _numbers(n, SCALES), map(int, _numbers(n, COUNTS))
    overlap, threshold = _numbers(n, ("nms_iou_threshold", "nms_score_threshold"))
    regular = bool(n.custom_options.get("use_regular_nms", False))
    per_class = int(n.custom_options.get("detections_per_class", DETECTIONS_PER_CLASS))
    if encoded.rank != 3 or scores.rank != 3 or anchors.rank != 2 or not is_known(*encoded.shape, *scores.shape):
        raise n.refuse(f"needs boxes and scores of one image, and anchors, got {encoded!r}, {scores!r}, {anchors!r}")
    _, boxes, all_classes = scores.shape
    if encoded.shape[:2] != (1, boxes) or encoded.shape[2] < 4 or scores.shape[0] != 1 or anchors.shape != (boxes, 4):
        raise n.refuse(f"needs as many boxes as scores and anchors, got {encoded!r}, {scores!r} and {anchors!r}")
    if all_classes - classes not in (0, 1) or min(scales) <= 0 or not 0 < overlap <= 1:
        raise n.refuse(f"has {classes} classes of {all_classes}, scales of {scales} and an overlap of {overlap}")
    if not (0 < keep * per_box < MOST and per_class > 0):
        raise n.refuse(f"has the limits {keep}, {per_box} and {per_class}")
    if per_box > 1 and not regular:
        raise n.refuse(f"has {per_box} classes per box; only a max_classes_per_detection of 1 is supported")
    corners = _decoded(n, encoded, anchors, scales)
    by_class = n.net.transpose(scores[:, :, all_classes - classes :], (0, 2, 1))
    # scores equal to the threshold count; smaller numbers than these would become 0 in comparisons
    above = min(float(np.nextafter(np.float32(threshold), np.float32(-np.inf))), threshold - 1e-30)
    if regular and per_class < keep:
        best = _best_of_classes(n, corners, by_class, keep, per_class, above, overlap)
    else:
        best = n.net.multiclass_nms(corners, by_class, keep=keep, score=above, overlap=overlap, per_class=regular)
    return _outputs(n, best, keep * per_box)


def _numbers(n: TFLiteReading, names: tuple[str, ...]) -> list[float]:
    values = [n.custom_options.get(name) for name in names]
    if not all(isinstance(v, (int, float)) and not math.isnan(v) for v in values):
        raise n.refuse(f"needs numbers as its options {', '.join(names)}, got {values}")
    return [float(v) for v in values if v is not None]


def _decoded(n: TFLiteReading, encoded: NetworkTensor, anchors: NetworkTensor, scales: list[float]) -> NetworkTensor:
    """Decodes centers and sizes relative to anchors to corners [1, anchors, 4] of boxes."""
    net, (by_middle, by_size) = n.net, np.asarray(scales, np.float32).reshape(2, 2)
    middle = net.add(net.mul(net.div(encoded[:, :, :2], by_middle), anchors[:, 2:]), anchors[:, :2])
    half = net.mul(net.exp(net.div(encoded[:, :, 2:4], by_size)), net.mul(anchors[:, 2:], np.float32(0.5)))
    return net.concat([net.sub(middle, half), net.add(middle, half)], axis=2)


def _best_of_classes(
    n: TFLiteReading,
    boxes: NetworkTensor,
    scores: NetworkTensor,
    keep: int,
    per_class: int,
    above: float,
    overlap: float,
) -> NetworkTensor:
    """Selects at most `per_class` boxes of each class by `multiclass_nms`, each class as an image of its own."""
    net, classes, count = n.net, scores.shape[1], boxes.shape[1]
    each = net.expand(boxes, (classes, count, 4)), net.reshape(scores, (classes, 1, count))
    one = net.multiclass_nms(*each, keep=per_class, score=above, overlap=overlap)
    numbers = np.arange(classes, dtype=np.float32).reshape(classes, 1, 1)
    label = net.where(one[:, :, 5:] < 0, np.float32(-1), numbers)
    rows = net.reshape(net.concat([one[:, :, :5], label], axis=2), (1, classes * per_class, 6))
    rank = net.where(rows[:, :, 5] < 0, np.float32(-np.inf), rows[:, :, 4])
    _, order = net.top_k(rank, k=min(keep, classes * per_class), axis=1)
    return net.gather(rows, net.reshape(order, (-1,)), axis=1)


def _outputs(n: TFLiteReading, best: NetworkTensor, count: int) -> tuple[NetworkTensor, ...]:
    """Returns the four outputs from rows (box, score, class), with class −1 for missing ones, filled up with 0."""
    net = n.net
    mask = best[:, :, 5] >= 0
    rows = net.where(net.unsqueeze(mask, 2), best, np.float32(0))
    if best.shape[1] < count:
        rows = net.concat([rows, np.zeros((1, count - best.shape[1], 6), np.float32)], axis=1)
    total = net.reduce_sum(net.cast(mask, to=best.dtype), axes=(1,), keepdims=False)
    return rows[:, :, :4], rows[:, :, 5], rows[:, :, 4], total


@reads("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5")
def non_max_suppression(n: TFLiteReading) -> tuple[Given, ...]:
    """Returns indices i32[keep] of the boxes [count, 4] that overlap no better one too much, their scores (version 5),
    and their number, padded with zeros. Follows tensorflow/lite/kernels/non_max_suppression.cc."""
    net, boxes, scores = n.net, n.input(0), n.input(1)
    keep, overlap, threshold = n.known(2, "number of boxes")[0], *(_number(n, i) for i in (3, 4))
    if n.has(5) and _number(n, 5) != 0:
        raise n.refuse("lowers scores of boxes that overlap (soft_nms_sigma), which is not supported")
    if boxes.rank != 2 or boxes.shape[1] != 4 or scores.shape != boxes.shape[:1] or not is_known(*scores.shape):
        raise n.refuse(f"needs boxes [count, 4] and their scores, got {boxes!r} and {scores!r}")
    if not 0 < keep < MOST or not 0 <= overlap <= 1:
        raise n.refuse(f"has an overlap of {overlap}, and {keep} boxes to keep")
    ends = boxes[:, :2], boxes[:, 2:]
    corners = net.concat([net.minimum(*ends), net.maximum(*ends)], axis=1)
    best = net.multiclass_nms(
        net.unsqueeze(corners, 0), net.reshape(scores, (1, 1, -1)), keep=keep, score=threshold, overlap=overlap
    )[0]
    mask = best[:, 5] >= 0
    # a later box of equal corners and score would have been suppressed
    rows = net.unsqueeze(net.concat([corners, net.unsqueeze(scores, 1)], axis=1), 0)
    is_it = net.reduce_min(net.cast(net.equal(rows, net.unsqueeze(best[:, :5], 1)), to=I32), axes=(2,), keepdims=False)
    number = net.where(mask, net.cast(net.arg_max(is_it, axis=1, keepdims=False), to=I32), np.int32(0))
    count = net.reduce_sum(net.cast(mask, to=I32), axes=(0,), keepdims=False)
    return (number, best[:, 4], count) if n.op.endswith("V5") else (number, count)


def _number(n: TFLiteReading, i: int) -> float:
    array = n.array(i, "limit")
    if array.size != 1 or math.isnan(array.item()):
        raise n.refuse(f"needs one number as its input {i}, got {array.reshape(-1)[:4].tolist()}")
    return float(array.item())
