"""Readers of mixtures of experts: all experts compute all tokens, and each token adds those that its router selects."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from pelton.ir.dims import is_known
from pelton.ir.graph import Value
from pelton.ir.types import F32, I64, U8

from pelton.importers.onnx.ops.quant import dequantize
from pelton.importers.onnx.node import MICROSOFT, Reading, Binding, reads
from .few_bits import unpack_bits

_ATTRIBUTES = """k activation_type activation_alpha activation_beta normalize_routing_weights use_sparse_mixer
    swiglu_fusion swiglu_limit"""


@reads("MoE", domain=MICROSOFT, attributes=_ATTRIBUTES, inputs=8)
def mixture(n: Reading) -> Binding:
    """Reads weights of experts as [experts, outputs, inputs]. Each token's largest k of all softmax weights count,
    divided by their sum with normalize_routing_weights. use_sparse_mixer has no effect, as in ONNX Runtime's kernel for
    CPUs."""
    probabilities = n.emit("softmax", _router(n, 1), axis=1)
    selected = _select(n, probabilities)
    shares = _selected(n, selected, probabilities)
    if n.flag("normalize_routing_weights"):
        shares = _normalized(n, shares)
    return _mix(n, selected, shares, [(n.optional(w), n.optional(w + 1)) for w in (2, 4, 6)])


@reads(
    "QMoE",
    domain=MICROSOFT,
    attributes=f"""{_ATTRIBUTES} expert_weight_bits block_size accuracy_level weights_prepacked
        fc1_expert_weight_bits fc2_expert_weight_bits fc3_expert_weight_bits""",
    inputs=15,
)
def quantized_mixture(n: Reading) -> Binding:
    """Reads a MoE with weights of few bits: a scale, and optionally a zero point, for each row or each block of it.
    Each token's largest k count, by the softmax of these alone; or by router_weights, divided by their sum with
    normalize_routing_weights. accuracy_level allows ONNX Runtime to round operands; here they stay as they are.
    """
    if n.attr("weights_prepacked", -1) not in (-1, 0):
        raise n.refuse(
            "QMoE with weights_prepacked has weights in the order of another device; export the model with"
            " weights_prepacked 0"
        )
    logits, others = _router(n, 1), n.optional(14)
    selected = _select(n, logits)
    if others is None:
        hidden = n.emit("where", selected, logits, n.like(logits, -np.inf))
        shares = n.emit("softmax", hidden, axis=1)
    else:
        shares = _selected(n, selected, _router(n, 14))
        if n.flag("normalize_routing_weights"):
            shares = _normalized(n, shares)
    layers, biases = [_stored(n, i) for i in range(3)], [n.optional(2 + 3 * i + 2) for i in range(3)]
    if _stay_packed(n, layers):
        return _mix_packed(n, selected, shares, layers, biases)
    return _mix(n, selected, shares, [(None if w is None else _dequantized(n, w), b) for w, b in zip(layers, biases)])


# --- routers


def _router(n: Reading, i: int) -> Value:
    v = n.input(i)
    if v.type.rank != 2:
        raise n.refuse(f"{n.op} needs router_probs of [tokens, experts], got {v.type}")
    return n.cast(v, F32)


def _select(n: Reading, scores: Value) -> Value:
    """Returns [tokens, experts]: true if an expert is among the k of a token."""
    k, experts = n.attr("k", 1), scores.type.shape[1]
    if not is_known(experts) or not 1 <= k <= experts:
        raise n.refuse(f"{n.op} needs k from 1 to the number of its experts, got {k} of {experts}")
    return one_of(n, n.emit_all("top_k", scores, k=k, axis=1)[1], experts)


def _selected(n: Reading, selected: Value, v: Value) -> Value:
    return n.emit("where", selected, v, n.like(v, 0))


def _normalized(n: Reading, shares: Value) -> Value:
    return n.emit("div", shares, n.emit("reduce_sum", shares, axes=(1,), keepdims=True))


@reads("MoEGroupRouter", domain=MICROSOFT, attributes="top_k n_group topk_group group_topk router_sentinel", inputs=3)
def group_router(n: Reading) -> tuple[Binding, ...]:
    """Selects experts. Scores are sigmoids, plus expert_bias for selection. The groups with the largest sums of their
    best scores provide the experts with the largest scores. The result is the logarithm of the score, router_sentinel
    for other experts; or scores with and without the bias, of logits or of activations times weights."""
    x, weights = n.input(0), n.optional(2)
    kind = x.type.dtype
    x = n.cast(n.reshape(x, (math.prod(x.type.shape[:-1]), x.type.shape[-1])), F32)
    if weights is not None:
        x = n.emit("matmul", x, n.transpose(n.cast(weights, F32), (1, 0)))
    tokens, experts = x.type.shape
    scores = n.emit("sigmoid", x)
    biased = n.emit("add", scores, n.reshape(n.cast(n.input(1), F32), (experts,)))
    if not n.is_output_used(0):
        return None, biased, scores
    groups, k = n.attr("n_group", 1), n.attr("top_k")
    each = experts // groups
    apart = n.reshape(biased, (tokens, groups, each))
    best, _ = n.emit_all("top_k", apart, k=min(n.attr("group_topk", 2), each), axis=2)
    sums = n.emit("reduce_sum", best, axes=(2,), keepdims=False)
    chosen = one_of(n, n.emit_all("top_k", sums, k=min(n.attr("topk_group", 1), groups), axis=1)[1], groups)
    allowed = n.emit("where", n.reshape(chosen, (tokens, groups, 1)), apart, n.like(apart, -np.inf))
    allowed = n.reshape(allowed, (tokens, experts))
    selected = one_of(n, n.emit_all("top_k", allowed, k=k, axis=1)[1], experts)
    log_scores = n.emit("log", n.emit("maximum", scores, n.like(scores, 1e-20)))
    sentinel = n.like(log_scores, n.attr("router_sentinel", -10000.0))
    return n.cast(n.emit("where", selected, log_scores, sentinel), kind), biased, scores


def one_of(n: Reading, places: Value, count: int) -> Value:
    """Returns [rows, count]: true if a number is among the places of its row."""
    hit = n.emit("equal", n.reshape(places, (*places.type.shape, 1)), n.constant(np.arange(count), I64))
    return n.emit("reduce_max", hit, axes=(1,), keepdims=False)


# --- layers


def _mix(n: Reading, selected: Value, shares: Value, layers: list[tuple[Value | None, Value | None]]) -> Binding:
    """Combines three layers, each with weights and biases or absent, the last one beside the first; in f32, as in ONNX
    Runtime."""
    x = n.input(0)
    width = x.type.shape[-1]
    tokens = n.cast(n.reshape(x, (1, math.prod(x.type.shape[:-1]), width)), F32)
    first, second, third = layers
    rows = _layer(n, tokens, *first)
    rows = _activate(n, rows, None if third[0] is None else _layer(n, tokens, *third))
    rows = _layer(n, rows, *second)
    beside = (*selected.type.shape[::-1], 1)
    chosen, share = (n.reshape(n.transpose(v, (1, 0)), beside) for v in (selected, shares))
    # only selected experts count, even if others give NaN
    each = n.emit("where", chosen, n.emit("mul", rows, share), n.like(rows, 0))
    return n.cast(n.reshape(n.emit("reduce_sum", each, axes=(0,), keepdims=False), x.type.shape), x.type.dtype)


def _layer(n: Reading, x: Value, w: Value | None, bias: Value | None) -> Value:
    """Computes [experts, tokens, outputs]."""
    if w is None or w.type.rank != 3 or w.type.shape[2] != x.type.shape[-1]:
        raise n.refuse(f"{n.op} needs weights [experts, outputs, {x.type.shape[-1]}], got {w and w.type}")
    y = n.emit("matmul", x, n.transpose(n.cast(w, F32), (0, 2, 1)))
    return y if bias is None else n.emit("add", y, n.reshape(n.cast(bias, F32), (w.type.shape[0], 1, w.type.shape[1])))


def _activate(n: Reading, x: Value, beside: Value | None) -> Value:
    kind, alpha = n.attr("activation_type", "relu"), n.attr("activation_alpha", 1.0)
    if kind == "swiglu":
        gate, linear = _gate_and_linear(n, x, beside)
        limit = n.attr("swiglu_limit")
        if limit is not None:
            gate = n.emit("minimum", gate, n.like(gate, limit))
            linear = n.emit("clip", linear, n.like(linear, -limit), n.like(linear, limit))
        return n.emit(
            "mul",
            n.emit("swish", gate, alpha=alpha),
            n.emit("add", linear, n.like(linear, n.attr("activation_beta", 0.0))),
        )
    if beside is not None:
        raise n.refuse(f"{n.op} with weights of a third layer needs activation_type 'swiglu', got {kind!r}")
    if kind == "identity":
        return x
    if kind == "silu":
        return n.emit("swish", x, alpha=1.0)
    if kind not in ("relu", "gelu"):
        raise n.refuse(f"{n.op} needs activation_type relu, gelu, silu, swiglu or identity, got {kind!r}")
    return n.emit({"relu": "relu", "gelu": "gelu_tanh"}[kind], x)


def _gate_and_linear(n: Reading, x: Value, beside: Value | None) -> tuple[Value, Value]:
    """Returns the factors of swiglu: the outputs of two layers, or of one, interleaved or concatenated."""
    fusion = n.attr("swiglu_fusion", 0)
    if (beside is None) != (fusion in (1, 2)) or fusion not in (0, 1, 2):
        raise n.refuse(f"{n.op} needs swiglu_fusion 1 or 2, or 0 and weights of a third layer, got {fusion}")
    if beside is not None:
        return x, beside
    experts, tokens, width = x.type.shape
    if width % 2:
        raise n.refuse(f"{n.op} with swiglu needs an even number of outputs in its first layer, got {width}")
    parts, axis = ((width // 2, 2), 3) if fusion == 1 else ((2, width // 2), 2)
    apart = n.reshape(x, (experts, tokens, *parts))
    gate, linear = (n.reshape(n.slice(apart, axis, i, i + 1), (experts, tokens, width // 2)) for i in (0, 1))
    return gate, linear


# --- layers of few bits


@dataclass(frozen=True)
class PackedWeights:
    """Weights of a layer of QMoE: bytes [experts, outputs, bytes of inputs], scales and zero points [experts, outputs,
    blocks]. Without zero points, zero is half of the numbers' range."""

    codes: Value
    scale: Value
    zero: Value | None
    bits: int
    size: int  # of a block

    @property
    def inputs(self) -> int:
        return self.scale.type.shape[2] * self.size


