"""Scales of a layer's inputs that the nodes in front of it take over exactly.

AWQ (Lin et al., "AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration", 2023) multiplies the
weights that read large inputs, which rounds these more finely, and divides the inputs: here in the gain of a norm, a
constant factor, or the rows of the product in front.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pelton.ir.graph import Graph, Node, Value
from pelton.ops.words import add, layer_norm, matmul, mul, rms_norm

from .layers import WeightLayer

EXPONENTS = (0.25, 0.5, 0.75)  # of the inputs' size
LARGEST = 64.0  # quotient of a scale and their mean
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Divisor:
    """A constant operand of a node, or the rows of a layer, that divide a value when they are divided."""

    node: Node
    operand: int
    layer: WeightLayer | None = None


def find_divisors(graph: Graph, group: Sequence[WeightLayer], layers: Sequence[WeightLayer]) -> list[Divisor]:
    """Returns what divides the common input of a group of layers, element by element of its last axis; empty if nothing
    does exactly. layers: those whose weights may change."""
    (value,) = group[0].inputs if len(group[0].inputs) == 1 else (None,)
    own = {n for layer in group for n in layer.nodes}
    if value is None or value in graph.outputs or any(n not in own for n in graph.users[value]):
        return []
    products = {x.nodes[0]: x for x in layers if x.kind == "product" and len(x.nodes) == 1}
    return _divisors(graph, value, products) or []


def _divisors(graph: Graph, value: Value, products: Mapping[Node, WeightLayer]) -> list[Divisor] | None:
    """Returns what divides a value; None if nothing does."""
    node = graph.producer.get(value)
    if node is None or not isinstance(value.type.shape[-1], int):
        return None
    if node.op in (layer_norm, rms_norm):
        vectors = [_is_vector(graph, v, value) for v in node.inputs[1:]]
        fits = node.attrs["axis"] == value.type.rank - 1 and vectors and all(vectors)
        return [Divisor(node, i) for i in range(1, len(node.inputs))] if fits else None
    if node.op is matmul:
        layer = products.get(node)
        return [Divisor(node, 1, layer)] if layer is not None else None
    if node.op in (add, mul):
        for i, other in ((0, 1), (1, 0)):
            x, y = node.inputs[i], node.inputs[other]
            if node.op is mul and _is_vector(graph, x, value):
                return [Divisor(node, i)]
            alone = graph.uses(x) == 1 and x.type.shape == value.type.shape
            if alone and (node.op is mul or _is_vector(graph, y, value)) and (of := _divisors(graph, x, products)):
                return of if node.op is mul else [*of, Divisor(node, other)]
    return None


def _is_vector(graph: Graph, x: Value, value: Value) -> bool:
    """True for a constant with a number for each element of a value's last axis."""
    size = value.type.shape[-1]
    return x in graph.constants and x.type.size == size and x.type.shape[-1:] == (size,)


def gains(moments: Array) -> list[Array]:
    """Returns the scales to try: powers of the root mean square of each input, f64[inner], powers of 2 by their mean
    logarithm."""
    size = np.sqrt(np.maximum(np.diag(moments), 0))
    if not (size > 0).any():
        return []
    size = np.maximum(size, 1e-3 * size.max())
    size /= np.exp(np.log(size).mean())
    return [np.clip(size**e, 1 / LARGEST, LARGEST) for e in EXPONENTS]
