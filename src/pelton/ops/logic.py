"""Pointwise ops: comparisons, and logic on bools and on the bits of integers."""

from __future__ import annotations

from pelton.ir import scalar as sc
from pelton.ir.types import BOOL

from .math import FLOATS, INTS
from .op import pointwise

_BOOLS = (("bool[5, 13]", "bool[5, 13]"), ("bool[2, 3, 9]", "bool[3, 1]"))


def _only(kind: str, *operands) -> None:
    """Raises TypeError unless all operands are bools (or integers), which the primitives do not check."""
    for x in operands:
        if isinstance(x, sc.Scalar) and not (x.dtype is BOOL if kind == "bools" else x.dtype.is_integer):
            raise TypeError(f"needs {kind}, got {x.dtype.value}")


@pointwise("Less", examples=FLOATS + INTS)
def less(a, b):
    return sc.apply("lt", a, b)


@pointwise("LessOrEqual", examples=FLOATS + INTS)
def less_equal(a, b):
    return sc.apply("le", a, b)


@pointwise("Greater", examples=FLOATS + INTS)
def greater(a, b):
    return sc.apply("gt", a, b)


@pointwise("GreaterOrEqual", examples=FLOATS + INTS)
def greater_equal(a, b):
    return sc.apply("ge", a, b)


@pointwise("Equal", commutative=True, examples=FLOATS + INTS + _BOOLS)
def equal(a, b):
    return sc.equal(a, b)


@pointwise("And", commutative=True, examples=_BOOLS)
def logical_and(a, b):
    _only("bools", a, b)
    return a & b


@pointwise("Or", commutative=True, examples=_BOOLS)
def logical_or(a, b):
    _only("bools", a, b)
    return a | b


@pointwise("Xor", commutative=True, examples=_BOOLS)
def logical_xor(a, b):
    _only("bools", a, b)
    return a ^ b


@pointwise("Not", examples=(("bool[5, 13]",),))
def logical_not(x):
    _only("bools", x)
    return ~x


@pointwise("BitwiseAnd", commutative=True, examples=INTS)
def bitwise_and(a, b):
    _only("integers", a, b)
    return a & b


@pointwise("BitwiseOr", commutative=True, examples=INTS)
def bitwise_or(a, b):
    _only("integers", a, b)
    return a | b


@pointwise("BitwiseXor", commutative=True, examples=INTS)
def bitwise_xor(a, b):
    _only("integers", a, b)
    return a ^ b


@pointwise("BitwiseNot", examples=(("i32[5, 13]",), ("u8[7]",)))
def bitwise_not(x):
    _only("integers", x)
    return ~x


@pointwise("BitShift", examples=(("u8[5, 13]", "u8[5, 13]"), ("u32[2, 3, 9]", "u32[3, 1]")))
def shift_left(a, b):
    """a · 2ᵇ, modulo the width; zero for shifts of the width and beyond."""
    _only("integers", a, b)
    return sc.shift_left(a, b)


@pointwise("BitShift", examples=(("u8[5, 13]", "u8[5, 13]"), ("u32[2, 3, 9]", "u32[3, 1]")))
def shift_right(a, b):
    """a / 2ᵇ rounded down; zero for shifts of the width and beyond."""
    _only("integers", a, b)
    return sc.shift_right(a, b)
