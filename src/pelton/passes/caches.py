"""Lets attention read a cache in its own numbers, f16, bf16 or i8, instead of a copy of the cache in f32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pelton.ir.dims import Undecided, equal
from pelton.ir.graph import Node, Graph, Value
from pelton.ir.types import BF16, F16, F32, TensorType
from pelton.ops.attention import STORED
from pelton.ops.op import Term, TermLike
from pelton.ops.words import (
    attention,
    cache_attention,
    cache_write,
    cast,
    expand,
    mul,
    reshape,
    slice_,
    transpose,
)

from pelton.passes.rewriting.draft import Draft
from pelton.passes.rewriting.report import PassReport
from pelton.passes.rewriting.rule import node_label

VIEWS = (reshape, slice_, transpose, expand)


def attention_of_caches(graph: Graph, report: PassReport, strict: bool = False) -> Graph:
    """Replaces attention over keys and values that are casts of a cache, times scales, by attention over the cache."""
    if not any(node.op is attention for node in graph.nodes):
        return graph
    draft = Draft(graph)
    for node in draft.nodes:
        if node.op is not attention or node not in draft:
            continue
        try:
            replacement = _over_cache(node, draft)
            done = replacement is not None and draft.replace(node, replacement, node.name)
        except Undecided:
            continue
        if done:
            report.fire("attention_of_caches", node_label(node))
    return draft.graph()


def _over_cache(node: Node, draft: Draft) -> Term | None:
    """Returns the attention over the cache, or None if the keys or the values are no cache's."""
    q, k, v, mask = node.inputs
    keys, values = (_stored_rows(x, draft) for x in (k, v))
    if keys is None or values is None or q.type.dtype is not F32:
        return None
    if keys.source.type.dtype is not values.source.type.dtype:
        return None
    rows = [r.rows() for r in (keys, values)]
    factors = [r.scales() for r in (keys, values)]
    if any(f is None for f in factors):
        return None
    scale = node.attrs["scale"] * keys.factor
    y = cache_attention(q, rows[0], factors[0], rows[1], factors[1], mask, scale=scale, causal=node.attrs["causal"])
    return y if values.factor == 1 else mul(y, np.float32(values.factor))


@dataclass(frozen=True)
class _StoredRows:
    """Rows of keys or values: `views`, in order, of a narrow source, scaled by a value behind `before` of the views, or
    not, and by a factor."""

    source: Value
    views: Sequence[Node]
    scale: Value | None
    before: int
    factor: float

    def rows(self) -> TermLike:
        """Returns the same views of the source."""
        y: TermLike = self.source
        for view in self.views:
            y = view.op(y, **view.attrs)
        return y

    def scales(self) -> TermLike | None:
        """Returns the views of the scales that belong to those of the rows; None if there are none."""
        if self.scale is None:
            return np.ones((), np.float32)
        scaled = (self.views[self.before - 1].output if self.before else self.source).type
        shape = (1,) * (scaled.rank - self.scale.type.rank) + self.scale.type.shape
        if any(not equal(a, b) for a, b in zip(shape[:-1], scaled.shape)) or not equal(shape[-1], 1):
            return None  # of columns, or of all rows of a head
        y: TermLike = reshape(self.scale, shape=shape)
        for view in self.views[self.before :]:
            attrs = _of_scales(view.inputs[0].type, view)
            if attrs is None:
                return None
            y = view.op(y, **attrs)
        return y


def _of_scales(before: TensorType, view: Node) -> dict | None:
    """Returns the attributes of a view of rows for their scales, whose last axis is 1; None if it moves that axis."""
    last, attrs = before.rank - 1, view.attrs
    if view.op is slice_:
        return None if last in attrs["axes"] else dict(attrs)
    if view.op is transpose:
        return dict(attrs) if attrs["perm"][-1] == last else None
    shape = view.output.type.shape
    return {**attrs, "shape": (*shape[:-1], 1)} if equal(shape[-1], before.shape[-1]) else None


def _stored_rows(x: Value, draft: Draft) -> _StoredRows | None:
    """Finds the cache that f32 rows are a cast of; None if they are none."""
    views: list[Node] = []
    scale, behind, factor = None, 0, 1.0
    while (node := draft.producer.get(x)) is not None:
        if node.op in VIEWS:
            views.insert(0, node)
            x = node.inputs[0]
        elif node.op is mul:
            wide, other = _factors(node, draft)
            if wide is None or other is None:
                return None
            if other in draft.constants and other.type.size == 1:
                factor *= float(draft.constants[other].flat[0])
            elif scale is None:
                scale, behind = other, len(views)
            else:
                return None
            x = wide
        elif node.op is cast and _rounds(node, draft):
            x = draft.producer[node.inputs[0]].inputs[0]
        elif node.op is cast:
            source, inner = _behind_views(node.inputs[0], draft)
            if source.type.dtype not in STORED or not _is_cache(source, draft):
                return None
            views[:0] = inner
            return _StoredRows(source, views, scale, len(views) - behind, factor)
        else:
            return None
    return None


def _factors(node: Node, draft: Draft) -> tuple[Value, Value] | tuple[None, None]:
    """Returns the operand of a product that casts lead to, and the other one."""
    for wide, other in (node.inputs, node.inputs[::-1]):
        made = draft.producer.get(_behind_views(wide, draft)[0])
        if wide.type == node.output.type and made is not None and made.op in (cast, mul):
            return wide, other
    return None, None


def _rounds(node: Node, draft: Draft) -> bool:
    """True for the second cast of an f32 value to a half and back, by which a model in halves rounds."""
    before = draft.producer.get(node.inputs[0])
    halves = node.inputs[0].type.dtype in (F16, BF16)
    return halves and before is not None and before.op is cast and before.inputs[0].type.dtype is F32


def _behind_views(x: Value, draft: Draft) -> tuple[Value, list[Node]]:
    """Returns the value that x is views of, and these views, in order."""
    views: list[Node] = []
    while (node := draft.producer.get(x)) is not None and node.op in VIEWS:
        views.insert(0, node)
        x = node.inputs[0]
    return x, views


def _is_cache(x: Value, draft: Draft) -> bool:
    """True for an input, and for the result of writing into a cache."""
    node = draft.producer.get(x)
    return node.op is cache_write if node is not None else x in draft.source.inputs
