"""Moves, pools, joins and averages quantized bytes directly: the dequantize comes later."""

from __future__ import annotations

import math

import numpy as np

from pelton.ir.dims import is_known
from pelton.ir.graph import Value
from pelton.ir.types import I8, U8, DType
from pelton.ops.words import (
    add,
    byte_sum,
    cast,
    concat,
    dequantize,
    div,
    gather,
    max_pool,
    mul,
    quantize,
    reduce_mean,
    reshape,
    slice_,
    transpose,
)
from pelton.passes.rewriting.pattern import ANY
from pelton.passes.rewriting.rule import elements, is_constant, producer_of, require, rule, uses, when

BYTES = (U8, I8)
MAX_SUMMED = (2**31 - 1) // (2 * 255)  # bytes of a sum that fits i32, with and without its zero points
MOVED_TYPES = (*BYTES, DType.F8E4M3FN)
EQUAL = dict(x="u8[2, 5]", sx=np.float32(0.3), zx=np.uint8(3), s=np.float32(0.3), z=np.uint8(3), axis=0, block=0, to=U8)
MOVED = dict(x="u8[2, 3]", s=np.float32(0.3), z=np.uint8(3), da=0, db=0)


def _alike(*pairs: tuple[Value | None, Value | None]) -> bool:
    """True if scales and zero points are equal constants of one number."""
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
    """Quantizing a dequantized value with the same scale returns the original."""
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
    """Max pooling comes before dequantizing, as scales are positive."""
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
    """Dequantized parts of one scale are concatenated as bytes."""
    makers = [producer_of(x) for x in xs]
    when(all(m is not None and m.op is dequantize and m.inputs[0].type.dtype in BYTES for m in makers))
    first = makers[0].inputs
    when(all(len(m.inputs) == len(first) and m.inputs[0].type.dtype is first[0].type.dtype for m in makers))
    when(all(_alike(*zip(m.inputs[1:], first[1:])) for m in makers))
    return dequantize(concat(*(m.inputs[0] for m in makers), axis=axis), *first[1:])


@rule(
    lambda x, s, *, to: quantize(x, s, axis=ANY, block=ANY, to=to),
    lambda x, s, z, *, to: quantize(x, s, z, axis=ANY, block=ANY, to=to),
    examples=[
        dict(
            x=concat(
                dequantize("u8[2, 3]", np.float32(0.3), np.uint8(3)), dequantize("u8[2, 5]", np.float32(0.5)), axis=1
            ),
            **dict(s=np.float32(0.7), z=np.uint8(9), to=U8, axis=0, block=0),
        )
    ],
)
def quantize_before_concat(x, s, z=None, *, axis, block, to):
    """Parts of a concatenation are quantized first, each in the kernel that writes it."""
    made = producer_of(x)
    when(made is not None and made.op is concat and s.type.size == 1 and (z is None or z.type.size == 1))
    when(uses(x) == 1 and len(set(made.inputs)) == len(made.inputs))
    parts = [quantize(part, s, *([] if z is None else [z]), to=to) for part in made.inputs]
    return concat(*parts, axis=made.attrs["axis"])


@rule(
    lambda x, *, between, shape: reshape(reshape(x, shape=between), shape=shape),
    shared=True,
    examples=[dict(x=dequantize("=i8[6, 2]", "=f32[6]", axis=0), between=(2, 3, 2), shape=(6, 2))],
)
def reshape_back(x, shape):
    """Weights split into gates and directions become one matrix of the product."""
    when(x.type.shape == shape)
    return x


@rule(
    lambda x, s, *, da, perm: transpose(dequantize(x, s, axis=da, block=0), perm=perm),
    lambda x, s, z, *, da, perm: transpose(dequantize(x, s, z, axis=da, block=0), perm=perm),
    shared=True,
    examples=[dict(x="=i8[3, 2]", s="=f32[3]", z=np.zeros(3, np.int8), da=0, perm=(1, 0))],
)
def transpose_quantized_constant(x, s, z=None, *, da, perm):
    """Quantized constants are transposed at build time, such as weights of a Gemm with outputs first."""
    when(x.type.dtype in MOVED_TYPES and is_constant(x) and all(v is None or v.type.rank <= 1 for v in (s, z)))
    turned = np.ascontiguousarray(elements(x).transpose(perm))
    return dequantize(turned, s, *([] if z is None else [z]), axis=perm.index(da))


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
    """Bytes are moved and gathered before dequantizing."""
    when(x.type.dtype in MOVED_TYPES and s.type.size == 1 and (z is None or z.type.size == 1))
    return dequantize(node.op(x, *([] if i is None else [i]), **attrs), s, *([] if z is None else [z]))


@rule(
    lambda x, s, **rows: reduce_mean(dequantize(x, s, axis=ANY, block=ANY), **rows),
    lambda x, s, z, **rows: reduce_mean(dequantize(x, s, z, axis=ANY, block=ANY), **rows),
    shared=True,
    examples=[
        dict(x="u8[2, 5, 6, 7]", s=np.float32(0.3), z=np.uint8(3), axis=0, block=0, axes=(2, 3), keepdims=True),
        dict(x="i8[2, 5, 6]", s=np.float32(0.3), z=np.int8(-128), axis=0, block=0, axes=(0, 2), keepdims=False),
    ],
    rejections=[
        (
            dict(x="u8[2, 5]", s="=f32[5]", z=np.zeros(5, np.uint8), axis=1, block=0, axes=(0,), keepdims=True),
            "a scale for each channel",
        ),
        (
            dict(x="u8[2, 9000000]", s=np.float32(1), z=np.uint8(0), axis=0, block=0, axes=(1,), keepdims=True),
            "sums may not fit i32",
        ),
    ],
)
def mean_of_bytes(x, s, z=None, *, axis, block, axes, keepdims):
    """Σ s (x − z) / n = s (Σ x − n z) / n: bytes are read, and their sum is exact."""
    when(x.type.dtype in BYTES and is_constant(s) and (z is None or is_constant(z)))
    require(s.type.size == 1 and (z is None or z.type.size == 1), f"%{x.name} has a scale for each channel")
    sizes = [x.type.shape[a] for a in axes]
    when(is_known(*sizes) and math.prod(sizes) > 0)
    count = math.prod(sizes)
    require(count <= MAX_SUMMED, "sums may not fit i32")
    zero = 0 if z is None else int(elements(z).reshape(()))
    sums = byte_sum(x, axes=axes, keepdims=keepdims)
    total = cast(add(sums, np.int32(-count * zero)) if zero else sums, to=s.type.dtype)
    return mul(div(total, count), reshape(s, shape=()))
