"""What needs no rules: constants are computed, equal things are merged, and what nobody reads goes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from pelton.errors import ModelError
from pelton.ir import dims
from pelton.ir.folding import compute, exempt_from_folding, is_worth_folding
from pelton.ir.graph import Graph, Node, Value, remove_dead_nodes

from pelton.passes.rewriting.draft import join_names
from pelton.passes.rewriting.report import PassReport
from pelton.passes.rewriting.rule import node_label

SMALL = 1 << 20  # bytes: a constant may become this large, or as large as what it is made of, but not larger


def fold_constants(graph: Graph, report: PassReport, strict: bool = False) -> Graph:
    """Nodes of constants become constants, by reference: floats in float64, rounded once per value, the same bytes
    everywhere. What stands for numbers in few bits stays on its way to a heavy op."""
    constants, nodes, stay = dict(graph.constants), [], exempt_from_folding(graph.nodes)
    for node in graph.nodes:
        if node in stay or not _foldable(node, constants):
            nodes.append(node)
            continue
        try:
            found = compute(node, tuple(constants[v] for v in node.inputs))
        except (ValueError, IndexError, OverflowError) as e:
            # an index beyond its table: it would be no better when it runs
            raise ModelError(
                f"{node.op.name} of these constants cannot be computed: {e} (node {node_label(node)!r})"
            ) from None
        constants.update(zip(node.outputs, found))
        report.fire("constant", node_label(node))
    return (
        graph
        if len(nodes) == len(graph.nodes)
        else remove_dead_nodes(graph.replace(nodes=tuple(nodes), constants=constants))
    )


def _foldable(node: Node, constants: Mapping[Value, np.ndarray]) -> bool:
    if not all(v.type.known for v in node.outputs) or dims.symbols(tuple(node.attrs.values())):
        return False
    size = sum(v.type.bytes for v in node.outputs)
    return (
        node.op.kind not in ("foreign", "nested")
        and all(v in constants for v in node.inputs)
        and size <= max(SMALL, sum(v.type.bytes for v in node.inputs))
        and is_worth_folding(node.op, [v.type for v in node.inputs], [v.type for v in node.outputs], node.attrs)
    )


def drop_dead(graph: Graph, report: PassReport, strict: bool = False) -> Graph:
    """Nodes and constants that no output needs go."""
    return remove_dead_nodes(graph)


def merge_equal(graph: Graph, report: PassReport, strict: bool = False) -> Graph:
    """Equal constants are one, and so are nodes of one op on equal inputs. Graph outputs keep a node each: two names
    are two arrays."""
    to = _equal_constants(graph)
    met: dict[Any, int] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = tuple(to.get(v, v) for v in node.inputs)
        if inputs != node.inputs:
            node = Node(node.op, inputs, node.attrs, node.outputs, node.name)
        key = _key(node)
        if key not in met or any(v in graph.outputs for v in node.outputs):
            met.setdefault(key, len(nodes))
            nodes.append(node)
            continue
        first = nodes[met[key]]
        to.update(zip(node.outputs, first.outputs))
        nodes[met[key]] = Node(first.op, first.inputs, first.attrs, first.outputs, join_names((first.name, node.name)))
        report.fire("equal", node_label(nodes[met[key]]))
    if not to:
        return graph
    return remove_dead_nodes(graph.replace(nodes=tuple(nodes)))


def _key(node: Node) -> Any:
    """Equal for nodes that give the same. Foreign ops may be random, and be within nested ones: each is like itself
    alone."""
    if node.op.kind in ("foreign", "nested"):
        return node
    operands = frozenset(node.inputs) if node.op.commutative else node.inputs
    return node.op, operands, tuple((k, repr(v)) for k, v in sorted(node.attrs.items()))


def _equal_constants(graph: Graph) -> dict[Value, Value]:
    """constant → the first one with the same type and bytes. A few elements are compared before all of them."""
    to: dict[Value, Value] = {}
    alike: dict[Any, list[Value]] = {}
    for value, array in graph.constants.items():
        if array.dtype.kind not in "OUST" and value not in graph.outputs:
            step = max(1, array.size // 16)
            alike.setdefault((value.type, array.reshape(-1)[::step].tobytes()), []).append(value)
    for values in alike.values():
        first: dict[bytes, Value] = {}
        for value in values if len(values) > 1 else ():
            kept = first.setdefault(_digest(graph.constants[value]), value)
            if kept is not value:
                to[value] = kept
    return to


def _digest(array: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, digest_size=20).digest()
