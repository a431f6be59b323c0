"""Decides which nodes of constants are computed while a program is built, and computes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from . import lineage
from .evaluate import evaluate_node
from .graph import Node, Value
from .op import Op
from .types import TensorType

WORK = 1 << 28  # limit of reference operations for computing one node

_all: ContextVar[bool] = ContextVar("all", default=False)


@contextmanager
def of_everything() -> Iterator[None]:
    """Computes every node of constants within it, at any cost: a model with only constant inputs becomes its results,
    also where the data decides the control flow."""
    token = _all.set(True)
    try:
        yield
    finally:
        _all.reset(token)


def folds_everything() -> bool:
    return _all.get()


def is_worth_folding(
    op: Op, inputs: Sequence[TensorType], outputs: Sequence[TensorType], attrs: Mapping[str, Any]
) -> bool:
    """True if computing a node is worth its time; its types must be known. The caller limits the size of its
    results."""
    return not op.heavy and op.operations(tuple(inputs), tuple(outputs), attrs) <= WORK


def compute(node: Node, arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Computes the outputs of a node of constants by reference: floats in float64, rounded once per value, the same
    bytes everywhere. Raises the reference's errors for unsuitable data."""
    outputs = evaluate_node(node, arrays)
    results = tuple(np.asarray(a, v.type.dtype.numpy, order="C") for a, v in zip(outputs, node.outputs))
    lineage.computed(node, arrays, results)
    return results


def exempt_from_folding(nodes: Sequence[Node]) -> set[Node]:
    """Returns the nodes that folding leaves alone despite constant operands: dequantizations of few bits, and moves of
    these, on the way to a heavy op or to one that picks elements. `nodes` are in order."""
    leads: set[Value] = set()  # values that only moves separate from a heavy reader
    for node in reversed(nodes):
        if node.op.heavy or node.op.moves and not leads.isdisjoint(node.outputs):
            leads.update(node.inputs)
        elif node.op.indexed:
            leads.add(node.inputs[0])
    exempt: dict[Value, Node] = {}
    for node in nodes:
        behind = node.op.moves and not exempt.keys().isdisjoint(node.inputs)
        if not leads.isdisjoint(node.outputs) and (node.op.dequantizes or behind):
            exempt.update((v, node) for v in node.outputs)
    return set(exempt.values())
