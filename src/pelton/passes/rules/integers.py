"""Products of quantized operands in integers: their sums are exact, and scales, zero points and biases follow them."""

from __future__ import annotations

import numpy as np

from pelton.ir.graph import Value
from pelton.ir.types import F32, F64, I8, I32, U8
from pelton.ops.words import (
    add,
    cast,
    concat,
    convolution,
    dequantize,
    gather,
    matmul,
    max_pool,
    mul,
    quantize,
    reshape,
    slice_,
    transpose,
)
from pelton.passes.rewriting.pattern import ANY
from pelton.passes.rewriting.rule import elements, is_constant, producer_of, require, rule, when

BYTES = (U8, I8)
# Channels of a group from which on sums of bytes are faster: with fewer, each step of four is mostly empty.
MIN_CHANNELS = 4
# Terms of a sum: 2¹⁵ · 255 · 128, twice for a zero point, fit i32.
MAX_TERMS = 1 << 15

IMAGE = dict(
    x="u8[2, 5, 6, 7]", sx="=f32[]", w="=i8[3, 5, 3, 2]", sw="=f32[3]", b="=f32[3]", wa=0, wb=0, axis=0, block=0
)
WINDOW = dict(strides=(1, 2), pads=(1, 0, 0, 1), dilations=(1, 1), group=1)
EQUAL = dict(x="u8[2, 5]", sx=np.float32(0.3), zx=np.uint8(3), s=np.float32(0.3), z=np.uint8(3), axis=0, block=0, to=U8)
MOVED = dict(x="u8[2, 3]", s=np.float32(0.3), z=np.uint8(3), da=0, db=0)
MATRIX = dict(x="u8[2, 5, 12]", sx="=f32[]", w="=i8[12, 6]", sw="=f32[6]", wa=1, wb=0, axis=0, block=0)


def _offset(zero: Value | None, x: Value) -> int:
    """The one zero point of an operand as a number."""
    if zero is None:
        return 0
    require(is_constant(zero), f"the zero point of %{x.name} is not constant")
    found = np.unique(elements(zero).astype(np.int64))
    require(found.size == 1, f"%{x.name} has several zero points")
    return int(found[0])


def _weights(w: Value, zero: Value | None, axis: int) -> np.ndarray:
    """Constant weights without their zero points, as i8."""
    array = elements(w).astype(np.int32)
    if zero is not None:
        z = elements(zero).astype(np.int32)
        array = array - (z.reshape(()) if z.size == 1 else z.reshape(-1, *[1] * (array.ndim - axis - 1)))
    require(array.size == 0 or -128 <= array.min() and array.max() <= 127, "the weights do not fit i8")
    return array.astype(np.int8)


def _check(x: Value, sx: Value, w: Value, sw: Value, block: int, terms: int) -> None:
    when(x.type.dtype in BYTES and w.type.dtype in BYTES and is_constant(w))
    require(sx.type.dtype is sw.type.dtype and sx.type.dtype in (F32, F64), "scales of few bits")
    require(sx.type.size == 1, f"%{x.name} has a scale for each channel")
    require(not block or sw.type.size == 1, "scales of blocks")
    require(terms <= MAX_TERMS, "sums may not fit i32")


def _accumulated(attrs: dict[str, object]) -> None:
    """The product is one of plain operands so far."""
    when(attrs.pop("accumulate", None) is None and attrs.pop("to", None) is None)


def _dequantized(sums, sx: Value, sw: Value, shape: tuple[int, ...]):
    """Sums by the scales of both operands; shape: of that of the weights."""
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
    ],
    rejections=[
        (dict(dict(IMAGE, axis=1), **WINDOW, sx="=f32[5]", zx=np.uint8(0), zw=np.int8(0)), "a scale for each channel"),
        (
            dict(IMAGE, **WINDOW, w=np.full((3, 5, 3, 2), 200, np.uint8), zx=np.uint8(0), zw=np.uint8(0)),
            "do not fit i8",
        ),
    ],
)
def integer_convolution(x, sx, w, sw, b, zx=None, zw=None, *, axis, block, wa, wb, **conv):
    """Σ sx (x − zx) · sw w + b = sx sw (Σ x · w − zx Σ w) + b; padding holds zx."""
    _accumulated(conv)
    _check(x, sx, w, sw, wb, w.type.size // w.type.shape[0])
    require(w.type.shape[1] >= MIN_CHANNELS or conv["group"] == 1, "few channels in a group")
    require(sw.type.size in (1, w.type.shape[0]) and (wa == 0 or sw.type.size == 1), "scales along another axis")
    offset, filters = _offset(zx, x), _weights(w, zw, 0)
    begin = -offset * filters.astype(np.int64).sum(tuple(range(1, filters.ndim)))
    sums = convolution(x, filters, begin.astype(np.int32), **{**conv, "accumulate": I32, "pad_value": offset})
    channels = (w.type.shape[0], *[1] * (w.type.rank - 2))
    return add(_dequantized(sums, sx, sw, channels), reshape(b, shape=channels))


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
    rejections=[(dict(MATRIX, w=np.full((12, 6), 200, np.uint8), zx=np.uint8(0), zw=np.uint8(0)), "do not fit i8")],
)
def integer_matmul(x, sx, w, sw, zx=None, zw=None, *, axis, block, wa, wb):
    """Σ sx (x − zx) · sw w = sx sw (Σ x · w − zx Σ w), for a matrix of constants."""
    _check(x, sx, w, sw, wb, w.type.shape[0])
    require(w.type.rank == 2 and x.type.rank >= 2, "not a matrix by a matrix of constants")
    require(sw.type.size in (1, w.type.shape[1]) and (wa == 1 or sw.type.size == 1), "scales along another axis")
    offset, columns = _offset(zx, x), _weights(w, zw, 1)
    sums = matmul(x, columns, accumulate=I32)
    if offset:
        sums = add(sums, (-offset * columns.astype(np.int64).sum(0)).astype(np.int32))
    return _dequantized(sums, sx, sw, (w.type.shape[1],))


