"""Merges convolutions, or matrix products, of one input into one with wider weights, and slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pelton.ir import lineage
from pelton.ir.graph import Graph, Node, Value
from pelton.ops.op import Term

from pelton.passes.rewriting.draft import Draft, join_names
from pelton.passes.rewriting.report import PassReport
from pelton.passes.rewriting.rule import node_label
from pelton.ops.words import clip, codebook_linear, convolution, matmul, quantized_linear, slice_


def sibling_convolutions(graph: Graph, report: PassReport, strict: bool = False) -> Graph:
    """Merges ungrouped convolutions of one input with constant weights, equal window and attributes."""

    def merge_key(node: Node, draft: Draft) -> Any:
        if (
            node.op is not convolution
            or node.attrs["group"] != 1
            or len(node.inputs) != 3
            or any(v not in draft.constants for v in node.inputs[1:])
        ):
            return None
        x, w, _ = node.inputs
        return x, w.type.shape[2:], tuple(sorted(node.attrs.items()))

    def merge(nodes: Sequence[Node], draft: Draft) -> Term:
        w, b = (np.concatenate([draft.constants[n.inputs[i]] for n in nodes]) for i in (1, 2))
        return convolution(nodes[0].inputs[0], w, b, **nodes[0].attrs)

    return _merge(graph, report, "sibling_convolutions", 1, merge_key, merge)


def sibling_matmuls(graph: Graph, report: PassReport, strict: bool = False) -> Graph:
    """Merges products of one input with constant matrices (Q, K and V) into one with the matrices concatenated."""

    def merge_key(node: Node, draft: Draft) -> Any:
        if node.op is not matmul or node.inputs[1] not in draft.constants or node.inputs[1].type.rank != 2:
            return None
        return node.inputs[0], tuple(sorted(node.attrs.items()))

    def merge(nodes: Sequence[Node], draft: Draft) -> Term:
        return matmul(
            nodes[0].inputs[0], np.concatenate([draft.constants[n.inputs[1]] for n in nodes], axis=1), **nodes[0].attrs
        )

    return _merge(graph, report, "sibling_matmuls", -1, merge_key, merge)


def sibling_linears(graph: Graph, report: PassReport, strict: bool = False) -> Graph:
    """Merges products of one input with matrices of few bits, in blocks of one size, into one."""

    def merge_key(node: Node, draft: Draft) -> Any:
        if node.op not in (quantized_linear, codebook_linear):
            return None
        if any(v not in draft.constants for v in node.inputs[1:]):
            return None
        types = tuple((v.type.dtype, v.type.shape[1]) for v in node.inputs[1:])
        return node.op, node.inputs[0], types, tuple(sorted(node.attrs.items()))

    def merge(nodes: Sequence[Node], draft: Draft) -> Term:
        columns = zip(*(n.inputs[1:] for n in nodes))
        return nodes[0].op(
            nodes[0].inputs[0], *(np.concatenate([draft.constants[v] for v in c]) for c in columns), **nodes[0].attrs
        )

    return _merge(graph, report, "sibling_linears", -1, merge_key, merge)


def _merge(
    graph: Graph,
    report: PassReport,
    rule: str,
    axis: int,
    merge_key: Callable[[Node, Draft], Any],
    merge: Callable[[Sequence[Node], Draft], Term],
) -> Graph:
    """Merges nodes of equal `merge_key` (None: cannot be merged), whose outputs are concatenated along `axis`."""
    draft, families, merged = Draft(graph), dict[Any, list[Node]](), False
    for node in draft.nodes:
        key = merge_key(node, draft)
        if key is not None:
            # nodes with different tails stay apart: a slice of the merged result has no epilogue of its own
            tail = _tail(draft, node.output)
            families.setdefault((key, tail and (tail.op, tuple(sorted(tail.attrs.items())))), []).append(node)
    for family in families.values():
        if len(family) > 1:
            name, known = join_names(n.name for n in family), len(draft.constants)
            (merged_value,) = draft.build(merge(family, draft), at=family[0], name=name)
            lineage.added(draft.constants, known, _constants(family, draft))
            merged, along = True, axis % merged_value.type.rank
            report.fire(rule, name or node_label(draft.producer[merged_value]))
            merged_value, family = _merge_tails(draft, merged_value, family, along)
            _replace_by_slices(draft, merged_value, family, along)
    _report_unmerged(families, report, rule)
    return draft.graph() if merged else graph


def _report_unmerged(families: dict[Any, list[Node]], report: PassReport, rule: str) -> None:
    """Reports the reasons for unmerged nodes with the same op and input."""
    readers: dict[Value, int] = {}
    for family in families.values():
        readers[family[0].inputs[0]] = readers.get(family[0].inputs[0], 0) + 1
    for family in families.values():
        if len(family) == 1 and readers[family[0].inputs[0]] > 1:
            name = family[0].inputs[0].name
            reason = f"the other readers of %{name} have another kernel, stride, dilation, padding or tail"
            report.reject(rule, node_label(family[0]), reason)


def _merge_tails(draft: Draft, merged_value: Value, family: list[Node], axis: int) -> tuple[Value, list[Node]]:
    """Merges tails, too, while every sibling has the same pointwise op next (a bias, an activation)."""
    while True:
        tails = [tail for node in family if (tail := _tail(draft, node.output)) is not None]
        if len(tails) < len(family) or any(t.op is not tails[0].op or t.attrs != tails[0].attrs for t in tails):
            return merged_value, family
        operands = _operands(draft, merged_value, [n.output for n in family], tails, axis)
        if operands is None:
            return merged_value, family
        first, known = tails[0], len(draft.constants)
        (merged_value,) = draft.build(
            first.op(*operands, **first.attrs), at=family[0], name=join_names(t.name for t in tails)
        )
        lineage.added(draft.constants, known, _constants(tails, draft))
        family = tails


def _constants(nodes: Sequence[Node], draft: Draft) -> list[np.ndarray]:
    """Returns the constants that nodes read."""
    return [draft.constants[v] for n in nodes for v in n.inputs if v in draft.constants]


def _tail(draft: Draft, value: Value) -> Node | None:
    """Returns the pointwise node of the same shape that is the only reader of a value."""
    if draft.uses(value) != 1 or value in draft.outputs:
        return None
    (user,) = draft.users[value]
    return user if user.op.kind == "pointwise" and user.output.type.shape == value.type.shape else None


def _operands(
    draft: Draft, merged_value: Value, values: list[Value], tails: Sequence[Node], axis: int
) -> list[Any] | None:
    """Returns the operands of a merged tail: the merged value, concatenated constants; None if unmergeable."""
    operands: list[Any] = []
    rows = [_operands_value_first(t, v) for t, v in zip(tails, values)]
    for column in zip(*rows):
        if all(c is v for c, v in zip(column, values)):
            operands.append(merged_value)
            continue
        vectors = [vector for c, v in zip(column, values) if (vector := _along(draft, c, v, axis)) is not None]
        if len(vectors) < len(column) or len({c.type.dtype for c in column}) > 1:
            return None
        if all(c.type.rank == 0 and draft.constants[c] == draft.constants[column[0]] for c in column):
            operands.append(column[0])
        elif tails[0].op is clip:  # its bounds are numbers
            return None
        else:
            operands.append(np.concatenate(vectors).reshape(-1, *[1] * (merged_value.type.rank - 1 - axis)))
    return operands


def _operands_value_first(node: Node, value: Value) -> tuple[Value, ...]:
    return node.inputs[::-1] if node.op.commutative and node.inputs[0] is not value else node.inputs


def _along(draft: Draft, c: Value, value: Value, axis: int) -> np.ndarray | None:
    """Returns a constant that varies along the axis alone, as a vector of the value's size there; None otherwise."""
    array, size = draft.constants.get(c), value.type.shape[axis]
    if array is None or array.ndim > value.type.rank:
        return None
    shape = (*[1] * (value.type.rank - array.ndim), *array.shape)
    if array.size != shape[axis] or shape[axis] not in (1, size):
        return None
    return np.broadcast_to(array.reshape(-1), (size,))


def _replace_by_slices(draft: Draft, merged_value: Value, family: Sequence[Node], axis: int) -> None:
    begin = 0
    for node in family:
        end = begin + node.output.type.shape[axis]
        draft.replace(node, slice_(merged_value, starts=(begin,), ends=(end,), axes=(axis,), steps=(1,)), node.name)
        begin = end
