"""Ops that nobody claims, written out in the ops that they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pelton.ir.dims import Undecided
from pelton.ir.graph import Graph, Node

from pelton.passes.rewriting.draft import Draft
from .fold import fold_constants
from pelton.passes.rewriting.report import PassReport
from pelton.passes.rewriting.rule import node_label

Takes = Callable[[Graph, Node], bool]  # whether kernels take a node of a graph as it is


def expansion(node: Node) -> Any:
    """What a node says in simpler terms; None where there are none, or where they would have to know a size which a run
    decides."""
    try:
        return node.op.expand(*node.inputs, **node.attrs) if node.op.expand is not None else None
    except Undecided:
        return None


def decompose(graph: Graph, keep: Takes, report: PassReport | None = None) -> Graph:
    """The graph with every node expanded that has an expansion and for which `keep` says no, also those inside of
    expansions. Nodes keep their names.

    Level by level: what an expansion computes of constants alone is a constant again before `keep` sees what became of
    it.
    """
    done = report or PassReport("decompose")
    while True:
        draft, changed = Draft(graph), False
        for node in draft.nodes:
            if node.op.expand is None or node not in draft or keep(graph, node):
                continue
            try:
                expanded = (found := expansion(node)) is not None and draft.replace(node, found, node.name)
            except Undecided:
                continue
            if expanded and node_label(node) not in done.fired.get(done.name, ()):  # its parts have the same name
                done.fire(done.name, node_label(node))
            changed |= expanded
        if not changed:
            return graph
        graph = fold_constants(draft.graph(), PassReport("decompose"))