def _stored(n: Reading, i: int) -> PackedWeights | None:
    """Returns the weights of a layer; None where it is absent."""
    packed, scales, zeros = n.optional(2 + 3 * i), n.optional(3 + 3 * i), n.optional(11 + i)
    if packed is None:
        return None
    bits = n.attr(f"fc{i + 1}_expert_weight_bits", n.attr("expert_weight_bits", 4))
    if bits not in (2, 4, 8) or packed.type.dtype is not U8 or packed.type.rank != 3 or scales is None:
        raise n.refuse(
            f"QMoE needs weights of 2, 4 or 8 bits in bytes [experts, outputs, inputs], and their scales, got"
            f" {bits} bits and {packed.type}"
        )
    experts, outputs, width = packed.type.shape
    inputs = width * (8 // bits)
    size = n.attr("block_size", 0) or inputs
    blocks = inputs // size
    if inputs % size or scales.type.size != experts * outputs * blocks:
        raise n.refuse(f"QMoE needs a scale for each block of {size} in weights of {inputs} inputs, got {scales.type}")
    scale = n.cast(n.reshape(scales, (experts, outputs, blocks)), F32)
    if zeros is None:
        zero = None
    elif scales.type.rank == 3:
        zero = unpack_bits(n, zeros, bits, blocks)
    else:
        zero = n.reshape(unpack_bits(n, zeros, bits, outputs), (experts, outputs, blocks))
    return PackedWeights(packed, scale, zero, bits, size)


def _dequantized(n: Reading, w: PackedWeights) -> Value:
    """Returns numbers [experts, outputs, inputs]."""
    zero = w.zero
    if zero is None:
        zero = n.constant(np.full(w.scale.type.shape, 1 << (w.bits - 1)), U8)
    return dequantize(n, unpack_bits(n, w.codes, w.bits), w.scale, zero, 2, w.size)


def _stay_packed(n: Reading, layers: list[PackedWeights | None]) -> bool:
    """True if weights are constant, and their blocks are those of kernels."""
    for i, w in enumerate(layers):
        if w is None and i == 2:
            continue
        if w is None or any(v is not None and n.known(v) is None for v in (w.codes, w.scale, w.zero)):
            return False
        several = w.scale.type.shape[2] > 1 or i == 1  # in the second layer, all experts lie side by side
        if w.size % 16 and several:
            return False
        scales = n.known(w.scale)
        if i == 1 and scales is not None and not np.isfinite(scales).all():  # times 0, they would be no numbers
            return False
    return True


def _mix_packed(
    n: Reading, selected: Value, shares: Value, layers: list[PackedWeights | None], biases: list[Value | None]
) -> Binding:
    """Combines three layers like `_mix`, in two products whose weights stay packed: of tokens with the rows of all
    experts, and of the results, times their shares, with the columns of all experts side by side."""
    x = n.input(0)
    tokens = n.cast(n.reshape(x, (math.prod(x.type.shape[:-1]), x.type.shape[-1])), F32)
    first, second, third = layers
    assert first is not None and second is not None
    rows = _rows_of_experts(n, tokens, first, biases[0])
    rows = _activate(n, rows, None if third is None else _rows_of_experts(n, tokens, third, biases[2]))
    count, experts, inputs = rows.type.shape
    outputs = second.codes.type.shape[1]
    if (second.inputs, second.codes.type.shape[0]) != (inputs, experts):
        raise n.refuse(
            f"QMoE needs weights [{experts}, outputs, {inputs}] in its second layer, got {second.codes.type}"
        )
    beside = (count, experts, 1)
    each = n.emit("mul", rows, n.reshape(shares, beside))
    # only selected experts count, even if others give NaN
    each = n.emit("where", n.reshape(selected, beside), each, n.like(rows, 0))

    def by_outputs(v: Value) -> Value:
        return n.reshape(n.transpose(v, (1, 0, 2)), (outputs, experts * v.type.shape[2]))

    weights = [by_outputs(v) for v in (second.codes, second.scale, second.zero) if v is not None]
    each = n.reshape(each, (count, experts * inputs))
    y = n.emit("quantized_linear", each, *weights, block=second.size, bits=second.bits)
    if biases[1] is not None:
        bias = n.reshape(n.cast(biases[1], F32), (experts, outputs))
        y = n.emit("add", y, n.emit("matmul", n.emit("where", selected, shares, n.like(shares, 0)), bias))
    return n.cast(n.reshape(y, x.type.shape), x.type.dtype)


def _rows_of_experts(n: Reading, x: Value, w: PackedWeights, bias: Value | None) -> Value:
    """Computes [tokens, experts, outputs]."""
    (experts, outputs, _), width = w.codes.type.shape, x.type.shape[-1]
    if w.inputs != width:
        raise n.refuse(f"QMoE needs weights [experts, outputs, {width}], got {w.codes.type} of {w.bits} bits")
    parts = (w.codes, w.scale, w.zero)
    weights = [n.reshape(v, (experts * outputs, v.type.shape[2])) for v in parts if v is not None]
    y = n.emit("quantized_linear", x, *weights, block=w.size, bits=w.bits)
    if bias is not None:
        y = n.emit("add", y, n.reshape(n.cast(bias, F32), (experts * outputs,)))
    return n.reshape(y, (x.type.shape[0], experts, outputs))
