"""Algebra: pointwise ops and products with certain constants and with their inverses; exact unless marked."""

from __future__ import annotations

import math

import numpy as np

from pelton.ir.graph import Value
from pelton.ir.types import F32, I32, broadcast_shapes
from pelton.ops.words import (
    abs_,
    add,
    cast,
    div,
    exp,
    logical_not,
    matmul,
    mul,
    neg,
    pow_,
    reciprocal,
    reshape,
    sqrt,
    sub,
    transpose,
    where,
)
from pelton.passes.rewriting.pattern import Family
from pelton.passes.rewriting.rule import (
    array,
    elements,
    is_constant,
    is_filled_with,
    may_decide,
    require,
    rule,
    skip,
    when,
)

POINTWISE = Family("pointwise", add)
X, C = "f32[2, 3]", "=f32[3]"
INF = math.inf


@rule(
    lambda *xs, **attrs: POINTWISE(*xs, **attrs),
    examples=[dict(xs=(X, "=f32[1, 1]")), dict(xs=("=f32[1, 1, 1, 5]", "f32[2, 4, 3, 1]"))],
)
def numbers(*xs, node, **attrs):
    """Leading axes of size one are removed from constants where the result has them anyway; a number has rank 0."""
    for i, x in enumerate(xs):
        ones = next((k for k, d in enumerate(x.type.shape) if d != 1), x.type.rank)
        others = [y.type.shape for y in xs[:i] + xs[i + 1 :]]
        if ones and is_constant(x) and broadcast_shapes(*others, x.type.shape[ones:]) == node.output.type.shape:
            return node.op(*xs[:i], elements(x).reshape(x.type.shape[ones:]), *xs[i + 1 :], **attrs)
    skip()


# --- neutral elements


@rule(
    lambda x, c: add(x, c),
    lambda x, c: sub(x, c),
    examples=[dict(x=X, c=np.zeros(3, np.float32)), dict(x="i32[2]", c=0)],
)
def add_zero(x, c, node):
    """x ± 0 = x"""
    when(is_filled_with(c, 0) and x.type == node.output.type)
    return x


@rule(
    lambda x, c: mul(x, c),
    lambda x, c: div(x, c),
    lambda x, c: pow_(x, c),
    examples=[dict(x=X, c=np.ones((2, 1), np.float32)), dict(x=X, c=1)],
)
def mul_one(x, c, node):
    """x · 1 = x / 1 = x¹ = x"""
    when(is_filled_with(c, 1) and x.type == node.output.type)
    return x


@rule(lambda x: mul(x, -1), lambda x: div(x, -1), lambda x: sub(0, x), examples=[dict(x=X), dict(x="i32[5]")])
def mul_minus_one(x):
    """x · −1 = x / −1 = 0 − x = −x"""
    when(x.type.dtype.is_float or x.type.dtype.is_signed)
    return neg(x)


@rule(lambda x: neg(neg(x)), examples=[dict(x=X)])
def neg_neg(x):
    """−(−x) = x"""
    return x


@rule(lambda c, x: where(c, x, x), examples=[dict(c="bool[3]", x=X)])
def where_same(c, x, node):
    """A choice between x and x is x."""
    when(x.type == node.output.type)
    return x


@rule(
    lambda c, x, y: where(c, x, y),
    examples=[dict(c=np.ones(3, bool), x=X, y="f32[]"), dict(c=np.zeros(3, bool), x="f32[]", y=X)],
)
def where_known(c, x, y, node):
    """A choice with a known condition is decided."""
    chosen = x if is_filled_with(c, True) else y
    when(is_filled_with(c, True) or is_filled_with(c, False))
    when(chosen.type == node.output.type)
    return chosen


@rule(lambda c, x, y: where(logical_not(c), x, y), shared=True, examples=[dict(c="bool[2, 1]", x=X, y="f32[]")])
def where_not(c, x, y):
    """A choice by a negated condition swaps its operands."""
    return where(c, y, x)


