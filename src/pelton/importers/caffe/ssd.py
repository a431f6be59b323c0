"""Layers of SSD (Liu et al. 2016), as plugins: prior boxes, and selection among a network's boxes. Attributes are the
fields of Caffe's messages, with their defaults."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pelton.ir.dims import Size, Undecided, is_known
from pelton.ir.types import TensorType
from pelton.network import Network, NetworkTensor
from pelton.ops.detection import rows
from pelton.plugins import Plugin, register

MOST = 1 << 24  # boxes of one layer
VARIANCE = 0.1
LOWEST = float(np.finfo(np.float32).min)


def _number(size: Size, what: str) -> int:
    """Returns a size, which must be known."""
    if not is_known(size):
        raise Undecided(f"needs to know {what}, got {size}")
    return int(size)


def _image(x: NetworkTensor) -> NetworkTensor:
    if x.rank != 4:
        raise ValueError(f"needs an image [batch, channels, height, width], got {x!r}")
    return x


@register
class Permute(Plugin):
    """x with its axes in another order; those that are not named follow."""

    name, caffe = "ssd_permute", "Permute"
    order: tuple = ()

    def layers(self, net: Network, x: NetworkTensor) -> NetworkTensor:
        if len(set(self.order)) != len(self.order) or any(a >= x.rank for a in self.order):
            raise ValueError(f"needs distinct axes of {x!r}, got the order {list(self.order)}")
        return net.transpose(x, (*self.order, *(a for a in range(x.rank) if a not in self.order)))


@register
class Flatten(Plugin):
    """x with the axes from `axis` to `end_axis` as one."""

    name, caffe = "ssd_flatten", "Flatten"
    axis: int = 1
    end_axis: int = -1

    def layers(self, net: Network, x: NetworkTensor) -> NetworkTensor:
        for of in ("axis", "end_axis"):
            if not -x.rank <= getattr(self, of) < x.rank:
                raise ValueError(f"needs {of} from {-x.rank} to {x.rank - 1}, got {getattr(self, of)}")
        first, last = self.axis % x.rank, self.end_axis % x.rank
        if last < first:
            raise ValueError(f"needs an end_axis behind its axis {first}, got {last}")
        return net.reshape(x, (*x.shape[:first], math.prod(x.shape[first : last + 1]), *x.shape[last + 1 :]))


@register
class Normalize(Plugin):
    """x / √(Σ x² + eps), by pixels or by images, times a scale for each channel or for all."""

    name, caffe = "ssd_normalize", "Normalize"
    across_spatial: bool = True
    channel_shared: bool = True
    eps: float = 1e-10

    def weights(self, x: TensorType) -> Sequence[Sequence[int]]:
        if x.rank < 2:
            raise ValueError(f"needs an image, got {x}")
        return [() if self.channel_shared else (_number(x.shape[1], "the number of channels"),)]

    def layers(self, net: Network, x: NetworkTensor, scale: NetworkTensor) -> NetworkTensor:
        power = net.reduce_sum(x * x, axes=tuple(range(1, x.rank)) if self.across_spatial else (1,))
        factor = scale if scale.rank == 0 else net.reshape(scale, (*scale.shape, *[1] * (x.rank - 2)))
        return x / net.sqrt(power + max(self.eps, math.ulp(0))) * factor


@register
class NormalizeBBox(Normalize):
    """`Normalize` by the name that some forks give it."""

    name, caffe = "ssd_normalize_bbox", "NormalizeBBox"


@register
class PriorBox(Plugin):
    """Boxes around each element of a feature map, the first operand, and their variances: [1, 2, boxes · 4]. Only sizes
    count, those of the image, the second operand unless attributes give them, too: the result is a constant."""

    name, caffe = "ssd_prior_box", "PriorBox"
    min_size: tuple = ()
    max_size: tuple = ()
    aspect_ratio: tuple = ()
    flip: bool = True
    clip: bool = False
    variance: tuple = ()
    img_size: int | None = None
    img_h: int | None = None
    img_w: int | None = None
    step: float | None = None
    step_h: float | None = None
    step_w: float | None = None
    offset: float = 0.5

    def __post_init__(self) -> None:
        if not self.min_size or min(self.min_size) <= 0 or self.max_size and len(self.max_size) != len(self.min_size):
            sizes = f"{list(self.min_size)}, {list(self.max_size)}"
            raise ValueError(f"needs a min_size above 0, and max_size as often, got {sizes}")
        if (
            any(high <= low for low, high in zip(self.min_size, self.max_size))
            or min(self.aspect_ratio, default=1) <= 0
        ):
            raise ValueError("needs a max_size above its min_size, and aspect ratios above 0")
        if len(self.variance) not in (0, 1, 4) or min(self.variance, default=1) <= 0:
            raise ValueError(f"needs a variance above 0, or four, got {list(self.variance)}")

    def layers(self, net: Network, x: NetworkTensor, image: NetworkTensor | None = None) -> NetworkTensor:
        height, width = (_number(d, "the size of the feature map") for d in _image(x).shape[2:])
        sizes = self._pair("img_h", "img_w", "img_size") or self._sizes(image)
        step = self._pair("step_h", "step_w", "step") or [sizes[0] / height, sizes[1] / width]
        sides = np.array(self._sides(), np.float32)  # (width, height) each
        if height * width * len(sides) > MOST:
            raise ValueError(f"needs at most {MOST} boxes, got {len(sides)} for each of {height} × {width} elements")
        centres = np.zeros((height, width, 1, 2), np.float32)
        centres[..., 0] = ((np.arange(width, dtype=np.float32) + self.offset) * np.float32(step[1]))[None, :, None]
        centres[..., 1] = ((np.arange(height, dtype=np.float32) + self.offset) * np.float32(step[0]))[:, None, None]
        ends = np.array([*sizes[::-1], *sizes[::-1]], np.float32)
        boxes = np.concatenate([centres - sides / 2, centres + sides / 2], -1) / ends
        boxes = boxes.clip(0, 1) if self.clip else boxes
        variance = self.variance or (VARIANCE,)
        each = np.broadcast_to(np.array(variance * 4 if len(variance) == 1 else variance, np.float32), boxes.shape)
        return net.constant(np.stack([boxes.ravel(), each.ravel()]).astype(np.float32)[None])

    def _sizes(self, image: NetworkTensor | None) -> list[float]:
        if image is None:
            raise ValueError("needs an image as its second operand, or img_size")
        return [_number(d, "the size of the image") for d in _image(image).shape[2:]]

    def _pair(self, height: str, width: str, both: str) -> list[float]:
        """Returns a height and a width, given separately or as one number; [] if absent."""
        one, apart = getattr(self, both), (getattr(self, height), getattr(self, width))
        pair = [one] * 2 if one is not None else [v or 0 for v in apart]
        if one is not None and apart != (None, None) or any(pair) and min(pair) <= 0:
            raise ValueError(f"needs either {both} or both {height} and {width}, above 0")
        return pair if any(pair) else []

    def _sides(self) -> list[tuple[float, float]]:
        """Returns (width, height) of the boxes around one element: for each size a square, a square of the mean with
        the larger size, and the other aspect ratios."""
        ratios = [1.0]
        for ratio in self.aspect_ratio:
            if all(abs(ratio - other) >= 1e-6 for other in ratios):
                ratios += [ratio, 1 / ratio] if self.flip else [ratio]
        sides = []
        for i, low in enumerate(self.min_size):
            sides.append((low, low))
            if self.max_size:
                sides.append((math.sqrt(low * self.max_size[i]),) * 2)
            sides += [(low * math.sqrt(r), low / math.sqrt(r)) for r in ratios[1:]]
        return sides


@register
class DetectionOutput(Plugin):
    """Rows [1, 1, batch · keep, 7] of (image, label, score, x₁, y₁, x₂, y₂): what is left of the boxes [batch, boxes ·
    4] that a network gives in terms of the prior boxes, with scores [batch, boxes · classes]."""

    name, caffe = "ssd_detection_output", "DetectionOutput"
    num_classes: int = 0
    share_location: bool = True
    background_label_id: int = 0
    nms_threshold: float = 0.3
    top_k: int = -1
    eta: float = 1.0
    code_type: str = "CORNER"
    keep_top_k: int = -1
    variance_encoded_in_target: bool = False
    confidence_threshold: float = LOWEST
    clip: bool = False
    # without effect on the result
    visualize: bool = False
    visualize_threshold: float = 0.6
    save_file: str = ""
    output_directory: str = ""
    output_name_prefix: str = ""
    output_format: str = ""
    label_map_file: str = ""
    name_size_file: str = ""
    num_test_image: int = 0

    def layers(self, net: Network, where: NetworkTensor, scores: NetworkTensor, priors: NetworkTensor) -> NetworkTensor:
        if self.num_classes < 1 or where.rank < 2 or scores.rank < 2:
            raise ValueError(f"needs num_classes, and boxes and scores for each image, got {where!r} and {scores!r}")
        if priors.rank != 3 or priors.shape[1] != 2:
            raise ValueError(f"needs prior boxes [1, 2, boxes · 4] as its third bottom, got {priors!r}")
        count = _number(priors.shape[2], "the number of prior boxes") // 4
        sets = 1 if self.share_location else self.num_classes
        batch = where.shape[0]
        encoded = net.reshape(where, (batch, count, sets, 4))
        boxes = net.transpose(self._decoded(net, encoded, priors, count), (0, 2, 1, 3))
        by_class = net.transpose(net.reshape(scores, (batch, count, self.num_classes)), (0, 2, 1))
        keep = rows(count, self.num_classes, self.background_label_id, self.top_k, self.keep_top_k)
        if sets == 1 and self.eta >= 1 and 0 <= self.nms_threshold <= 1 and keep > 0:
            return self._selected(net, net.reshape(boxes, (batch, count, 4)), by_class, keep)
        return net.detections(
            boxes,
            by_class,
            threshold=self.confidence_threshold,
            overlap=self.nms_threshold,
            background=self.background_label_id,
            top_k=self.top_k,
            keep=self.keep_top_k,
            eta=self.eta,
        )

    def _selected(self, net: Network, boxes: NetworkTensor, scores: NetworkTensor, keep: int) -> NetworkTensor:
        """Computes `detections` of one set of boxes by `multiclass_nms`, which has kernels, and a sort by labels."""
        batch = scores.shape[0]
        best = net.multiclass_nms(
            boxes,
            scores,
            keep=keep,
            score=self.confidence_threshold,
            overlap=self.nms_threshold,
            top_k=max(self.top_k, 0),
            background=self.background_label_id,
        )
        label = best[:, :, 5:]  # −1 for no box
        _, order = net.top_k(net.where(label < 0, float(self.num_classes), label), k=keep, axis=1, largest=False)
        best = net.gather_elements(best, net.expand(order, (batch, keep, 6)), axis=1)
        label = best[:, :, 5:]
        image = net.reshape(net.cast(net.iota(size=batch), to=label.dtype), (batch, 1, 1))
        row = [net.where(label < 0, -1.0, image), net.maximum(label, 0.0), best[:, :, 4:5], best[:, :, :4]]
        return net.reshape(net.concat(row, 2), (1, 1, batch * keep, 7))

    def _decoded(self, net: Network, encoded: NetworkTensor, priors: NetworkTensor, count: int) -> NetworkTensor:
        """Decodes the network's boxes relative to the prior boxes: corners [batch, boxes, sets, 4]."""
        ends = net.reshape(net.slice(priors, starts=(0,), ends=(1,), axes=(1,), steps=(1,)), (1, count, 1, 4))
        low, high = net.split(ends, 2, 3)
        scaled = encoded
        if not self.variance_encoded_in_target:
            variance = net.slice(priors, starts=(1,), ends=(2,), axes=(1,), steps=(1,))
            scaled = encoded * net.reshape(variance, (1, count, 1, 4))
        if self.code_type == "CORNER":
            corners = ends + scaled
        else:
            first, second = net.split(scaled, 2, 3)
            sides = high - low
            if self.code_type == "CENTER_SIZE":
                centre, half = first * sides + (low + high) * 0.5, net.exp(second) * sides * 0.5
                corners = net.concat([centre - half, centre + half], 3)
            else:  # CORNER_SIZE
                corners = net.concat([low + first * sides, high + second * sides], 3)
        return net.clip(corners, 0.0, 1.0) if self.clip else corners
