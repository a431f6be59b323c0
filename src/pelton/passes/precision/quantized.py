"""Expands quantize and dequantize ops into arithmetic in f32, and folds what has constant operands."""

from __future__ import annotations

from pelton.ir.graph import Graph, Node
from pelton.passes.decompose import decompose
from pelton.passes.rewriting.report import PassReport


def converts(node: Node) -> bool:
    """Whether a node quantizes or dequantizes."""
    return node.op.stepwise


def in_f32(graph: Graph, report: PassReport | None = None) -> Graph:
    """The program with every such node expanded, and nodes of constants folded."""
    return decompose(graph, lambda _, node: not converts(node), report)
