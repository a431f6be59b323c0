"""Constant folding, merging of equal nodes and constants, and removal of dead nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from pelton.errors import ModelError
from pelton.ir import dims, lineage
from pelton.ir.folding import compute, exempt_from_folding, is_worth_folding
from pelton.ir.graph import Graph, Node, Value, remove_dead_nodes

from pelton.passes.rewriting.draft import join_names
from pelton.passes.rewriting.report import PassReport
from pelton.passes.rewriting.rule import node_label

SMALL = 1 << 20  # elements: limit of a folded constant, as in imports, unless an operand is larger


def fold_constants(graph: Graph, report: PassReport, strict: bool = False) -> Graph:
    """Evaluates nodes of constants by reference: floats in float64, rounded once per value, equal on all machines.

    Conversions of quantized constants stay in front of heavy ops. Raises ModelError if an evaluation fails.
    """
    constants, nodes, stay = dict(graph.constants), [], exempt_from_folding(graph.nodes)
    for node in graph.nodes:
        if node in stay or not _foldable(node, constants):
            nodes.append(node)
            continue
        try:
            outputs = compute(node, tuple(constants[v] for v in node.inputs))
        except (ValueError, IndexError, OverflowError) as e:
            # such as an index out of range, which would fail at run time, too
            raise ModelError(
                f"{node.op.name} of these constants cannot be computed: {e} (node {node_label(node)!r})"
            ) from None
        constants.update(zip(node.outputs, outputs))
        report.fire("constant", node_label(node))
    if len(nodes) == len(graph.nodes):
        return graph
    return remove_dead_nodes(graph.replace(nodes=tuple(nodes), constants=constants))


def _foldable(node: Node, constants: Mapping[Value, np.ndarray]) -> bool:
    if not all(v.type.known for v in node.outputs) or dims.symbols(tuple(node.attrs.values())):
        return False
    if node.op.kind in ("foreign", "nested") or not all(v in constants for v in node.inputs):
        return False
    inputs, made = [v.type for v in node.inputs], [v.type for v in node.outputs]
    limit = max((SMALL, *(t.size for t in inputs)))
    return all(t.size <= limit for t in made) and is_worth_folding(node.op, inputs, made, node.attrs)


def drop_dead(graph: Graph, report: PassReport, strict: bool = False) -> Graph:
    """Removes nodes and constants that no output depends on."""
    return remove_dead_nodes(graph)


def merge_equal(graph: Graph, report: PassReport, strict: bool = False) -> Graph:
    """Merges equal constants, and equal nodes on equal inputs. Every graph output keeps its own node."""
    to = _equal_constants(graph)
    first_of: dict[Any, int] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = tuple(to.get(v, v) for v in node.inputs)
        if inputs != node.inputs:
            node = Node(node.op, inputs, node.attrs, node.outputs, node.name)
        key = _key(node)
        if key not in first_of or any(v in graph.outputs for v in node.outputs):
            first_of.setdefault(key, len(nodes))
            nodes.append(node)
            continue
        first = nodes[first_of[key]]
        to.update(zip(node.outputs, first.outputs))
        nodes[first_of[key]] = Node(
            first.op, first.inputs, first.attrs, first.outputs, join_names((first.name, node.name))
        )
        report.fire("equal", node_label(nodes[first_of[key]]))
    if not to:
        return graph
    return remove_dead_nodes(graph.replace(nodes=tuple(nodes)))


def _key(node: Node) -> Any:
    """Returns a key, equal for nodes with equal results. Foreign ops, also nested ones, may be random: each differs."""
    if node.op.kind in ("foreign", "nested"):
        return node
    operands = frozenset(node.inputs) if node.op.commutative else node.inputs
    return node.op, operands, tuple((k, repr(v)) for k, v in sorted(node.attrs.items()))


def _equal_constants(graph: Graph) -> dict[Value, Value]:
    """Maps each constant to the first one with the same type and bytes; compares a few elements before all of them."""
    to: dict[Value, Value] = {}
    similar: dict[Any, list[Value]] = {}
    for value, array in graph.constants.items():
        if array.dtype.kind not in "OUST" and value not in graph.outputs and not lineage.is_weight(array):
            step = max(1, array.size // 16)
            similar.setdefault((value.type, array.reshape(-1)[::step].tobytes()), []).append(value)
    for values in similar.values():
        first: dict[bytes, Value] = {}
        for value in values if len(values) > 1 else ():
            same = first.setdefault(_digest(graph.constants[value]), value)
            if same is not value:
                to[value] = same
    return to


def _digest(array: np.ndarray) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, digest_size=20).digest()
