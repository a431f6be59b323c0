"""Normalizations, scales and biases, softmax."""

from __future__ import annotations


import numpy as np

from pelton.importers.caffe.fillers import default
from pelton.importers.caffe.layer import LayerReading, reads
from pelton.importers.caffe.schema import Message, enum_name
from pelton.network.tensor import NetworkTensor


SEGNET_EPSILON = 1e-9  # of its BN layer


@reads("Softmax")
def softmax(n: LayerReading) -> NetworkTensor:
    x = n.input()
    return n.net.softmax(x, n.axis(n.param("softmax_param").axis, x.rank), name=n.name)


@reads("LRN")
def local_response(n: LayerReading) -> NetworkTensor:
    p, x = n.param("lrn_param"), n.image()
    if p.local_size % 2 == 0:
        raise n.refuse(f"needs an odd local_size, got {p.local_size}")
    if enum_name(p, "NormRegion", p.norm_region) == "ACROSS_CHANNELS":
        return n.net.lrn(x, size=p.local_size, alpha=p.alpha, beta=p.beta, bias=p.k, name=n.name)
    squares = n.net.average_pool(x * x, p.local_size, stride=1, padding=p.local_size // 2, count_include_pad=True)
    return n.net.mul(x, n.net.pow(squares * p.alpha + 1.0, -p.beta), name=n.name)


@reads("BatchNorm")
def batch_norm(n: LayerReading) -> NetworkTensor:
    """Normalizes by statistics that are sums over `factor` batches. Random weights have variances of 1: Caffe's zeros
    are no start for an inference."""
    p, x = n.param("batch_norm_param"), n.input()
    if x.rank < 2:
        raise n.refuse(f"needs channels along axis 1, got {x!r}")
    channels = n.number(x.shape[1], "the number of channels")
    mean, variance, factor = (
        n.blob((size,), default("constant", value)) for size, value in ((channels, 0), (channels, 1), (1, 1))
    )
    if p.HasField("use_global_stats") and not p.use_global_stats:
        return _of_batch(n, x, p.eps)
    scale = np.float32(0 if factor[0] == 0 else 1 / factor[0])
    one, zero = np.ones(channels, np.float32), np.zeros(channels, np.float32)
    return n.net.batch_norm(x, one, zero, mean * scale, variance * scale, epsilon=p.eps, name=n.name)


@reads("BN")
def bn(n: LayerReading) -> NetworkTensor:
    """Reads two layers of forks: PSPNet's has scale, shift, mean and variance. SegNet's has only the first two: they
    include the statistics in its mode INFERENCE, and follow those of the batch in its mode LEARN."""
    p, x = n.param("bn_param"), n.input()
    if x.rank < 2:
        raise n.refuse(f"needs channels along axis 1, got {x!r}")
    shape = (n.number(x.shape[1], "the number of channels"),)
    has_statistics = n.blobs.count(n.layer.name) == 4 or not n.blobs.holds(n.layer.name) and p.HasField("slope_filler")
    names = ("slope_filler", "bias_filler") if has_statistics else ("scale_filler", "shift_filler")
    factor, shift = (n.filled(shape, p, name, value) for name, value in zip(names, (1, 0)))
    if has_statistics:
        mean, variance = (n.blob(shape, default("constant", value)) for value in (0, 1))
        return n.net.batch_norm(x, factor, shift, mean, variance, epsilon=p.eps, name=n.name)
    along = (*shape, *[1] * (x.rank - 2))
    x = x if p.bn_mode else _of_batch(n, x, SEGNET_EPSILON)
    return n.net.add(n.net.mul(x, factor.reshape(along)), shift.reshape(along), name=n.name)


def _of_batch(n: LayerReading, x: NetworkTensor, epsilon: float) -> NetworkTensor:
    axes = (0, *range(2, x.rank))
    centred = x - n.net.reduce_mean(x, axes=axes)
    deviation = n.net.sqrt(n.net.reduce_mean(centred * centred, axes=axes) + epsilon)
    return n.net.div(centred, deviation, name=n.name)


@reads("Scale")
def scale(n: LayerReading) -> NetworkTensor:
    p, x = n.param("scale_param"), n.input()
    factor, start = _factor(n, p, x, 1)
    y = n.net.mul(x, factor, name="" if p.bias_term else n.name)
    if not p.bias_term:
        return y
    shape = [n.number(d, "the sizes of its bias") for d in factor.shape[: len(factor.shape) - start]]
    return n.net.add(y, n.filled(shape, p, "bias_filler", 0).reshape((*shape, *[1] * start)), name=n.name)


@reads("Bias")
def bias(n: LayerReading) -> NetworkTensor:
    p, x = n.param("bias_param"), n.input()
    return n.net.add(x, _factor(n, p, x, 0)[0], name=n.name)


def _factor(n: LayerReading, p: Message, x: NetworkTensor, default: float) -> tuple[NetworkTensor | np.ndarray, int]:
    """Returns the factor or bias of x's axes from `axis` on, the second bottom or weights, with trailing axes of 1, and
    the number of these."""
    if len(n.bottoms) > 1:
        other = n.input(1)
        behind = x.rank - other.rank - n.axis(p.axis, x.rank) if other.rank else 0
        if behind < 0 or other.rank > x.rank:
            raise n.refuse(f"needs a second bottom of the sizes of {x!r} from axis {p.axis} on, got {other!r}")
        return n.net.reshape(other, (*other.shape, *[1] * behind)), behind
    axis = n.axis(p.axis, x.rank) if p.num_axes else 0
    end = x.rank if p.num_axes == -1 else axis + p.num_axes
    if not axis <= end <= x.rank:
        raise n.refuse(f"needs num_axes of -1 to {x.rank - axis}, got {p.num_axes}")
    shape = [n.number(d, "the sizes of its weights") for d in x.shape[axis:end]]
    behind = x.rank - end if shape else 0
    return n.filled(shape, p, "filler", default).reshape((*shape, *[1] * behind)), behind


@reads("MVN")
def mean_variance(n: LayerReading) -> NetworkTensor:
    p, x = n.param("mvn_param"), n.input()
    axes = tuple(range(1 if p.across_channels else 2, x.rank))
    if not axes:
        raise n.refuse(f"needs an image, got {x!r}")
    mean = n.net.reduce_mean(x, axes=axes)
    if not p.normalize_variance:
        return n.net.sub(x, mean, name=n.name)
    centred = x - mean
    deviation = n.net.sqrt(n.net.reduce_mean(centred * centred, axes=axes))
    return n.net.div(centred, deviation + p.eps, name=n.name)
