"""Stores the values of an f32 program as narrower floats: weights and intermediate values, not inputs and outputs."""

from __future__ import annotations

import numpy as np

from pelton.ir.builder import Builder
from pelton.ir.graph import Graph, Node, Value, remove_dead_nodes, unique
from pelton.ir.types import F32, I32, DType
from pelton.ops import get


def lower_precision(graph: Graph, dtype: DType) -> Graph:
    """Converts every f32 value to `dtype`, with casts at inputs and outputs. These stay in f32, between casts: ops
    without `dtype`; steps of the onnx package; positions, angles and sources of integers, with the pointwise ops that
    compute them; sums of integers until they are scaled.

    Kernels compute in f32 with any storage type: only stores to memory round. Constants beyond the largest number
    become that number. Positions stay f32 because 700.3 as f16 is half a pixel off. Values of the program keep their
    names, outputs after the last cast.
    """
    b = Builder(graph.name)
    taken = {v.name for v in (*graph.inputs, *graph.constants, *(v for n in graph.nodes for v in n.outputs))}
    kept: dict[Value, Value] = {}
    exact_constants: dict[Value, np.ndarray] = {}
    for v in graph.inputs:
        kept[v] = b.input(v.type, v.name)
    exact = _exact(graph)
    for v, array in graph.constants.items():
        rounds = v.type.dtype is F32 and v not in exact
        kept[v] = b.constant(_round_to(array, dtype) if rounds else array, v.name)
        if v in exact:
            exact_constants[kept[v]] = array

    def cast(v: Value, to: DType, name: str = "") -> Value:
        if v in exact_constants and v.type.dtype is not to:
            return b.constant(_round_to(exact_constants[v], to), name or fresh(v))
        return v if v.type.dtype is to else b.emit(get("cast"), (v,), {"to": to}, names=[name or fresh(v)])[0]

    def fresh(v: Value) -> str:
        name = unique(v.name, taken)
        taken.add(name)
        return name

    def emit(node: Node, to: DType) -> tuple[Value, ...] | None:
        """Emits the node with `to` in place of f32; None if its op does not allow that."""
        attrs = {k: to if a is F32 else a for k, a in node.attrs.items()}
        types = tuple(
            v.type.with_dtype(to) if v.type.dtype is F32 and i != _place(node) else v.type
            for i, v in enumerate(node.inputs)
        )
        wanted = tuple(v.type.with_dtype(to) if v.type.dtype is F32 else v.type for v in node.outputs)
        try:
            if node.op.infer_types(types, attrs) != wanted:
                return None
        except (TypeError, ValueError):
            return None
        inputs = [cast(kept[v], t.dtype) for v, t in zip(node.inputs, types)]
        names = [fresh(v) if v in graph.outputs and v.type != t else v.name for v, t in zip(node.outputs, wanted)]
        return b.emit(node.op, inputs, attrs, names=names, node_name=node.name)

    for node in graph.nodes:
        # foreign: not all references know narrow floats
        whole = node.op.kind == "foreign" or not exact.isdisjoint(node.outputs)
        made = None if whole else emit(node, dtype)
        made = made or emit(node, F32)
        if made is None:
            raise AssertionError(f"{node.op.name} cannot keep its type")
        kept.update(zip(node.outputs, made))
    outputs = [cast(kept[v], v.type.dtype, v.name) for v in graph.outputs]
    return remove_dead_nodes(b.graph(outputs))


def _place(node: Node) -> int | None:
    """Returns the number of the operand that stays as it is."""
    return 0 if node.op is get("cast") and node.attrs["to"].is_integer else node.op.position_operand


def _exact(graph: Graph) -> set[Value]:
    """Returns the f32 values that stay f32."""
    values = _sums(graph)
    for node in reversed(graph.nodes):
        spreads = not values.isdisjoint(node.outputs) and (
            node.op.kind == "pointwise" or node.op.kind == "structured" and node.op.flops is None
        )
        values.update(v for i, v in enumerate(node.inputs) if v.type.dtype is F32 and (spreads or i == _place(node)))
    return values


def _sums(graph: Graph) -> set[Value]:
    """Returns f32 sums of integers or of FP8, which are too large for f16, up to and including their first scaled
    result."""
    values, sums = set[Value](), set[Value]()
    for node in graph.nodes:
        if node.op.product and node.attrs.get("accumulate") in (I32, F32):
            sums.update(node.outputs)
            values.update(v for v in node.outputs if v.type.dtype is F32)
        elif node.op.kind == "pointwise" and not sums.isdisjoint(node.inputs):
            values.update(v for v in (*node.inputs, *node.outputs) if v.type.dtype is F32)
            if node.op is not get("mul") or node.output.type.dtype is not F32:
                sums.update(node.outputs)
    return values


def _round_to(array: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype is DType.F16:
        largest = float(np.finfo(np.float16).max)
        array = np.where(np.isfinite(array), np.clip(array, -largest, largest), array)
    return array.astype(dtype.numpy)
