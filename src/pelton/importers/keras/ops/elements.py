"""Elementwise operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pelton.ir.types import BOOL

from ..activations import ALONG, ELEMENTWISE, along
from ..held import HeldTensor, together
from .operation import Operation, reads_operation

UNARY = {
    **{name: name.lower() for name in ("Exp", "Log", "Sin", "Cos", "Tan", "Sinh", "Cosh", "Floor", "Ceil", "Erf")},
    **{"Arcsin": "asin", "Arccos": "acos", "Arctan": "atan", "Arcsinh": "asinh", "Arccosh": "acosh"},
    **{"Arctanh": "atanh", "Sqrt": "sqrt", "Reciprocal": "reciprocal", "Tanh": "tanh"},
}
KEEPING = {"Negative": "neg", "Absolute": "abs", "Abs": "abs", "Sign": "sign"}  # the integer type
BINARY = {
    **{"Add": "add", "Subtract": "sub", "Multiply": "mul", "Maximum": "maximum", "Minimum": "minimum"},
    **{"Power": "pow", "Mod": "mod", "Equal": "equal", "Less": "less", "LessEqual": "less_equal"},
    **{"Greater": "greater", "GreaterEqual": "greater_equal"},
}
LOGICAL = {"LogicalAnd": "logical_and", "LogicalOr": "logical_or", "LogicalXor": "logical_xor"}
# operation → activation function, and its options
ACTIVATIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Relu": ("relu", ()),
    "Relu6": ("relu6", ()),
    "Sigmoid": ("sigmoid", ()),
    "Softplus": ("softplus", ()),
    "Softsign": ("softsign", ()),
    "SoftShrink": ("soft_shrink", ("threshold",)),
    "HardShrink": ("hard_shrink", ("threshold",)),
    "TanhShrink": ("tanh_shrink", ()),
    "SparsePlus": ("sparse_plus", ()),
    "SparseSigmoid": ("sparse_sigmoid", ()),
    "Squareplus": ("squareplus", ("b",)),
    "Silu": ("silu", ()),
    "LogSigmoid": ("log_sigmoid", ()),
    "LeakyRelu": ("leaky_relu", ("negative_slope",)),
    "HardSigmoid": ("hard_sigmoid", ()),
    "HardSilu": ("hard_silu", ()),
    "HardTanh": ("hard_tanh", ()),
    "Elu": ("elu", ("alpha",)),
    "Celu": ("celu", ("alpha",)),
    "Selu": ("selu", ()),
    "Mish": ("mish", ()),
}


def _unary(name: str) -> Callable[[Operation], HeldTensor]:
    return lambda o: o.floats("x").mapped(lambda t: getattr(o.net, name)(t))


def _keeping(name: str) -> Callable[[Operation], HeldTensor]:
    return lambda o: o.held("x").mapped(lambda t: getattr(o.net, name)(t))


def _binary(name: str) -> Callable[[Operation], HeldTensor]:
    def read(o: Operation) -> HeldTensor:
        (a, b), like = o.operands("x1", "x2")
        return like.like(getattr(o.net, name)(a, b))

    return read


def _logical(name: str) -> Callable[[Operation], HeldTensor]:
    def read(o: Operation) -> HeldTensor:
        held = [_truth(o, o.held(n)) for n in ("x1", "x2")]
        (a, b), like = together(held)
        return like.like(getattr(o.net, name)(a, b))

    return read


def _truth(o: Operation, x: HeldTensor) -> HeldTensor:
    return x if x.dtype is BOOL else x.mapped(lambda t: o.net.cast(t, to="bool"))


def _activation(name: str, options: tuple[str, ...]) -> Callable[[Operation], HeldTensor]:
    def read(o: Operation) -> HeldTensor:
        settings = {option: o.number(option) for option in options if o.get(option) is not None}
        return o.floats("x").mapped(lambda t: ELEMENTWISE[name](o.net, t, **settings))

    return read


for _type, _op in UNARY.items():
    reads_operation(_type)(_unary(_op))
for _type, _op in KEEPING.items():
    reads_operation(_type)(_keeping(_op))
for _type, _op in BINARY.items():
    reads_operation(_type, args=("x1", "x2"))(_binary(_op))
for _type, _op in LOGICAL.items():
    reads_operation(_type, args=("x1", "x2"))(_logical(_op))
for _type, (_op, _options) in ACTIVATIONS.items():
    reads_operation(_type)(_activation(_op, _options))


@reads_operation("Gelu")
def gelu(o: Operation) -> HeldTensor:
    approximate = bool(o.get("approximate", True))
    return o.floats("x").mapped(lambda t: ELEMENTWISE["gelu"](o.net, t, approximate))


@reads_operation("Softmax", "LogSoftmax")
def softmax(o: Operation) -> HeldTensor:
    x, name = o.floats("x"), "softmax" if o.type == "Softmax" else "log_softmax"
    assert name in ALONG
    return along(o.net, x, name, o.axis("axis", x.rank, -1))


@reads_operation("Square")
def square(o: Operation) -> HeldTensor:
    return o.held("x").mapped(lambda t: t * t)


@reads_operation("Rsqrt")
def rsqrt(o: Operation) -> HeldTensor:
    return o.floats("x").mapped(lambda t: o.net.reciprocal(o.net.sqrt(t)))


@reads_operation("Log1p", "Expm1", "Log2", "Log10", "Exp2")
def logarithms(o: Operation) -> HeldTensor:
    one, log = np.float32(1), np.log
    functions = {
        "Log1p": lambda t: o.net.log(t + one),
        "Expm1": lambda t: o.net.exp(t) - one,
        "Log2": lambda t: o.net.log(t) * float(1 / log(2)),
        "Log10": lambda t: o.net.log(t) * float(1 / log(10)),
        "Exp2": lambda t: o.net.exp(t * float(log(2))),
    }
    return o.floats("x").mapped(functions[o.type])


@reads_operation("Round")
def rounded(o: Operation) -> HeldTensor:
    o.expect(decimals=0)
    return o.floats("x").mapped(lambda t: o.net.round(t))


@reads_operation("TrueDivide", "Divide", "FloorDivide", args=("x1", "x2"))
def divide(o: Operation) -> HeldTensor:
    (a, b), like = o.operands("x1", "x2")
    dtype = like.dtype
    if not dtype.is_float:
        if o.type == "FloorDivide":
            raise o.refuse("divides integers, which is not supported")
        a, b = (o.net.cast(t, to="f32") for t in (a, b))
    y = o.net.div(a, b)
    return like.like(o.net.floor(y) if o.type == "FloorDivide" else y)


@reads_operation("SquaredDifference", args=("x1", "x2"))
def squared_difference(o: Operation) -> HeldTensor:
    (a, b), like = o.operands("x1", "x2")
    difference = o.net.sub(a, b)
    return like.like(difference * difference)


@reads_operation("NotEqual", args=("x1", "x2"))
def not_equal(o: Operation) -> HeldTensor:
    (a, b), like = o.operands("x1", "x2")
    return like.like(o.net.logical_not(o.net.equal(a, b)))


@reads_operation("LogicalNot")
def logical_not(o: Operation) -> HeldTensor:
    return _truth(o, o.held("x")).mapped(lambda t: o.net.logical_not(t))


@reads_operation("Isnan", "Isinf")
def special(o: Operation) -> HeldTensor:
    return o.floats("x").mapped(lambda t: o.net.is_nan(t) if o.type == "Isnan" else o.net.is_inf(t))


@reads_operation("Clip")
def clip(o: Operation) -> HeldTensor:
    x = o.held("x")
    low, high = (o.get(name) for name in ("x_min", "x_max"))
    if not all(isinstance(b, (int, float)) for b in (low, high)):
        raise o.refuse("clips to something else than numbers")
    if x.dtype.is_integer and not all(isinstance(b, int) for b in (low, high)):
        raise o.refuse("clips integers to other numbers")
    return x.mapped(lambda t: o.net.clip(t, low, high))


@reads_operation("Where", args=("condition", "x1", "x2"))
def where(o: Operation) -> HeldTensor:
    if any(o.get(name) is None for name in ("x1", "x2")):
        raise o.refuse("outputs positions of elements, in a data-dependent number")
    condition = _truth(o, o.held("condition"))
    branches = [o.get(name) for name in ("x1", "x2")]
    if any(isinstance(x, HeldTensor) for x in branches):
        (a, b), like = o.operands("x1", "x2")
        values: list[Any] = [like.like(t) if not isinstance(t, np.ndarray) else t for t in (a, b)]
    else:
        arrays = [o.array(x) for x in branches]
        kind = np.result_type(*arrays)
        values = [v.astype(np.float32 if kind.kind == "f" else kind) for v in arrays]
    tensors, like = together([condition, *values])
    return like.like(o.net.where(*tensors))


@reads_operation("Cast")
def cast(o: Operation) -> HeldTensor:
    to = o.dtype("dtype")
    if to is None:
        raise o.refuse("has no type to cast to")
    return o.held("x").mapped(lambda t: o.net.cast(t, to=to))


@reads_operation("OnesLike", "ZerosLike", "FullLike", args=("x", "fill_value"))
def like(o: Operation) -> HeldTensor:
    value = {"OnesLike": 1.0, "ZerosLike": 0.0}.get(o.type)
    value = o.number("fill_value") if value is None else value
    to = o.dtype("dtype") or o.held("x").dtype
    return o.held("x").mapped(lambda t: o.net.full(value, t.shape, to))


@reads_operation("Identity", "StopGradient", "Copy", args=("variable",))
def identity(o: Operation) -> HeldTensor:
    return o.held("variable")
