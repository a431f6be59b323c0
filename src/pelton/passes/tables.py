"""Tables of few bits that products read, too, and all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pelton.ir.graph import Graph, Node, Value
from pelton.ops.words import quantized_gather, quantized_linear
from pelton.passes.rewriting.report import PassReport

from .decompose import decompose


def untied_tables(graph: Graph, report: PassReport, strict: bool = False) -> Graph:
    """Expands gathers from tables of few bits, except from the weights of a product: these are stored once, in the
    form of the product's kernel, in which a gather takes longer than from rows."""
    products: dict[tuple[Any, ...], bool] = {}  # weights → whether a product rounds its rows, and so its scales
    for n in graph.nodes:
        if n.op is quantized_linear:
            weights = _weights(n, n.inputs[1:])
            products[weights] = products.get(weights, False) or n.attrs["round_rows"] and not strict

    def is_tied(graph: Graph, node: Node) -> bool:
        return node.op is not quantized_gather or _table(node) in products

    if not any(n.op is quantized_gather for n in graph.nodes):
        return graph
    return _as_products_round(decompose(graph, is_tied, report), products)


def _as_products_round(graph: Graph, products: Mapping[tuple[Any, ...], bool]) -> Graph:
    """Lets gathers round scales where the product of the same weights does."""

    def rounding(node: Node) -> Node:
        if node.op is not quantized_gather or not products[_table(node)]:
            return node
        return Node(node.op, node.inputs, {**node.attrs, "round_scales": True}, node.outputs, node.name)

    return graph.replace(nodes=tuple(map(rounding, graph.nodes)))


def _table(node: Node) -> tuple[Any, ...]:
    return _weights(node, (node.inputs[0], *node.inputs[2:]))


def _weights(node: Node, operands: tuple[Value, ...]) -> tuple[Any, ...]:
    return operands, node.attrs["block"], node.attrs["bits"]
