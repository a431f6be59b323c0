"""Readers of gates, norms and mixtures of streams. They compute in 32 bits, and round results to the type of their
input."""

from __future__ import annotations

from pelton.importers.onnx.node import MICROSOFT, Binding, Reading, reads
from pelton.ir.dims import Size, equal
from pelton.ir.graph import Value
from pelton.ir.types import F32

_EPSILON = 1e-5


def _rms(n: Reading, x: Value) -> Value:
    """Computes x / √(mean of squares + ε) along the last axis."""
    one = n.filled(1, x.type.shape[-1:], x.type.dtype)
    return n.emit("rms_norm", x, one, axis=x.type.rank - 1, epsilon=n.attr("epsilon", _EPSILON))


@reads("ScaledSiLU", domain=MICROSOFT, attributes="alpha", inputs=2)
def scaled_silu(n: Reading) -> Binding:
    """Computes z · σ(z), where z is a scale times x; each step is rounded to the type of x."""
    x, factor = n.input(0), n.optional(1)
    dtype = x.type.dtype
    scale = n.constant(n.attr("alpha", 1.0), F32) if factor is None else n.reshape(n.cast(factor, F32), ())
    z = n.cast(n.emit("mul", n.cast(x, F32), scale), dtype)
    share = n.cast(n.emit("sigmoid", n.cast(z, F32)), dtype)
    return n.emit("mul", z, share)


@reads("GatedAdd", domain=MICROSOFT, attributes="", inputs=4)
def gated_add(n: Reading) -> Binding:
    """Computes X + Y · gate, one gate per row."""
    if n.optional(3) is not None:
        raise n.refuse("GatedAdd with a gate_weight only runs on GPUs in ONNX Runtime, and is not supported")
    return n.emit("add", n.input(0), n.emit("mul", n.input(1), n.input(2)))


