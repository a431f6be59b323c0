"""What a region may give where it rounds to integers: quotients that lie between two of them may go to either.

In mobilenet_v2, resnet50 and googlenet these are one to three bytes in a million."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

import numpy as np

from pelton.ir.evaluate import evaluate_node
from pelton.ir.expansion import expand_op
from pelton.ir.graph import Graph, Node, Value
from pelton.ops.words import round_

# Of the largest quotient, how far f32 may be off: behind sums of integers or none (a dozen roundings, or functions such
# as erf), behind long sums of floats, and behind sums that are computed in another way (Winograd).
POINTWISE, EXACT, INEXACT = 3e-6, 1e-4, 1e-3

Bounds = tuple[np.ndarray, np.ndarray]  # lowest and highest


def rounds(body: Graph) -> bool:
    """Whether a program rounds floats to integers."""
    return any(node.op is round_ for node in _steps(body))


def bounds(body: Graph, inputs: Mapping[str, np.ndarray], sums: float = EXACT) -> dict[Value, Bounds]:
    """The lowest and highest value that each element of the outputs may have, floats in float64. sums: how far sums of
    floats may be off, of the largest.

    They differ where a number that is rounded lies between two integers, closer than f32 arithmetic is exact. What
    follows is bounded by evaluating it for all combinations of the bounds of its operands, which bounds ops that are
    monotone in each of them; products take the bounds by the signs of their weights.
    """
    low: dict[Value, np.ndarray] = {**body.constants, **{v: np.asarray(inputs[v.name]) for v in body.inputs}}
    high: dict[Value, np.ndarray] = {}
    off = POINTWISE
    for node in _steps(body, low):
        if node.op.kind != "pointwise" and not node.op.moves and node.outputs[0].type.dtype.is_float:
            off = max(sums, POINTWISE)
        uncertain = [v for v in dict.fromkeys(node.inputs) if v in high]
        if uncertain:
            found = [_corners(node, low, high, uncertain)]
        else:
            found = [(a, a) for a in evaluate_node(node, tuple(low[v] for v in node.inputs), round=False)]
        if node.op is round_:
            found = [_rounded(low[node.inputs[0]], high.get(node.inputs[0], low[node.inputs[0]]), off)]
        for v, (lowest, highest) in zip(node.outputs, found, strict=True):
            low[v] = lowest
            if highest is not lowest:
                high[v] = highest
    return {v: (low[v], high.get(v, low[v])) for v in body.outputs}


def nearest(got: np.ndarray, within: Bounds) -> np.ndarray:
    """The values closest to `got` that lie within bounds; the lower bound where it is NaN."""
    low, high = within
    return low if low is high else np.where(got >= low, np.where(got <= high, got, high), low)


def _steps(body: Graph, known: dict[Value, np.ndarray] | None = None) -> Iterator[Node]:
    """The nodes, those that are defined by their expansions as the nodes of these; their constants become known."""
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
    """Quotients rounded half to even, from a little lower and from a little higher."""
    finite = np.isfinite(low) & np.isfinite(high)
    margin = off * max((float(np.abs(a[finite]).max(initial=0.0)) for a in (low, high)), default=0.0)
    return np.rint(low - margin), np.rint(high + margin)


def _corners(node: Node, low: Mapping[Value, np.ndarray], high: Mapping[Value, np.ndarray], uncertain: list[Value]):
    """Bounds of the output of a node, some of whose operands have bounds that differ."""

    def value(operands: Mapping[Value, np.ndarray]) -> np.ndarray:
        (found,) = evaluate_node(node, tuple(operands.get(v, low[v]) for v in node.inputs), round=False)
        return found

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
