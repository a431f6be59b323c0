"""Custom operators of MediaPipe, as defined in mediapipe/util/tflite/operations."""

from __future__ import annotations

import math
import struct

import numpy as np

from pelton.ir.types import I64
from pelton.network import NetworkTensor

from ..held import ChannelsFirst
from ..node import CUSTOM, Given, TFLiteReading, reads
from ..schema import PADDINGS
from .elements import atan2_of
from .images import deconvolution


@reads("Convolution2DTransposeBias", domain=CUSTOM)
def transposed_convolution_with_bias(n: TFLiteReading) -> Given:
    """Reads the image, filters [outputs, height, width, channels] and a bias. Options are TfLiteTransposeConvParams,
    which begins with a padding (1: SAME, 2: VALID), a stride along the width and one along the height."""
    if len(n.node.custom_options) < 12:
        raise n.refuse(f"needs options of 12 bytes, got {len(n.node.custom_options)}")
    padding, along_width, along_height = struct.unpack_from("<iii", n.node.custom_options)
    if padding not in (1, 2) or not (0 < along_width < 1 << 16 and 0 < along_height < 1 << 16):
        raise n.refuse(f"has the padding {padding} and strides of {along_height} and {along_width}")
    if n.given(0).rank != 4 or n.given(1).rank != 4:
        raise n.refuse(f"needs an image and filters of 4 axes, got {n.given(0).spec} and {n.given(1).spec}")
    x, w, strides = n.image(0), n.given(1).transposed((3, 0, 1, 2)), (along_height, along_width)
    pads = [
        max(0, k - (d - 1) % s - 1) if PADDINGS[padding - 1] == "same" else 0
        for d, k, s in zip(x.shape[2:], w.shape[2:], strides)
    ]
    sizes = [s * (d - 1) + k - p for d, k, s, p in zip(x.shape[2:], w.shape[2:], strides, pads)]
    return ChannelsFirst(deconvolution(n, x, w, n.input(2), strides, [p // 2 for p in pads], sizes))


def _second_version(n: TFLiteReading) -> None:
    if n.node.version != 2:
        raise n.refuse(f"of version {n.node.version} is not supported, of version 2 it is")


def _options(n: TFLiteReading, *names: str) -> list[float]:
    values = [n.custom_options.get(name) for name in names]
    if not all(isinstance(v, (int, float)) and math.isfinite(v) for v in values):
        raise n.refuse(f"needs numbers as its options {', '.join(names)}, got {values}")
    return [v for v in values if isinstance(v, (int, float))]


@reads("TransformLandmarks", domain=CUSTOM)
def transform_landmarks(n: TFLiteReading) -> Given:
    """Transforms points [1, count, 2 or 3] by the first two rows of a matrix [1, 4, 4], as if z were 0; keeps z."""
    _second_version(n)
    points, net = n.input(0), n.net
    if points.rank != 3 or points.shape[0] != 1 or points.shape[2] not in (2, 3):
        raise n.refuse(f"needs points [1, count, 2 or 3], got {n.given(0).spec}")
    matrix = net.reshape(n.input(1), (4, 4))
    moved = net.add(net.matmul(points[0, :, :2], net.transpose(matrix[:2, :2], (1, 0))), matrix[:2, 3])
    if points.shape[2] == 3:
        moved = net.concat([moved, points[0, :, 2:]], axis=1)
    return net.unsqueeze(moved, 0)


@reads("TransformTensorBilinear", domain=CUSTOM)
def transform_tensor_bilinear(n: TFLiteReading) -> Given:
    """Samples an image [1, height, width, channels], with two weights along each axis, where the first two rows of a
    matrix [1, 4, 4] map the centers of the output's elements; 0 outside the image."""
    _second_version(n)
    net, image = n.net, n.given(0)
    out_height, out_width = (int(v) for v in _options(n, "output_height", "output_width"))
    if image.rank != 4 or image.shape[0] != 1 or not 0 < out_height * out_width < 1 << 24:
        raise n.refuse(f"cannot make {out_height} × {out_width} elements out of {image.spec}")
    _, height, width, channels = image.shape
    matrix = net.reshape(n.input(1), (4, 4))
    rows, columns = np.divmod(np.arange(out_height * out_width), out_width)
    centres = np.stack([columns + 0.5, rows + 0.5, np.ones(rows.size)]).astype(np.float32)
    plane = net.concat([matrix[:2, :2], matrix[:2, 3:]], axis=1)
    at = net.sub(net.matmul(plane, centres), np.float32(0.5))  # x and y of each element
    x, y = at[0], at[1]
    inside = net.logical_and(_between(n, x, width - 1), _between(n, y, height - 1))
    # elements outside are read at the corner, and weighted by 0
    x, y = (net.where(inside, v, np.float32(0)) for v in (x, y))
    left, top = net.floor(x), net.floor(y)
    indices, weights = [], []
    for down in (0, 1):
        for right in (0, 1):
            row = net.minimum(net.add(top, np.float32(down)), np.float32(height - 1))
            column = net.minimum(net.add(left, np.float32(right)), np.float32(width - 1))
            indices.append(net.add(net.mul(row, np.float32(width)), column))
            by = net.mul(_share(n, net.sub(y, top), down), _share(n, net.sub(x, left), right))
            weights.append(net.where(inside, by, np.float32(0)))
    places = net.cast(net.concat([net.unsqueeze(v, 1) for v in indices], axis=1), to=I64)
    shares = net.concat([net.unsqueeze(v, 1) for v in weights], axis=1)
    pixels = net.reshape(n.image(0), (channels, height * width))
    samples = net.blend(pixels, places, shares, axis=1)
    return ChannelsFirst(net.reshape(samples, (1, channels, out_height, out_width)))


def _between(n: TFLiteReading, x: NetworkTensor, last: int) -> NetworkTensor:
    net = n.net
    return net.logical_and(net.greater_equal(x, np.float32(0)), net.less_equal(x, np.float32(last)))


def _share(n: TFLiteReading, part: NetworkTensor, second: int) -> NetworkTensor:
    return part if second else n.net.sub(np.float32(1), part)


@reads("Landmarks2TransformMatrix", domain=CUSTOM)
def landmarks_to_transform_matrix(n: TFLiteReading) -> Given:
    """Returns the matrix [1, 4, 4] that maps pixels of a crop to the rotated rectangle around a subset of points [1,
    count, 3], in which the line between two of them has the target angle."""
    _second_version(n)
    net, points = n.net, n.input(0)
    names = ("scale_x", "scale_y", "output_width", "output_height", "target_rotation_radians")
    scale_x, scale_y, width, height, target = _options(n, *names)
    left, right = (int(v) for v in _options(n, "left_rotation_idx", "right_rotation_idx"))
    subset = n.custom_options.get("subset_idxs")
    count = points.shape[1] if points.rank == 3 and points.shape[2] == 3 else 0
    if (
        not isinstance(subset, list)
        or not subset
        or not all(isinstance(i, int) and 0 <= i < count for i in (*subset, left, right))
    ):
        raise n.refuse(f"needs points [1, count, 3] with those of its options, got {n.given(0).spec}")
    if min(scale_x, scale_y, width, height) <= 0:
        raise n.refuse(f"needs scales and sizes above 0, got {scale_x}, {scale_y}, {width}, {height}")
    flat = net.reshape(points, (count, 3))
    ends = net.gather(flat, np.asarray([left, right], np.int64), axis=0)
    across = net.sub(ends[1], ends[0])
    angle = net.sub(np.float32(target), atan2_of(n, across[1], across[0]))
    cos, sin = net.cos(angle), net.sin(angle)
    chosen = net.gather(flat, np.asarray(subset, np.int64), axis=0)
    x, y = chosen[:, 0], chosen[:, 1]
    turned = (net.sub(net.mul(cos, x), net.mul(sin, y)), net.add(net.mul(sin, x), net.mul(cos, y)))
    low, high = ([reduce(v, axes=(0,), keepdims=False) for v in turned] for reduce in (net.reduce_min, net.reduce_max))
    middle_x, middle_y = (net.mul(net.add(a, b), np.float32(0.5)) for a, b in zip(low, high))
    by_x, by_y = (
        net.mul(net.sub(b, a), np.float32(scale / size))
        for a, b, scale, size in zip(low, high, (scale_x, scale_y), (width, height))
    )
    # rotated back: columns for x, y and the origin, the center minus half of the crop
    rows = []
    for along_x, along_y in ((cos, sin), (net.neg(sin), cos)):
        a, b = net.mul(along_x, by_x), net.mul(along_y, by_y)
        centre = net.add(net.mul(along_x, middle_x), net.mul(along_y, middle_y))
        half = net.add(net.mul(a, np.float32(width / 2)), net.mul(b, np.float32(height / 2)))
        rows += [a, b, np.float32(0), net.sub(centre, half)]
    rows += [np.float32(v) for v in np.eye(4)[2:].reshape(-1)]
    return net.reshape(net.concat([net.reshape(v, (1,)) for v in rows], axis=0), (1, 4, 4))
