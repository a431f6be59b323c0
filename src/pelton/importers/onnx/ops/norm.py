"""Readers of softmax and of the normalizations; absent biases become zeros."""

from __future__ import annotations

import math
from dataclasses import replace

from pelton.ir.graph import Value

from .conv import emit_power, emit_root
from .math import require_inference
from pelton.importers.onnx.node import MICROSOFT, Reading, Binding, reads, schema_of

_EPSILON = 1e-5  # of operators without a schema
FUSED_EPSILON = 1e-12  # of operators that ONNX Runtime fused


@reads("Softmax", "LogSoftmax", "Hardmax")
def softmax(n: Reading) -> Binding:
    """Computes softmax, before opset 13 over all axes from `axis` on together."""
    return softmax_along(n, n.input(0), n.attr("axis"), n.opset)


def softmax_along(n: Reading, x: Value, axis: int, opset: int) -> Value:
    shape, axis = x.type.shape, n.axis(axis, x.type.rank)
    if opset < 13 and math.prod(shape[axis + 1 :]) != 1:
        flat = n.reshape(x, (math.prod(shape[:axis]), math.prod(shape[axis:])))
        return n.reshape(_softmax(n, flat, 1), shape)
    if x.type.rank == 0:
        return n.reshape(_softmax(n, n.reshape(x, (1,)), 0), ())
    return _softmax(n, x, axis)


def _softmax(n: Reading, x: Value, axis: int) -> Value:
    if n.op != "Hardmax":
        return n.emit("log_softmax" if n.op == "LogSoftmax" else "softmax", x, axis=axis)
    if x.type.size == 0:
        return x
    best = n.emit("arg_max", x, axis=axis, keepdims=True)
    indices = n.reshape(n.count(x.type.shape[axis]), (x.type.shape[axis], *[1] * (x.type.rank - axis - 1)))
    return n.cast(n.emit("equal", best, indices), x.type.dtype)


@reads("BatchNormalization")
def batch_normalization(n: Reading) -> Binding | tuple[Binding, ...]:
    """Normalizes; in training mode by the batch's own statistics, mixed into the running ones."""
    x, *statistics = n.inputs
    require_inference(n)
    if n.flag("training_mode") and x.type.rank >= 2:
        return _normalize_in_training(n, x, *statistics)
    if n.flag("training_mode") or any(n.is_output_used(i) for i in range(1, len(n.node.output))):
        return n.foreign()
    if n.opset < 9 and not n.flag("spatial", 1):
        raise n.refuse("BatchNormalization with spatial=0 is not supported; export the model with opset 9 or later")
    statistics = [n.cast(s, x.type.dtype) for s in statistics]
    if x.type.rank == 1:  # a batch of one channel
        return n.reshape(
            n.emit("batch_norm", n.reshape(x, (x.type.size, 1)), *statistics, epsilon=n.attr("epsilon")), x.type.shape
        )
    return n.emit("batch_norm", x, *statistics, epsilon=n.attr("epsilon"))


def _normalize_in_training(
    n: Reading, x: Value, scale: Value, bias: Value, mean: Value, variance: Value
) -> tuple[Binding, ...]:
    axes, channels = tuple(a for a in range(x.type.rank) if a != 1), (x.type.shape[1],)
    wide = n.cast(x, mean.type.dtype)
    batch_mean = n.emit("reduce_mean", wide, axes=axes, keepdims=True)
    centered = n.emit("sub", wide, batch_mean)
    batch_variance = n.emit("reduce_mean", n.emit("mul", centered, centered), axes=axes, keepdims=False)
    batch_mean = n.reshape(batch_mean, channels)
    own = [n.cast(v, x.type.dtype) for v in (scale, bias, batch_mean, batch_variance)]

    def mix(old: Value, new: Value) -> Value:
        share = n.attr("momentum")
        return n.emit("add", n.emit("mul", old, n.like(old, share)), n.emit("mul", new, n.like(new, 1 - share)))

    return (
        n.emit("batch_norm", x, *own, epsilon=n.attr("epsilon")),
        mix(mean, batch_mean),
        mix(variance, batch_variance),
    )


