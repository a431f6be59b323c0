"""Pointwise ops: arithmetic, functions, choices, casts and tests for NaN and infinity."""

from __future__ import annotations

from pelton.ir import scalar as sc
from pelton.ir.types import BOOL, F16, F32, I32, I64, U8, DType

from .op import pointwise

# example operands of binary ops
INTS = (("i32[5, 13]", "i32[5, 13]"), ("i64[2, 3, 9]", "i64[3, 1]"))
FLOATS = (("f32[5, 13]", "f32[5, 13]"), ("f32[2, 3, 9]", "f32[3, 1]"), ("f32[1]", "f32[]"))


def require_float(x):
    """Returns x; TypeError unless it is floating point."""
    if isinstance(x, sc.Scalar) and not x.dtype.is_float:
        raise TypeError(f"needs floating point, got {x.dtype.value}")
    return x


# --- arithmetic


@pointwise("Add", commutative=True, examples=FLOATS + INTS)
def add(a, b):
    return a + b


@pointwise("Sub", examples=FLOATS + INTS)
def sub(a, b):
    return a - b


@pointwise("Mul", commutative=True, examples=FLOATS + INTS)
def mul(a, b):
    return a * b


@pointwise("Div", examples=FLOATS + INTS, domain=(0.3, 3.0))
def div(a, b):
    """a / b; integers divide towards zero."""
    return sc.apply("div", a, b)


@pointwise("Mod", examples=INTS)
def mod(a, b):
    """The remainder with the sign of the divisor (Python's)."""
    return sc.mod(a, b)


@pointwise("Mod", examples=FLOATS + INTS, domain=(0.3, 3.0))
def fmod(a, b):
    """The remainder with the sign of the dividend (C's)."""
    return sc.fmod(a, b)


@pointwise("Pow", domain=(0.1, 3.0))
def pow_(a, b):
    return sc.power(a, b)


@pointwise("Neg")
def neg(x):
    return -x


@pointwise("Abs")
def abs_(x):
    return sc.absolute(x)


@pointwise("Sign")
def sign(x):
    return sc.sign(x)


@pointwise("Min", commutative=True, examples=FLOATS + INTS)
def minimum(a, b):
    """The smaller one; NaN where either is NaN."""
    return sc.minimum(a, b)


@pointwise("Max", commutative=True, examples=FLOATS + INTS)
def maximum(a, b):
    """The larger one; NaN where either is NaN."""
    return sc.maximum(a, b)


# --- functions


@pointwise("Exp")
def exp(x):
    return sc.exp(x)


@pointwise("Log", domain=(0.1, 3.0))
def log(x):
    return sc.log(x)


@pointwise("Sqrt", domain=(0.0, 3.0))
def sqrt(x):
    return sc.sqrt(x)


@pointwise("Reciprocal", domain=(0.3, 3.0))
def reciprocal(x):
    return 1.0 / require_float(x)


@pointwise("Erf")
def erf(x):
    return sc.erf(x)


@pointwise("Tanh")
def tanh(x):
    return sc.tanh(x)


@pointwise("Sin", position_operand=0)
def sin(x):
    return sc.sin(x)


@pointwise("Cos", position_operand=0)
def cos(x):
    return sc.cos(x)


@pointwise("Tan", position_operand=0, domain=(-1.3, 1.3))
def tan(x):
    return sc.tan(x)


@pointwise("Asin", domain=(-0.99, 0.99))
def asin(x):
    return sc.asin(x)


@pointwise("Acos", domain=(-0.99, 0.99))
def acos(x):
    return sc.acos(x)


@pointwise("Atan")
def atan(x):
    return sc.atan(x)


@pointwise("Sinh")
def sinh(x):
    return sc.sinh(x)


@pointwise("Cosh")
def cosh(x):
    return sc.cosh(x)


@pointwise("Asinh")
def asinh(x):
    return sc.asinh(x)


@pointwise("Acosh", domain=(1.01, 4.0))
def acosh(x):
    return sc.acosh(x)


@pointwise("Atanh", domain=(-0.95, 0.95))
def atanh(x):
    return sc.atanh(x)


@pointwise("Floor")
def floor(x):
    return sc.floor(x)


@pointwise("Ceil")
def ceil(x):
    return sc.ceil(x)


@pointwise("Round")
def round_(x):
    """The nearest integer, halves to the even one."""
    return sc.rint(x)


# --- choices, casts and tests


@pointwise(
    "Where",
    examples=(
        ("bool[5, 13]", "f32[5, 13]", "f32[5, 13]"),
        ("bool[3, 1]", "f32[2, 1, 9]", "f32[]"),
        ("bool[7]", "i64[7]", "i64[1]"),
    ),
)
def where(condition, a, b):
    return sc.select(condition, a, b)


@pointwise(
    "Cast",
    examples=(
        ("f32[5, 13]", {"to": I32}),
        ("i64[2, 9]", {"to": F32}),
        ("f32[7]", {"to": BOOL}),
        ("bool[7]", {"to": F32}),
        ("f32[5, 13]", {"to": F16}),
        ("u8[3]", {"to": I64}),
        ("i32[5]", {"to": U8}),
        ("f32[37]", {"to": DType.F8E4M3FN}),
        ("f16[37]", {"to": DType.F8E5M2, "saturate": False}),
        ("f32[37]", {"to": DType.F8E8M0FNU, "round_mode": "nearest"}),
        ("i8[37]", {"to": DType.I4}),
        ("u4[37]", {"to": F32}),
        ("f4e2m1fn[37]", {"to": DType.BF16}),
    ),
)
def cast(x, *, to: DType, saturate: bool = True, round_mode: str = "up"):
    """x in another element type: floats to integers towards zero, anything to bool by `!= 0`.

    saturate: floats of a byte are finite where x is too large for them. round_mode: what f8e8m0fnu makes of a fraction,
    "up", "down" or "nearest".
    """
    return sc.cast(x, to, saturate, round_mode)


@pointwise("IsNaN")
def is_nan(x):
    return sc.isnan(x)


@pointwise(
    "IsInf",
    onnx_names=dict(positive="detect_positive", negative="detect_negative"),
    examples=(("f32[5, 13]",), ("f32[7]", {"negative": False}), ("f32[7]", {"positive": False, "negative": False})),
)
def is_inf(x, *, positive=True, negative=True):
    """Whether x is infinite, of the signs asked for."""
    if positive and negative:
        return sc.isinf(x)
    if positive:
        return sc.isinf(x) & (x > 0)
    return sc.isinf(x) & (x < 0 if negative else sc.isnan(x))
