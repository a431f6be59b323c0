"""FP8 products as such, summed in f32, for units that multiply them; their scales follow.

An H100 keeps some 14 bits of such sums. Kernels add those of each step in f32, and strict builds do not use the units.
"""

from __future__ import annotations

import numpy as np

from pelton.ir.graph import Value
from pelton.ir.types import F32, F64, DType
from pelton.ops.words import add, cast, convolution, dequantize, matmul, mul, reshape
from pelton.passes.rewriting.pattern import ANY
from pelton.passes.rewriting.rule import elements, is_constant, require, rule, when

F8 = DType.F8E4M3FN
MATRIX = dict(x="f8e4m3fn[2, 5, 12]", sx="=f32[]", w="=f8e4m3fn[12, 6]", sw="=f32[6]", wa=1, wb=0, axis=0, block=0)
IMAGE = dict(x="f8e4m3fn[2, 5, 6, 7]", sx="=f32[]", w="=f8e4m3fn[3, 5, 3, 2]", sw="=f32[3]", b="=f32[3]")
WINDOW = dict(strides=(1, 2), pads=(1, 0, 0, 1), dilations=(1, 1), group=1, wa=0, wb=0, axis=0, block=0)
NOTHING = np.zeros((), F8.numpy)


def _check(x: Value, sx: Value, zx: Value | None, w: Value, sw: Value, zw: Value | None, block: int) -> None:
    when(x.type.dtype is w.type.dtype is F8 and is_constant(w))
    require(sx.type.dtype is sw.type.dtype and sx.type.dtype in (F32, F64), "scales of few bits")
    require(sx.type.size == 1, f"%{x.name} has a scale for each channel")
    require(not block or sw.type.size == 1, "scales of blocks")
    for zero in (zx, zw):
        require(zero is None or is_constant(zero) and not elements(zero).any(), "zero points other than 0")


def _scaled(sums, sx: Value, sw: Value, shape: tuple[int, ...]):
    by = reshape(sw, shape=shape if sw.type.size != 1 else ())
    wide = sums if sx.type.dtype is F32 else cast(sums, to=F64)
    return mul(wide, mul(by, reshape(sx, shape=())))


@rule(
    lambda x, sx, w, sw, *, wa, wb: matmul(
        dequantize(x, sx, axis=ANY, block=ANY), dequantize(w, sw, axis=wa, block=wb)
    ),
    lambda x, sx, zx, w, sw, zw, *, wa, wb: matmul(
        dequantize(x, sx, zx, axis=ANY, block=ANY), dequantize(w, sw, zw, axis=wa, block=wb)
    ),
    shared=True,
    examples=[dict(MATRIX, zx=NOTHING, zw=np.zeros(6, F8.numpy)), dict(MATRIX, sw="=f32[]", zx=NOTHING, zw=NOTHING)],
    rejections=[(dict(MATRIX, axis=1, sx="=f32[5]", zx=NOTHING, zw=NOTHING), "a scale for each channel")],
)
def float8_matmul(x, sx, w, sw, zx=None, zw=None, *, axis, block, wa, wb):
    """Σ sx x · sw w = sx sw Σ x · w, for a matrix of constants."""
    _check(x, sx, zx, w, sw, zw, wb)
    require(w.type.rank == 2 and x.type.rank >= 2, "not a matrix by a matrix of constants")
    require(sw.type.size in (1, w.type.shape[1]) and (wa == 1 or sw.type.size == 1), "scales along another axis")
    return _scaled(matmul(x, w, accumulate=F32), sx, sw, (w.type.shape[1],))


@rule(
    lambda x, sx, w, sw, b, *, wa, wb, **conv: convolution(
        dequantize(x, sx, axis=ANY, block=ANY), dequantize(w, sw, axis=wa, block=wb), b, **conv
    ),
    lambda x, sx, zx, w, sw, zw, b, *, wa, wb, **conv: convolution(
        dequantize(x, sx, zx, axis=ANY, block=ANY), dequantize(w, sw, zw, axis=wa, block=wb), b, **conv
    ),
    shared=True,
    examples=[dict(IMAGE, **WINDOW, zx=NOTHING, zw=NOTHING)],
    rejections=[(dict(IMAGE, **dict(WINDOW, axis=1), sx="=f32[5]", zx=NOTHING, zw=NOTHING), "for each channel")],
)
def float8_convolution(x, sx, w, sw, b, zx=None, zw=None, *, axis, block, wa, wb, **conv):
    """Σ sx x · sw w + b = sx sw Σ x · w + b, for constant filters."""
    _check(x, sx, zx, w, sw, zw, wb)
    require(conv["group"] == 1 or w.type.shape[1] >= 16, "few channels in a group")
    require(sw.type.size in (1, w.type.shape[0]) and (wa == 0 or sw.type.size == 1), "scales along another axis")
    channels = (w.type.shape[0], *[1] * (w.type.rank - 2))
    sums = convolution(x, w, np.zeros(w.type.shape[0], np.float32), **{**conv, "accumulate": F32, "pad_value": 0})
    return add(_scaled(sums, sx, sw, channels), reshape(b, shape=channels))
