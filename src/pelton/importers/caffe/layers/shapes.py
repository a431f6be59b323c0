"""Layers that rearrange elements."""

from __future__ import annotations

from collections.abc import Sequence

from pelton.importers.caffe.layer import LARGEST, LayerReading, reads
from pelton.ir.dims import is_known
from pelton.network.tensor import NetworkTensor


@reads("Dropout")
def same(n: LayerReading) -> NetworkTensor:
    return n.input()


@reads("Split")
def split(n: LayerReading) -> Sequence[NetworkTensor]:
    return [n.input()] * len(n.tops)


@reads("Silence", without_labels=True)
def silence(n: LayerReading) -> Sequence[NetworkTensor]:
    """Reads its bottoms, so that they are no outputs of the network."""
    return ()


@reads("Concat")
def concat(n: LayerReading) -> NetworkTensor:
    p, inputs = n.param("concat_param"), n.inputs
    axis = n.axis(p.concat_dim if p.HasField("concat_dim") else p.axis, n.input().rank)
    return n.net.concat(inputs, axis, name=n.name) if len(inputs) > 1 else inputs[0]


@reads("Slice")
def slice_(n: LayerReading) -> Sequence[NetworkTensor]:
    p, x = n.param("slice_param"), n.input()
    axis = n.axis(p.slice_dim if p.HasField("slice_dim") else p.axis, x.rank)
    size, points = n.number(x.shape[axis], "the size of the axis that it slices"), list(p.slice_point)
    if not points:
        if not n.tops or size % len(n.tops):
            raise n.refuse(f"needs a size divisible by its {len(n.tops)} tops, got {size}; set slice_point")
        points = list(range(size // len(n.tops), size, size // len(n.tops)))
    ends = [0, *points, size]
    if len(ends) != len(n.tops) + 1 or any(a >= b for a, b in zip(ends, ends[1:])):
        raise n.refuse(f"needs rising points within {size} elements between {len(n.tops)} tops, got {points}")
    parts = n.net.split(x, [b - a for a, b in zip(ends, ends[1:])], axis, name=n.name)
    return parts if len(parts) > 1 else [x]


@reads("Reshape")
def reshape(n: LayerReading) -> NetworkTensor:
    """Reshapes num_axes axes from `axis` on; a size of 0 keeps the bottom's, −1 takes the remaining elements."""
    p, x = n.param("reshape_param"), n.input()
    dims = list(p.shape.dim)
    first = n.axis(p.axis if p.axis >= 0 else p.axis + x.rank + 1, x.rank + 1)
    last = x.rank if p.num_axes == -1 else first + p.num_axes
    if not first <= last <= x.rank:
        raise n.refuse(f"needs num_axes of -1 to {x.rank - first}, got {p.num_axes}")
    if dims.count(-1) > 1 or min(dims, default=0) < -1:
        raise n.refuse(f"needs sizes of 0 and more, and -1 at most once, got {dims}")
    if any(d == 0 and first + i >= x.rank for i, d in enumerate(dims)):
        raise n.refuse(f"copies sizes of {x!r} where its own are 0, but there are not enough for {dims}")
    sizes = [x.shape[first + i] if d == 0 else d for i, d in enumerate(dims)]
    return n.net.reshape(x, (*x.shape[:first], *sizes, *x.shape[last:]), name=n.name)


@reads("Crop")
def crop(n: LayerReading) -> NetworkTensor:
    """Crops the first bottom to the sizes of the second from an axis on."""
    p, x, like = n.param("crop_param"), n.input(), n.input(1)
    axis = n.axis(p.axis, x.rank)
    if like.rank != x.rank or len(p.offset) not in (0, 1, x.rank - axis):
        raise n.refuse(f"needs two bottoms of one rank and an offset for each axis, got {like!r} and {list(p.offset)}")
    offsets = list(p.offset) * (x.rank - axis) if len(p.offset) == 1 else list(p.offset) or [0] * (x.rank - axis)
    axes = tuple(range(axis, x.rank))
    ends = tuple(o + like.shape[a] for o, a in zip(offsets, axes))
    if any(is_known(e, x.shape[a]) and e > x.shape[a] for e, a in zip(ends, axes)):
        raise n.refuse(f"cannot crop {x!r} to {like!r} at the offsets {offsets}")
    return n.net.slice(x, starts=tuple(offsets), ends=ends, axes=axes, steps=(1,) * len(axes), name=n.name)


@reads("Tile")
def tile(n: LayerReading) -> NetworkTensor:
    p, x = n.param("tile_param"), n.input()
    axis = n.axis(p.axis, x.rank)
    if not 1 <= p.tiles <= LARGEST:
        raise n.refuse(f"needs 1 tile and more, got {p.tiles}")
    return n.net.tile(x, repeats=tuple(p.tiles if a == axis else 1 for a in range(x.rank)), name=n.name)


@reads("ShuffleChannel")
def shuffle_channels(n: LayerReading) -> NetworkTensor:
    """Interleaves the channels of all groups (ShuffleNet)."""
    x, groups = n.input(), n.param("shuffle_channel_param").group
    channels = n.number(x.shape[1], "the number of channels") if x.rank > 1 else 0
    if groups < 1 or channels % groups or x.rank < 2:
        raise n.refuse(f"needs channels divisible by group {groups}, got {x!r}")
    split = n.net.reshape(x, (x.shape[0], groups, channels // groups, *x.shape[2:]))
    turned = n.net.transpose(split, (0, 2, 1, *range(3, x.rank + 1)))
    return n.net.reshape(turned, x.shape, name=n.name)
