"""Bounds the results of regions that round to integers: f32 errors may round a quotient near a tie either way.

In mobilenet_v2, resnet50 and googlenet this affects one to three bytes in a million."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

import numpy as np

from pelton.ir.evaluate import evaluate_node
from pelton.ir.expansion import expand_op
from pelton.ir.graph import Graph, Node, Value
from pelton.ops.words import round_

# Errors of f32, relative to the largest quotient: after integer sums or none (a dozen roundings, or functions such as
# erf), after long float sums, and after sums computed differently (Winograd).
POINTWISE, EXACT, INEXACT = 3e-6, 1e-4, 1e-3

Bounds = tuple[np.ndarray, np.ndarray]  # lowest and highest


def rounds(body: Graph) -> bool:
    """True if a program rounds floats to integers."""
    return any(node.op is round_ for node in _steps(body))


def bounds(body: Graph, inputs: Mapping[str, np.ndarray], sums: float = EXACT) -> dict[Value, Bounds]:
    """Returns the lowest and highest value of each element of the outputs, floats in float64. sums: the error of float
    sums, relative to the largest.

    They differ where a rounded number is closer to a tie than f32 arithmetic is exact. Later nodes are evaluated for
    all combinations of their operands' bounds, which bounds ops that are monotone in each of them; products choose the
    bounds by the signs of their weights.
    """
    low: dict[Value, np.ndarray] = {**body.constants, **{v: np.asarray(inputs[v.name]) for v in body.inputs}}
    high: dict[Value, np.ndarray] = {}
    off = POINTWISE
    for node in _steps(body, low):
        if node.op.kind != "pointwise" and not node.op.moves and node.outputs[0].type.dtype.is_float:
            off = max(sums, POINTWISE)
        uncertain = [v for v in dict.fromkeys(node.inputs) if v in high]
        if uncertain:
            ranges = [_corners(node, low, high, uncertain)]
        else:
            ranges = [(a, a) for a in evaluate_node(node, tuple(low[v] for v in node.inputs), round=False)]
        if node.op is round_:
            ranges = [_rounded(low[node.inputs[0]], high.get(node.inputs[0], low[node.inputs[0]]), off)]
        for v, (lowest, highest) in zip(node.outputs, ranges, strict=True):
            low[v] = lowest
            if highest is not lowest:
                high[v] = highest
    return {v: (low[v], high.get(v, low[v])) for v in body.outputs}


def nearest(got: np.ndarray, within: Bounds) -> np.ndarray:
    """Returns the values closest to `got` within bounds; the lower bound where it is NaN."""
    low, high = within
    return low if low is high else np.where(got >= low, np.where(got <= high, got, high), low)


def _steps(body: Graph, known: dict[Value, np.ndarray] | None = None) -> Iterator[Node]:
    """Yields the nodes, those defined by expansions as the nodes of these; their constants become known."""
    for node in body.nodes:
        if not node.op.stepwise:
            yield node
            continue
        expansion = expand_op(node.op, node.inputs, node.attrs)
        if known is not None:
            known.update(expansion.constants)
        for step in expansion.nodes:
            last = step.outputs == expansion.outputs
            yield Node(step.op, step.inputs, step.attrs, node.outputs, node.name) if last else step


def _rounded(low: np.ndarray, high: np.ndarray, off: float) -> Bounds:
    """Rounds quotients half to even, from slightly lower and from slightly higher."""
    finite = np.isfinite(low) & np.isfinite(high)
    margin = off * max((float(np.abs(a[finite]).max(initial=0.0)) for a in (low, high)), default=0.0)
    return np.rint(low - margin), np.rint(high + margin)


def _corners(node: Node, low: Mapping[Value, np.ndarray], high: Mapping[Value, np.ndarray], uncertain: list[Value]):
    """Bounds the output of a node with uncertain operands."""

    def value(operands: Mapping[Value, np.ndarray]) -> np.ndarray:
        (output,) = evaluate_node(node, tuple(operands.get(v, low[v]) for v in node.inputs), round=False)
        return output

    if node.op.product and uncertain == [node.inputs[0]] and len(node.inputs) > 1:
        x, w, *more = node.inputs
        signs = {w: np.maximum(low[w], 0)}, {w: np.minimum(low[w], 0), **{v: np.zeros_like(low[v]) for v in more}}
        below, above = (
            value({x: first, **signs[0]}) + value({x: second, **signs[1]})
            for first, second in ((low[x], high[x]), (high[x], low[x]))
        )
        return below, above
    corners = [
        value({v: (high if top else low)[v] for v, top in zip(uncertain, tops)})
        for tops in product((False, True), repeat=len(uncertain))
    ]
    with np.errstate(invalid="ignore"):
        return np.minimum.reduce(corners), np.maximum.reduce(corners)
