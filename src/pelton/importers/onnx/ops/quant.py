"""Readers of quantized models: conversions spelled out as arithmetic, so that any precision can be built from them."""
from __future__ import annotations

from pelton.ir.dims import equal
from pelton.ir.graph import Value
from pelton.ir.types import F32, F64, I32, DType

from .conv import convolution
from pelton.importers.onnx.node import Reading, Thing, reads

_BITS = {DType.I2, DType.U2, DType.I4, DType.U4, DType.I8, DType.U8, DType.I16, DType.U16}
_FEW = {DType.F8E4M3FN, DType.F8E4M3FNUZ, DType.F8E5M2, DType.F8E5M2FNUZ, DType.F6E2M3FN, DType.F6E3M2FN, DType.F4E2M1FN}


def _spread(n: Reading, v: Value, x: Value, axis: int, block: int) -> Value:
    """A scale or zero point (one number, one per element of an axis, or one per block along it) as it broadcasts against x."""
    if v.type.size == 1:
        return n.reshape(v, ())
    axis = n.axis(axis, x.type.rank)
    if block:
        rows = v.type.shape[axis]
        apart = n.reshape(v, (*v.type.shape[:axis + 1], 1, *v.type.shape[axis + 1:]))
        apart = n.expand(apart, (*v.type.shape[:axis + 1], block, *v.type.shape[axis + 1:]))
        return n.slice(n.reshape(apart, (*v.type.shape[:axis], rows * block, *v.type.shape[axis + 1:])), axis, 0, x.type.shape[axis])
    if v.type.rank == x.type.rank > 1 and all(d == 1 or equal(d, e) for d, e in zip(v.type.shape, x.type.shape)):
        return v
    if v.type.rank != 1 or not equal(v.type.size, x.type.shape[axis]):
        raise n.refuse(f"{n.op} needs one scale or {x.type.shape[axis]} for axis {axis} of {x.type}, got {v.type}")
    return n.reshape(v, (v.type.size, *[1] * (x.type.rank - axis - 1)))


def dequantized(n: Reading, x: Value, scale: Value, zero: Value | None, axis: int = 0, block: int = 0) -> Value:
    """(x − zero) · scale, in the type of the scale; narrow ones, which do not hold all integers, only in the end."""
    to = scale.type.dtype if scale.type.dtype is F64 else F32
    wide = n.cast(x, to) if x.type.dtype is not I32 or zero is None else x
    if zero is not None:
        wide = n.cast(n.emit("sub", wide, _spread(n, n.cast(zero, wide.type.dtype), x, axis, block)), to)
    return n.cast(n.emit("mul", wide, _spread(n, n.cast(scale, to), x, axis, block)), scale.type.dtype)


def quantized(n: Reading, x: Value, scale: Value, zero: Value | None, to: DType, axis: int = 0, block: int = 0, saturate: bool = True) -> Value:
    """x / scale rounded half to even, + zero, saturated. Floats round as a cast does, and their zero is 0."""
    y = n.emit("div", x, n.cast(_spread(n, scale, x, axis, block), x.type.dtype))
    if to.is_float:
        return n.emit("cast", y, to=to, saturate=saturate or not to.value.startswith("f8"))
    y = n.cast(n.emit("round", y), F64 if x.type.dtype is F64 else F32)
    if zero is not None:
        y = n.emit("add", y, _spread(n, n.cast(zero, y.type.dtype), x, axis, block))
    bits = int(to.value[1:])
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if to.is_signed else (0, (1 << bits) - 1)
    return n.emit("cast", n.emit("clip", y, n.like(y, low), n.like(y, high)), to=to)


@reads("DequantizeLinear")
def dequantize_linear(n: Reading) -> Thing | tuple[Thing, ...]:
    x, scale, zero = n.input(0), n.input(1), n.optional(2)
    code = n.attr("output_dtype", 0)
    to = n.dtype(code) if code else scale.type.dtype
    if x.type.dtype not in _BITS | _FEW | {I32} or not scale.type.dtype.is_float or not to.is_float:
        return n.foreign()
    return n.cast(dequantized(n, x, n.cast(scale, F32) if scale.type.dtype.size == 1 else scale, zero, n.attr("axis", 1), n.attr("block_size", 0)), to)


@reads("QuantizeLinear")
def quantize_linear(n: Reading) -> Thing | tuple[Thing, ...]:
    x, scale, zero = n.input(0), n.input(1), n.optional(2)
    code = n.attr("output_dtype", 0)
    to = zero.type.dtype if zero is not None else n.dtype(code) if code else DType.U8
    precision = n.attr("precision", 0)
    within = n.dtype(precision) if precision else F64 if F64 in (x.type.dtype, scale.type.dtype) or not x.type.dtype.is_float else F32
    if to not in _BITS | _FEW or not within.is_float:
        return n.foreign()
    return quantized(n, n.cast(x, within), n.cast(scale, within), zero, to, n.attr("axis", 1), n.attr("block_size", 0), n.flag("saturate", 1))


@reads("QLinearMatMul")
def qlinear_matmul(n: Reading) -> Thing:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = n.inputs
    axis_a, axis_b = max(a.type.rank - 2, 0), max(b.type.rank - 1, 0)
    product = n.emit("matmul", dequantized(n, a, n.cast(a_scale, F32), a_zero, axis_a), dequantized(n, b, n.cast(b_scale, F32), b_zero, axis_b))
    return quantized(n, product, n.cast(y_scale, F32), y_zero, y_zero.type.dtype, max(product.type.rank - 2, 0))


@reads("QLinearConv")
def qlinear_conv(n: Reading) -> Thing:
    """The bias is in 32-bit integers of scale x · w."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (n.input(i) for i in range(8))
    bias = n.optional(8)
    if bias is not None:
        scale = n.emit("mul", n.reshape(x_scale, ()), w_scale)
        bias = n.emit("mul", n.cast(bias, F32), n.reshape(scale, ()) if scale.type.size == 1 else scale)
    y = convolution(n, dequantized(n, x, x_scale, x_zero), dequantized(n, w, w_scale, w_zero, 0), bias)
    return quantized(n, y, y_scale, y_zero, y_zero.type.dtype)
