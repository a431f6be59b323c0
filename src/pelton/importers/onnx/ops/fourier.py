"""Readers of Fourier transforms of known lengths.

A transform is a product with a constant matrix, one per factor of its length (Cooley and Tukey 1965); large prime
lengths become convolutions of a length that has factors (Bluestein 1970).
"""

from __future__ import annotations

import math

import numpy as np

from pelton.ir.dims import is_known
from pelton.ir.graph import Value
from pelton.ir.types import I64

from pelton.importers.onnx.node import Reading, Binding, reads

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
    """The largest divisor up to √n; 1 of primes."""
    return next(d for d in range(math.isqrt(n), 0, -1) if n % d == 0)


def _is_supported_length(n: int) -> bool:
    """Whether the constants of a transform of this length stay small enough."""
    return n <= MAX_PRIME_FACTOR or n <= MAX_ELEMENTS and _factor(n) > 1 and _is_supported_length(n // _factor(n))


def _angles(rows: int, columns: int, length: int) -> np.ndarray:
    """2π · row · column / length, reduced before it is rounded."""
    return 2 * np.pi / length * (np.outer(np.arange(rows), np.arange(columns)) % length)


def _multiply_dense(n: Reading, x: Value, bins: int, sign: float) -> Value:
    """The first bins of the transform of [rows…, length, 1 or 2] as one product of matrices: [rows…, bins, 2]."""
    *rows, length, parts = x.type.shape
    angle = _angles(length, bins, length)
    cos, sin = np.cos(angle), sign * np.sin(angle)
    w = np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)], 1)[:, :parts]
    flat = n.reshape(x, (math.prod(rows), length * parts))
    return n.reshape(
        n.emit("matmul", flat, n.constant(w.reshape(length * parts, bins * 2), x.type.dtype)), (*rows, bins, 2)
    )


def _transform(n: Reading, x: Value, bins: int, sign: float) -> Value:
    """The first bins of the transform of [rows…, length, 1 or 2].

    Where the length has factors: transforms the columns of a matrix, rotates them by their angles, transforms its rows.
    """
    *rows, length, parts = x.type.shape
    first = _factor(length)
    if length <= PRIME if first == 1 else bins <= DENSE[parts] and not (parts == 2 and length in AS_NUMPY):
        return _multiply_dense(n, x, bins, sign)
    if first == 1:
        return _transform_bluestein(n, x, bins, sign)
    second, lead = length // first, list(range(len(rows)))
    k = len(rows)
    x = n.transpose(n.reshape(x, (*rows, first, second, parts)), (*lead, k + 1, k, k + 2))
    x = _multiply_complex(n, _transform(n, x, first, sign), np.exp(1j * sign * _angles(second, first, length)))
    x = n.transpose(x, (*lead, k + 1, k, k + 2))
    x = n.transpose(_transform(n, x, second, sign), (*lead, k + 1, k, k + 2))
    x = n.reshape(x, (*rows, length, 2))
    return n.slice(x, k, 0, bins)


def _multiply_complex(n: Reading, x: Value, by: np.ndarray) -> Value:
    """Multiplies complex numbers [rows…, a, b, 2] by constants [a, b]."""
    *rows, a, b, _ = x.type.shape
    table = (n.constant(part, x.type.dtype) for part in (by.real, by.imag))
    return n.reshape(n.emit("rotary", n.reshape(x, (*rows, a, b * 2)), *table, interleaved=True), x.type.shape)


def _transform_bluestein(n: Reading, x: Value, bins: int, sign: float) -> Value:
    """The first bins as a convolution (Bluestein), since 2jk = j² + k² − (k − j)².

    Two transforms of a power of two that is long enough, with rotations by the angles of squares around them.
    """
    *rows, length, parts = x.type.shape
    size = 1 << (2 * length - 2).bit_length()
    squares = np.arange(length) ** 2 % (2 * length)
    chirp = np.exp(1j * sign * np.pi / length * squares)
    around = np.zeros(size, complex)
    around[:length] = chirp.conj()
    around[size - length + 1 :] = chirp.conj()[:0:-1]
    axis = len(rows) + 1
    x = n.reshape(_fit_axis(n, x, axis, 2), (*rows, 1, length, 2))
    x = _transform(n, _fit_axis(n, _multiply_complex(n, x, chirp[None]), axis, size), size, -1.0)
    x = _transform(n, _multiply_complex(n, x, np.fft.fft(around)[None] / size), size, 1.0)
    x = _multiply_complex(n, n.slice(x, axis, 0, bins), chirp[None, :bins])
    return n.reshape(x, (*rows, bins, 2))


