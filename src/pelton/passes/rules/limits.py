"""Limits (clip, relu, maximum, minimum): simplifies them, and merges limits of limits."""

from __future__ import annotations

import math

import numpy as np

from pelton.ir.graph import Node, Value
from pelton.ops.words import abs_, clip, exp, maximum, minimum, mul, relu, round_, sigmoid, softplus, sqrt
from pelton.passes.rewriting.rule import array, is_constant, may_decide, producer_of, rule, scalar, when

X = "f32[2, 3]"
INF = math.inf


CLAMPS = {
    relu: lambda x, a, b: relu(x),
    maximum: lambda x, a, b: maximum(x, a),
    minimum: lambda x, a, b: minimum(x, b),
    clip: lambda x, a, b: clip(x, a, b),
}


def _limits(node: Node) -> tuple[float, float]:
    """Returns the interval to which a node limits its input."""
    if node.op is relu:
        return 0, INF
    if node.op is clip:
        low, high = (scalar(v) for v in node.inputs[1:])
    else:
        bound = scalar(next((v for v in node.inputs if is_constant(v)), node.inputs[0]))
        low, high = (bound, INF) if node.op is maximum else (-INF, bound)
    when(low <= high)
    return low, high


def _clamped(x: Value, low: float, high: float):
    """Limits x to an interval by the simplest op."""
    if low == -INF and high == INF:
        return x
    if high == INF:
        return relu(x) if low == 0 and not math.copysign(1, low) < 0 else maximum(x, low)
    return minimum(x, high) if low == -INF else clip(x, low, high)


@rule(
    lambda x, low, high: clip(x, low, high),
    lambda x, low: maximum(x, low),
    stage="simplify",
    examples=[dict(x=X, low=0, high=INF), dict(x=X, low=-INF, high=1.5), dict(x=X, low=-INF, high=INF)],
)
def clamp(x, node):
    """An infinite limit is removed; a lower limit of zero becomes a relu."""
    plain = _clamped(x, *_limits(node))
    when(not is_constant(x) and (plain is x or plain.op is not node.op))
    return plain


@rule(
    *[
        lambda x, a, b, c, d, outer=outer, inner=inner: outer(inner(x, a, b), c, d)
        for outer in CLAMPS.values()
        for inner in CLAMPS.values()
    ],
    stage="simplify",
    examples=[
        dict(x=X, a=-1.25, b=2.5, c=-0.75, d=0.5),
        dict(x=X, a=0, b=6, c=-8, d=-3),
        dict(x="i32[5]", a=1, b=5, c=2, d=9),
    ],
)
def clamp_clamp(x, node):
    """Nested limits become one."""
    when(not is_constant(x))
    inner = next(n for n in map(producer_of, node.inputs) if n is not None and n.op in CLAMPS)
    (a, b), (c, d) = _limits(inner), _limits(node)
    return _clamped(x, min(max(a, c), d), min(max(b, c), d))


@rule(
    *[lambda x, f=f: relu(f(x)) for f in (sigmoid, abs_, exp, sqrt, softplus)],
    stage="simplify",
    shared=True,
    examples=[dict(x=X)],
)
def relu_positive(x, node):
    """The relu of a non-negative value is removed."""
    return node.inputs[0]


@rule(
    lambda x, c, low, high: clip(round_(mul(relu(x), c)), low, high),
    stage="simplify",
    examples=[dict(x=X, c=7.5, low=0, high=9), dict(x=X, c=np.array([0.5, 3, 7], np.float32), low=1, high=3)],
)
def clip_of_relu(x, c, low, high):
    """A relu before rounding and clipping to positive numbers is removed, as before quantized layers."""
    when(
        is_constant(c, low, high) and may_decide(c) and not is_constant(x) and (array(c) > 0).all() and scalar(low) >= 0
    )
    return clip(round_(mul(x, c)), low, high)
