"""Converts weights of byte products to i8 where kernels require it; a separate offset per output makes them fit."""

from __future__ import annotations

import numpy as np

from pelton.ir.graph import Value
from pelton.ir.types import I16, I32
from pelton.ops.words import add, convolution, matmul, mul
from pelton.passes.rewriting.rule import elements, is_constant, require, rule, when

WIDE = np.random.default_rng(0).integers(-130, 100, (3, 5, 3, 2)).astype(np.int16)
WINDOW = dict(strides=(1, 2), pads=(1, 0, 0, 1), dilations=(1, 1), group=1)


def _narrow(w: Value, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns i16 weights minus an offset per output along that axis, as i8; and the offsets."""
    when(w.type.dtype is I16 and is_constant(w))
    array = elements(w).astype(np.int32)
    others = tuple(a for a in range(array.ndim) if a != axis)
    low, high = array.min(others, initial=0), array.max(others, initial=0)
    require(bool((high - low <= 255).all()), "the weights of an output do not fit 8 bits")
    offsets = np.where((low < -128) | (high > 127), (low + high + 1) // 2, 0).astype(np.int32)
    return (array - offsets.reshape(-1, *[1] * (array.ndim - axis - 1))).astype(np.int8), offsets


@rule(
    lambda x, w, b, **conv: convolution(x, w, b, accumulate=I32, **conv),
    lambda x, w, b, p, **conv: convolution(x, w, b, p, accumulate=I32, **conv),
    shared=True,
    examples=[dict(WINDOW, x="u8[2, 5, 6, 7]", w=WIDE, b="=i32[3]", p="u8[]", pad_value=0)],
    rejections=[
        (dict(WINDOW, x="u8[2, 5, 6, 7]", w=2 * WIDE, b="=i32[3]", p="u8[]", pad_value=0), "do not fit 8 bits"),
        (dict(WINDOW, x="u8[2, 10, 6, 7]", w=WIDE[[0, 1]], b="=i32[2]", p="u8[]", pad_value=0, group=2), "groups"),
    ],
)
def narrow_filters(x, w, b, p=None, **conv):
    """Σ x (w + o) = Σ x · w + o Σ x"""
    depthwise = conv["group"] == w.type.shape[0] == x.type.shape[1]  # it has its own kernel
    when(not depthwise)
    filters, offsets = _narrow(w, 0)
    require(conv["group"] == 1, "the filters have groups")
    ones, more = np.ones((1, *filters.shape[1:]), np.int8), [] if p is None else [p]
    whole = convolution(x, ones, np.zeros(1, np.int32), *more, accumulate=I32, **conv)
    by = offsets.reshape(-1, *[1] * (filters.ndim - 2))
    return add(convolution(x, filters, b, *more, accumulate=I32, **conv), mul(whole, by))


@rule(
    lambda x, w: matmul(x, w, accumulate=I32),
    shared=True,
    examples=[dict(x="u8[2, 5, 30]", w=WIDE.reshape(3, 30).T)],
    rejections=[(dict(x="u8[2, 5, 30]", w=2 * WIDE.reshape(3, 30).T), "do not fit 8 bits")],
)
def narrow_matrix(x, w):
    """Σ x (w + o) = Σ x · w + o Σ x"""
    when(w.type.rank == 2 and x.type.rank >= 2)
    matrix, offsets = _narrow(w, 1)
    whole = matmul(x, np.ones((len(matrix), 1), np.int8), accumulate=I32)
    return add(matmul(x, matrix, accumulate=I32), mul(whole, offsets))