@reads("GatedRMSNorm", domain=MICROSOFT, attributes="activation epsilon", inputs=3)
def gated_rms_norm(n: Reading) -> Binding:
    """Computes RMSNorm(x) · scale · activation(gate), over groups of the last axis, each as long as scale."""
    x, scale, gate = (n.cast(v, F32) for v in n.inputs)
    size, activation = scale.type.size, n.attr("activation", "silu")
    whole = x.type.shape[-1] if x.type.rank else 0
    if scale.type.rank != 1 or activation not in ("silu", "swish", "sigmoid") or not equal(whole % size, 0):
        raise n.refuse(
            "GatedRMSNorm needs a scale whose size divides the last axis, and activation silu, swish or sigmoid, got"
            f" {n.input(1).type}, {n.input(0).type} and {activation!r}"
        )
    grouped = n.reshape(x, (*x.type.shape[:-1], whole // size, size))
    y = n.reshape(n.emit("mul", _rms(n, grouped), scale), x.type.shape)
    share = n.emit("sigmoid", gate)
    share = share if activation == "sigmoid" else n.emit("mul", gate, share)
    return n.cast(n.emit("mul", y, share), n.input(0).type.dtype)


@reads("EngramGate", domain=MICROSOFT, attributes="epsilon", inputs=6)
def engram_gate(n: Reading) -> tuple[Binding, ...]:
    """Computes value · gate for each stream: σ(±√|d|), where d is the product of normed keys and queries over √size."""
    dtype = n.input(0).type.dtype
    key, query, value, key_scale, query_scale = (n.cast(n.input(i), F32) for i in range(5))
    if key.type.rank != 4 or value.type.rank != 3:
        raise n.refuse(f"EngramGate needs keys of rank 4 and values of rank 3, got {key.type} and {value.type}")
    batch, tokens, _, size = key.type.shape
    both = n.emit("mul", n.emit("mul", _rms(n, key), key_scale), n.emit("mul", _rms(n, query), query_scale))
    dot = n.emit("reduce_sum", both, axes=(3,), keepdims=True)
    dot = n.emit("div", dot, n.emit("sqrt", n.cast(n.sizes(size), F32)))
    root = n.emit("sqrt", n.emit("maximum", n.emit("abs", dot), n.like(dot, 1e-6)))
    gate = n.emit("sigmoid", n.emit("mul", n.emit("sign", dot), root))
    y = n.emit("mul", gate, n.reshape(value, (batch, tokens, 1, size)))
    normed = None
    if n.is_output_used(1):
        normed = n.cast(n.emit("mul", _rms(n, y), n.cast(n.input(5), F32)), dtype)
    return n.cast(y, dtype), normed


# --- several streams of features


def _streams(n: Reading) -> Value:
    """Returns the first input as [..., streams, features] in 32 bits."""
    x, count = n.input(0), n.attr("num_branches", 0)
    if x.type.rank < (1 if count else 2) or count and not equal(x.type.shape[-1] % count, 0):
        raise n.refuse(
            f"{n.op} needs [..., streams, features], or num_branches that divide the last axis, got {x.type} and"
            f" {count}"
        )
    shape = (*x.type.shape[:-1], count, x.type.shape[-1] // count) if count else x.type.shape
    return n.reshape(n.cast(x, F32), shape)


def _gates(n: Reading, i: int, shape: tuple[Size, ...]) -> Value:
    """Returns input i as gates of streams of a shape: one per stream, or one per feature."""
    gates = n.cast(n.input(i), F32)
    forms = {
        shape[:-1]: (*shape[:-1], 1),
        (*shape[:-1], 1): (*shape[:-1], 1),
        shape: shape,
        (*shape[:-2], shape[-2] * shape[-1]): shape,
    }
    if gates.type.shape not in forms:
        raise n.refuse(f"{n.op} needs a gate for each stream or feature of {list(shape)}, got {gates.type}")
    return n.reshape(gates, forms[gates.type.shape])


@reads("HyperConnectionPreMix", domain=MICROSOFT, attributes="num_branches reduction_scale", inputs=2)
def hyper_connection_pre_mix(n: Reading) -> Binding:
    """Sums streams, each times its gate."""
    x = _streams(n)
    mixed = n.emit("mul", x, _gates(n, 1, x.type.shape))
    y = n.emit("reduce_sum", mixed, axes=(x.type.rank - 2,), keepdims=False)
    return n.cast(n.emit("mul", y, n.like(y, n.attr("reduction_scale", 1.0))), n.input(0).type.dtype)


@reads("HyperConnectionPostMix", domain=MICROSOFT, attributes="num_branches", inputs=4)
def hyper_connection_post_mix(n: Reading) -> Binding:
    """Mixes streams by optional matrices [from, to], and adds a block's output times the gate of each stream."""
    x, block, mix = _streams(n), n.cast(n.input(1), F32), n.optional(3)
    rank = x.type.rank
    if mix is not None:
        turned = n.transpose(n.cast(mix, F32), (*range(rank - 2), rank - 1, rank - 2))
        x = n.emit("matmul", turned, x)
    block = n.reshape(block, (*block.type.shape[:-1], 1, block.type.shape[-1]))
    y = n.emit("add", x, n.emit("mul", _gates(n, 2, x.type.shape), block))
    return n.cast(n.reshape(y, n.input(0).type.shape), n.input(0).type.dtype)


@reads("BranchwiseRMSNorm", domain=MICROSOFT, attributes="num_branches epsilon", inputs=2)
def branchwise_rms_norm(n: Reading) -> Binding:
    """Computes RMSNorm of each stream, times a scale per feature, shared or one per stream."""
    x, scale = _streams(n), n.optional(1)
    y = _rms(n, x)
    if scale is not None:
        streams, size = x.type.shape[-2:]
        of_each = equal(scale.type.size, streams * size)
        scale = n.reshape(n.cast(scale, F32), (streams, size) if of_each else (size,))
        y = n.emit("mul", y, scale)
    return n.cast(n.reshape(y, n.input(0).type.shape), n.input(0).type.dtype)