@rule(lambda x: logical_not(logical_not(x)), examples=[dict(x="bool[4]")])
def not_not(x):
    """Not not x is x."""
    return x


# --- signs


@rule(lambda x, y: sub(x, neg(y)), examples=[dict(x=X, y="f32[3]")])
def sub_neg(x, y):
    """x − (−y) = x + y"""
    return add(x, y)


@rule(lambda x, y: add(x, neg(y)), examples=[dict(x=X, y="f32[3]")])
def add_neg(x, y):
    """x + (−y) = x − y"""
    return sub(x, y)


@rule(lambda x, y: neg(sub(x, y)), examples=[dict(x=X, y="f32[3]")])
def neg_sub(x, y):
    """−(x − y) = y − x"""
    return sub(y, x)


@rule(lambda x, c: sub(x, c), examples=[dict(x=X, c=C), dict(x="i32[3]", c=7)])
def sub_constant(x, c):
    """Subtracting a constant becomes an addition, so that rules need one form only."""
    when(is_constant(c) and not is_constant(x) and (c.type.dtype.is_float or c.type.dtype.is_signed))
    return add(x, -elements(c))


@rule(lambda x, c: neg(mul(x, c)), lambda x, c: mul(neg(x), c), examples=[dict(x=X, c=C)])
def mul_neg(x, c):
    """−(x · c) = (−x) · c = x · (−c)"""
    when(is_constant(c) and (c.type.dtype.is_float or c.type.dtype.is_signed))
    return mul(x, -elements(c))


@rule(lambda x: abs_(abs_(x)), lambda x: abs_(neg(x)), examples=[dict(x=X)])
def abs_abs(x):
    """||x|| = |−x| = |x|"""
    return abs_(x)


# --- powers and quotients


@rule(lambda x: pow_(x, 2), examples=[dict(x=X)])
def pow_two(x):
    """x² = x · x"""
    return mul(x, x)


@rule(lambda x: pow_(x, 3), inexact=True, examples=[dict(x=X)])
def pow_three(x):
    """x³ = x · x · x, with one more rounding"""
    return mul(mul(x, x), x)


@rule(lambda x: pow_(x, 0.5), examples=[dict(x=abs_(X))])
def pow_half(x):
    """x to the power of ½ is √x."""
    return sqrt(x)


@rule(lambda x: pow_(x, -1), examples=[dict(x=X)])
def pow_minus_one(x):
    """x⁻¹ = 1 / x"""
    when(x.type.dtype.is_float)
    return reciprocal(x)


@rule(lambda x: pow_(x, -0.5), inexact=True, examples=[dict(x=exp(X))])
def pow_minus_half(x):
    """x to the power of −½ is 1 / √x, with one more rounding."""
    return reciprocal(sqrt(x))


@rule(lambda x: div(1, x), examples=[dict(x=X)])
def one_div(x):
    """1 / x is a reciprocal."""
    when(x.type.dtype.is_float)
    return reciprocal(x)


def _inverse(c: Value) -> tuple[np.ndarray, bool]:
    """Returns 1/c as stored, and True if multiplying by it equals dividing by c, as for powers of two."""
    held = elements(c)
    inverse = (1 / array(c)).astype(held.dtype)
    whole = np.frexp(array(c))[0]
    return inverse, bool((np.abs(whole) == 0.5).all() and _normal(inverse))


def _normal(held: np.ndarray) -> bool:
    """True if all are numbers that kernels do not flush to zero."""
    return bool(
        np.isfinite(held).all()
        and (np.abs(held) >= np.finfo(np.float16 if held.dtype.itemsize < 4 else held.dtype).tiny).all()
    )


@rule(lambda x, c: div(x, c), examples=[dict(x=X, c=8), dict(x=X, c=np.array([0.5, 2, 4], np.float32))])
def div_power_of_two(x, c):
    """x / 2ᵏ = x · 2⁻ᵏ"""
    when(is_constant(c) and may_decide(c) and not is_constant(x) and c.type.dtype.is_float and array(c).all())
    inverse, exact = _inverse(c)
    when(exact)
    return mul(x, inverse)


