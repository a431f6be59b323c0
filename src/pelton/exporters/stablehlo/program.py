"""Writes a program: each node by its writer, by its scalar expression, or by its expansion."""

from __future__ import annotations

from collections.abc import Sequence

from pelton.ir.dims import Undecided
from pelton.ir.expansion import expand_op
from pelton.ir.graph import Graph, Node

from .literals import Inexpressible
from .registry import WRITERS
from .scalars import pointwise
from .blocks import SsaValue, Operations

NO_FORM = "StableHLO has no form of it"
NOT_SO = "StableHLO has no form of it with these attributes and types"


def write_graph(s: Operations, graph: Graph, operands: Sequence[SsaValue]) -> list[SsaValue]:
    """Writes the nodes of a graph whose inputs are these values; returns its outputs.

    Nodes without a form are recorded, all of them; their outputs are placeholders.
    """
    s.values.update(zip(graph.inputs, operands))
    s.arrays.update(graph.constants)
    around = s.record.layer
    for node in graph.nodes:
        s.record.layer = node.name or around
        try:
            write_node(s, node)
        except Inexpressible as e:
            s.record.problems.append((node, str(e)))
            s.values.update((v, SsaValue("%none", v.type)) for v in node.outputs)
    s.record.layer = around
    return [s.value(v) for v in graph.outputs]


def write_node(s: Operations, node: Node) -> None:
    """Writes a node by its writer, else by its expansion; raises Inexpressible."""
    reasons, mark = list[str](), len(s.body)
    own = WRITERS.get(node.op) or (pointwise if node.op.scalar is not None else None)
    for write in (own, expansion):
        if write is None:
            continue
        try:
            made = write(s, node, *(s.value(v) for v in node.inputs))
            results = (made,) if isinstance(made, SsaValue) else tuple(made)
            for value, result in zip(node.outputs, results, strict=True):
                assert result.type == value.type, f"{node.op.name} is {value.type}, and was written as {result.type}"
                s.values[value] = result
            return
        except Inexpressible as e:
            reasons.append(str(e))
            del s.body[mark:]
    raise Inexpressible(next((r for r in reasons if r not in (NO_FORM, NOT_SO)), reasons[-1]))


def expansion(s: Operations, node: Node, *operands: SsaValue) -> Sequence[SsaValue]:
    """Writes the op's expansion to other ops."""
    try:
        if node.op.expand is None or node.op.expand(*node.inputs, **node.attrs) is None:
            raise Inexpressible(NO_FORM if node.op.expand is None else NOT_SO)
        body = expand_op(node.op, node.inputs, node.attrs)
    except Undecided as e:
        raise Inexpressible(str(e)) from None
    s.arrays.update(body.constants)
    for inner in body.nodes:
        if inner.op is node.op and inner.inputs == node.inputs:
            raise Inexpressible(NOT_SO)
        try:
            write_node(s, inner)
        except Inexpressible as e:
            raise Inexpressible(f"its part {inner.op.name}: {e}") from None
    return [s.value(v) for v in body.outputs]
