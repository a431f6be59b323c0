"""Fusion: a structured node and the pointwise nodes after it become one region, with the slices that concats read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pelton.ir.graph import Graph, Node, Value, topological
from pelton.ir.types import I8, U8
from pelton.ops.words import concat, slice_

from .region import Region, cut


@dataclass(frozen=True)
class RejectedFusion:
    """A rejected fusion and the reason."""

    node: str
    reason: str


@dataclass(frozen=True)
class Fused:
    """A graph cut, in executable order, into regions and single nodes, which are views or host steps.

    `chains`: for people, the decisions about regions that could be one; `joined`: the regions made of several.
    """

    graph: Graph
    items: tuple[Region | Node, ...]
    notes: tuple[RejectedFusion, ...]
    chains: tuple[str, ...] = ()
    joined: tuple[Region, ...] = ()


def is_view(node: Node) -> bool:
    """Returns True if a node only changes strides and offsets, or copies where that is impossible."""
    return node.op.view


def fuse(graph: Graph, rejection: Callable[[Region], str | None]) -> Fused:
    """Cuts a graph into regions. rejection: the reason why no template accepts a region, None if one does.

    Widening of bytes at the end of a region moves to the region that reads the result (a residual that is added).
    """
    group: dict[Node, list[Node]] = {}
    notes: list[RejectedFusion] = []
    position = {n: k for k, n in enumerate(graph.nodes)}

    def region(nodes: list[Node]) -> Region:
        return cut(graph, tuple(nodes), _anchors(nodes))

    def reaches(node: Node, goal: list[Node]) -> bool:
        """Returns True if the node depends on any of the goal, directly or through its group, which runs at once."""
        inside, stack = set(goal), list(group.get(node, [node]))
        seen = set(stack)
        while stack:
            n = stack.pop()
            if n in inside:
                return True
            for v in n.inputs:
                p = graph.producer.get(v)
                if p is not None and p not in seen:
                    stack.extend(group.get(p, [p]))
                    seen.update(group.get(p, [p]))
        return False

    for node in graph.nodes:
        if is_view(node):
            continue
        if node.op.scalar is None:
            if rejection(region([node])) is None:
                group[node] = [node]
            continue
        joined = False
        makers = {graph.producer[v] for v in node.inputs if v in graph.producer and graph.producer[v] in group}
        for maker in sorted(makers, key=lambda m: -position[m]):
            nodes = group[maker]
            if nodes[0].op.scalar is not None and maker.output.type.shape != node.output.type.shape:
                continue
            others = [graph.producer[w] for w in node.inputs if w in graph.producer and graph.producer[w] not in nodes]
            if any(reaches(p, nodes) for p in others):
                notes.append(RejectedFusion(node.name or node.op.name, "another operand depends on the same region"))
                continue
            reason = rejection(region([*nodes, node]))
            if reason is not None:
                notes.append(RejectedFusion(node.name or node.op.name, reason))
                continue
            nodes.append(node)
            group[node] = nodes
            joined = True
            break
        if not joined and rejection(region([node])) is None:
            group[node] = [node]

    for value in dict.fromkeys(v for n in group for v in n.outputs):
        nodes, pieces = group[graph.producer[value]], _pieces(graph, value)
        if pieces and rejection(region([*nodes, *pieces])) is None:
            nodes += pieces
            group.update(dict.fromkeys(pieces, nodes))

    for value in [v for n in graph.nodes if n in group for v in n.outputs]:
        widening = _widening(graph, group, value)
        if widening:
            own, other = group[widening[0]], group[graph.users[value][0]]
            rest = [n for n in own if n not in widening]
            ahead = len(_anchors(other))
            reading = [*other[:ahead], *widening, *other[ahead:]]
            if rejection(region(rest)) is None and rejection(region(reading)) is None:
                own[:], other[:] = rest, reading
                group.update(dict.fromkeys(widening, other))

    return Fused(graph, _ordered(graph, group), tuple(notes))


def _widening(graph: Graph, group: dict[Node, list[Node]], value: Value) -> list[Node]:
    """Returns the last nodes of a region that compute `value` from bytes and constants alone, if the only other region
    that reads it can compute them, too: it then reads the bytes."""
    nodes, steps, at = group[graph.producer[value]], list[Node](), value
    readers = graph.users.get(value, ())
    if value in graph.outputs or not readers or any(u.op.scalar is None or u not in group for u in readers):
        return []
    if any(group[u] is not group[readers[0]] for u in readers) or group[readers[0]] is nodes:
        return []
    while at.type.dtype not in (I8, U8):
        node = graph.producer.get(at)
        if node is None or node not in nodes or node.op.scalar is None or at in graph.outputs:
            return []
        varying = [v for v in node.inputs if v not in graph.constants]
        if len(varying) != 1 or (at is not value and len(graph.users[at]) != 1):
            return []
        steps.insert(0, node)
        (at,) = varying
    return steps if graph.producer.get(at) in nodes else []


def _anchors(nodes: Iterable[Node]) -> tuple[Node, ...]:
    return tuple(n for n in nodes if n.op.scalar is None and not is_view(n))


def _pieces(graph: Graph, value: Value) -> list[Node]:
    """Returns the slices of a value that its maker should write one by one. As views they cost nothing, but a buffer
    cannot be in several joins: a joined slice deserves its own buffer. If nothing reads the whole value, it need not be
    written, and all slices are written singly."""
    users = graph.users.get(value, [])
    slices = [u for u in users if u.op is slice_]
    joined = [s for s in slices if any(u.op is concat for u in graph.users.get(s.output, ()))]
    whole = value in graph.outputs or len(slices) < len(users)
    return joined if whole or not joined else slices


def _ordered(graph: Graph, group: dict[Node, list[Node]]) -> tuple[Region | Node, ...]:
    """Returns groups of nodes as units, in topological order."""
    units: dict[int, Node] = {}
    stands: dict[Node, Region | Node] = {}
    for node in graph.nodes:
        nodes = group.get(node)
        key = id(nodes) if nodes is not None else id(node)
        if key in units:
            continue
        if nodes is None:
            unit: Node = node
            what: Region | Node = node
        else:
            what = cut(graph, tuple(nodes), _anchors(nodes))
            made = {v for n in nodes for v in n.outputs}
            reads = tuple(dict.fromkeys(v for n in nodes for v in n.inputs if v not in made))
            unit = Node(nodes[0].op, reads, {}, tuple(v for n in nodes for v in n.outputs))
        units[key] = unit
        stands[unit] = what
    return tuple(stands[u] for u in topological(units.values(), graph.inputs))
