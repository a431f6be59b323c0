"""Fourier transforms of known lengths, as importers write them.

A transform is a product with a constant matrix, one per factor of its length (Cooley and Tukey 1965); large prime
lengths become convolutions of a length that has factors (Bluestein 1970).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from pelton.ir.dims import Size
from pelton.ir.graph import Value
from pelton.ir.types import DType


class OpWriter(Protocol):
    """A writer of ops: `emit` returns the value of one, `constant` that of an array of an element type."""

    def emit(self, op: str, *inputs: Value, **attrs: Any) -> Value: ...
    def constant(self, array: Any, dtype: DType) -> Value: ...


# Number of bins up to which one product is faster than factors of the length, by parts per element (1 real, 2 complex).
# 400 frames on two Zen 3 cores (one product, factors, in µs): half the bins of real 256: 318, 554; 400: 800, 1083;
# 512: 1377, 1459; 600: 1694, 1666; 768: 2875, 2044; complex 32: 46, 113; 64: 120, 155; 128: 315, 307; 256: 1314, 767.
DENSE = {1: 257, 2: 128}
# complex lengths that are factored nevertheless: ONNX's tests of length 10 expect numpy's f32 rounding errors to 1e-7
AS_NUMPY = range(9, 16)
# largest prime length of one product (one product, Bluestein, in µs; 64 complex frames): 509: 963, 1155;
# 1021: 5604, 4036; 2039: 12165, 5008
PRIME = 640
MAX_PRIME_FACTOR = 1 << 20
MAX_ELEMENTS = 1 << 24  # of a constant of angles, or of indices of frames


def _factor(n: int) -> int:
    """Returns the largest divisor up to √n; 1 for primes."""
    return next(d for d in range(math.isqrt(n), 0, -1) if n % d == 0)


def is_supported_length(n: int) -> bool:
    """True if the constants of a transform of this length stay small enough."""
    return n <= MAX_PRIME_FACTOR or n <= MAX_ELEMENTS and _factor(n) > 1 and is_supported_length(n // _factor(n))


def _angles(rows: int, columns: int, length: int) -> np.ndarray:
    """Returns 2π · row · column / length, reduced before rounding."""
    return 2 * np.pi / length * (np.outer(np.arange(rows), np.arange(columns)) % length)


def _multiply_dense(n: OpWriter, x: Value, bins: int, sign: float) -> Value:
    """Computes the first bins of the transform of [rows…, length, 1 or 2] as one matrix product: [rows…, bins, 2]."""
    *rows, length, parts = x.type.shape
    angle = _angles(length, bins, length)
    cos, sin = np.cos(angle), sign * np.sin(angle)
    w = np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)], 1)[:, :parts]
    flat = _reshape(n, x, (math.prod(rows), length * parts))
    return _reshape(
        n, n.emit("matmul", flat, n.constant(w.reshape(length * parts, bins * 2), x.type.dtype)), (*rows, bins, 2)
    )


def transform(n: OpWriter, x: Value, bins: int, sign: float) -> Value:
    """Computes the first bins of the transform of [rows…, length, 1 or 2].

    If the length has factors: transforms the columns of a matrix, rotates them by their angles, transforms its rows.
    """
    *rows, length, parts = x.type.shape
    first = _factor(length)
    if length <= PRIME if first == 1 else bins <= DENSE[parts] and not (parts == 2 and length in AS_NUMPY):
        return _multiply_dense(n, x, bins, sign)
    if first == 1:
        return _transform_bluestein(n, x, bins, sign)
    second, lead = length // first, list(range(len(rows)))
    k = len(rows)
    x = _transpose(n, _reshape(n, x, (*rows, first, second, parts)), (*lead, k + 1, k, k + 2))
    x = _multiply_complex(n, transform(n, x, first, sign), np.exp(1j * sign * _angles(second, first, length)))
    x = _transpose(n, x, (*lead, k + 1, k, k + 2))
    x = _transpose(n, transform(n, x, second, sign), (*lead, k + 1, k, k + 2))
    x = _reshape(n, x, (*rows, length, 2))
    return _slice(n, x, k, 0, bins)


def _multiply_complex(n: OpWriter, x: Value, by: np.ndarray) -> Value:
    """Multiplies complex numbers [rows…, a, b, 2] by constants [a, b]."""
    *rows, a, b, _ = x.type.shape
    table = (n.constant(part, x.type.dtype) for part in (by.real, by.imag))
    return _reshape(n, n.emit("rotary", _reshape(n, x, (*rows, a, b * 2)), *table, interleaved=True), x.type.shape)


def _transform_bluestein(n: OpWriter, x: Value, bins: int, sign: float) -> Value:
    """Computes the first bins as a convolution (Bluestein), since 2jk = j² + k² − (k − j)².

    Two transforms of a sufficient power of two, with rotations by the angles of squares around them.
    """
    *rows, length, parts = x.type.shape
    size = 1 << (2 * length - 2).bit_length()
    squares = np.arange(length) ** 2 % (2 * length)
    chirp = np.exp(1j * sign * np.pi / length * squares)
    around = np.zeros(size, complex)
    around[:length] = chirp.conj()
    around[size - length + 1 :] = chirp.conj()[:0:-1]
    axis = len(rows) + 1
    x = _reshape(n, fit_axis(n, x, axis, 2), (*rows, 1, length, 2))
    x = transform(n, fit_axis(n, _multiply_complex(n, x, chirp[None]), axis, size), size, -1.0)
    x = transform(n, _multiply_complex(n, x, np.fft.fft(around)[None] / size), size, 1.0)
    x = _multiply_complex(n, _slice(n, x, axis, 0, bins), chirp[None, :bins])
    return _reshape(n, x, (*rows, bins, 2))


def mirror_spectrum(n: OpWriter, x: Value, length: int) -> Value:
    """Completes the spectrum of a real signal from its first half by its reversed conjugate."""
    axis = x.type.rank - 2
    behind = length - (length // 2 + 1)
    if behind <= 0:
        return x
    back = n.emit("slice", x, starts=(behind,), ends=(0,), axes=(axis,), steps=(-1,))
    return n.emit("concat", x, n.emit("mul", back, n.constant([1, -1], x.type.dtype)), axis=axis)


def fit_axis(n: OpWriter, x: Value, axis: int, size: int) -> Value:
    """Crops an axis to a size, or pads it with zeros."""
    more = size - x.type.shape[axis]
    if more <= 0:
        return _slice(n, x, axis, 0, size)
    pads = [0] * (2 * x.type.rank)
    pads[x.type.rank + axis] = more
    return n.emit("pad", x, n.constant(0, x.type.dtype), pads=tuple(pads))


def _reshape(n: OpWriter, x: Value, shape: Sequence[Size]) -> Value:
    return x if tuple(shape) == x.type.shape else n.emit("reshape", x, shape=tuple(shape))


def _transpose(n: OpWriter, x: Value, perm: Sequence[int]) -> Value:
    return x if tuple(perm) == tuple(range(x.type.rank)) else n.emit("transpose", x, perm=tuple(perm))


def _slice(n: OpWriter, x: Value, axis: int, start: int, end: Size) -> Value:
    if (start, end) == (0, x.type.shape[axis]):
        return x
    return n.emit("slice", x, starts=(start,), ends=(end,), axes=(axis,), steps=(1,))
