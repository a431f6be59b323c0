"""Scalar expressions that define pointwise ops; numpy, C and Triton code are generated from them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pelton.ir.types import BOOL, F64, STRING, DType


def _div(a, b):
    if np.result_type(a, b).kind == "f":
        with np.errstate(all="ignore"):
            return np.divide(a, b)
    quotient = np.floor_divide(a, b)  # C's division: towards zero
    return quotient + ((np.sign(a) * np.sign(b) < 0) & (quotient * b != a)).astype(quotient.dtype)


def _pow(a, b):
    if np.result_type(a, b).kind == "f" or np.min(b, initial=0) >= 0:
        return np.power(a, b)
    # reciprocals, towards zero
    return np.where(b < 0, np.where(np.abs(a) == 1, np.power(a, np.abs(b)), 0), np.power(a, np.maximum(b, 0)))


def _erf(x):
    return np.vectorize(math.erf, otypes=[np.float64])(x) if np.size(x) else np.asarray(x, np.float64)


def _cast(x, dtype: DType, saturate: bool = True, round_mode: str = "up"):
    x = np.asarray(x)
    source = DType.of(x)
    # numpy implements few operations on types of ml_dtypes
    if source.bits < 32 and source.is_float or source.bits < 8 and source.is_integer:
        x = x.astype(np.float32 if source.is_float else np.int8)
    with np.errstate(all="ignore"):
        if dtype is BOOL:
            return x != 0
        if dtype.is_integer:
            return _wrapped(_whole(x, dtype) if x.dtype.kind == "f" else x, dtype)
        if dtype is DType.F8E8M0FNU:
            return _power_of_two(x.astype(np.float32), saturate, round_mode).view(dtype.numpy)
        # ONNX: values beyond the range saturate
        if dtype.size == 1 and dtype.is_float and saturate:
            import ml_dtypes

            end = float(ml_dtypes.finfo(dtype.numpy).max)
            x = np.clip(x.astype(np.float32), -end, end)
        return x.astype(dtype.numpy)


def _whole(x: np.ndarray, dtype: DType) -> np.ndarray:
    """Rounds floats towards zero; NaN and values beyond the range, undefined in ONNX, become what x86 returns."""
    half = 2.0 ** (max(dtype.bits, 32) - 1)
    x = np.trunc(x)
    high = x >= half if not dtype.is_signed and dtype.bits >= 32 else np.zeros(x.shape, bool)
    x = np.where(high, x - half, x)
    inside = (x >= -half) & (x < half)
    bits = np.where(inside, np.where(inside, x, 0).astype(np.int64), np.int64(-int(half))).astype(np.uint64)
    return bits ^ np.where(high, np.uint64(half), np.uint64(0))


def _wrapped(x: np.ndarray, dtype: DType) -> np.ndarray:
    """Wraps integers and bools modulo 2 to the number of bits of the type."""
    if dtype.bits >= 8:
        return x.astype(dtype.numpy)
    low = x.astype(np.uint8) & ((1 << dtype.bits) - 1)
    sign = dtype.is_signed << (dtype.bits - 1)
    return ((low ^ sign).astype(np.int8) - np.int8(sign)).astype(dtype.numpy)


def _power_of_two(x: np.ndarray, saturate: bool, round_mode: str) -> np.ndarray:
    """Returns the codes of float8e8m0 (OCP MX specification 1.0): exponents, 255 for NaN and infinity, without sign."""
    bits = x.view(np.uint32)
    exponent, fraction = bits >> 23 & 255, bits & 0x7FFFFF
    up = {
        "up": fraction != 0,
        "down": np.zeros(x.shape, bool),
        "nearest": (fraction > 0x400000) | (fraction == 0x400000) & (exponent > 0),
    }[round_mode]
    return (exponent + (up & (exponent < (254 if saturate else 255)))).astype(np.uint8)


def _shift(fn, past):
    """Returns a shift function; shifts by a negative number, or the width or more, return `past(a)`."""

    def shift(a, b):
        a, width = np.asarray(a), 8 * np.asarray(a).dtype.itemsize
        inside = (np.asarray(b) >= 0) & (np.asarray(b) < width)
        return np.where(inside, fn(a, np.where(inside, b, 0).astype(a.dtype)), past(a)).astype(a.dtype)

    return shift


# name → function of arrays. `cast` has its dtype in the node.
PRIMITIVES: dict[str, Callable] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _div,
    "mod": np.mod,
    "fmod": np.fmod,
    "pow": _pow,
    "neg": np.negative,
    "abs": np.abs,
    "sign": np.sign,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "erf": _erf,
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "floor": np.floor,
    "ceil": np.ceil,
    "rint": np.rint,
    "trunc": np.trunc,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "shl": _shift(np.left_shift, np.zeros_like),
    "shr": _shift(np.right_shift, lambda a: np.where(a < 0, -1, 0).astype(a.dtype)),
    "select": np.where,
    "isnan": np.isnan,
    "isinf": np.isinf,
}
_FLOATS_ONLY = {
    "exp",
    "log",
    "sqrt",
    "erf",
    "tanh",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "asinh",
    "acosh",
    "atanh",
    "floor",
    "ceil",
    "rint",
    "trunc",
    "isnan",
    "isinf",
}
_NO_FLOATS = {"and", "or", "xor", "not", "shl", "shr"}
_NUMBERS = {
    "add",
    "sub",
    "mul",
    "div",
    "mod",
    "fmod",
    "pow",
    "neg",
    "abs",
    "sign",
    "minimum",
    "maximum",
    "lt",
    "le",
    "gt",
    "ge",
}
_TO_BOOL = {"lt", "le", "gt", "ge", "eq", "ne", "isnan", "isinf"}


_COUNTS = {name: f.nin for name, f in PRIMITIVES.items() if isinstance(f, np.ufunc)}  # operands
_COUNTS |= {"div": 2, "pow": 2, "erf": 1, "shl": 2, "shr": 2, "select": 3}


@dataclass(frozen=True, eq=False)
class Scalar:
    """One node of an expression: primitive, arguments (Scalars or Python numbers), element type."""

    fn: str
    args: tuple
    dtype: DType

    def __add__(self, o):
        return apply("add", self, o)

    def __radd__(self, o):
        return apply("add", o, self)

    def __sub__(self, o):
        return apply("sub", self, o)

    def __rsub__(self, o):
        return apply("sub", o, self)

    def __mul__(self, o):
        return apply("mul", self, o)

    def __rmul__(self, o):
        return apply("mul", o, self)

    def __truediv__(self, o):
        return apply("div", self, o)

    def __rtruediv__(self, o):
        return apply("div", o, self)

    def __pow__(self, o):
        return apply("pow", self, o)

    def __rpow__(self, o):
        return apply("pow", o, self)

    def __mod__(self, o):
        return apply("mod", self, o)

    def __rmod__(self, o):
        return apply("mod", o, self)

    def __neg__(self):
        return apply("neg", self)

    def __abs__(self):
        return apply("abs", self)

    __hash__ = object.__hash__

    def __eq__(self, o):
        return apply("eq", self, o)

    def __ne__(self, o):
        return apply("ne", self, o)

    def __lt__(self, o):
        return apply("lt", self, o)

    def __le__(self, o):
        return apply("le", self, o)

    def __gt__(self, o):
        return apply("gt", self, o)

    def __ge__(self, o):
        return apply("ge", self, o)

    def __and__(self, o):
        return apply("and", self, o)

    def __or__(self, o):
        return apply("or", self, o)

    def __xor__(self, o):
        return apply("xor", self, o)

    def __invert__(self):
        return apply("not", self)

    def __bool__(self):
        raise TypeError("an element has no truth value during code generation; use select(condition, x, y)")


def apply(fn: str, *args):
    """Returns a function of Scalars (result: a Scalar) or arrays (result: an array) that applies the primitive."""
    if len(args) != _COUNTS[fn]:
        raise TypeError(f"{fn} needs {_COUNTS[fn]} operands, got {len(args)}")
    if not any(isinstance(a, Scalar) for a in args):
        with np.errstate(all="ignore"):
            return PRIMITIVES[fn](*args)
    for a in args:
        if not isinstance(a, (Scalar, bool, int, float, np.generic)):
            raise TypeError(f"needs expressions and numbers, got {a!r:.99}")
    typed = args
    if fn == "select":
        if getattr(args[0], "dtype", BOOL) is not BOOL:
            raise TypeError(f"needs a bool condition, got {args[0].dtype.value}")
        typed = args[1:]
    kinds = {a.dtype for a in typed if isinstance(a, Scalar) and not _of_numbers(a)}
    kinds = kinds or {a.dtype for a in typed if isinstance(a, Scalar)} or {F64}
    if len(kinds) > 1:
        raise TypeError("needs operands of one element type, got " + " and ".join(sorted(k.value for k in kinds)))
    (kind,) = kinds
    if fn in _FLOATS_ONLY and not kind.is_float:
        raise TypeError(f"needs floating point, got {kind.value}")
    if fn in _NO_FLOATS and not (kind.is_integer or kind is BOOL):
        raise TypeError(f"needs integers or bools, got {kind.value}")
    if fn in _NUMBERS and kind in (BOOL, STRING):
        raise TypeError(f"needs numbers, got {kind.value}")
    return Scalar(fn, tuple(_typed(a, kind) for a in args), BOOL if fn in _TO_BOOL else kind)


def _of_numbers(e) -> bool:
    """True if an expression is a choice between numbers, which takes the element type of its neighbor."""
    return (
        isinstance(e, Scalar)
        and e.fn == "select"
        and all(_of_numbers(a) or not isinstance(a, Scalar) for a in e.args[1:])
    )


def _typed(e, dtype: DType):
    """Types an argument; a choice between numbers takes this element type."""
    if not _of_numbers(e):
        return e
    return Scalar("select", (e.args[0], *(_typed(a, dtype) for a in e.args[1:])), dtype)


def _function(fn: str) -> Callable:
    def call(*args):
        return apply(fn, *args)

    call.__name__ = fn
    return call


exp, log, sqrt, erf, tanh, sin, cos, tan = map(_function, ("exp", "log", "sqrt", "erf", "tanh", "sin", "cos", "tan"))
asin, acos, atan, sinh, cosh, asinh, acosh, atanh = map(
    _function, ("asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh")
)
floor, ceil, rint, trunc, sign, isnan, isinf = map(
    _function, ("floor", "ceil", "rint", "trunc", "sign", "isnan", "isinf")
)
absolute, minimum, maximum, power, mod, fmod = map(_function, ("abs", "minimum", "maximum", "pow", "mod", "fmod"))
equal, not_equal, select, shift_left, shift_right = map(_function, ("eq", "ne", "select", "shl", "shr"))


def cast(x, dtype: DType, saturate: bool = True, round_mode: str = "up"):
    """Converts x to another element type: floats to integers towards zero, anything to bool by `!= 0`.

    saturate: FP8 values are finite where x is too large for them. round_mode: f8e8m0fnu's rounding of a fraction, "up",
    "down" or "nearest".
    """
    if not isinstance(x, Scalar):
        return _cast(x, DType(dtype), saturate, round_mode)
    if round_mode not in ("up", "down", "nearest"):
        raise TypeError(f"needs round_mode up, down or nearest, got {round_mode!r}")
    return Scalar("cast", (x,) if saturate and round_mode == "up" else (x, saturate, round_mode), DType(dtype))


def operations(e) -> int:
    """Counts the primitives of one evaluation, each as one operation: an exponential counts like a sum."""
    if not isinstance(e, Scalar) or e.fn == "input":
        return 0
    return 1 + sum(operations(a) for a in e.args)