def _mirror_spectrum(n: Reading, x: Value, length: int) -> Value:
    """Completes the spectrum of a real signal from its first half by its reversed conjugate."""
    axis = x.type.rank - 2
    behind = length - (length // 2 + 1)
    if behind <= 0:
        return x
    back = n.emit("slice", x, starts=(behind,), ends=(0,), axes=(axis,), steps=(-1,))
    return n.emit("concat", x, n.emit("mul", back, n.constant([1, -1], x.type.dtype)), axis=axis)


def _fit_axis(n: Reading, x: Value, axis: int, size: int) -> Value:
    """Crops an axis to a size, or pads it with zeros."""
    more = size - x.type.shape[axis]
    if more <= 0:
        return n.slice(x, axis, 0, size)
    pads = [0] * (2 * x.type.rank)
    pads[x.type.rank + axis] = more
    return n.emit("pad", x, n.like(x, 0), pads=tuple(pads))


@reads("DFT")
def dft(n: Reading) -> Binding | tuple[Binding, ...]:
    """Signals are [batch…, time, 1 or 2], the last axis the real and imaginary parts. The axis is an attribute before
    opset 20, an input since."""
    x, given = n.input(0), n.some_integers(1, "length")
    at = n.attr("axis") if n.opset < 20 else (n.some_integers(2, "axis") or (-2,))[0]
    axis, rank, inverse, half = n.axis(at, x.type.rank), x.type.rank, n.flag("inverse"), n.flag("onesided")
    if axis == rank - 1 or x.type.shape[-1] not in (1, 2):
        raise n.refuse(
            "DFT needs a last axis of size 1 (real) or 2 (complex), and another axis to transform, got"
            f" {x.type} and axis {axis}"
        )
    size = x.type.shape[axis]
    if given:
        length = given[0]
    else:
        length = 2 * (size - 1) if inverse and half else size
    if (
        not is_known(size, length)
        or not x.type.dtype.is_float
        or not 0 < length
        or not _is_supported_length(int(length))
    ):
        return n.foreign()
    perm = [a for a in range(rank - 1) if a != axis] + [axis, rank - 1]
    x = _fit_axis(n, n.transpose(x, perm), rank - 2, length // 2 + 1 if inverse and half else length)
    if inverse and half:
        y = n.slice(_transform(n, _mirror_spectrum(n, x, length), length, 1.0), rank - 1, 0, 1)
    else:
        y = _transform(n, x, length // 2 + 1 if half else length, 1.0 if inverse else -1.0)
    if inverse:
        y = n.emit("mul", y, n.like(y, 1 / length))
    return n.transpose(y, [perm.index(a) for a in range(rank)])


@reads("STFT")
def stft(n: Reading) -> Binding | tuple[Binding, ...]:
    """[batch, frames, bins, 2]: transforms of the windowed frames of a signal [batch, time, 1 or 2]."""
    x, window = n.input(0), n.optional(2)
    (step,), given = n.integers(1, "frame step"), n.some_integers(3, "frame length")
    if x.type.rank == 2:
        x = n.reshape(x, (*x.type.shape, 1))
    if window is None and given is None or x.type.rank != 3 or x.type.shape[2] not in (1, 2):
        raise n.refuse(f"STFT needs a signal [batch, time, 1 or 2], and a window or a frame length, got {x.type}")
    if given:
        length = given[0]
    else:
        length = 0 if window is None else window.type.size
    batch, time, parts = x.type.shape
    if (
        not is_known(step, time, length)
        or not x.type.dtype.is_float
        or not 0 < length
        or not _is_supported_length(int(length))
    ):
        return n.foreign()
    if step < 1 or length > time or window is not None and window.type.shape != (length,):
        raise n.refuse(
            "STFT needs steps of at least 1, frames no longer than the signal and a window of their length, got a step"
            f" of {step}, frames of {length} in {time}{'' if window is None else f' and a window {window.type}'}"
        )
    count = 1 + (time - length) // step
    if count * length > MAX_ELEMENTS:
        return n.foreign()
    indices = step * np.arange(count)[:, None] + np.arange(length)
    frames = n.emit("gather", x, n.constant(indices, I64), axis=1)
    if window is not None:
        frames = n.emit("mul", frames, n.reshape(window, (length, 1)))
    return _transform(n, frames, length // 2 + 1 if n.flag("onesided") else length, -1.0)
