"""What an operator takes in beside its node: a bias, an activation, and the quantization of its result.

A node whose operands are dequantized integers and whose result is only quantized again is an operator of integers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from pelton.ir.graph import Node, Value
from pelton.ir.types import F32, I8, U8
from pelton.ops import words

from .model import TFLiteDraft
from .tensors import Scaling

# ops with a fused activation
ACTIVATED = (
    words.convolution,
    words.matmul,
    words.add,
    words.sub,
    words.mul,
    words.div,
    words.max_pool,
    words.average_pool,
)
CLIPS = {(0.0, 6.0): "RELU6", (-1.0, 1.0): "RELU_N1_TO_1"}
# ops of which TFLite has an operator of 8-bit integers
INTEGER = frozenset(
    getattr(words, name)
    for name in (
        "abs add arg_max arg_min average_pool clip concat conv_transpose convolution depth_to_space expand gather gelu"
        " gelu_tanh hard_swish leaky_relu log_softmax matmul max_pool maximum minimum mul pad reduce_max reduce_mean"
        " reduce_min reduce_sum relu reshape resize sigmoid slice_ softmax space_to_depth sub tanh tile transpose elu"
        " prelu"
    ).split()
)
MOVES = frozenset(getattr(words, name) for name in "concat expand gather pad reshape slice_ tile transpose".split())


@dataclass(frozen=True)
class FusedOperator:
    """The end of an operator: the value that it computes, and the nodes that it stands for besides its own.

    stored: quantizations of the value, which integers are written as, in one scaling.
    """

    value: Value
    nodes: tuple[Node, ...] = ()
    bias: Value | None = None
    activation: str = "NONE"
    stored: tuple[Value, ...] = ()
    scaling: Scaling | None = field(default=None)


def fused(model: TFLiteDraft, node: Node) -> FusedOperator:
    """Returns everything that the operator of a node can take in."""
    end = FusedOperator(node.outputs[0])
    if len(node.outputs) > 1:
        return end
    if node.op is words.matmul and takes_weights(model, node):
        end = _with_bias(model, end)
    if node.op in ACTIVATED and (node.op is not words.matmul or takes_weights(model, node)):
        end = _with_activation(model, end)
    return _quantized(model, node, end)


def takes_weights(model: TFLiteDraft, node: Node) -> bool:
    """True if a product is one with a constant matrix."""
    x, w = node.inputs
    return w.type.rank == 2 and x.type.rank >= 2 and model.known(w) is not None and x.type.dtype is F32


def _only_user(model: TFLiteDraft, v: Value) -> Node | None:
    users = model.graph.users.get(v, [])
    return users[0] if len(users) == 1 and v not in model.graph.outputs else None


def _with_bias(model: TFLiteDraft, end: FusedOperator) -> FusedOperator:
    user = _only_user(model, end.value)
    if user is None or user.op is not words.add:
        return end
    other = user.inputs[1] if user.inputs[0] is end.value else user.inputs[0]
    width = end.value.type.shape[-1]
    if other not in model.graph.constants and not model.holds(other):
        return end
    fits = other.type.shape[-1:] == (width,) and other.type.size == width and other.type.dtype is F32
    if not fits or model.known(other) is None or user.output.type != end.value.type:
        return end
    return replace(end, value=user.output, nodes=(*end.nodes, user), bias=other)


def _with_activation(model: TFLiteDraft, end: FusedOperator) -> FusedOperator:
    user = _only_user(model, end.value)
    if user is None or end.value.type.dtype is not F32:
        return end
    kind = "RELU" if user.op is words.relu else ""
    if user.op is words.clip and user.inputs[0] is end.value:
        limits = [model.known(v) if model.holds(v) else None for v in user.inputs[1:]]
        if all(a is not None and a.size == 1 for a in limits) and user.output.type == end.value.type:
            low, high = (float(a.item()) for a in limits if a is not None)
            kind = CLIPS.get((low, high), "NONE" if low == 0 and _saturates_at(model, user, high) else "")
    return replace(end, value=user.output, nodes=(*end.nodes, user), activation=kind) if kind else end


def _saturates_at(model: TFLiteDraft, clip: Node, high: float) -> bool:
    """True if integers clip from 0 to a limit by their range."""
    users = model.graph.users.get(clip.output, [])
    scalings = [scaling_of(model, user) if user.op is words.quantize else None for user in users]
    ends = [None if s is None else (s.zero, 255 * s.scale[0]) for s in scalings]
    takes = takes_integers(model, model.graph.producer[clip.inputs[0]]) and clip.output not in model.graph.outputs
    return takes and bool(ends) and all(e is not None and e[0] == -128 and e[1] <= high * (1 + 1e-6) for e in ends)


def _quantized(model: TFLiteDraft, node: Node, end: FusedOperator) -> FusedOperator:
    if node.op not in INTEGER or end.value in model.graph.outputs or not takes_integers(model, node):
        return end
    users = model.graph.users.get(end.value, [])
    scalings = {scaling_of(model, user) if user.op is words.quantize else None for user in users}
    if len(scalings) != 1 or None in scalings:
        return end
    (scaling,) = scalings
    stored = tuple(user.output for user in users)
    return replace(end, nodes=(*end.nodes, *users), stored=stored, scaling=scaling)


def takes_integers(model: TFLiteDraft, node: Node) -> bool:
    """True if every operand of floats is stored as integers, or constant, and one is no constant."""
    floats = [v for v in node.inputs if v.type.dtype is F32]
    stored = [model.is_stored(v) for v in floats]
    constant = [model.known(v) is not None for v in floats]
    return all(s or c for s, c in zip(stored, constant)) and not all(constant)


def scaling_of(model: TFLiteDraft, node: Node) -> Scaling | None:
    """Returns the scaling of a `quantize` or `dequantize` of bytes; None if TFLite has no such one.

    Unsigned bytes are stored as signed ones, shifted by 128.
    """
    of = node.output.type.dtype if node.op is words.quantize else node.inputs[0].type.dtype
    if of not in (I8, U8) or node.attrs["block"] or not node.attrs.get("saturate", True):
        return None
    scale, zero = (_known(model, node, i) for i in (1, 2))
    if scale is None or len(node.inputs) > 2 and zero is None or not (scale > 0).all() or not np.isfinite(scale).all():
        return None
    zeros = np.zeros(1, np.int64) if zero is None else zero.astype(np.int64).reshape(-1)
    if (zeros != zeros[0]).any() or scale.ndim > 1 and scale.size > 1:
        return None
    shift = 128 if of is U8 else 0
    scales = tuple(map(float, scale.astype(np.float32).reshape(-1)))
    if len(set(scales)) == 1 and node.op is words.quantize:
        scales = scales[:1]
    return Scaling(scales, int(zeros[0]) - shift, node.attrs["axis"] if len(scales) > 1 else 0)


def _known(model: TFLiteDraft, node: Node, i: int) -> np.ndarray | None:
    """Returns a constant operand; None for others and for absent ones."""
    return model.known(node.inputs[i]) if i < len(node.inputs) and model.holds(node.inputs[i]) else None
