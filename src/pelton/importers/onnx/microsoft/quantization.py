"""Readers of ONNX Runtime's quantized operators: operands are dequantized, and results quantized again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import onnx

from pelton.ir.graph import Value
from pelton.ir.types import F32

from pelton.importers.onnx.ops.conv import emit_activation, emit_average_pool
from pelton.importers.onnx.ops.linear import scale_by, transpose_last_axes
from .attention import PROJECTED, emit_attention_of_projections
from pelton.importers.onnx.ops.norm import softmax_along
from pelton.importers.onnx.ops.quant import (
    dequantize_linear,
    dequantize,
    quantize_by_range,
    quantize_linear,
    quantize,
    emit_qlinear_conv,
)
from pelton.importers.onnx.ops.reduce import emit_reduction
from pelton.importers.onnx.ops.rnn import emit_recurrent
from pelton.importers.onnx.node import MICROSOFT, Reading, Binding, reads, schema_of

reads("DequantizeLinear", domain=MICROSOFT, attributes="axis", inputs=3)(dequantize_linear)
reads("QuantizeLinear", domain=MICROSOFT, attributes="axis", inputs=3)(quantize_linear)


def _operand(n: Reading, i: int, axis: int = 0) -> Value:
    """Dequantizes inputs i to i + 2: integers, their scale, and an optional zero point."""
    return dequantize(n, n.input(i), n.cast(n.input(i + 1), F32), n.optional(i + 2), axis)


def _result(n: Reading, y: Value, i: int) -> Value:
    """Quantizes y to the scale of input i and the zero point of input i + 1, in the first quantized input's type."""
    zero = n.optional(i + 1)
    return quantize(n, y, n.cast(n.input(i), F32), zero, zero.type.dtype if zero is not None else n.input(0).type.dtype)


# --- one or two operands, element by element


@reads("QLinearAdd", "QLinearMul", domain=MICROSOFT, attributes="", inputs=8)
def qlinear_pair(n: Reading) -> Binding:
    return _result(n, n.emit("add" if n.op == "QLinearAdd" else "mul", _operand(n, 0), _operand(n, 3)), 6)


@reads("QLinearSigmoid", domain=MICROSOFT, attributes="", inputs=5)
def qlinear_sigmoid(n: Reading) -> Binding:
    return _result(n, n.emit("sigmoid", _operand(n, 0)), 3)


@reads("QLinearLeakyRelu", domain=MICROSOFT, attributes="alpha", inputs=5)
def qlinear_leaky_relu(n: Reading) -> Binding:
    return _result(n, n.emit("leaky_relu", _operand(n, 0), alpha=n.attr("alpha", 0.01)), 3)


@reads("QLinearSoftmax", domain=MICROSOFT, attributes="axis opset", inputs=5)
def qlinear_softmax(n: Reading) -> Binding:
    """Reads the attribute `opset` as that of Softmax: before 13 it covers all axes from `axis` on together."""
    return _result(n, softmax_along(n, _operand(n, 0), n.attr("axis", -1), n.attr("opset", 13)), 3)


@reads("QLinearWhere", domain=MICROSOFT, attributes="", inputs=9)
def qlinear_where(n: Reading) -> Binding:
    zero = n.input(8)
    return quantize(
        n, n.emit("where", n.input(0), _operand(n, 1), _operand(n, 4)), n.cast(n.input(7), F32), zero, zero.type.dtype
    )


@reads("QLinearConcat", domain=MICROSOFT, attributes="axis")
def qlinear_concat(n: Reading) -> Binding:
    """Reads scale and zero point of the result first, then three inputs for each part."""
    count = len(n.bindings)
    if count < 5 or (count - 2) % 3:
        raise n.refuse(f"QLinearConcat needs two inputs and three for each part, got {count}")
    parts = [_operand(n, i) for i in range(2, count, 3)]
    y = n.emit("concat", *parts, axis=n.axis(n.attr("axis"), parts[0].type.rank)) if len(parts) > 1 else parts[0]
    return quantize(n, y, n.cast(n.input(0), F32), n.input(1), n.input(1).type.dtype)


