"""Elementwise operators, type conversions and selections."""

from __future__ import annotations

import math

import numpy as np

from pelton.ir.types import F32, DType
from pelton.network import NetworkTensor

from ..file import TensorSpec
from ..held import QUANTIZED, parameters
from ..node import Given, TFLiteReading, reads

UNARY = {
    "ABS": "abs",
    "CEIL": "ceil",
    "COS": "cos",
    "EXP": "exp",
    "FLOOR": "floor",
    "HARD_SWISH": "hard_swish",
    "LOG": "log",
    "LOGICAL_NOT": "logical_not",
    "LOGISTIC": "sigmoid",
    "NEG": "neg",
    "RELU": "relu",
    "ROUND": "round",
    "SIGN": "sign",
    "SIN": "sin",
    "SQRT": "sqrt",
    "TANH": "tanh",
}
BINARY = {
    "ADD": "add",
    "BITWISE_XOR": "bitwise_xor",
    "DIV": "div",
    "EQUAL": "equal",
    "FLOOR_MOD": "mod",
    "GREATER": "greater",
    "GREATER_EQUAL": "greater_equal",
    "LESS": "less",
    "LESS_EQUAL": "less_equal",
    "LOGICAL_AND": "logical_and",
    "LOGICAL_OR": "logical_or",
    "MAXIMUM": "maximum",
    "MINIMUM": "minimum",
    "MUL": "mul",
    "POW": "pow",
    "PRELU": "prelu",
    "SUB": "sub",
}
ACTIVATED = ("ADD", "SUB", "MUL", "DIV")


@reads(*UNARY)
def unary(n: TFLiteReading) -> Given:
    x, first = n.either(0)
    return n.ordered(getattr(n.net, UNARY[n.op])(x), first)


@reads(*BINARY)
def binary(n: TFLiteReading) -> Given:
    (a, b), first = n.together(0, 1)
    y = getattr(n.net, BINARY[n.op])(a, b)
    return n.ordered(n.activated(y) if n.op in ACTIVATED else y, first)


@reads("NOT_EQUAL")
def not_equal(n: TFLiteReading) -> Given:
    (a, b), first = n.together(0, 1)
    return n.ordered(n.net.logical_not(n.net.equal(a, b)), first)


@reads("SQUARED_DIFFERENCE")
def squared_difference(n: TFLiteReading) -> Given:
    (a, b), first = n.together(0, 1)
    d = n.net.sub(a, b)
    return n.ordered(n.net.mul(d, d), first)


@reads("FLOOR_DIV")
def floor_div(n: TFLiteReading) -> Given:
    (a, b), first = n.together(0, 1)
    if a.dtype.is_float:
        return n.ordered(n.net.floor(n.net.div(a, b)), first)
    # (a − mod(a, b)) / b, exact, as the remainder has the sign of b
    return n.ordered(n.net.div(n.net.sub(a, n.net.mod(a, b)), b), first)


@reads("ATAN2")
def atan2(n: TFLiteReading) -> Given:
    (y, x), first = n.together(0, 1)
    return n.ordered(atan2_of(n, y, x), first)


def atan2_of(n: TFLiteReading, y: NetworkTensor, x: NetworkTensor) -> NetworkTensor:
    """Computes the angle of the point (x, y), in (−π, π]; 0 for (0, 0)."""
    net, zero = n.net, np.zeros((), np.float32)
    up = net.where(net.less(y, zero), np.float32(-1), np.float32(1))
    beside = net.atan(net.div(y, net.where(net.equal(x, zero), np.float32(1), x)))
    left = net.add(beside, net.mul(up, np.float32(math.pi)))
    above = net.where(net.equal(y, zero), zero, net.mul(up, np.float32(math.pi / 2)))
    return net.where(net.less(x, zero), left, net.where(net.equal(x, zero), above, beside))


@reads("ADD_N")
def add_n(n: TFLiteReading) -> Given:
    terms, first = n.together(*range(n.count))
    total = terms[0]
    for term in terms[1:]:
        total = n.net.add(total, term)
    return n.ordered(total, first)


@reads("SQUARE")
def square(n: TFLiteReading) -> Given:
    x, first = n.either(0)
    return n.ordered(n.net.mul(x, x), first)


@reads("RSQRT")
def rsqrt(n: TFLiteReading) -> Given:
    x, first = n.either(0)
    return n.ordered(n.net.div(np.float32(1), n.net.sqrt(x)), first)


