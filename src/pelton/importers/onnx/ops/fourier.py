"""Readers of Fourier transforms of known lengths."""

from __future__ import annotations

import numpy as np

from pelton.importers.fourier import MAX_ELEMENTS, fit_axis, is_supported_length, mirror_spectrum, transform
from pelton.importers.onnx.node import Binding, Reading, reads
from pelton.ir.dims import is_known
from pelton.ir.types import I64


@reads("DFT")
def dft(n: Reading) -> Binding | tuple[Binding, ...]:
    """Reads signals as [batch…, time, 1 or 2], the last axis the real and imaginary parts. The axis is an attribute
    before opset 20, an input since."""
    x, dft_length = n.input(0), n.some_integers(1, "length")
    at = n.attr("axis") if n.opset < 20 else (n.some_integers(2, "axis") or (-2,))[0]
    axis, rank, inverse, half = n.axis(at, x.type.rank), x.type.rank, n.flag("inverse"), n.flag("onesided")
    if axis == rank - 1 or x.type.shape[-1] not in (1, 2):
        raise n.refuse(
            "DFT needs a last axis of size 1 (real) or 2 (complex), and another axis to transform, got"
            f" {x.type} and axis {axis}"
        )
    size = x.type.shape[axis]
    if dft_length:
        length = dft_length[0]
    else:
        length = 2 * (size - 1) if inverse and half else size
    if (
        not is_known(size, length)
        or not x.type.dtype.is_float
        or not 0 < length
        or not is_supported_length(int(length))
    ):
        return n.foreign()
    perm = [a for a in range(rank - 1) if a != axis] + [axis, rank - 1]
    x = fit_axis(n, n.transpose(x, perm), rank - 2, length // 2 + 1 if inverse and half else length)
    if inverse and half:
        y = n.slice(transform(n, mirror_spectrum(n, x, length), length, 1.0), rank - 1, 0, 1)
    else:
        y = transform(n, x, length // 2 + 1 if half else length, 1.0 if inverse else -1.0)
    if inverse:
        y = n.emit("mul", y, n.like(y, 1 / length))
    return n.transpose(y, [perm.index(a) for a in range(rank)])


@reads("STFT")
def stft(n: Reading) -> Binding | tuple[Binding, ...]:
    """Computes [batch, frames, bins, 2]: transforms of the windowed frames of a signal [batch, time, 1 or 2]."""
    x, window = n.input(0), n.optional(2)
    (step,), frame_length = n.integers(1, "frame step"), n.some_integers(3, "frame length")
    if x.type.rank == 2:
        x = n.reshape(x, (*x.type.shape, 1))
    if window is None and frame_length is None or x.type.rank != 3 or x.type.shape[2] not in (1, 2):
        raise n.refuse(f"STFT needs a signal [batch, time, 1 or 2], and a window or a frame length, got {x.type}")
    if frame_length:
        length = frame_length[0]
    else:
        length = 0 if window is None else window.type.size
    batch, time, parts = x.type.shape
    if (
        not is_known(step, time, length)
        or not x.type.dtype.is_float
        or not 0 < length
        or not is_supported_length(int(length))
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
    return transform(n, frames, length // 2 + 1 if n.flag("onesided") else length, -1.0)
