"""Composite ops that nobody claims, written out in the ops that they stand for."""
from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pelton.ir.graph import Graph, Node

from .draft import Draft
from .fold import fold_constants
from .report import PassReport


def decompose(graph: Graph, keep: Callable[[Node], bool]) -> Graph:
    """The graph with every composite node expanded for which `keep` says no, also those inside of expansions. Nodes keep their names.

    What an expansion computes of constants alone is a constant again.
    """
    draft = Draft(graph)
    queue, changed = deque(draft.nodes), False
    while queue:
        node = queue.popleft()
        if node not in draft or node.op.expand is None or keep(node):
            continue
        draft.added.clear()
        draft.replace(node, node.op.expand(*node.inputs, **node.attrs), node.name)
        queue.extendleft(reversed(draft.added))
        changed = True
    return fold_constants(draft.graph(), PassReport("decompose")) if changed else graph
