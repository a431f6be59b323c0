"""Detectors' last operators in TFLite: their models, and their outputs, box by box."""

from __future__ import annotations

import numpy as np
from tflite_flexbuffers import options
from tflite_models import ModelWriter

USUAL = dict(
    max_detections=10,
    max_classes_per_detection=1,
    num_classes=5,
    nms_iou_threshold=0.5,
    nms_score_threshold=0.1,
    use_regular_nms=0,
    y_scale=10.0,
    x_scale=10.0,
    h_scale=5.0,
    w_scale=5.0,
)
CASES = {
    "usual": {},
    "of one class": dict(num_classes=1),
    "every box": dict(nms_score_threshold=0.0, max_detections=100),
    "whatever the score": dict(nms_score_threshold=float("-inf")),
    "none": dict(nms_score_threshold=2.0),
    "of each class": dict(use_regular_nms=1, max_detections=25),
    "few of each class": dict(use_regular_nms=1, max_detections=25, detections_per_class=3),
}


def detector(background: int, **given: float):
    """The model, arrays for its inputs, and its options."""
    rng, chosen, count = np.random.default_rng(5), USUAL | given, 70
    middle = (np.stack(np.divmod(np.arange(count), 9), 1) + 0.5) / 9
    anchors = np.concatenate([middle, rng.uniform(0.1, 0.3, (count, 2))], 1).astype(np.float32)
    shapes = (1, count, 4), (1, count, chosen["num_classes"] + background)
    feeds = dict(boxes=rng.standard_normal(shapes[0]), scores=rng.uniform(0, 1, shapes[1]) ** 3)
    w, most = ModelWriter(), chosen["max_detections"]
    inputs = [w.main.input(shape, name=name) for name, shape in zip(feeds, shapes)]
    shapes = dict(found=(1, most, 4), classes=(1, most), probabilities=(1, most), number=(1,))
    outputs = [w.main.output(shape, name=name) for name, shape in shapes.items()]
    w.main.op("TFLite_Detection_PostProcess", [*inputs, w.main.constant(anchors)], outputs, custom=options(**chosen))
    return w.bytes(), {k: v.astype(np.float32) for k, v in feeds.items()}, anchors, chosen


def detected(boxes, scores, anchors, o):
    """Outputs without what fills them up, by the definition of the operator."""
    size = np.exp(boxes[0, :, 2:] / (o["h_scale"], o["w_scale"])) * anchors[:, 2:]
    middle = boxes[0, :, :2] / (o["y_scale"], o["x_scale"]) * anchors[:, 2:] + anchors[:, :2]
    corners = np.concatenate([middle - size / 2, middle + size / 2], 1)
    scores = scores[0, :, scores.shape[2] - o["num_classes"] :]
    if o["use_regular_nms"]:
        lists = [(c, scores[:, c], o.get("detections_per_class", 100)) for c in range(scores.shape[1])]
    else:
        lists = [(scores.argmax(1), scores.max(1), o["max_detections"])]
    rows = []
    for label, score, most in lists:
        kept = []
        for i in np.argsort(-score, kind="stable"):
            if score[i] >= o["nms_score_threshold"] and len(kept) < most:
                if all(overlap(corners[i], corners[k]) <= o["nms_iou_threshold"] for k in kept):
                    kept.append(i)
        rows += [(-score[i], *corners[i], label if np.isscalar(label) else label[i]) for i in kept]
    rows = sorted(rows, key=lambda row: row[0])[: o["max_detections"]]
    table = np.reshape(rows, (len(rows), 6))
    return dict(found=table[:, 1:5], classes=table[:, 5], probabilities=-table[:, 0])


def overlap(a, b):
    common = np.prod(np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0))
    return common / (np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - common)


def suppression(version: int, threshold: float = 0.2, sigma: float = 0.0):
    """A model of NON_MAX_SUPPRESSION_V4 or V5, with boxes whose corners are in any order."""
    rng, count = np.random.default_rng(6), 60
    a, b = rng.uniform(0, 1, (2, count, 2))
    feeds = dict(boxes=np.concatenate([a, a + 0.3 * (b - 0.5)], 1), scores=rng.uniform(0, 1, count))
    w = ModelWriter()
    inputs = [w.main.input(x.shape, name=name) for name, x in feeds.items()]
    limits = [np.int32(20), np.float32(0.3), np.float32(threshold), *[np.float32(sigma)] * (version - 4)]
    outputs = [w.main.output((20,), "i32", name="indices")]
    if version == 5:
        outputs.append(w.main.output((20,), name="kept"))
    outputs.append(w.main.output((), "i32", name="number"))
    w.main.op(f"NON_MAX_SUPPRESSION_V{version}", [*inputs, *map(w.main.constant, limits)], outputs)
    return w.bytes(), {k: v.astype(np.float32) for k, v in feeds.items()}, threshold


def suppressed(boxes, scores, threshold):
    corners = np.concatenate([np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])], 1)
    kept: list[int] = []
    for i in np.argsort(-scores, kind="stable"):
        if scores[i] > threshold and len(kept) < 20 and all(overlap(corners[i], corners[k]) <= 0.3 for k in kept):
            kept.append(i)
    return kept