def _alike(*pairs: tuple[Value | None, Value | None]) -> bool:
    """Whether scales and zero points are equal constants of one number."""
    for a, b in pairs:
        if a is b:
            continue
        if a is None or b is None or not is_constant(a, b):
            return False
        if a.type.size != 1 or b.type.size != 1 or elements(a).reshape(()) != elements(b).reshape(()):
            return False
    return all(a is None or a.type.size == 1 for a, _ in pairs)


@rule(
    lambda x, sx, s, *, to: quantize(dequantize(x, sx, axis=ANY, block=ANY), s, axis=ANY, block=ANY, to=to),
    lambda x, sx, zx, s, z, *, to: quantize(
        dequantize(x, sx, zx, axis=ANY, block=ANY), s, z, axis=ANY, block=ANY, to=to
    ),
    shared=True,
    examples=[EQUAL],
    rejections=[(dict(EQUAL, s=np.float32(0.4)), "quantized to another scale")],
)
def quantize_dequantized(x, sx, s, zx=None, z=None, *, axis, block, to):
    """What is quantized as it was before it was dequantized is what it was."""
    when(x.type.dtype is to)
    require(_alike((sx, s), (zx, z)), "quantized to another scale")
    return x


@rule(
    lambda x, s, **window: max_pool(dequantize(x, s, axis=ANY, block=ANY), **window),
    lambda x, s, z, **window: max_pool(dequantize(x, s, z, axis=ANY, block=ANY), **window),
    shared=True,
    examples=[
        dict(
            **dict(x="u8[2, 5, 6, 7]", s=np.float32(0.3), z=np.uint8(3), axis=0, block=0),
            **dict(kernel=(3, 2), strides=(1, 2), pads=(1, 0, 0, 1), dilations=(1, 1)),
        )
    ],
)
def pool_before_dequantize(x, s, z=None, *, axis, block, **window):
    """The largest of what is dequantized is the largest, dequantized, as scales are positive."""
    when(x.type.dtype in BYTES and s.type.size == 1 and is_constant(s) and (z is None or z.type.size == 1))
    when(float(elements(s).reshape(())) > 0)
    return dequantize(max_pool(x, **window), s, *([] if z is None else [z]))


@rule(
    lambda *xs, axis: concat(*xs, axis=axis),
    shared=True,
    examples=[
        dict(
            xs=[
                dequantize("u8[2, 3]", np.float32(0.3), np.uint8(3)),
                dequantize("u8[2, 5]", np.float32(0.3), np.uint8(3)),
            ],
            axis=1,
        )
    ],
)
def concat_before_dequantize(*xs, axis):
    """Parts of one scale are joined as bytes."""
    makers = [producer_of(x) for x in xs]
    when(all(m is not None and m.op is dequantize and m.inputs[0].type.dtype in BYTES for m in makers))
    first = makers[0].inputs
    when(all(len(m.inputs) == len(first) and m.inputs[0].type.dtype is first[0].type.dtype for m in makers))
    when(all(_alike(*zip(m.inputs[1:], first[1:])) for m in makers))
    return dequantize(concat(*(m.inputs[0] for m in makers), axis=axis), *first[1:])


@rule(
    lambda x, s, *, da, db, shape: reshape(dequantize(x, s, axis=da, block=db), shape=shape),
    lambda x, s, z, *, da, db, shape: reshape(dequantize(x, s, z, axis=da, block=db), shape=shape),
    lambda x, s, *, da, db, perm: transpose(dequantize(x, s, axis=da, block=db), perm=perm),
    lambda x, s, z, *, da, db, perm: transpose(dequantize(x, s, z, axis=da, block=db), perm=perm),
    lambda x, s, i, *, da, db, axis: gather(dequantize(x, s, axis=da, block=db), i, axis=axis),
    lambda x, s, z, i, *, da, db, axis: gather(dequantize(x, s, z, axis=da, block=db), i, axis=axis),
    lambda x, s, *, da, db, starts, ends, axes, steps: slice_(
        dequantize(x, s, axis=da, block=db), starts=starts, ends=ends, axes=axes, steps=steps
    ),
    lambda x, s, z, *, da, db, starts, ends, axes, steps: slice_(
        dequantize(x, s, z, axis=da, block=db), starts=starts, ends=ends, axes=axes, steps=steps
    ),
    shared=True,
    examples=[
        dict(MOVED, shape=(3, 2)),
        dict(MOVED, perm=(1, 0)),
        dict(MOVED, i=np.array([1, 0, 1]), axis=0),
        dict(MOVED, starts=(1,), ends=(3,), axes=(1,), steps=(1,)),
    ],
)
def move_before_dequantize(x, s, z=None, i=None, *, da, db, node, **attrs):
    """Bytes are moved and picked before they are dequantized."""
    when(x.type.dtype in BYTES and s.type.size == 1 and (z is None or z.type.size == 1))
    return dequantize(node.op(x, *([] if i is None else [i]), **attrs), s, *([] if z is None else [z]))
