"""Readers of Fourier transforms of known lengths: products with constant matrices, along factors of the length (Cooley and Tukey 1965)."""
from __future__ import annotations

import math

import numpy as np

from pelton.ir.dims import is_known
from pelton.ir.graph import Value
from pelton.ir.types import I64

from .onnx_reading import Reading, Thing, reads

DENSE = {1: 64, 2: 8}          # lengths up to this are one product: of real numbers, which take half the multiplications, and of complex ones
MOST = 1 << 12                 # the largest prime factor: its matrix has four times its square of elements
LONGEST = 1 << 24              # more angles, or places of frames, than a constant of the importer's own may have


def _factor(n: int) -> int:
    """The largest divisor up to √n; 1 of primes."""
    return next(d for d in range(math.isqrt(n), 0, -1) if n % d == 0)


def _possible(n: int) -> bool:
    """Whether the matrices and angles of a length are in proportion."""
    if n <= DENSE[2] or n > LONGEST:
        return n <= DENSE[2]
    first = _factor(n)
    return n <= MOST if first == 1 else _possible(n // first)


def _angles(rows: int, columns: int, length: int) -> np.ndarray:
    """2π · row · column / length, reduced before it is rounded."""
    return 2 * np.pi / length * (np.outer(np.arange(rows), np.arange(columns)) % length)


def _product(n: Reading, x: Value, bins: int, sign: float) -> Value:
    """The first bins of the transform of [rows…, length, 1 or 2] as one product of matrices: [rows…, bins, 2]."""
    *rows, length, parts = x.type.shape
    angle = _angles(length, bins, length)
    cos, sin = np.cos(angle), sign * np.sin(angle)
    w = np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)], 1)[:, :parts]
    flat = n.reshape(x, (math.prod(rows), length * parts))
    return n.reshape(n.emit("matmul", flat, n.constant(w.reshape(length * parts, bins * 2), x.type.dtype)), (*rows, bins, 2))


def _transform(n: Reading, x: Value, bins: int, sign: float) -> Value:
    """The first bins of the transform of [rows…, length, 1 or 2]: of the columns of a matrix, turned by their angles, then of its rows."""
    *rows, length, parts = x.type.shape
    first = _factor(length)
    if length <= DENSE[parts] or first == 1:
        return _product(n, x, bins, sign)
    second, lead = length // first, list(range(len(rows)))
    k = len(rows)
    x = n.transpose(n.reshape(x, (*rows, first, second, parts)), (*lead, k + 1, k, k + 2))
    x = n.reshape(_product(n, x, first, sign), (*rows, second, first * 2))
    angle = _angles(second, first, length)
    x = n.emit("rotary", x, n.constant(np.cos(angle), x.type.dtype), n.constant(sign * np.sin(angle), x.type.dtype), interleaved=True)
    x = n.transpose(n.reshape(x, (*rows, second, first, 2)), (*lead, k + 1, k, k + 2))
    x = n.transpose(_transform(n, x, second, sign), (*lead, k + 1, k, k + 2))
    x = n.reshape(x, (*rows, length, 2))
    return n.slice(x, k, 0, bins)


def _whole(n: Reading, x: Value, length: int) -> Value:
    """The spectrum of a real signal out of its first half: behind it the same backwards, conjugated."""
    axis = x.type.rank - 2
    behind = length - (length // 2 + 1)
    if behind <= 0:
        return x
    back = n.emit("slice", x, starts=(behind,), ends=(0,), axes=(axis,), steps=(-1,))
    return n.emit("concat", x, n.emit("mul", back, n.constant([1, -1], x.type.dtype)), axis=axis)


def _fitted(n: Reading, x: Value, axis: int, size: int) -> Value:
    """An axis cut, or lengthened with zeros."""
    more = size - x.type.shape[axis]
    if more <= 0:
        return n.slice(x, axis, 0, size)
    pads = [0] * (2 * x.type.rank)
    pads[x.type.rank + axis] = more
    return n.emit("pad", x, n.like(x, 0), pads=tuple(pads))


@reads("DFT")
def dft(n: Reading) -> Thing | tuple[Thing, ...]:
    """Signals are [batch…, time, 1 or 2], the last axis the real and imaginary parts. The axis is an attribute before opset 20, an input since."""
    x, given = n.input(0), n.some_integers(1, "length")
    at = n.attr("axis") if n.opset < 20 else (n.some_integers(2, "axis") or (-2,))[0]
    axis, rank, inverse, half = n.axis(at, x.type.rank), x.type.rank, n.flag("inverse"), n.flag("onesided")
    if axis == rank - 1 or x.type.shape[-1] not in (1, 2):
        raise n.refuse(f"DFT needs real or complex numbers, one or two, along its last axis, and another axis to go along, got {x.type} and axis {axis}")
    size = x.type.shape[axis]
    length = given[0] if given else 2 * (size - 1) if inverse and half else size
    if not is_known(size, length) or not x.type.dtype.is_float or not 0 < length or not _possible(int(length)):
        return n.foreign()
    perm = [a for a in range(rank - 1) if a != axis] + [axis, rank - 1]
    x = _fitted(n, n.transpose(x, perm), rank - 2, length // 2 + 1 if inverse and half else length)
    if inverse and half:
        y = n.slice(_transform(n, _whole(n, x, length), length, 1.0), rank - 1, 0, 1)
    else:
        y = _transform(n, x, length // 2 + 1 if half else length, 1.0 if inverse else -1.0)
    if inverse:
        y = n.emit("mul", y, n.like(y, 1 / length))
    return n.transpose(y, [perm.index(a) for a in range(rank)])


@reads("STFT")
def stft(n: Reading) -> Thing | tuple[Thing, ...]:
    """Transforms of frames of a signal [batch, time, 1 or 2], step by step, each times the window: [batch, frames, bins, 2]."""
    x, window = n.input(0), n.optional(2)
    (step,), given = n.integers(1, "frame step"), n.some_integers(3, "frame length")
    if x.type.rank == 2:
        x = n.reshape(x, (*x.type.shape, 1))
    if window is None and given is None or x.type.rank != 3 or x.type.shape[2] not in (1, 2):
        raise n.refuse(f"STFT needs a signal [batch, time, 1 or 2], and a window or a frame length, got {x.type}")
    length = given[0] if given else window.type.size if window is not None else 0
    batch, time, parts = x.type.shape
    if not is_known(step, time, length) or not x.type.dtype.is_float or not 0 < length or not _possible(int(length)):
        return n.foreign()
    if step < 1 or length > time or window is not None and window.type.shape != (length,):
        raise n.refuse(f"STFT needs steps of 1 and more, frames no longer than the signal and a window of their length, got a step of {step}, "
                       f"frames of {length} in {time}{'' if window is None else f' and a window {window.type}'}")
    count = 1 + (time - length) // step
    if count * length > LONGEST:
        return n.foreign()
    places = step * np.arange(count)[:, None] + np.arange(length)
    frames = n.emit("gather", x, n.constant(places, I64), axis=1)
    if window is not None:
        frames = n.emit("mul", frames, n.reshape(window, (length, 1)))
    return _transform(n, frames, length // 2 + 1 if n.flag("onesided") else length, -1.0)
