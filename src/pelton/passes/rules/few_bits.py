"""Products with dequantized constants as products with weights that stay in few bits."""

from __future__ import annotations

import numpy as np

from pelton.ir.graph import Value
from pelton.ops.quantize import packed
from pelton.ops.words import dequantize, matmul, quantized_linear, transpose
from pelton.passes.rewriting.rule import elements, is_constant, producer_of, require, rule, when

FEWEST = 1 << 12  # weights; fewer are read from L1, whatever their type

ROWS = dict(x="f32[2, 5, 96]", w="=u4[48, 96]", s="=f32[48, 3]", axis=1, block=32)
COLUMNS = dict(x="f32[5, 96]", w="=i4[96, 48]", s="=f32[3, 48]", axis=0, block=32)


@rule(
    lambda x, w, s, **of: matmul(x, transpose(dequantize(w, s, **of), perm=(1, 0))),
    lambda x, w, s, z, **of: matmul(x, transpose(dequantize(w, s, z, **of), perm=(1, 0))),
    shared=True,
    examples=[
        ROWS,
        dict(ROWS, z="=u4[48, 3]"),
        dict(ROWS, z="=f32[48, 3]"),
        dict(ROWS, w="=i8[48, 96]", s="=f32[48]", axis=0, block=0),
        dict(ROWS, w="=i8[48, 96]", s="=f32[]", z="=i8[]", axis=0, block=0),
    ],
    rejections=[
        (dict(ROWS, s="=f32[2, 96]", z="=u4[2, 96]", axis=0), "scales along the other axis"),
        (dict(ROWS, s="=f32[48, 4]", z="=u4[48, 4]", block=24), "blocks of 24 elements"),
    ],
)
def linear_of_few_bits(x, w, s, z=None, *, axis, block):
    """x · dequantize(w)ᵀ, with w as it is stored"""
    return _linear(x, w, s, z, axis, block, rows=0)


@rule(
    lambda x, w, s, **of: matmul(x, dequantize(w, s, **of)),
    lambda x, w, s, z, **of: matmul(x, dequantize(w, s, z, **of)),
    shared=True,
    examples=[
        COLUMNS,
        dict(x="f32[5, 96]", w="=u8[96, 48]", s="=f32[48]", z="=u8[48]", axis=1, block=0),
        dict(COLUMNS, z="=f32[3, 48]"),
    ],
    rejections=[(dict(COLUMNS, s="=f32[96, 3]", z="=i4[96, 3]", axis=1, block=16), "along the other axis")],
)
def matmul_of_few_bits(x, w, s, z=None, *, axis, block):
    """x · dequantize(w), with w stored by columns"""
    return _linear(x, w, s, z, axis, block, rows=1)


def _linear(x: Value, w: Value, s: Value, z: Value | None, axis: int, block: int, rows: int):
    """rows: the axis of w along which the product's outputs lie."""
    when(is_constant(w, s, *([] if z is None else [z])) and w.type.rank == 2 and w.type.size >= FEWEST)
    when(w.type.dtype.is_integer and w.type.dtype.bits <= 8 and x.type.rank >= 2 and x.type.dtype is s.type.dtype)
    made = producer_of(x)
    when(made is None or not made.op.dequantizes)  # both in few bits: their product may be one of integers
    outputs, inner = w.type.shape[rows], w.type.shape[1 - rows]
    if s.type.size == 1 or not block:
        require(s.type.size == 1 or axis == rows, "scales along the other axis")
        block = inner
    else:
        require(axis == 1 - rows, "scales along the other axis")
        require(block % 16 == 0 or block >= inner, f"blocks of {block} elements, no multiple of 16")

    def by_rows(v: Value) -> np.ndarray:
        array = elements(v)
        if array.size == 1:
            return np.full((outputs, 1), array.reshape(()))
        if array.ndim == 1 or block == inner:
            return array.reshape(outputs, 1)
        return array if rows == 0 else array.T

    dtype, scales = w.type.dtype, by_rows(s)
    bits, middle = max(2, dtype.bits), 1 << (max(2, dtype.bits) - 1)
    codes = elements(w) if rows == 0 else elements(w).T
    plus = middle if dtype.is_signed else 0  # signed numbers become unsigned ones
    more = []
    if z is not None and z.type.dtype.is_float:
        more = [np.ascontiguousarray(np.broadcast_to(by_rows(z) + plus, scales.shape))]
    elif z is not None:
        more = [np.ascontiguousarray(np.broadcast_to(by_rows(z).astype(np.int16) + plus, scales.shape), np.uint8)]
    elif not dtype.is_signed:
        more = [np.zeros(scales.shape, np.uint8)]
    stored = packed((codes.astype(np.int16) + plus).astype(np.uint8), bits)
    return quantized_linear(x, stored, np.ascontiguousarray(scales), *more, block=block, bits=bits)
