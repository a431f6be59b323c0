"""Layers of Darknet that return boxes: f32[batch, boxes, 5 + classes] of x, y, width, height, objectness and scores.

x and y are a box's center. All four are relative to the picture. A score is the product of the objectness and the
class's probability, before any threshold. Boxes are ordered by row, then pixel, then anchor.
"""

from __future__ import annotations

import numpy as np

from pelton.network import NetworkTensor

from .reading import SectionReading, channels, reads, units


@reads("region")
def region(r: SectionReading) -> NetworkTensor:
    """Reads YOLOv2's layer: anchors in pixels of the feature map."""
    s = r.section
    if "tree" in s.options:
        raise s.refuse("a tree of classes (YOLO9000) is not supported", "tree")
    s.refuse_options("background")
    s.integer("coords", 4, 4, 4)
    x, anchors = r.image(), _anchors(r, s.integer("num", 1, 1))
    box, objectness, classes = _parts(r, x, len(anchors))
    height, width = x.shape[2:]
    scores = r.net.softmax(classes, 2) if s.flag("softmax") else r.net.sigmoid(classes)
    center = _center(r, r.net.sigmoid(box[:, :, :2]), height, width)
    size = r.net.exp(box[:, :, 2:]) * _per_anchor(anchors, height, width)
    return _head(r, center, size, r.net.sigmoid(objectness), scores)


@reads("yolo")
def yolo(r: SectionReading) -> NetworkTensor:
    """Reads the layer of YOLOv3 and later: anchors in pixels of the network's input, of which `mask` selects some."""
    s, net, x = r.section, r.net, r.image()
    anchors = _anchors(r, s.integer("num", 1, 1))
    mask = s.numbers("mask", range(len(anchors)))
    if not mask or any(m not in range(len(anchors)) for m in mask):
        raise s.refuse(f"mask must name anchors, 0 to {len(anchors) - 1}, got {s.text('mask')}", "mask")
    anchors = anchors[[int(m) for m in mask]]
    box, objectness, classes = _parts(r, x, len(anchors))
    offsets = box if s.flag("new_coords") else net.sigmoid(box[:, :, :2])
    center, scale = offsets[:, :, :2], s.number("scale_x_y", 1)
    if scale != 1:
        center = center * scale - (scale - 1) / 2
    center = _center(r, center, *x.shape[2:])
    if s.flag("new_coords"):  # the convolution before has already applied the logistic function
        doubled = box[:, :, 2:] * 2.0
        return _head(r, center, doubled * doubled * _per_anchor(anchors, *r.picture), objectness, classes)
    size = net.exp(box[:, :, 2:]) * _per_anchor(anchors, *r.picture)
    return _head(r, center, size, net.sigmoid(objectness), net.sigmoid(classes))


@reads("detection")
def detection(r: SectionReading) -> NetworkTensor:
    """Reads YOLOv1's layer: `side` × `side` cells with one set of class probabilities and `num` boxes each."""
    s, net, x = r.section, r.net, r.flat()
    side, num, classes = (s.integer(name, d, 1, 4096) for name, d in (("side", 7), ("num", 1), ("classes", 1)))
    s.integer("coords", 1, 4, 4)
    cells, batch = side * side, x.shape[0]
    if units(x) != cells * (classes + 5 * num):
        raise s.refuse(
            f"the preceding layer must have side² · (classes + 5 · num) = {cells * (classes + 5 * num)} outputs,"
            f" got {units(x)}"
        )
    scores = net.reshape(x[:, : cells * classes], (batch, cells, 1, classes))
    objectness = net.reshape(x[:, cells * classes : cells * (classes + num)], (batch, cells, num, 1))
    box = net.reshape(x[:, cells * (classes + num) :], (batch, cells, num, 4))
    scores = net.softmax(scores) if s.flag("softmax") else scores
    grid = np.stack(np.meshgrid(np.arange(side), np.arange(side)), -1).reshape(cells, 1, 2)
    center = (box[..., :2] + grid.astype(np.float32)) * (1 / side)
    size = box[..., 2:] * box[..., 2:] if s.flag("sqrt") else box[..., 2:]
    joined = net.concat([center, size, objectness, scores * objectness], 3)
    return net.reshape(joined, (batch, cells * num, 5 + classes))


def _anchors(r: SectionReading, count: int) -> np.ndarray:
    """Returns [count, 2] widths and heights; ignores any others, as Darknet does."""
    sizes = r.section.numbers("anchors")[: 2 * count]
    if len(sizes) < 2 * count or min(sizes) <= 0:
        raise r.section.refuse(
            f"anchors must be {2 * count} numbers above 0, two for each of num={count}, got {len(sizes)}", "anchors"
        )
    return np.array(sizes, np.float64).reshape(count, 2)


def _parts(r: SectionReading, x: NetworkTensor, anchors: int) -> tuple[NetworkTensor, NetworkTensor, NetworkTensor]:
    """Splits x into boxes, objectness and classes, each [batch, anchors, ., height, width]."""
    classes = r.section.integer("classes", 20, 1)
    if channels(x) != anchors * (5 + classes):
        raise r.section.refuse(
            f"the layer before must have {anchors} anchors · (5 + {classes} classes) = {anchors * (5 + classes)}"
            f" filters, got {channels(x)}"
        )
    batch, _, height, width = x.shape
    split = r.net.reshape(x, (batch, anchors, 5 + classes, height, width))
    return split[:, :, :4], split[:, :, 4:5], split[:, :, 5:]


def _center(r: SectionReading, within: NetworkTensor, height: int, width: int) -> NetworkTensor:
    """Converts centers within each pixel to centers [batch, anchors, 2, height, width] relative to the picture."""
    columns, rows = np.meshgrid(np.arange(width), np.arange(height))
    size = np.array([width, height], np.float32).reshape(2, 1, 1)
    return (within + np.stack([columns, rows]).astype(np.float32)) * (1 / size)


def _per_anchor(anchors: np.ndarray, height: int, width: int) -> np.ndarray:
    """Returns anchors as f32 [anchors, 2, 1, 1], relative to a size."""
    return (anchors / [width, height])[:, :, None, None].astype(np.float32)


def _head(
    r: SectionReading,
    center: NetworkTensor,
    size: NetworkTensor,
    objectness: NetworkTensor,
    probabilities: NetworkTensor,
) -> NetworkTensor:
    net = r.net
    joined = net.concat([center, size, objectness, probabilities * objectness], 2)
    batch, anchors, numbers, height, width = joined.shape
    by_pixel = net.transpose(joined, perm=(0, 3, 4, 1, 2))
    return net.reshape(by_pixel, (batch, height * width * anchors, numbers))