@reads(
    "QLinearConv",
    domain=MICROSOFT,
    attributes="auto_pad kernel_shape dilations strides pads group channels_last",
    inputs=9,
)
def qlinear_conv_of_either_order(n: Reading) -> Binding:
    return _channels_first(n, n.input(0), lambda x: emit_qlinear_conv(n, x))


# --- over windows and axes


def _channels_first(n: Reading, x: Value, work: Callable[[Value], Value]) -> Value:
    """Applies `work` to [batch, channels, …], though the model may have the channels last."""
    if not n.flag("channels_last"):
        return work(x)
    rank = x.type.rank
    return n.transpose(work(n.transpose(x, (0, rank - 1, *range(1, rank - 1)))), (0, *range(2, rank), 1))


@reads(
    "QLinearAveragePool",
    domain=MICROSOFT,
    attributes="auto_pad ceil_mode channels_last count_include_pad kernel_shape pads strides",
    inputs=5,
)
def qlinear_average_pool(n: Reading) -> Binding:
    return _result(
        n, _channels_first(n, _operand(n, 0), lambda x: emit_average_pool(n, x, n.flag("count_include_pad"))), 3
    )


@reads("QLinearGlobalAveragePool", domain=MICROSOFT, attributes="channels_last", inputs=5)
def qlinear_global_average_pool(n: Reading) -> Binding:
    def mean(x: Value) -> Value:
        return n.emit("reduce_mean", x, axes=tuple(range(2, x.type.rank)), keepdims=True)

    return _result(n, _channels_first(n, _operand(n, 0), mean), 3)


@reads("QLinearReduceMean", domain=MICROSOFT, attributes="axes keepdims", inputs=5)
def qlinear_reduce_mean(n: Reading) -> Binding:
    x = _operand(n, 0)
    return _result(
        n,
        emit_reduction(
            n, "reduce_mean", x, n.axes(n.attr("axes") or range(x.type.rank), x.type.rank), n.flag("keepdims", 1)
        ),
        3,
    )


# --- products


@reads("QGemm", domain=MICROSOFT, attributes="alpha transA transB", inputs=9)
def qgemm(n: Reading) -> Binding:
    """Computes alpha · A · B + C, with C in 32-bit integers of scale alpha · a · b; returns floats without a scale of
    the result."""
    a, b, c = _operand(n, 0), _operand(n, 3, 0 if n.flag("transB") else 1), n.optional(6)
    alpha = n.attr("alpha", 1.0)
    y = n.emit(
        "matmul",
        transpose_last_axes(n, a) if n.flag("transA") else a,
        transpose_last_axes(n, b) if n.flag("transB") else b,
    )
    y = scale_by(n, y, alpha)
    if c is not None:
        scale = n.emit("mul", n.reshape(n.cast(n.input(1), F32), ()), _as_scalar(n, n.cast(n.input(4), F32)))
        y = n.emit("add", y, n.emit("mul", n.cast(c, F32), scale_by(n, scale, alpha)))
    return y if n.optional(7) is None else _result(n, y, 7)


def _as_scalar(n: Reading, v: Value) -> Value:
    """Reshapes one number to a scalar; keeps one per column."""
    return n.reshape(v, ()) if v.type.size == 1 else v


def _dequantize_columns(n: Reading, b: Value, scale: Value, zero: Value | None) -> Value:
    """Dequantizes weights with one scale and zero point, or one per column."""
    flat = [None if v is None else n.reshape(v, (v.type.size,)) for v in (scale, zero)]
    return dequantize(n, b, n.cast(n.value(flat[0]), F32), flat[1], b.type.rank - 1)


@reads("MatMulIntegerToFloat", domain=MICROSOFT, attributes="", inputs=7)
def matmul_integer_to_float(n: Reading) -> Binding:
    a = dequantize(
        n, n.input(0), n.cast(_as_scalar(n, n.input(2)), F32), n.optional(4), max(n.input(0).type.rank - 2, 0)
    )
    y = n.emit("matmul", a, _dequantize_columns(n, n.input(1), n.input(3), n.optional(5)))
    return y if n.optional(6) is None else n.emit("add", y, n.input(6))


