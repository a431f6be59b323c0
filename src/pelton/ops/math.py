"""Pointwise ops: arithmetic, functions, activations, comparisons, logic and casts."""

from __future__ import annotations

from pelton.ir import scalar as sc
from pelton.ir.types import BOOL, F16, F32, I32, I64, U8, DType

from .op import pointwise

_INTS = (("i32[5, 13]", "i32[5, 13]"), ("i64[2, 3, 9]", "i64[3, 1]"))
_FLOATS = (("f32[5, 13]", "f32[5, 13]"), ("f32[2, 3, 9]", "f32[3, 1]"), ("f32[1]", "f32[]"))
_BOOLS = (("bool[5, 13]", "bool[5, 13]"), ("bool[2, 3, 9]", "bool[3, 1]"))


def _only(kind: str, *operands) -> None:
    """Types that the primitives alone would let through: TypeError unless all operands are bools (or integers)."""
    for x in operands:
        if isinstance(x, sc.Scalar) and not (x.dtype is BOOL if kind == "bools" else x.dtype.is_integer):
            raise TypeError(f"needs {kind}, got {x.dtype.value}")


# --- arithmetic


@pointwise("Add", commutative=True, examples=_FLOATS + _INTS)
def add(a, b):
    return a + b


@pointwise("Sub", examples=_FLOATS + _INTS)
def sub(a, b):
    return a - b


@pointwise("Mul", commutative=True, examples=_FLOATS + _INTS)
def mul(a, b):
    return a * b


@pointwise("Div", examples=_FLOATS + _INTS, domain=(0.3, 3.0))
def div(a, b):
    """a / b; integers divide towards zero."""
    return sc.apply("div", a, b)


@pointwise("Mod", examples=_INTS)
def mod(a, b):
    """The remainder with the sign of the divisor (Python's)."""
    return sc.mod(a, b)


@pointwise("Mod", examples=_FLOATS + _INTS, domain=(0.3, 3.0))
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


@pointwise("Min", commutative=True, examples=_FLOATS + _INTS)
def minimum(a, b):
    """The smaller one; NaN where either is NaN."""
    return sc.minimum(a, b)


@pointwise("Max", commutative=True, examples=_FLOATS + _INTS)
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
    return 1.0 / _float(x)


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


# --- activations


def _float(x):
    if isinstance(x, sc.Scalar) and not x.dtype.is_float:
        raise TypeError(f"needs floating point, got {x.dtype.value}")
    return x


@pointwise("Sigmoid")
def sigmoid(x):
    return 1.0 / (1.0 + sc.exp(-x))


@pointwise("Relu", examples=(("f32[5, 13]",), ("i32[5, 13]",)))
def relu(x):
    return sc.maximum(x, 0)


@pointwise("LeakyRelu")
def leaky_relu(x, *, alpha=0.01):
    return sc.select(_float(x) < 0, alpha * x, x)


@pointwise("PRelu")
def prelu(x, slope):
    return sc.select(x < 0, slope * x, x)


@pointwise("Elu")
def elu(x, *, alpha=1.0):
    return sc.select(x < 0, alpha * (sc.exp(x) - 1.0), x)


@pointwise("Selu")
def selu(x, *, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875):
    return gamma * sc.select(x < 0, alpha * (sc.exp(x) - 1.0), x)


@pointwise("Celu")
def celu(x, *, alpha=1.0):
    return sc.select(x < 0, alpha * (sc.exp(x / alpha) - 1.0), x)


@pointwise("ThresholdedRelu")
def thresholded_relu(x, *, alpha=1.0):
    return sc.select(_float(x) > alpha, x, 0.0)


@pointwise("HardSigmoid")
def hard_sigmoid(x, *, alpha=0.2, beta=0.5):
    return sc.minimum(sc.maximum(alpha * _float(x) + beta, 0.0), 1.0)


@pointwise("HardSwish")
def hard_swish(x):
    return x * sc.minimum(sc.maximum(_float(x) * (1 / 6) + 0.5, 0.0), 1.0)


@pointwise("Softplus")
def softplus(x):
    """log(1 + eˣ), written so that large x do not overflow."""
    return sc.maximum(x, 0.0) + sc.log(1.0 + sc.exp(-sc.absolute(x)))


@pointwise("Softsign")
def softsign(x):
    return _float(x) / (1.0 + sc.absolute(x))


@pointwise("Mish")
def mish(x):
    return x * sc.tanh(sc.maximum(x, 0.0) + sc.log(1.0 + sc.exp(-sc.absolute(x))))


@pointwise("Gelu")
def gelu(x):
    return 0.5 * x * (1.0 + sc.erf(x * 0.7071067811865476))


@pointwise("Gelu")
def gelu_tanh(x):
    return 0.5 * x * (1.0 + sc.tanh(0.7978845608028654 * (x + 0.044715 * (x * x * x))))


@pointwise("Swish")
def swish(x, *, alpha=1.0):
    return x / (1.0 + sc.exp(-(alpha * x)))


@pointwise(
    "Clip",
    examples=(("f32[5, 13]", "f32[]", "f32[]"), ("f32[2, 3, 9]", "f32[]", "f32[]"), ("i32[5, 13]", "i32[]", "i32[]")),
)
def clip(x, low, high):
    """x limited to [low, high]; `high` wins where the two cross."""
    return sc.minimum(sc.maximum(x, low), high)


# --- comparisons and logic


@pointwise("Less", examples=_FLOATS + _INTS)
def less(a, b):
    return sc.apply("lt", a, b)


@pointwise("LessOrEqual", examples=_FLOATS + _INTS)
def less_equal(a, b):
    return sc.apply("le", a, b)


@pointwise("Greater", examples=_FLOATS + _INTS)
def greater(a, b):
    return sc.apply("gt", a, b)


@pointwise("GreaterOrEqual", examples=_FLOATS + _INTS)
def greater_equal(a, b):
    return sc.apply("ge", a, b)


@pointwise("Equal", commutative=True, examples=_FLOATS + _INTS + _BOOLS)
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


@pointwise("BitwiseAnd", commutative=True, examples=_INTS)
def bitwise_and(a, b):
    _only("integers", a, b)
    return a & b


@pointwise("BitwiseOr", commutative=True, examples=_INTS)
def bitwise_or(a, b):
    _only("integers", a, b)
    return a | b


@pointwise("BitwiseXor", commutative=True, examples=_INTS)
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
    return sc.isinf(x) & (x > 0 if positive else x < 0 if negative else sc.isnan(x))