@rule(
    lambda x, c: div(x, c),
    inexact=True,
    examples=[dict(x=X, c=0.3), dict(x=X, c=C)],
    rejections=[(dict(x=X, c=3), "an integer")],
)
def div_constant(x, c):
    """A quotient by a constant becomes a product, several times cheaper and at most one rounding apart; not before
    rounding to integers."""
    when(is_constant(c) and may_decide(c) and not is_constant(x) and c.type.dtype.is_float and array(c).all())
    require(c.type.dtype.size >= 4, "narrow floats round inverses too coarsely")
    require((array(c) != np.round(array(c))).all(), "a quotient by an integer may need to be whole, too")
    inverse, _ = _inverse(c)
    when(_normal(inverse))
    return mul(x, inverse)


@rule(lambda x, c, d: mul(mul(x, c), d), examples=[dict(x=X, c=C, d=0.5), dict(x=X, c=-4, d=3)])
def mul_mul(x, c, d):
    """Two constant factors become one if one is a power of two, as no rounding is lost."""
    when(is_constant(c, d) and may_decide(c, d) and not is_constant(x) and c.type.dtype.is_float)
    when(any(array(f).all() and _inverse(f)[1] for f in (c, d)))
    factor = array(c) * array(d)
    held = factor.astype(elements(c).dtype)
    when(_normal(held))
    return mul(x, factor)


@rule(
    lambda x, c, d: mul(mul(cast(x, to=F32), c), d),
    lambda x, c, b, d: mul(add(mul(cast(x, to=F32), c), b), d),
    inexact=True,
    examples=[
        dict(x="i32[2, 3]", c=np.array([0.25, 0.75, -1.5], np.float32), d=0.625),
        dict(x="i32[2, 3]", c=0.375, b=np.array([0.5, 1.5, -7], np.float32), d=0.625),
    ],
)
def scale_sums(x, c, d, b=None):
    """(x · c + b) · d = x · cd + bd, of integers: dequantizing and quantizing become one factor."""
    when(
        x.type.dtype is I32
        and is_constant(c, d)
        and may_decide(c, d)
        and not is_constant(x)
        and (b is None or is_constant(b))
    )
    factor = array(c) * array(d)
    when(_normal(factor.astype(np.float32)))
    scaled = mul(cast(x, to=F32), factor.astype(np.float32))
    return scaled if b is None else add(scaled, (array(b) * array(d)).astype(np.float32))


@rule(
    lambda a, b: matmul(a, b),
    examples=[dict(a="f32[7]", b="f32[2, 7, 5]"), dict(a="f32[2, 3, 7]", b="f32[7]"), dict(a="f32[7]", b="f32[7]")],
)
def matmul_vector(a, b, node):
    """A vector becomes a matrix of one row; a vector on the right, of the transposed product."""
    when(1 in (a.type.rank, b.type.rank))
    k = b.type.shape[0] if b.type.rank == 1 else a.type.shape[0]
    if b.type.rank == 1:
        rows = math.prod(a.type.shape[:-1])
        product = matmul(reshape(b, shape=(1, k)), transpose(reshape(a, shape=(rows, k)), perm=(1, 0)))
    else:
        product = matmul(reshape(a, shape=(1, k)), b)
    return reshape(product, shape=node.output.type.shape)


@rule(lambda a, b: matmul(a, b), examples=[dict(a="f32[2, 5, 1]", b="f32[1, 3]")])
def matmul_outer(a, b):
    """A matrix product over an axis of one becomes a product of rows and columns; constants (positions · frequencies)
    can be folded."""
    when(a.type.rank > 1 and b.type.rank > 1 and a.type.shape[-1] == 1)
    return mul(a, b)
