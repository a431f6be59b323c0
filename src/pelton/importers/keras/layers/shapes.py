"""Layers that move elements: reshapes, paddings, croppings, masks."""

from __future__ import annotations

import math

import numpy as np

from pelton.ir.dims import is_known

from ..held import HeldTensor
from ..reading import KerasReading, reads


@reads("Reshape")
def reshape(r: KerasReading) -> HeldTensor:
    x, shape = r.input(), r.layer.integers("target_shape", low=-1)
    return r.of(r.net.reshape(x.tensor(), _filled(r, x, shape)))


def _filled(r: KerasReading, x: HeldTensor, shape: tuple[int, ...]) -> tuple:
    """Returns [batch, …] with −1 replaced by a number if possible."""
    if shape.count(-1) > 1:
        raise r.refuse(f"has several sizes of -1: {list(shape)}")
    if -1 in shape:
        size, others = math.prod(x.shape[1:]), math.prod(d for d in shape if d != -1)
        if is_known(size) and (others == 0 or size % others):
            raise r.refuse(f"cannot make {list(shape)} of {list(x.shape)}")
        shape = tuple(size // others if d == -1 else d for d in shape)
    return (x.shape[0], *shape)


@reads("Flatten")
def flatten(r: KerasReading) -> HeldTensor:
    """Flattens images with channels last."""
    x = r.input()
    if r.is_channels_first() and x.rank > 2:
        return r.of(r.net.flatten(r.net.transpose(x.tensor(), (0, *range(2, x.rank), 1))))
    return r.of(r.net.flatten(x.tensor()) if x.rank > 1 else r.net.unsqueeze(x.tensor(), 1))


@reads("Permute")
def permute(r: KerasReading) -> HeldTensor:
    x, dims = r.input(), r.layer.integers("dims")
    if sorted(dims) != list(range(1, x.rank)):
        raise r.refuse(f"needs the axes 1 to {x.rank - 1}, each once, got {list(dims)}")
    return r.of(r.net.transpose(x.tensor(), (0, *dims)))


@reads("RepeatVector")
def repeat(r: KerasReading) -> HeldTensor:
    x, n = r.input((2,)), r.layer.integer("n")
    return r.of(r.net.expand(r.net.unsqueeze(x.tensor(), 1), (x.shape[0], n, x.shape[1])))


def _around(r: KerasReading, name: str, axes: int) -> list[tuple[int, int]]:
    """Returns (before, after) of each axis, from an option of numbers or pairs."""
    widths = r.layer.option(name)
    if isinstance(widths, int):
        widths = [widths] * axes
    if axes == 1 and isinstance(widths, list) and len(widths) == 2:
        widths = [widths]
    pairs = [[p, p] if isinstance(p, int) else p for p in (widths if isinstance(widths, list) else [])]
    if len(pairs) != axes or not all(isinstance(p, list) and len(p) == 2 for p in pairs):
        raise r.refuse(f"needs (before, after) for each of {axes} axes as {name}, got {r.layer.option(name)!r:.60}")
    if not all(type(n) is int and n >= 0 for p in pairs for n in p):
        raise r.refuse(f"needs numbers from 0 on as {name}, got {pairs}")
    return [(before, after) for before, after in pairs]


@reads(*(f"ZeroPadding{n}D" for n in (1, 2, 3)))
def zero_padding(r: KerasReading) -> HeldTensor:
    axes, first = int(r.layer.type[-2]), r.is_channels_first()
    pads = _around(r, "padding", axes)
    x = r.image(r.input((axes + 2,)), first)
    zero = np.zeros((), x.dtype.numpy)
    return r.of_image(r.net.pad(x, ((0, 0), (0, 0), *pads), zero), first)


@reads(*(f"Cropping{n}D" for n in (1, 2, 3)))
def cropping(r: KerasReading) -> HeldTensor:
    axes, first = int(r.layer.type[-2]), r.is_channels_first()
    cuts = _around(r, "cropping", axes)
    x = r.image(r.input((axes + 2,)), first)
    starts = tuple(before for before, _ in cuts)
    ends = tuple(size - after for size, (_, after) in zip(x.shape[2:], cuts))
    if any(is_known(s, e) and s >= e for s, e in zip(starts, ends)):
        raise r.refuse(f"crops {list(x.shape[2:])} to size 0")
    y = r.net.slice(x, starts=starts, ends=ends, axes=tuple(range(2, axes + 2)), steps=(1,) * axes)
    return r.of_image(y, first)


@reads("Masking")
def masking(r: KerasReading) -> HeldTensor:
    """Replaces steps whose elements all equal the value by zeros, and masks them."""
    x, value = r.floats(), r.layer.number("mask_value", 0.0)
    t = x.tensor()
    other = r.net.cast(r.net.logical_not(r.net.equal(t, value)), to="f32")
    y = r.of(t * r.net.reduce_max(other, axes=(x.rank - 1,)))
    y.masked = True
    return y
