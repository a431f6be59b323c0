"""Expands quantize and dequantize ops into f32 arithmetic, and folds constants."""

from __future__ import annotations

from pelton.ir.graph import Graph, Node
from pelton.passes.decompose import decompose
from pelton.passes.rewriting.report import PassReport


def converts(node: Node) -> bool:
    """True if a node quantizes or dequantizes."""
    return node.op.stepwise


def in_f32(graph: Graph, report: PassReport | None = None) -> Graph:
    """Expands every such node, and folds nodes of constants."""
    return decompose(graph, lambda _, node: not converts(node), report)
