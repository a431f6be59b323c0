"""Arithmetic of sizes: the ops between shapes and a reshape, computed on sizes, known or not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from .dims import Dim, Size, Undecided, equal
from .op import Op
from .types import DType


@dataclass(frozen=True)
class SizeFraction:
    """A size divided by a number, not an integer. Floats computed from sizes are fractions until they are rounded."""

    numerator: Size
    denominator: int


def _ratio(x: Any) -> tuple[Size, int]:
    if isinstance(x, SizeFraction):
        return x.numerator, x.denominator
    # inf and nan raise OverflowError and ValueError
    return _simplest_fraction(x) if isinstance(x, float) else (x, 1)


def _simplest_fraction(x: float) -> tuple[int, int]:
    """Returns the simplest fraction equal to this number in f32: 0.7 means seven tenths, so that floor and ceil of a
    product match f32 arithmetic."""
    for digits in range(1, 8):
        fraction = Fraction(x).limit_denominator(10**digits)
        if np.float32(fraction) == np.float32(x):
            return fraction.as_integer_ratio()
    return x.as_integer_ratio()


def _fraction(numerator: Size, denominator: int) -> Any:
    if denominator < 0:
        numerator, denominator = -numerator, -denominator
    whole = numerator // denominator
    return whole if whole * denominator == numerator else SizeFraction(numerator, denominator)


def total(a: Any, b: Any) -> Any:
    (a, c), (b, d) = _ratio(a), _ratio(b)
    return _fraction(a * d + b * c, c * d)


def product(a: Any, b: Any) -> Any:
    (a, c), (b, d) = _ratio(a), _ratio(b)
    return _fraction(a * b, c * d)


def negative(x: Any) -> Any:
    numerator, denominator = _ratio(x)
    return _fraction(-numerator, denominator)


def divided(a: Any, b: Any) -> Any:
    (a, c), (b, d) = _ratio(a), _ratio(b)
    if isinstance(b, Dim) or b == 0:
        q = (a * d) // (b * c)
        if b == 0 or q * (b * c) != a * d:
            raise Undecided(f"divisibility by {b} of {a} depends on dynamic dimensions")
        return q
    return _fraction(a * d, b * c)


def quotient(a: Size, b: Size) -> Size:
    """Returns a / b towards zero."""
    if a >= 0 and b >= 1:
        return a // b
    return -quotient(-a, b) if b >= 1 else quotient(-a, -b)


def floor(x: Any) -> Size:
    numerator, denominator = _ratio(x)
    return numerator // denominator


def whole_number(x: Any) -> Size:
    """Casts to an integer: towards zero."""
    return quotient(*_ratio(x))


def is_equal(a: Any, b: Any) -> bool:
    (a, c), (b, d) = _ratio(a), _ratio(b)
    return equal(a * d, b * c)


def is_below(a: Any, b: Any) -> bool:
    (a, c), (b, d) = _ratio(a), _ratio(b)
    return a * d < b * c


# Effects of ops on sizes, declared in `ops/size_arithmetic.py`: elementwise, by the element type of the result, along
# axes.
POINTWISE: dict[Op, Callable] = {}
BY_TYPE: dict[Op, Callable[[DType], Callable]] = {}
REDUCTIONS: dict[Op, Callable] = {}


def fold(op: Op, arrays: Sequence[np.ndarray], attrs: Mapping[str, Any], to: DType) -> np.ndarray | None:
    """Returns the result of an op on sizes, as objects; None if it is unknown before a run. `to` is its element type.
    Undecided if it depends on the values of the sizes."""
    try:
        objects = [a.astype(object) for a in arrays]
        if op.moves or op.indexed:
            if op.indexed:
                objects[1] = arrays[1].astype(np.int64)
            return np.asarray(op.evaluate(tuple(objects), attrs)[0], object)
        if op in BY_TYPE:
            return _each(BY_TYPE[op](to), objects)
        if op in POINTWISE:
            return _each(POINTWISE[op], objects)
        if op in REDUCTIONS and math.prod(objects[0].shape):
            return _reduced(REDUCTIONS[op], objects[0], attrs)
    except Undecided:
        raise
    except (ValueError, TypeError, OverflowError, ZeroDivisionError, IndexError):
        pass
    return None


def can_fold(op: Op) -> bool:
    """True if `fold` knows an op."""
    return op.moves or op.indexed or any(op in table for table in (POINTWISE, BY_TYPE, REDUCTIONS))


def _each(fn: Callable, objects: Sequence[np.ndarray]) -> np.ndarray:
    return np.asarray(np.frompyfunc(fn, len(objects), 1)(*objects), object)


def _reduced(fn: Callable, x: np.ndarray, attrs: Mapping[str, Any]) -> np.ndarray:
    for axis in sorted(attrs["axes"], reverse=True):
        x = np.asarray(np.frompyfunc(fn, 2, 1).reduce(x, axis, keepdims=attrs["keepdims"]), object)
    return x


def is_integral(array: np.ndarray) -> bool:
    """True if an array of objects has only integers and sizes."""
    return all(isinstance(x, (int, Dim)) for x in array.flat)


def is_known(array: np.ndarray) -> bool:
    """True if an array of objects has no sizes that a run decides."""
    return not any(isinstance(x, (Dim, SizeFraction)) for x in array.flat)
