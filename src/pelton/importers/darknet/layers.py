"""Layers of Darknet that read the layer before: convolutions, pools, matrix products, softmax, rearrangements."""

from __future__ import annotations

from collections.abc import Callable

from pelton.network import NetworkTensor

from .cfg import MAX_NUMBER
from .reading import Parameters, SectionReading, channels, normalized, reads, units


@reads("convolutional", "conv")
def convolutional(r: SectionReading) -> NetworkTensor:
    s, x = r.section, r.image()
    s.refuse_options("antialiasing", "binary", "xnor", "sway", "rotate", "stretch", "stretch_sway", "dontload")
    s.refuse_options("dontloadscales")
    size, groups, dilation = s.integer("size", 1, 1, 1024), s.integer("groups", 1, 1), s.integer("dilation", 1, 1, 1024)
    outputs, stride = s.integer("filters", 1, 1), s.integer("stride", 1, 1)
    strides = s.integer("stride_y", stride, 1), s.integer("stride_x", stride, 1)
    padding = size // 2 if s.flag("pad") else s.integer("padding", 0, 0, 1024)
    if channels(x) % groups or outputs % groups:
        raise s.refuse(f"groups={groups} must divide {channels(x)} channels and {outputs} filters", "groups")
    if "share_index" in s.options:
        p = _shared(r, (outputs, channels(x) // groups, size, size))
    else:
        p = r.take_filters(outputs, channels(x) // groups, size)
    r.parameters[s.index] = p
    y = r.net.convolution(
        x,
        p.weights,
        None if p.norm else p.bias,
        stride=strides,
        padding=padding * dilation,
        dilation=dilation,
        groups=groups,
    )
    return r.activated(normalized(r.net, y, p), "logistic")


def _shared(r: SectionReading, shape: tuple[int, ...]) -> Parameters:
    """Returns the parameters of the convolution that `share_index` names."""
    index = r.section.integer("share_index", 0, -MAX_NUMBER)
    p = r.parameters.get(index + (r.section.index if index < 0 else 0))
    if p is None or p.weights.shape != shape:
        raise r.section.refuse(
            f"share_index must name a convolution before this one with weights of {' × '.join(map(str, shape))},"
            f" got {index}",
            "share_index",
        )
    return p


@reads("connected", "conn")
def connected(r: SectionReading) -> NetworkTensor:
    r.section.refuse_options("dontload", "dontloadscales")
    x = r.flat()
    p = r.take_matrix(r.section.integer("output", 1, 1), units(x))
    y = r.net.linear(x, p.weights, None if p.norm else p.bias)
    return r.activated(normalized(r.net, y, p), "logistic")


@reads("local")
def local(r: SectionReading) -> NetworkTensor:
    """Convolves with separate weights [place, filters, channels · size²] at each place."""
    s, net, x = r.section, r.net, r.image()
    outputs, size, stride = s.integer("filters", 1, 1), s.integer("size", 1, 1, 64), s.integer("stride", 1, 1)
    pad = s.integer("pad", 0, 0, 1)
    if pad and size != 3:
        raise s.refuse(f"pad=1 is of use for size=3 alone, where Darknet has a place for each pixel, got {size}", "pad")
    x = net.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad))) if pad else x
    batch, inputs, height, width = x.shape
    rows, columns = ((n - size) // stride + 1 for n in (height, width))
    if min(rows, columns) < 1:
        raise s.refuse(f"a window of {size} × {size} does not fit into {height} × {width}", "size")
    places, taps = rows * columns, inputs * size * size
    bias = r.weights.take(s, "bias", outputs, rows, columns)
    weights = r.weights.take(s, "weights", places, outputs, taps)
    windows = [
        net.slice(
            x,
            starts=(i, j),
            ends=(i + (rows - 1) * stride + 1, j + (columns - 1) * stride + 1),
            axes=(2, 3),
            steps=(stride, stride),
        )
        for i in range(size)
        for j in range(size)
    ]
    stacked = net.concat([net.reshape(w, (batch, inputs, 1, places)) for w in windows], 2)
    by_place = net.transpose(net.reshape(stacked, (batch, taps, places)), perm=(2, 1, 0))
    sums = net.transpose(net.matmul(weights, by_place), perm=(2, 1, 0))
    return r.activated(net.reshape(sums, (batch, outputs, rows, columns)) + bias, "logistic")


@reads("maxpool", "max")
def maxpool(r: SectionReading) -> NetworkTensor:
    r.section.refuse_options("antialiasing", "maxpool_zero_nonmax")
    if not r.section.flag("maxpool_depth"):
        return _pooled(r, r.net.max_pool)
    x, outputs = r.image(), r.section.integer("out_channels", 1, 1)
    batch, inputs, height, width = x.shape
    if inputs % outputs:
        raise r.section.refuse(f"out_channels={outputs} must divide {inputs} channels", "out_channels")
    split = r.net.reshape(x, (batch, inputs // outputs, outputs, height, width))
    return r.net.reduce_max(split, axes=(1,), keepdims=False)


@reads("local_avgpool", "local_avg")
def local_avgpool(r: SectionReading) -> NetworkTensor:
    return _pooled(r, r.net.average_pool)


def _pooled(r: SectionReading, pool: Callable[..., NetworkTensor]) -> NetworkTensor:
    """Pools with `padding` elements (size − 1 by default) along each axis, the odd one behind."""
    s, x = r.section, r.image()
    stride = s.integer("stride", 1, 1)
    size = s.integer("size", stride, 1, 4096)
    padding = s.integer("padding", size - 1, 0, 8192)
    if padding > 2 * (size - 1):
        raise s.refuse(f"padding must be at most 2 · (size − 1) = {2 * (size - 1)}, got {padding}", "padding")
    strides = s.integer("stride_y", stride, 1), s.integer("stride_x", stride, 1)
    around = (padding // 2, padding - padding // 2)
    return pool(x, size, stride=strides, padding=(around, around))


@reads("avgpool", "avg")
def avgpool(r: SectionReading) -> NetworkTensor:
    return r.net.global_average_pool(r.image())


@reads("batchnorm")
def batchnorm(r: SectionReading) -> NetworkTensor:
    """Normalizes; only AlexeyAB's Darknet stores a bias."""
    x = r.image()
    c = channels(x)
    bias = r.weights.take(r.section, "bias", c) if r.weights.forked else 0.0
    scale, mean, variance = (r.weights.take(r.section, what, c) for what in ("scale", "mean", "variance"))
    zeros = scale * 0.0
    return normalized(r.net, x, Parameters(zeros, zeros + bias, (scale, mean, variance)))


@reads("activation")
def activation(r: SectionReading) -> NetworkTensor:
    return r.activated(r.x, "linear")


@reads("logistic")
def logistic(r: SectionReading) -> NetworkTensor:
    return r.net.sigmoid(r.x)


@reads("softmax", "soft")
def softmax(r: SectionReading) -> NetworkTensor:
    s, net, x = r.section, r.net, r.flat()
    if "tree" in s.options:
        raise s.refuse("softmax over a tree of classes is not supported", "tree")
    s.refuse_options("spatial")
    groups, temperature = s.integer("groups", 1, 1), s.number("temperature", 1)
    if units(x) % groups or temperature <= 0:
        raise s.refuse(
            f"groups must divide {units(x)} units and temperature be above 0, got {groups} and {temperature:g}"
        )
    x = x if temperature == 1 else x * (1 / temperature)
    return net.reshape(net.softmax(net.reshape(x, (x.shape[0], groups, units(x) // groups))), x.shape)


@reads("crop")
def crop(r: SectionReading) -> NetworkTensor:
    """Crops to the middle, and maps 0 to 1 onto −1 to 1 unless `noadjust`."""
    s, x = r.section, r.image()
    height, width = (s.integer(name, 1, 1) for name in ("crop_height", "crop_width"))
    if height > x.shape[2] or width > x.shape[3]:
        raise s.refuse(f"a picture of {x.shape[2]} × {x.shape[3]} cannot be cropped to {height} × {width}")
    top, left = (x.shape[2] - height) // 2, (x.shape[3] - width) // 2
    x = x[:, :, top : top + height, left : left + width]
    return x if s.flag("noadjust") else x * 2.0 - 1.0


@reads("dropout", "cost", "empty", "silence")
def passed(r: SectionReading) -> NetworkTensor:
    return r.x


@reads("upsample")
def upsample(r: SectionReading) -> NetworkTensor:
    """Repeats pixels, or sums them if the stride is negative."""
    s, net, x = r.section, r.net, r.image()
    stride, scale = s.integer("stride", 2, -1024, 1024), s.number("scale", 1)
    if stride == 0 or any(size % stride for size in x.shape[2:] if stride < 0):
        raise s.refuse(f"stride={stride} must not be 0, nor leave a rest of {x.shape[2]} × {x.shape[3]}", "stride")
    if stride > 0:
        y = net.resize(x, scale=stride) if stride > 1 else x
    else:
        y, scale = net.average_pool(x, -stride), scale * stride * stride
    return y if scale == 1 else y * scale


@reads("reorg")
def reorg(r: SectionReading) -> NetworkTensor:
    """Moves space to channels, treating the elements as [channels / stride², height · stride, width · stride] and not
    as the image that they are: Darknet confuses the two sizes, and networks were trained with that."""
    s, net, x = r.section, r.net, r.image()
    s.refuse_options("flatten", "extra")
    batch, c, height, width = x.shape
    k, back = s.integer("stride", 1, 1, 1024), s.flag("reverse")
    if c % (k * k) or not back and (height % k or width % k):
        raise s.refuse(f"stride={k} must divide the image {c} × {height} × {width}, and its square the channels")
    part = c // (k * k)
    if back:
        split = net.reshape(x, (batch, k, k, part, height, width))
        return net.reshape(net.transpose(split, perm=(0, 3, 4, 1, 5, 2)), (batch, part, height * k, width * k))
    split = net.reshape(x, (batch, part, height, k, width, k))
    return net.reshape(net.transpose(split, perm=(0, 3, 5, 1, 2, 4)), (batch, c * k * k, height // k, width // k))


@reads("reorg3d")
def reorg3d(r: SectionReading) -> NetworkTensor:
    """Moves space to channels as other frameworks do."""
    s, x = r.section, r.image()
    s.refuse_options("reverse")
    k = s.integer("stride", 1, 1, 1024)
    if x.shape[2] % k or x.shape[3] % k:
        raise s.refuse(f"stride={k} must divide the image {x.shape[2]} × {x.shape[3]}", "stride")
    return r.net.space_to_depth(x, block=k)