@reads("DynamicQuantizeMatMul", domain=MICROSOFT, attributes="", inputs=5)
def dynamic_quantize_matmul(n: Reading) -> Binding:
    y = n.emit("matmul", _round_to_bytes(n, n.input(0)), _dequantize_columns(n, n.input(1), n.input(2), n.optional(3)))
    return y if n.optional(4) is None else n.emit("add", y, n.input(4))


def _round_to_bytes(n: Reading, x: Value) -> Value:
    """Rounds x as DynamicQuantizeLinear and back do."""
    return dequantize(n, *quantize_by_range(n, x))


@reads(
    "FusedGemm",
    domain=MICROSOFT,
    attributes="activation activation_alpha activation_beta activation_gamma alpha beta transA transB",
    inputs=3,
)
def fused_gemm(n: Reading) -> Binding:
    a, b, c = n.input(0), n.input(1), n.optional(2)
    a, b = transpose_last_axes(n, a) if n.flag("transA") else a, transpose_last_axes(n, b) if n.flag("transB") else b
    y = scale_by(n, n.emit("matmul", a, b), n.attr("alpha", 1.0))
    y = y if c is None else n.emit("add", y, scale_by(n, c, n.attr("beta", 1.0)))
    params = {name: n.attr(f"activation_{name}") for name in ("alpha", "beta", "gamma")}
    return emit_activation(n, y, n.attr("activation", ""), {k: v for k, v in params.items() if v is not None})


@reads("QAttention", domain=MICROSOFT, attributes=PROJECTED, inputs=9)
def qattention(n: Reading) -> tuple[Binding, ...]:
    x = dequantize(n, n.input(0), n.cast(n.input(3), F32), n.optional(6))
    return emit_attention_of_projections(
        n, x, _dequantize_columns(n, n.input(1), n.input(4), n.optional(7)), n.input(2), mask=5, past=8
    )


# --- recurrent networks


@reads(
    "DynamicQuantizeLSTM",
    domain=MICROSOFT,
    attributes="direction activation_alpha activation_beta activations clip hidden_size input_forget",
    inputs=12,
)
def dynamic_quantize_lstm(n: Reading) -> tuple[Binding, ...]:
    """Reads an LSTM with transposed integer weights. X is rounded to bytes over all of it, each step's state per batch
    row. ONNX Runtime rounds states over the rows of one thread: the same for a batch of one; for others its results
    depend on other rows' states, and on the threads."""
    node = onnx.NodeProto()
    node.CopyFrom(n.node)
    node.op_type, node.domain = "LSTM", ""
    opset = n.scope.opsets.get("", 14)
    weights = _dequantize_gates(n, 1, 8), _dequantize_gates(n, 2, 10)
    layer = replace(
        n,
        node=node,
        domain="",
        opset=opset,
        schema=schema_of("LSTM", opset, ""),
        bindings=(_round_to_bytes(n, n.input(0)), *weights, *n.bindings[3:8]),
    )
    return emit_recurrent(layer, round_state=True)


def _dequantize_gates(n: Reading, i: int, scale: int) -> Value:
    """Returns weights [direction, column, gate · unit], with scale and zero point per direction or per gate and unit,
    as [direction, gate · unit, column]: they stay bytes as a matrix of all directions for products."""
    w, factor, zero = n.input(i), n.input(scale), n.optional(scale + 1)
    per = w.type.shape[:1], w.type.shape[::2]
    if w.type.rank != 3 or any(v is not None and v.type.shape not in per for v in (factor, zero)):
        raise n.refuse(
            "DynamicQuantizeLSTM needs weights of rank 3, a scale and a zero point for each direction or column, got"
            f" {w.type} and {', '.join(str(v.type) for v in (factor, zero) if v is not None)}"
        )
    directions, inner, width = w.type.shape

    def by_row(v: Value) -> Value:
        each = n.expand(n.reshape(v, (*v.type.shape, 1)[:2]), (directions, width))
        return n.reshape(each, (directions * width,))

    rows = n.reshape(n.transpose(w, (0, 2, 1)), (directions * width, inner))
    rows = dequantize(n, rows, by_row(n.cast(factor, F32)), None if zero is None else by_row(zero), 0)
    return n.reshape(rows, (directions, width, inner))
