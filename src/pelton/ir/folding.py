"""Which nodes of constants are computed while a program is made, and what they give."""

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

WORK = 1 << 28  # operations by reference that computing one node may take

_all: ContextVar[bool] = ContextVar("all", default=False)


@contextmanager
def of_everything() -> Iterator[None]:
    """Within it every node of constants is computed, whatever that takes: a model of which all inputs are constants
    becomes its results, also where the data decides what runs."""
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
    """Whether computing a node is no waste of time; its types have to be known. How large its results may be is for the
    caller to say."""
    return not op.heavy and op.operations(tuple(inputs), tuple(outputs), attrs) <= WORK


def compute(node: Node, arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """The outputs of a node of constants, by reference: floats in float64, rounded once per value, the same bytes
    everywhere. Raises what the reference raises where it cannot take the data."""
    found = evaluate_node(node, arrays)
    results = tuple(np.asarray(a, v.type.dtype.numpy, order="C") for a, v in zip(found, node.outputs))
    lineage.computed(node, arrays, results)
    return results


def exempt_from_folding(nodes: Sequence[Node]) -> set[Node]:
    """Of nodes in their order, those that folding leaves alone though their operands are constants: what stands for
    numbers in few bits, and what moves these, on the way to a heavy op or to one that picks some of them."""
    leads: set[Value] = set()  # what is moved, if at all, until a heavy op reads it
    for node in reversed(nodes):
        if node.op.heavy or node.op.moves and not leads.isdisjoint(node.outputs):
            leads.update(node.inputs)
        elif node.op.indexed:
            leads.add(node.inputs[0])
    found: dict[Value, Node] = {}
    for node in nodes:
        behind = node.op.moves and not found.keys().isdisjoint(node.inputs)
        if not leads.isdisjoint(node.outputs) and (node.op.dequantizes or behind):
            found.update((v, node) for v in node.outputs)
    return set(found.values())
