"""Tables of few bits that products read, too, and all others."""

from __future__ import annotations

from typing import Any

from pelton.ir.graph import Graph, Node, Value
from pelton.ops.words import quantized_gather, quantized_linear
from pelton.passes.rewriting.report import PassReport

from .decompose import decompose


def untied_tables(graph: Graph, report: PassReport, strict: bool = False) -> Graph:
    """Expands gathers from tables of few bits, except from the weights of a product: these are stored once, in the
    form of the product's kernel, in which a gather takes longer than from rows."""
    products = {_weights(n, n.inputs[1:]) for n in graph.nodes if n.op is quantized_linear}

    def is_tied(graph: Graph, node: Node) -> bool:
        return node.op is not quantized_gather or _weights(node, (node.inputs[0], *node.inputs[2:])) in products

    if not any(n.op is quantized_gather for n in graph.nodes):
        return graph
    return decompose(graph, is_tied, report)


def _weights(node: Node, operands: tuple[Value, ...]) -> tuple[Any, ...]:
    return operands, node.attrs["block"], node.attrs["bits"]