@reads("RELU6", "RELU_N1_TO_1", "RELU_0_TO_1")
def clipped(n: TFLiteReading) -> Given:
    low, high = {"RELU6": (0, 6), "RELU_N1_TO_1": (-1, 1), "RELU_0_TO_1": (0, 1)}[n.op]
    x, first = n.either(0)
    return n.ordered(n.net.clip(x, low, high), first)


@reads("LEAKY_RELU")
def leaky_relu(n: TFLiteReading) -> Given:
    x, first = n.either(0)
    return n.ordered(n.net.leaky_relu(x, alpha=n.option("alpha")), first)


@reads("ELU")
def elu(n: TFLiteReading) -> Given:
    x, first = n.either(0)
    return n.ordered(n.net.elu(x, alpha=1.0), first)


@reads("GELU")
def gelu(n: TFLiteReading) -> Given:
    x, first = n.either(0)
    return n.ordered(n.net.gelu_tanh(x) if n.option("approximate") else n.net.gelu(x), first)


# --- types


@reads("CAST")
def cast(n: TFLiteReading) -> Given:
    x = n.given(0)
    to = n.outputs[0].dtype
    if to is None:
        raise n.refuse(f"has elements as its output that are no numbers: {n.outputs[0]}")
    first = n.prefers_first(0)
    return n.ordered(n.net.cast(x.raw(first), to=to) if x.spec.dtype is not to else x.raw(first), first)


@reads("QUANTIZE")
def quantize(n: TFLiteReading) -> Given:
    """Converts numbers, or integers of other parameters, to the output's stored form. Those of 32 bits use a scale."""
    x, first = n.either(0)
    before, after = n.given(0).spec, n.outputs[0]
    if before.dtype is DType.I32 and before.quantization is not None:
        x = n.net.dequantize(x, _scale(n, before))
    if after.dtype is DType.I32 and after.quantization is not None:
        x = n.net.round(n.net.div(x, _scale(n, after)))
    return n.ordered(x, first)


def _scale(n: TFLiteReading, spec: TensorSpec) -> np.ndarray:
    scale, zero = parameters(spec)
    if scale.size > 1 or zero.any():
        raise n.refuse(f"needs one scale, and a zero point of 0, of {spec}")
    return scale


@reads("DEQUANTIZE")
def dequantize(n: TFLiteReading) -> Given:
    """Converts integers, or f16, to numbers."""
    x, first = n.either(0)
    if n.given(0).spec.dtype in QUANTIZED and not n.given(0).is_quantized:
        raise n.refuse(f"needs a scale of its input {n.given(0).spec}")
    return n.ordered(n.net.cast(x, to=F32) if x.dtype is not F32 else x, first)


@reads("DENSIFY")
def densify(n: TFLiteReading) -> Given:
    """Copies: sparse constants become dense when they are read."""
    return n.given(0)


@reads("FAKE_QUANT")
def fake_quant(n: TFLiteReading) -> Given:
    """Rounds numbers to those that some bits represent between a minimum and a maximum, zero among them."""
    low, high, bits = n.option("min"), n.option("max"), n.option("bits")
    first_step, last_step = int(bool(n.option("narrow_range"))), (1 << bits) - 1
    if not (2 <= bits <= 16 and low < high):
        raise n.refuse(f"needs 2 to 16 bits and a range, got {bits} bits from {low} to {high}")
    scale = (high - low) / (last_step - first_step)
    zero = min(max(math.floor(first_step - low / scale + 0.5), first_step), last_step)
    low, high = (first_step - zero) * scale, (last_step - zero) * scale
    x, first = n.either(0)
    steps = n.net.floor(n.net.add(n.net.div(n.net.sub(n.net.clip(x, low, high), low), scale), 0.5))
    return n.ordered(n.net.add(n.net.mul(steps, scale), low), first)


# --- selections


@reads("SELECT", "SELECT_V2")
def select(n: TFLiteReading) -> Given:
    condition = n.given(0)
    if n.op == "SELECT" and condition.rank == 1 and n.given(1).rank > 1:  # one condition per row
        rows = n.net.reshape(condition.raw(), (*condition.shape, *[1] * (n.given(1).rank - 1)))
        return n.net.where(rows, n.input(1), n.input(2))
    (c, a, b), first = n.together(0, 1, 2)
    return n.ordered(n.net.where(c, a, b), first)


@reads("ZEROS_LIKE")
def zeros_like(n: TFLiteReading) -> Given:
    x = n.given(0).raw()
    zero = np.zeros((), x.dtype.numpy)
    return n.net.expand(zero, x.shape)
