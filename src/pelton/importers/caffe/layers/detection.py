"""Layers of SSD (Liu et al. 2016): boxes to start from, and what is left of the boxes that a network gives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pelton.importers.caffe.layer import LayerReading, reads
from pelton.importers.caffe.schema import Message, enum_name
from pelton.network.tensor import NetworkTensor
from pelton.ops.detection import rows

MOST = 1 << 24  # boxes that one layer makes
VARIANCE = 0.1


@reads("PriorBox")
def prior_box(n: LayerReading) -> NetworkTensor:
    """Boxes around each element of a feature map, and their variances: [1, 2, boxes · 4]. Only sizes count: a
    constant."""
    p = n.param("prior_box_param")
    height, width = (n.number(d, "the size of the feature map") for d in n.image().shape[2:])
    image = _pair(n, p, "img_h", "img_w", "img_size") or [
        n.number(d, "the size of the image") for d in n.image(1).shape[2:]
    ]
    step = _pair(n, p, "step_h", "step_w", "step") or [image[0] / height, image[1] / width]
    sides = np.array(_sides(n, p), np.float32)  # (width, height) each
    if height * width * len(sides) > MOST:
        raise n.refuse(f"needs at most {MOST} boxes, got {len(sides)} for each of {height} × {width} elements")
    centres = np.zeros((height, width, 1, 2), np.float32)
    centres[..., 0] = ((np.arange(width, dtype=np.float32) + p.offset) * np.float32(step[1]))[None, :, None]
    centres[..., 1] = ((np.arange(height, dtype=np.float32) + p.offset) * np.float32(step[0]))[:, None, None]
    boxes = np.concatenate([centres - sides / 2, centres + sides / 2], -1) / np.array(
        [*image[::-1], *image[::-1]], np.float32
    )
    boxes = boxes.clip(0, 1) if p.clip else boxes
    variance = np.broadcast_to(np.array(_variance(n, p), np.float32), boxes.shape)
    return n.net.constant(np.stack([boxes.ravel(), variance.ravel()]).astype(np.float32)[None], n.name)


def _pair(n: LayerReading, p: Message, height: str, width: str, both: str) -> list[float]:
    """A height and a width, given alone or as one number; empty where they are not."""
    given = [getattr(p, both)] * 2 if p.HasField(both) else [getattr(p, height), getattr(p, width)]
    if p.HasField(both) and (p.HasField(height) or p.HasField(width)) or any(given) and min(given) <= 0:
        raise n.refuse(f"needs either {both} or both {height} and {width}, above 0")
    return given if any(given) else []


def _sides(n: LayerReading, p: Message) -> list[tuple[float, float]]:
    """(width, height) of the boxes around one element: for each size a square, a square of the mean with the larger
    size, and the other aspect ratios."""
    if not p.min_size or min(p.min_size) <= 0 or p.max_size and len(p.max_size) != len(p.min_size):
        raise n.refuse(f"needs a min_size above 0, and max_size as often, got {list(p.min_size)}, {list(p.max_size)}")
    if any(high <= low for low, high in zip(p.min_size, p.max_size)) or any(r <= 0 for r in p.aspect_ratio):
        raise n.refuse("needs a max_size above its min_size, and aspect ratios above 0")
    ratios = [1.0]
    for ratio in p.aspect_ratio:
        if all(abs(ratio - other) >= 1e-6 for other in ratios):
            ratios += [ratio, 1 / ratio] if p.flip else [ratio]
    found = []
    for i, low in enumerate(p.min_size):
        found.append((low, low))
        if p.max_size:
            found.append((math.sqrt(low * p.max_size[i]),) * 2)
        found += [(low * math.sqrt(r), low / math.sqrt(r)) for r in ratios[1:]]
    return found


def _variance(n: LayerReading, p: Message) -> Sequence[float]:
    given = list(p.variance) or [VARIANCE]
    if len(given) not in (1, 4) or min(given) <= 0:
        raise n.refuse(f"needs a variance above 0, or four, got {given}")
    return given * 4 if len(given) == 1 else given


@reads("DetectionOutput")
def detection_output(n: LayerReading) -> NetworkTensor:
    p = n.param("detection_output_param")
    where, scores, priors = (n.input(i) for i in range(3))
    if p.num_classes < 1 or where.rank < 2 or scores.rank < 2:
        raise n.refuse(f"needs num_classes, and boxes and scores for each image, got {where!r} and {scores!r}")
    if priors.rank != 3 or priors.shape[1] != 2:
        raise n.refuse(f"needs prior boxes [1, 2, boxes · 4] as its third bottom, got {priors!r}")
    count = n.number(priors.shape[2], "the number of prior boxes") // 4
    sets = 1 if p.share_location else p.num_classes
    batch = where.shape[0]
    encoded = n.net.reshape(where, (batch, count, sets, 4))
    boxes = n.net.transpose(_decoded(n, p, encoded, priors, count), (0, 2, 1, 3))
    by_class = n.net.transpose(n.net.reshape(scores, (batch, count, p.num_classes)), (0, 2, 1))
    how = dict(
        threshold=p.confidence_threshold if p.HasField("confidence_threshold") else float(np.finfo(np.float32).min),
        overlap=p.nms_param.nms_threshold,
        background=p.background_label_id,
        top_k=p.nms_param.top_k,
        keep=p.keep_top_k,
        eta=p.nms_param.eta,
    )
    simple = sets == 1 and p.nms_param.eta >= 1 and 0 <= p.nms_param.nms_threshold <= 1
    keep = rows(count, p.num_classes, p.background_label_id, p.nms_param.top_k, p.keep_top_k)
    if simple and keep > 0:
        return _selected(n, n.net.reshape(boxes, (batch, count, 4)), by_class, how, keep)
    return n.net.detections(boxes, by_class, **how, name=n.name)


def _selected(
    n: LayerReading, boxes: NetworkTensor, scores: NetworkTensor, how: dict[str, Any], keep: int
) -> NetworkTensor:
    """As the op `detections` of one set of boxes, by `multiclass_nms`, which has kernels, and a sort by labels."""
    net, batch = n.net, scores.shape[0]
    best = net.multiclass_nms(
        boxes,
        scores,
        keep=keep,
        score=how["threshold"],
        overlap=how["overlap"],
        top_k=max(how["top_k"], 0),
        background=how["background"],
    )
    label = best[:, :, 5:]  # −1 where no box is left
    _, order = net.top_k(net.where(label < 0, float(scores.shape[1]), label), k=keep, axis=1, largest=False)
    best = net.gather_elements(best, net.expand(order, (batch, keep, 6)), axis=1)
    label = best[:, :, 5:]
    image = net.reshape(net.cast(net.iota(size=batch), to=label.dtype), (batch, 1, 1))
    row = [net.where(label < 0, -1.0, image), net.maximum(label, 0.0), best[:, :, 4:5], best[:, :, :4]]
    return net.reshape(net.concat(row, 2), (1, 1, batch * keep, 7), name=n.name)


def _decoded(n: LayerReading, p: Message, encoded: NetworkTensor, priors: NetworkTensor, count: int) -> NetworkTensor:
    """Corners of boxes [batch, boxes, sets, 4] from what the network says of prior boxes."""
    net = n.net
    kind = enum_name(p, "CodeType", p.code_type)
    ends = net.reshape(net.slice(priors, starts=(0,), ends=(1,), axes=(1,), steps=(1,)), (1, count, 1, 4))
    low, high = net.split(ends, 2, 3)
    scaled = encoded
    if not p.variance_encoded_in_target:
        variance = net.slice(priors, starts=(1,), ends=(2,), axes=(1,), steps=(1,))
        scaled = encoded * net.reshape(variance, (1, count, 1, 4))
    if kind == "CORNER":
        found = ends + scaled
    else:
        first, second = net.split(scaled, 2, 3)
        sides = high - low
        if kind == "CENTER_SIZE":
            centre, half = first * sides + (low + high) * 0.5, net.exp(second) * sides * 0.5
            found = net.concat([centre - half, centre + half], 3)
        else:  # CORNER_SIZE
            found = net.concat([low + first * sides, high + second * sides], 3)
    return net.clip(found, 0.0, 1.0) if p.clip else found
