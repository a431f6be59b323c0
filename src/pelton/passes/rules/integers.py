"""Products of quantized operands in integers: their sums are exact, and scales, zero points and biases follow them."""

from __future__ import annotations

from typing import Any

import numpy as np

from pelton.ir.dims import bounds
from pelton.ir.graph import Value
from pelton.ir.types import F32, F64, I8, I32, U8
from pelton.ops.op import TermLike
from pelton.ops.words import (
    add,
    cast,
    convolution,
    dequantize,
    matmul,
    mul,
    reshape,
    sub,
)
from pelton.passes.rewriting.pattern import ANY
from pelton.passes.rewriting.rule import elements, is_constant, is_filled_with, producer_of, require, rule, when

BYTES = (U8, I8)
# Minimum channels of a group for faster sums of bytes: with fewer, each step of four is mostly empty.
MIN_CHANNELS = 4
# Limit of weights beyond i8, which kernels add one by one: so many, plus one of so many.
FEW, MANY = 4, 256
# Terms of a sum: 2¹⁵ · 255 · 128, twice for a zero point, fit i32.
MAX_TERMS = 1 << 15
# The same for products of two differences of bytes.
MAX_TERMS_OF_DIFFERENCES = (2**31 - 1) // 255**2

IMAGE = dict(
    x="u8[2, 5, 6, 7]", sx="=f32[]", w="=i8[3, 5, 3, 2]", sw="=f32[3]", b="=f32[3]", wa=0, wb=0, axis=0, block=0
)
WINDOW = dict(strides=(1, 2), pads=(1, 0, 0, 1), dilations=(1, 1), group=1)
DEPTHWISE = dict(x="u8[2, 3, 6, 7]", w="=i8[3, 1, 3, 2]")
SUMMED = dict(
    sx=np.array([0.5], np.float32),
    sw=np.array([0.25, 1, 3], np.float32),
    b=dequantize(np.array([70, -9, 3], np.int32), np.array([0.125, 0.5, 1.5], np.float32)),
)
SOME_WIDE = [np.random.default_rng(0).integers(-130, 129, shape).astype(np.int32) for shape in ((12, 6), (3, 5, 3, 2))]
MANY_WIDE = [w * 5 // 6 + 100 for w in SOME_WIDE]
COMPUTED = dict(
    **dict(x="u8[2, 5, 12]", sx="=f32[]", zx=np.uint8(255), xa=0, xb=0),
    **dict(y="i8[2, 12, 7]", sy="=f32[1]", zy=np.int8(-128), ya=0, yb=0),
)
MATRIX = dict(x="u8[2, 5, 12]", sx="=f32[]", w="=i8[12, 6]", sw="=f32[6]", wa=1, wb=0, axis=0, block=0)


def _weights(w: Value, zero: Value | None, axis: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns constant weights without their zero points, as i8, and offsets of each output on that axis, if not 0.

    A few weights that do not fit make them i16: kernels add these separately.
    """
    array = elements(w).astype(np.int32)
    if zero is not None:
        z = elements(zero).astype(np.int32)
        array = array - (z.reshape(()) if z.size == 1 else z.reshape(-1, *[1] * (array.ndim - axis - 1)))
    others = tuple(a for a in range(array.ndim) if a != axis)
    low, high = array.min(others, initial=0), array.max(others, initial=0)
    beyond = int(np.count_nonzero((array < -128) | (array > 127)))
    require(bool((low >= -256).all() and (high <= 255).all()), "the weights do not fit 9 bits")
    if beyond <= FEW + array.size // MANY:
        return array.astype(np.int16 if beyond else np.int8), None
    require(bool((high - low <= 255).all()), "the weights of an output do not fit 8 bits")
    offsets = np.where((low < -128) | (high > 127), (low + high + 1) // 2, 0)
    return (array - offsets.reshape(-1, *[1] * (array.ndim - axis - 1))).astype(np.int8), offsets.astype(np.int32)


def _filters(w: Value, zero: Value | None, depthwise: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns filters like `_weights`; where each channel has its own, kernels take any that are i16."""
    filters, offsets = _weights(w, zero, 0)
    if not depthwise or offsets is None:
        return filters, offsets
    return filters + offsets.reshape(-1, *[1] * (filters.ndim - 1)).astype(np.int16), None


def _one_zero(zero: Value | None, x: Value) -> TermLike:
    """Returns the single zero point of an operand: a number if it is constant, else a value of rank 0."""
    if zero is None:
        return 0
    if not is_constant(zero):
        require(zero.type.size == 1, f"%{x.name} has several zero points")
        return reshape(zero, shape=())
    points = np.unique(elements(zero).astype(np.int64))
    require(points.size == 1, f"%{x.name} has several zero points")
    return int(points[0])


def _rows(x: Value, zero, columns: np.ndarray, offsets: np.ndarray | None = None):
    """Builds Σ (x − zero) · (w + offset) in i32; zero: a number, or a value that is one number or one per row."""
    sums, of_columns = matmul(x, columns, accumulate=I32), columns.astype(np.int64).sum(0)
    if not isinstance(zero, int):
        sums = sub(sums, mul(_wide(zero), of_columns.astype(np.int32)))
    elif zero:
        sums = add(sums, (-zero * of_columns).astype(np.int32))
    return sums if offsets is None else add(sums, mul(_rows(x, zero, np.ones((len(columns), 1), np.int8)), offsets))


def _windows(x: Value, zero, bias: Value | None, conv: dict[str, Any], filters: np.ndarray, offsets=None):
    """Builds bias + Σ (x − zero) · (w + offset) in i32, padding as zero; zero: a number or a value of x's type."""
    sums, attrs = -filters.astype(np.int64).sum(tuple(range(1, filters.ndim))), {**conv, "accumulate": I32}
    if isinstance(zero, int):
        constants = zero * sums + (0 if bias is None else elements(bias).astype(np.int64))
        y = convolution(x, filters, constants.astype(np.int32), **attrs, pad_value=zero)
    else:
        begin = mul(_wide(zero), sums.astype(np.int32))
        begin = begin if bias is None or is_filled_with(bias, 0) else add(begin, bias)
        y = convolution(x, filters, begin, *([zero] if any(conv["pads"]) else []), **attrs)
    if offsets is None:
        return y
    require(conv["group"] == 1, "the weights do not fit i8")
    whole = _windows(x, zero, None, conv, np.ones((1, *filters.shape[1:]), np.int8))
    return add(y, mul(whole, offsets.reshape(-1, *[1] * (filters.ndim - 2))))


def _wide(v):
    return v if isinstance(v, Value) and v.type.dtype is I32 else cast(v, to=I32)


def _check(x: Value, sx: Value, w: Value, sw: Value, block: int, terms: int) -> None:
    when(x.type.dtype in BYTES and w.type.dtype in BYTES and is_constant(w))
    require(sx.type.dtype is sw.type.dtype and sx.type.dtype in (F32, F64), "scales of few bits")
    require(sx.type.size == 1, f"%{x.name} has a scale for each channel")
    require(not block or sw.type.size == 1, "scales of blocks")
    require(terms <= MAX_TERMS, "sums may not fit i32")


def _accumulated(attrs: dict[str, object]) -> None:
    """Skips products that already have an accumulator type, an output type or a pad value."""
    when(attrs.pop("accumulate", None) is attrs.pop("to", None) is None and not attrs.pop("pad_value", 0))


def _summed_bias(b: Value, x: Value, zero, filters: np.ndarray, offsets, sx: Value, sw: Value) -> Value | None:
    """Returns a bias in units of its sums, as quantizers write it, if none of these sums exceeds i32."""
    made = producer_of(b)
    if made is None or made.op is not dequantize or not is_constant(*made.inputs, sx, sw) or not isinstance(zero, int):
        return None
    q, scale, *zeros = made.inputs
    if q.type.dtype is not I32 or scale.type.size not in (1, q.type.size) or any(elements(z).any() for z in zeros):
        return None
    unit = elements(sx).astype(np.float64).reshape(()) * elements(sw).astype(np.float64).reshape(-1)
    if np.abs(elements(scale).reshape(-1) - unit).max() > 2.0**-22 * np.abs(unit).min():
        return None
    most = 2 * max(abs(x.type.dtype.lowest), x.type.dtype.highest)  # of an element, and of the zero point
    weights = np.abs(filters.astype(np.int64)) + (0 if offsets is None else np.abs(offsets).max())
    largest = most * weights.sum(tuple(range(1, filters.ndim)))
    return q if (np.abs(elements(q).astype(np.int64)) + largest).max(initial=0) < 1 << 31 else None


def _dequantized(sums, sx: Value, sw: Value, shape: tuple[int, ...]):
    """Scales sums by the scales of both operands; shape: of the weights' scale."""
    by = reshape(sw, shape=shape if sw.type.size != 1 else ())
    return mul(cast(sums, to=sx.type.dtype), mul(by, reshape(sx, shape=())))


@rule(
    lambda x, sx, w, sw, b, *, wa, wb, **conv: convolution(
        dequantize(x, sx, axis=ANY, block=ANY), dequantize(w, sw, axis=wa, block=wb), b, **conv
    ),
    lambda x, sx, zx, w, sw, b, *, wa, wb, **conv: convolution(
        dequantize(x, sx, zx, axis=ANY, block=ANY), dequantize(w, sw, axis=wa, block=wb), b, **conv
    ),
    lambda x, sx, w, sw, zw, b, *, wa, wb, **conv: convolution(
        dequantize(x, sx, axis=ANY, block=ANY), dequantize(w, sw, zw, axis=wa, block=wb), b, **conv
    ),
    lambda x, sx, zx, w, sw, zw, b, *, wa, wb, **conv: convolution(
        dequantize(x, sx, zx, axis=ANY, block=ANY), dequantize(w, sw, zw, axis=wa, block=wb), b, **conv
    ),
    shared=True,
    examples=[
        dict(IMAGE, **WINDOW, zx=np.uint8(3), zw=np.zeros(3, np.int8)),
        dict(
            IMAGE, **dict(WINDOW, pads=(0, 0, 0, 0)), sw="=f32[]", x="i8[2, 5, 6, 7]", zx=np.int8(-128), zw=np.int8(1)
        ),
        dict({**IMAGE, **WINDOW, **DEPTHWISE}, group=3, zx=np.uint8(9), zw=np.zeros(3, np.int8)),
        dict({**IMAGE, **WINDOW, **SUMMED}, zx=np.uint8(9), zw=np.zeros(3, np.int8)),
    ],
    rejections=[
        (
            dict({**IMAGE, **WINDOW}, group=3, x="u8[2, 6, 6, 7]", w="=i8[3, 2, 3, 2]", zx=np.uint8(9), zw=np.int8(0)),
            "few channels in a group",
        ),
        (dict(dict(IMAGE, axis=1), **WINDOW, sx="=f32[5]", zx=np.uint8(0), zw=np.int8(0)), "a scale for each channel"),
        (
            dict(
                dict(IMAGE, x="u8[2, 10, 6, 7]", w=np.full((4, 5, 3, 2), 200, np.uint8), sw="=f32[]", b="=f32[4]"),
                **dict(WINDOW, group=2),
                **dict(zx=np.uint8(0), zw=np.uint8(0)),
            ),
            "do not fit i8",
        ),
    ],
)
def integer_convolution(x, sx, w, sw, b, zx=None, zw=None, *, axis, block, wa, wb, **conv):
    """Σ sx (x − zx) · sw w + b = sx sw (Σ x · w − zx Σ w) + b; padding holds zx."""
    _accumulated(conv)
    _check(x, sx, w, sw, wb, w.type.size // w.type.shape[0])
    depthwise = conv["group"] == w.type.shape[0] == x.type.shape[1]  # it has its own kernel
    require(w.type.shape[1] >= MIN_CHANNELS or conv["group"] == 1 or depthwise, "few channels in a group")
    require(sw.type.size in (1, w.type.shape[0]) and (wa == 0 or sw.type.size == 1), "scales along another axis")
    zero, (filters, offsets) = _one_zero(zx, x), _filters(w, zw, depthwise)
    summed = _summed_bias(b, x, zero, filters, offsets, sx, sw)
    channels = (w.type.shape[0], *[1] * (w.type.rank - 2))
    y = _dequantized(_windows(x, zero, summed, conv, filters, offsets), sx, sw, channels)
    return y if summed is not None else add(y, reshape(b, shape=channels))


@rule(
    lambda x, sx, w, sw, *, wa, wb: matmul(
        dequantize(x, sx, axis=ANY, block=ANY), dequantize(w, sw, axis=wa, block=wb)
    ),
    lambda x, sx, zx, w, sw, *, wa, wb: matmul(
        dequantize(x, sx, zx, axis=ANY, block=ANY), dequantize(w, sw, axis=wa, block=wb)
    ),
    lambda x, sx, w, sw, zw, *, wa, wb: matmul(
        dequantize(x, sx, axis=ANY, block=ANY), dequantize(w, sw, zw, axis=wa, block=wb)
    ),
    lambda x, sx, zx, w, sw, zw, *, wa, wb: matmul(
        dequantize(x, sx, zx, axis=ANY, block=ANY), dequantize(w, sw, zw, axis=wa, block=wb)
    ),
    shared=True,
    examples=[
        dict(MATRIX, zx=np.uint8(3), zw=np.zeros(6, np.int8)),
        dict(MATRIX, sw="=f32[]", x="i8[5, 12]", zx=np.int8(-128), zw=np.int8(1)),
    ],
    rejections=[(dict(MATRIX, axis=1, sx="=f32[5]", zx=np.uint8(0), zw=np.int8(0)), "a scale for each channel")],
)
def integer_matmul(x, sx, w, sw, zx=None, zw=None, *, axis, block, wa, wb):
    """Σ sx (x − zx) · sw w = sx sw (Σ x · w − zx Σ w), for a matrix of constants."""
    _check(x, sx, w, sw, wb, w.type.shape[0])
    require(w.type.rank == 2 and x.type.rank >= 2, "not a matrix by a matrix of constants")
    require(sw.type.size in (1, w.type.shape[1]) and (wa == 1 or sw.type.size == 1), "scales along another axis")
    sums = _rows(x, _one_zero(zx, x), *_weights(w, zw, 1))
    return _dequantized(sums, sx, sw, (w.type.shape[1],))


@rule(
    *[
        lambda x, sx, zx, y, sy, zy, *, xa, xb, ya, yb, zeros=zeros: matmul(
            dequantize(x, sx, *[zx][: zeros[0]], axis=xa, block=xb),
            dequantize(y, sy, *[zy][: zeros[1]], axis=ya, block=yb),
        )
        for zeros in np.ndindex(2, 2)
    ],
    stage="computed_integers",
    shared=True,
    examples=[COMPUTED, dict(COMPUTED, x="i8[5, 12]", zx=np.int8(-128), y="u8[3, 1, 12, 1]", zy=np.uint8(7))],
    rejections=[
        (dict(COMPUTED, sx="=f32[5]", zx=np.zeros(5, np.uint8), xa=1), "has a scale for each channel"),
        (dict(COMPUTED, x="u8[12]"), "an operand is a vector"),
        (dict(COMPUTED, x="u8[1, 33026]", y="i8[33026, 1]"), "sums may not fit i32"),
    ],
)
def integer_matmul_of_computed(x, sx, y, sy, zx=None, zy=None):
    """Σ sx (x − zx) · sy (y − zy) = sx sy Σ (x − zx) (y − zy)"""
    when(x.type.dtype in BYTES and y.type.dtype in BYTES and not is_constant(y))
    require(sx.type.dtype is sy.type.dtype and sx.type.dtype in (F32, F64), "scales of few bits")
    for v, scale in ((x, sx), (y, sy)):
        require(scale.type.size == 1, f"%{v.name} has a scale for each channel")
    require(min(x.type.rank, y.type.rank) >= 2, "an operand is a vector")
    require(bounds(x.type.shape[-1])[1] <= MAX_TERMS_OF_DIFFERENCES, "sums may not fit i32")
    zeros = [_one_zero(zero, v) for v, zero in ((x, zx), (y, zy))]
    require(all(isinstance(zero, int) for zero in zeros), "computed zero points")
    return _dequantized(matmul(x, y, accumulate=I32, a_zero=zeros[0], b_zero=zeros[1]), sx, sy, ())


@rule(
    lambda x, w: matmul(cast(x, to=I32), w),
    lambda x, u, w: matmul(sub(cast(x, to=I32), cast(u, to=I32)), w),
    lambda x, z, w: matmul(sub(cast(x, to=I32), z), w),
    shared=True,
    examples=[
        dict(x="u8[2, 5, 12]", w=SOME_WIDE[0]),
        dict(x="u8[2, 5, 12]", u="u8[]", w=SOME_WIDE[0]),
        dict(x="i8[5, 12]", z=np.int32(-128), w=SOME_WIDE[0]),
        dict(x="u8[2, 5, 12]", z="i32[5, 1]", w=SOME_WIDE[0]),
        dict(x="u8[2, 5, 12]", z="i32[5, 1]", w=MANY_WIDE[0]),
    ],
    rejections=[
        (dict(x="u8[5, 12]", u="u8[]", z=np.int32(3), w=np.full((12, 6), 256, np.int32)), "do not fit 9 bits"),
        (dict(x="u8[5, 12]", u="u8[]", z=np.int32(3), w="=i32[2, 12, 6]"), "not a matrix by a matrix"),
    ],
)
def integer_matmul_of_differences(x, w, u=None, z=None):
    """Σ (x − z) · w = Σ x · w − z Σ w, of bytes x and a matrix of constants."""
    when(x.type.dtype in BYTES and w.type.dtype is I32 and is_constant(w))
    require(w.type.rank == 2 and x.type.rank >= 2, "not a matrix by a matrix of constants")
    zero = z if u is None else u
    if zero is None or zero.type.size == 1:
        return _rows(x, _one_zero(zero, x), *_weights(w, None, 1))
    require(zero.type.rank <= x.type.rank and zero.type.shape[-1] == 1, "a zero point for each element of a row")
    return _rows(x, zero, *_weights(w, None, 1))


@rule(
    lambda x, w, b, **conv: convolution(cast(x, to=I32), w, b, **conv),
    lambda x, u, w, b, **conv: convolution(sub(cast(x, to=I32), cast(u, to=I32)), w, b, **conv),
    lambda x, z, w, b, **conv: convolution(sub(cast(x, to=I32), z), w, b, **conv),
    shared=True,
    examples=[
        dict(x="u8[2, 5, 6, 7]", w=SOME_WIDE[1], b="=i32[3]", **WINDOW),
        dict(x="u8[2, 5, 6, 7]", u="u8[]", w=SOME_WIDE[1], b="=i32[3]", **WINDOW),
        dict(x="i8[2, 5, 6, 7]", z=np.int32(-128), w=SOME_WIDE[1], b=np.zeros(3, np.int32), **WINDOW),
        dict(x="u8[2, 5, 6, 7]", u="u8[]", w=MANY_WIDE[1], b="=i32[3]", **WINDOW),
    ],
    rejections=[
        (
            dict(x="u8[2, 5, 6, 7]", u="u8[]", z=np.int32(3), w=100 * SOME_WIDE[1], b="=i32[3]", **WINDOW),
            "the weights do not fit 9 bits",
        ),
    ],
)
def integer_convolution_of_differences(x, w, b, u=None, z=None, **conv):
    """b + Σ (x − z) · w = b − z Σ w + Σ x · w, of bytes x and constant filters; padding holds z."""
    _accumulated(conv)
    when(x.type.dtype in BYTES and w.type.dtype is I32 and is_constant(w))
    zero, like = _one_zero(z if u is None else u, x), x.type.dtype
    if isinstance(zero, int):
        require(like.lowest <= zero <= like.highest, f"its zero point is no number of {like.value}")
    else:
        require(u is not None and u.type.dtype is like, f"its zero point is not of type {like.value}")
    return _windows(x, zero, b, conv, *_filters(w, None, conv["group"] == w.type.shape[0] == x.type.shape[1]))
