"""Computes half-precision models in f32 on CPUs, which is faster; inputs, outputs and casts of the model round.

Otherwise casts would separate kernels that multiply only in f32, and weights would still be packed as f32. ONNX Runtime
does likewise. Lookup tables and caches stay narrow."""

from __future__ import annotations

import numpy as np

from pelton.ir import lineage
from pelton.ir.graph import Graph, Node, Value, remove_dead_nodes, unique
from pelton.ir.types import BF16, F16, F32, DType
from pelton.ops import get
from pelton.ops.words import cache_write

HALVES = {F16, BF16}


def in_f32(graph: Graph) -> Graph:
    """Computes f16 and bf16 values in f32 from their first use to their last."""
    if not any(v.type.dtype in HALVES for n in graph.nodes for v in n.outputs):
        return graph
    draft = _FloatDraft(graph)
    for node in graph.nodes:
        draft.add(node)
    for v in dict.fromkeys(graph.outputs):
        if v in draft.only:
            draft.cast(draft.wide[v], v)
    return remove_dead_nodes(graph.replace(nodes=tuple(draft.nodes), constants=draft.constants))


class _FloatDraft:
    """The graph under construction. `wide`: f32 versions of values; those in `only` have no narrow version (yet)."""

    def __init__(self, graph: Graph):
        self.nodes: list[Node] = []
        self.constants: dict[Value, np.ndarray] = dict(graph.constants)
        self.wide: dict[Value, Value] = {}
        self.only: set[Value] = set()
        self._names = {v.name for v in (*graph.inputs, *graph.constants)} | {
            v.name for n in graph.nodes for v in n.outputs
        }

    def add(self, node: Node) -> None:
        """Adds a node, in f32 if it computes with halves."""
        halves = any(v.type.dtype in HALVES for v in (*node.inputs, *node.outputs))
        moves = node.op.moves and not self.only.intersection(node.inputs)  # no wider than its operand
        keeps = node.op.kind == "foreign" or node.op.bits or moves or node.op is cache_write
        if not halves or keeps or not self._add_in_f32(node):
            for v in node.inputs:
                if v in self.only:
                    self.cast(self.wide[v], v)
                    self.only.discard(v)
            self.nodes.append(node)

    def _add_in_f32(self, node: Node) -> bool:
        rounded = {v for v in node.inputs if v.type.dtype in HALVES}
        types = {v: v.type.with_dtype(F32) for v in rounded}
        try:
            output_types = node.op.infer_types(tuple(types.get(v, v.type) for v in node.inputs), node.attrs)
        except (TypeError, ValueError):  # the op takes halves only
            return False
        if any(t != v.type and t != v.type.with_dtype(F32) for v, t in zip(node.outputs, output_types)):
            return False
        inputs = tuple(self._widen(v) if v in rounded else v for v in node.inputs)
        outputs = []
        for v, t in zip(node.outputs, output_types):
            if t == v.type:
                outputs.append(v)
            else:
                outputs.append(self._fresh(t.dtype, v))
                self.wide[v] = outputs[-1]
                self.only.add(v)
        self.nodes.append(Node(node.op, inputs, node.attrs, tuple(outputs), node.name))
        return True

    def _widen(self, v: Value) -> Value:
        if v not in self.wide:
            self.wide[v] = self._fresh(F32, v)
            if v in self.constants:
                self.constants[self.wide[v]] = self.constants[v].astype(np.float32)
                lineage.derived([self.constants[self.wide[v]]], [self.constants[v]])
            else:
                self.cast(v, self.wide[v])
        return self.wide[v]

    def cast(self, x: Value, y: Value) -> None:
        self.nodes.append(Node(get("cast"), (x,), get("cast").complete({"to": y.type.dtype}), (y,), y.name))

    def _fresh(self, dtype: DType, like: Value) -> Value:
        name = unique(like.name, self._names)
        self._names.add(name)
        return Value(like.type.with_dtype(dtype), name)
