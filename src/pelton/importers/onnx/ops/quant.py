"""Readers of quantization, dequantization and operators on quantized tensors."""

from __future__ import annotations

from collections.abc import Iterable

from pelton.ir.graph import Value
from pelton.ir.types import F32, F64, I32, U8, DType
from pelton.ops.quantize import fits

from .conv import convolution
from pelton.importers.onnx.node import Reading, Binding, reads

_INTEGERS = {DType.I2, DType.U2, DType.I4, DType.U4, DType.I8, DType.U8, DType.I16, DType.U16}
_SMALL_FLOATS = {
    DType.F8E4M3FN,
    DType.F8E4M3FNUZ,
    DType.F8E5M2,
    DType.F8E5M2FNUZ,
    DType.F6E2M3FN,
    DType.F6E3M2FN,
    DType.F4E2M1FN,
}


def _operands(
    n: Reading, x: Value, found: Iterable[Value | None], axis: int, block: int
) -> tuple[list[Value], dict[str, int]]:
    """Returns the operands x, scale and zero point (if present), and the attributes of their axis and block size."""
    parameters = [v for v in found if v is not None]
    if all(v.type.size == 1 for v in parameters):
        return [x, *parameters], {}
    axis = n.axis(axis, x.type.rank)
    for v in parameters:
        if not fits(v.type, x.type, axis, block):
            raise n.refuse(f"{n.op} needs one scale or {x.type.shape[axis]} for axis {axis} of {x.type}, got {v.type}")
    return [x, *parameters], {"axis": axis, "block": block}


def dequantize(n: Reading, x: Value, scale: Value, zero: Value | None, axis: int = 0, block: int = 0) -> Value:
    """Computes (x − zero) · scale, in the type of the scale."""
    operands, layout = _operands(n, x, (scale, zero), axis, block)
    return n.emit("dequantize", *operands, **layout)


def quantize(
    n: Reading,
    x: Value,
    scale: Value,
    zero: Value | None,
    to: DType,
    axis: int = 0,
    block: int = 0,
    saturate: bool = True,
) -> Value:
    """Computes x / scale, rounded half to even, + zero, saturated; floats round as casts do and have no zero point."""
    operands, layout = _operands(n, x, (scale, None if to.is_float else zero), axis, block)
    return n.emit("quantize", *operands, to=to, saturate=saturate or not to.is_float, **layout)


@reads("DequantizeLinear")
def dequantize_linear(n: Reading) -> Binding | tuple[Binding, ...]:
    x, scale, zero = n.input(0), n.input(1), n.optional(2)
    code = n.attr("output_dtype", 0)
    to = n.dtype(code) if code else scale.type.dtype
    if x.type.dtype not in _INTEGERS | _SMALL_FLOATS | {I32} or not scale.type.dtype.is_float or not to.is_float:
        return n.foreign()
    return n.cast(
        dequantize(
            n,
            x,
            n.cast(scale, F32) if scale.type.dtype.size == 1 else scale,
            zero,
            n.attr("axis", 1),
            n.attr("block_size", 0),
        ),
        to,
    )


@reads("QuantizeLinear")
def quantize_linear(n: Reading) -> Binding | tuple[Binding, ...]:
    x, scale, zero = n.input(0), n.input(1), n.optional(2)
    code = n.attr("output_dtype", 0)
    if zero is not None:
        to = zero.type.dtype
    else:
        to = n.dtype(code) if code else DType.U8
    precision = n.attr("precision", 0)
    if precision:
        within = n.dtype(precision)
    else:
        within = F64 if F64 in (x.type.dtype, scale.type.dtype) or not x.type.dtype.is_float else F32
    if to not in _INTEGERS | _SMALL_FLOATS or not within.is_float:
        return n.foreign()
    return quantize(
        n,
        n.cast(x, within),
        n.cast(scale, within),
        zero,
        to,
        n.attr("axis", 1),
        n.attr("block_size", 0),
        n.flag("saturate", 1),
    )


@reads("DynamicQuantizeLinear")
def dynamic_quantize_linear(n: Reading) -> tuple[Binding, ...]:
    return quantize_by_range(n, n.cast(n.input(0), F32))


def quantize_by_range(n: Reading, x: Value) -> tuple[Value, Value, Value]:
    """Returns x in u8, its scale and zero point: 255 steps from its least to its largest number, zero among them.

    For zeros only, the range counts as 1, as in the onnx package's evaluator; the operator's text divides by 0.
    """
    axes, zero, steps = tuple(range(x.type.rank)), n.like(x, 0), n.like(x, 255)
    least, largest = (n.emit(f"reduce_{of}", x, axes=axes, keepdims=False) if axes else x for of in ("min", "max"))
    low = n.emit("minimum", least, zero)
    width = n.emit("sub", n.emit("maximum", largest, zero), low)
    scale = n.emit("div", n.emit("where", n.emit("equal", width, zero), n.like(x, 1), width), steps)
    middle = n.emit("clip", n.emit("sub", zero, n.emit("div", low, scale)), zero, steps)
    middle = n.cast(n.emit("round", middle), U8)
    return quantize(n, x, scale, middle, U8), scale, middle


@reads("QLinearMatMul")
def qlinear_matmul(n: Reading) -> Binding:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = n.inputs
    axis_a, axis_b = max(a.type.rank - 2, 0), max(b.type.rank - 1, 0)
    product = n.emit(
        "matmul",
        dequantize(n, a, n.cast(a_scale, F32), a_zero, axis_a),
        dequantize(n, b, n.cast(b_scale, F32), b_zero, axis_b),
    )
    return quantize(n, product, n.cast(y_scale, F32), y_zero, y_zero.type.dtype, max(product.type.rank - 2, 0))


@reads("QLinearConv")
def qlinear_conv(n: Reading) -> Binding:
    return emit_qlinear_conv(n, n.input(0))


def emit_qlinear_conv(n: Reading, x: Value) -> Value:
    """Emits QLinearConv of an input. The bias has 32-bit integers, with scale x_scale · w_scale."""
    x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (n.input(i) for i in range(1, 8))
    bias = n.optional(8)
    if bias is not None:
        scale = n.emit("mul", n.reshape(x_scale, ()), w_scale)
        bias = n.emit("mul", n.cast(bias, F32), n.reshape(scale, ()) if scale.type.size == 1 else scale)
    y = convolution(n, dequantize(n, x, x_scale, x_zero), dequantize(n, w, w_scale, w_zero, 0), bias)
    return quantize(n, y, y_scale, y_zero, y_zero.type.dtype)
