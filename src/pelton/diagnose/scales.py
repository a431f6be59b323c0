"""The scale of each quantized value of a program: the distance of neighboring values."""

from __future__ import annotations

import numpy as np

from pelton.ir.graph import Graph, Node, Value
from pelton.ops.words import (
    add,
    cast,
    clip,
    dequantize,
    div,
    max_pool,
    maximum,
    minimum,
    mul,
    neg,
    quantize,
    relu,
    round_,
    sub,
)

KEEP = (cast, clip, relu, neg, max_pool, maximum, minimum, add, sub)


def scales(graph: Graph) -> dict[Value, np.ndarray]:
    """Returns the scales of values whose elements, apart from a constant, are whole multiples of one number: rounded or
    quantized values (1), and results of these by constants, moves, and choices among equally scaled values. Positive
    float64, one number or broadcasting against the value. Other values have none: sums of integers, sums of values of
    different scales."""
    scale_of: dict[Value, np.ndarray] = {}
    for node in graph.nodes:
        scale = _scale(graph, node, scale_of)
        if scale is not None and scale.size and np.isfinite(scale).all() and (scale > 0).all():
            scale_of[node.output] = scale
    return scale_of


def _scale(graph: Graph, node: Node, known: dict[Value, np.ndarray]) -> np.ndarray | None:
    if len(node.outputs) != 1:
        return None
    op, inputs = node.op, node.inputs
    if op is round_ or (op is quantize and node.attrs["to"].is_integer):
        return np.ones(())
    if op is dequantize:
        return _dequantized(graph, node, known)
    variable = [v for v in inputs if v not in graph.constants]
    if op.moves:
        variable = [v for v in variable if v.type.dtype is node.output.type.dtype]
    if not variable or any(v not in known for v in variable):
        return None
    own = known[variable[0]]
    if op is mul or op is div:
        others = [v for v in inputs if v in graph.constants]
        if len(others) != 1 or (op is div and others[0] is inputs[0]):
            return None
        factor = np.abs(graph.constants[others[0]].astype(np.float64))
        with np.errstate(divide="ignore", over="ignore"):
            return own * factor if op is mul else own / factor
    if (op in KEEP or op.moves) and all(np.array_equal(known[v], own) for v in variable):
        in_place = op in KEEP and op is not max_pool
        return own if in_place or own.size == 1 else None
    return None


def _dequantized(graph: Graph, node: Node, known: dict[Value, np.ndarray]) -> np.ndarray | None:
    x, scale = node.inputs[:2]
    own = known.get(x, np.ones(()))
    if scale not in graph.constants or node.attrs["block"] or own.size != 1:
        return None
    array = graph.constants[scale].astype(np.float64)
    if array.size == 1:
        return own * array.reshape(())
    axis = node.attrs["axis"]
    return own * array.reshape(-1, *[1] * (x.type.rank - axis - 1)) if array.ndim == 1 else None
