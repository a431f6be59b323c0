"""Expands ops without a kernel into simpler ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pelton.ir.dims import Undecided
from pelton.ir.graph import Graph, Node

from pelton.passes.rewriting.draft import Draft
from .fold import fold_constants
from pelton.passes.rewriting.report import PassReport
from pelton.passes.rewriting.rule import node_label

Takes = Callable[[Graph, Node], bool]  # True if kernels take a node of a graph directly


def expansion(node: Node) -> Any:
    """Returns a node's expansion; None if it has none, or if the expansion depends on a size known only at run time."""
    try:
        return node.op.expand(*node.inputs, **node.attrs) if node.op.expand is not None else None
    except Undecided:
        return None


def decompose(graph: Graph, keep: Takes, report: PassReport | None = None) -> Graph:
    """Expands every expandable node that `keep` rejects, also inside expansions. Nodes keep their names.

    Works level by level: constants are folded before `keep` sees the parts of an expansion.
    """
    done = report or PassReport("decompose")
    while True:
        draft, changed = Draft(graph), False
        for node in draft.nodes:
            if node.op.expand is None or node not in draft or keep(graph, node):
                continue
            try:
                expanded = (parts := expansion(node)) is not None and draft.replace(node, parts, node.name)
            except Undecided:
                continue
            if expanded and node_label(node) not in done.fired.get(done.name, ()):  # its parts have the same name
                done.fire(done.name, node_label(node))
            changed |= expanded
        if not changed:
            return graph
        graph = fold_constants(draft.graph(), PassReport("decompose"))
