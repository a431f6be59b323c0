"""Evaluates programs by the references of ops: floats are computed in float64 and rounded once per value."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from pelton.errors import InputError

from .expansion import expand_op
from .graph import Body, Graph, Node, Value, with_sizes, sizes_of, symbols
from .op import TermOutput, Term
from .types import DType

_WIDE = {dtype for dtype in DType if dtype.is_float} - {DType.F64}


def widen(array: np.ndarray, dtype: DType) -> np.ndarray:
    return array.astype(np.float64) if dtype in _WIDE else array


def _narrow(array, dtype: DType) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(array).astype(dtype.numpy, copy=False)


def evaluate_node(node: Node, arrays: tuple[np.ndarray, ...], *, round: bool = True) -> tuple[np.ndarray, ...]:
    """Evaluates a node on arrays of its input types. With `round=False`, floats in inputs and outputs are float64.
    InputError for an index out of range."""
    if node.op.stepwise:
        return _evaluate_expansion(node, arrays, round)
    unchanged = node.op.bits or node.op.moves and round
    convert = _narrow if unchanged else widen
    wide = tuple(convert(a, v.type.dtype) for a, v in zip(arrays, node.inputs))
    if node.op.reference is None and node.op.scalar is None:
        outputs = _evaluate_terms(node, wide)
    else:
        attrs = {k: partial(_run, a, round) if isinstance(a, Body) else a for k, a in node.attrs.items()}
        outputs = _evaluate_op(node, wide, attrs)
    if len(outputs) != len(node.outputs):
        raise ValueError(
            f"the reference of {node.op.name} must return {len(node.outputs)} outputs, but returned {len(outputs)}"
            f" (node {node.name!r})"
        )
    out = []
    for a, v in zip(outputs, node.outputs):
        a = np.asarray(a)
        if node.op.instance is not None and not _is_convertible(a, v.type.dtype):
            raise ValueError(
                f"the reference of {node.op.name} returned an array of {a.dtype}, but its type is {v.type} (node"
                f" {node.name!r})"
            )
        if a.shape != v.type.shape:
            raise ValueError(
                f"the reference of {node.op.name} returned shape {list(a.shape)}, but its type is {v.type} (node"
                f" {node.name!r})"
            )
        out.append(_narrow(a, v.type.dtype) if round or v.type.dtype not in _WIDE else a)
    return tuple(out)


def _evaluate_op(node: Node, arrays: tuple[np.ndarray, ...], attrs: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    try:
        return node.op.evaluate(arrays, attrs)
    except IndexError as e:
        if not node.op.indexed:
            raise
        raise InputError(f"layer {node.name!r} ({node.op.name}) has an index that its table lacks: {e}") from None


def _is_convertible(array: np.ndarray, to: DType) -> bool:
    """True if numbers of a type may stand for those of another: no fractions for integers, no text for numbers."""
    try:
        source = DType.of(array)
    except TypeError:
        return False
    return source is to or to.is_float and source.is_float or source.is_integer or source is DType.BOOL


def _run(body: Body, round: bool, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Evaluates a nested graph, a function for the reference of its op."""
    outputs = evaluate(body.graph, {v.name: a for v, a in zip(body.graph.inputs, arrays, strict=True)}, round=round)
    return tuple(outputs[v.name] for v in body.graph.outputs)


def _evaluate_expansion(node: Node, arrays: tuple[np.ndarray, ...], round: bool) -> tuple[np.ndarray, ...]:
    """Evaluates the expansion of a node, rounding every value of it."""
    body = expand_op(node.op, node.inputs, node.attrs)
    known = {**body.constants, **dict(zip(node.inputs, arrays))}
    for step in body.nodes:
        known.update(zip(step.outputs, evaluate_node(step, tuple(known[v] for v in step.inputs), round=round)))
    return tuple(known[v] for v in body.outputs)


def _evaluate_terms(node: Node, arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    """Evaluates the expansion of a node without rounding."""
    if node.op.expand is None:
        raise ValueError(f"{node.op.name} has neither a reference nor an expansion (node {node.name!r})")
    terms = node.op.expand(*node.inputs, **node.attrs)
    known: dict = dict(zip(node.inputs, arrays))
    return tuple(_term(t, known)[0] for t in (terms if isinstance(terms, tuple) else (terms,)))


def _term(t, known: dict) -> tuple[np.ndarray, ...]:
    if isinstance(t, Value):
        return (known[t],)
    if isinstance(t, TermOutput):
        return (_term(t.term, known)[t.index],)
    if not isinstance(t, Term):
        return (np.asarray(t),)
    if id(t) not in known:
        args = tuple(_term(a, known)[0] for a in t.args)
        if t.op.reference is None and t.op.scalar is None:
            raise ValueError(f"{t.op.name} inside an expansion has no reference")
        known[id(t)] = t.op.evaluate(args, t.op.complete(t.attrs))
    return known[id(t)]


def evaluate(
    graph: Graph, inputs: Mapping[str, np.ndarray], *, round: bool = True, keep: bool = False
) -> dict[str, np.ndarray]:
    """Evaluates a graph by reference: input name → array, output name → array.

    round: False computes all floats in float64, without rounding. keep: return all values, not only outputs.
    """
    if symbols(graph):
        graph, _ = with_sizes(graph, sizes_of(graph, {name: np.shape(a) for name, a in inputs.items()}))
    env: dict[Value, np.ndarray] = dict(graph.constants)
    for v in graph.inputs:
        env[v] = np.asarray(inputs[v.name])
    last = {v: i for i, n in enumerate(graph.nodes) for v in n.inputs}
    for i, node in enumerate(graph.nodes):
        # rounded, as folding would do
        stored = node.op.dequantizes and all(v in graph.constants for v in node.inputs)
        outputs = evaluate_node(node, tuple(env[v] for v in node.inputs), round=round or stored)
        env.update(zip(node.outputs, outputs))
        if not keep:
            for v in set(node.inputs):
                if last[v] == i and v not in graph.outputs:
                    env.pop(v, None)
    return {v.name: a for v, a in env.items() if keep or v in graph.outputs}
