"""Computes narrow floats without a kernel in f32, between two casts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from pelton.ir import lineage
from pelton.ir.graph import Graph, Node, Value, remove_dead_nodes, unique
from pelton.ir.types import F32, DType, TensorType
from pelton.ops import get


def is_narrow(dtype: DType) -> bool:
    return dtype.is_float and dtype.bits < 32


def widen(graph: Graph, takes: Callable[[Graph, Node], bool]) -> Graph:
    """Computes structured and composite nodes on narrow floats in f32, if `takes` accepts them only there. Every f32
    tactic then serves, and the result is rounded once, as it would have been. Casts join the pointwise code around
    them; those of constants are done here."""
    draft = _WideningDraft(graph)
    for node in graph.nodes:
        concerned = node.op.kind in ("structured", "composite") and any(
            is_narrow(v.type.dtype) for v in (*node.inputs, *node.outputs)
        )
        if not concerned or takes(graph, node) or not draft.wide(node, takes):
            draft.nodes.append(node)
    return (
        graph
        if len(draft.nodes) == len(graph.nodes)
        else remove_dead_nodes(graph.replace(nodes=tuple(draft.nodes), constants=draft.constants))
    )


class _WideningDraft:
    """The nodes and constants of the graph under construction, and the widened values."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.nodes: list[Node] = []
        self.constants: dict[Value, np.ndarray] = dict(graph.constants)
        self._names = {v.name for v in (*graph.inputs, *graph.constants)} | {
            v.name for n in graph.nodes for v in n.outputs
        }
        self._wide: dict[Value, Value] = {}

    def wide(self, node: Node, takes: Callable[[Graph, Node], bool]) -> bool:
        """Adds the node in f32, if possible."""
        held = {
            v: self._wide.get(v) or self._fresh(v.type.with_dtype(F32), v.name)
            for v in node.inputs
            if is_narrow(v.type.dtype)
        }
        constants = {
            w: self.constants[v].astype(np.float32)
            for v, w in held.items()
            if v in self.constants and w not in self.constants
        }
        for v, w in held.items():
            if w in constants:
                lineage.derived([constants[w]], [self.constants[v]])
        inputs = tuple(held.get(v, v) for v in node.inputs)
        try:
            types = node.op.infer_types(tuple(v.type for v in inputs), node.attrs)
        except (TypeError, ValueError):
            return False
        if [t.shape for t in types] != [v.type.shape for v in node.outputs]:
            return False
        made = tuple(v if v.type == t else self._fresh(t, v.name) for v, t in zip(node.outputs, types))
        twin = Node(node.op, inputs, node.attrs, made, node.name)
        read = tuple(w for v, w in zip(node.outputs, made) if self.graph.uses(v))
        if not takes(self._alone(twin, read, {**self.constants, **constants}), twin):
            return False
        for v, w in held.items():
            if v not in self.constants and v not in self._wide:
                self._cast(v, w, node.name)
        self.constants.update(constants)
        self._wide.update(held)
        self.nodes.append(twin)
        for v, w in zip(node.outputs, made):
            if v is not w:
                self._cast(w, v, node.name)
        return True

    def _alone(self, node: Node, read: tuple[Value, ...], constants: Mapping[Value, np.ndarray]) -> Graph:
        known = {v: constants[v] for v in node.inputs if v in constants}
        return Graph(tuple(dict.fromkeys(v for v in node.inputs if v not in known)), known, (node,), read)

    def _cast(self, x: Value, y: Value, name: str) -> None:
        self.nodes.append(Node(get("cast"), (x,), get("cast").complete({"to": y.type.dtype}), (y,), name))

    def _fresh(self, type: TensorType, hint: str) -> Value:
        name = unique(hint, self._names)
        self._names.add(name)
        return Value(type, name)