@reads("GroupNormalization")
def group_normalization(n: Reading) -> Binding:
    """Reads scale and bias per group until opset 20, per channel since 21."""
    x, groups = n.input(0), n.attr("num_groups")
    scale, bias = (n.cast(n.input(i), x.type.dtype) for i in (1, 2))
    if n.opset < 21 and groups:
        per = x.type.shape[1] // groups
        scale, bias = (
            n.reshape(n.expand(n.reshape(v, (groups, 1)), (groups, per)), (groups * per,)) for v in (scale, bias)
        )
    return n.emit("group_norm", x, scale, bias, groups=groups, epsilon=n.attr("epsilon"))


@reads("MeanVarianceNormalization")
def mean_variance_normalization(n: Reading) -> Binding | tuple[Binding, ...]:
    """Normalizes over given axes since opset 9; before, as ONNX Runtime, over all axes or all but the channels."""
    x = n.input(0)
    if n.opset >= 9:
        return n.body()
    if x.type.rank < 2:
        raise n.refuse(f"{n.op} needs an input of rank 2 or more, got {x.type}")
    axes = tuple(a for a in range(x.type.rank) if a != 1 or n.flag("across_channels"))
    centered = n.emit("sub", x, n.emit("reduce_mean", x, axes=axes, keepdims=True))
    if not n.flag("normalize_variance"):
        return centered
    variance = n.emit("reduce_mean", n.emit("mul", centered, centered), axes=axes, keepdims=True)
    return n.emit("div", centered, n.emit("add", n.emit("sqrt", variance), n.like(x, 1e-9)))


@reads("LayerNormalization")
@reads("LayerNormalization", domain=MICROSOFT, attributes="axis epsilon stash_type")
def layer_normalization(n: Reading) -> Binding | tuple[Binding, ...]:
    """Normalizes; ONNX Runtime writes this operator into models of all opsets, as opset 17 defines it."""
    if n.is_output_used(1) or n.is_output_used(2):
        opset = max(n.opset, 17)
        return replace(n, domain="", opset=opset, schema=schema_of(n.op, opset, "")).body()
    return layer_norm(n, n.input(0), n.input(1), n.optional(2), n.attr("axis", -1))


def layer_norm(
    n: Reading, x: Value, scale: Value, bias: Value | None, axis: int = -1, default: float = _EPSILON
) -> Value:
    scale = n.cast(scale, x.type.dtype)
    bias = n.cast(bias, x.type.dtype) if bias is not None else n.filled(0, scale.type.shape, x.type.dtype)
    return n.emit("layer_norm", x, scale, bias, axis=n.axis(axis, x.type.rank), epsilon=n.attr("epsilon", default))


@reads("RMSNormalization", "SimplifiedLayerNormalization")
@reads("SimplifiedLayerNormalization", domain=MICROSOFT, attributes="axis epsilon stash_type", inputs=2)
def rms_normalization(n: Reading) -> Binding:
    if n.is_output_used(1):
        raise n.refuse(f"{n.op} with its deviation as output is not supported")
    return rms_norm(n, n.input(0), n.input(1), n.attr("axis", -1))


def rms_norm(n: Reading, x: Value, scale: Value, axis: int = -1, default: float = _EPSILON) -> Value:
    return n.emit(
        "rms_norm", x, n.cast(scale, x.type.dtype), axis=n.axis(axis, x.type.rank), epsilon=n.attr("epsilon", default)
    )


@reads("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT, attributes="epsilon", inputs=5)
def skip_layer_normalization(n: Reading) -> tuple[Binding, ...]:
    """Computes norm(x + skip + bias); the fourth output is the sum."""
    if n.is_output_used(1) or n.is_output_used(2):
        raise n.refuse(f"{n.op} with its mean or deviation as output is not supported")
    simple = n.op.startswith("SkipSimplified")
    bias = n.optional(3 if simple else 4)
    total = n.emit("add", n.input(0), n.input(1))
    total = total if bias is None else n.emit("add", total, bias)
    y = (
        rms_norm(n, total, n.input(2), default=FUSED_EPSILON)
        if simple
        else layer_norm(n, total, n.input(2), n.optional(3), default=FUSED_EPSILON)
    )
    return y, None, None, total


@reads("LpNormalization")
def lp_normalization(n: Reading) -> Binding:
    """Computes x / ‖x‖ₚ along an axis, 0 for a norm of 0."""
    x, p = n.input(0), n.attr("p")
    axis = n.axis(n.attr("axis"), x.type.rank)
    norm = emit_root(n, n.emit("reduce_sum", emit_power(n, x, p), axes=(axis,), keepdims=True), p)
    return n.emit("where", n.emit("equal", norm, n.like(norm, 0)), n.like(x, 0), n.emit("div", x, norm))
