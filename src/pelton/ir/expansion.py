"""Expands a node into a program, by the expansion of its op."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .graph import Graph, Node, Value
from .op import Op, TermOutput
from .types import BOOL, DType, TensorType


def expand_op(op: Op, inputs: tuple[Value, ...], attrs: Mapping[str, Any]) -> Graph:
    """Expands an op on these values, with complete attributes. Numbers and float64 arrays adopt the element type of
    their neighbors. Raises errors of the expansion and of its ops' `infer`."""
    nodes, constants, made = list[Node](), dict[Value, np.ndarray](), dict[int, tuple[Value, ...]]()

    def constant(array: np.ndarray) -> Value:
        held = Value(TensorType.of(array), "constant")
        constants[held] = array
        return held

    def emit(op: Op, operands: list[Value], given: Mapping[str, Any]) -> tuple[Value, ...]:
        complete = op.complete(given)
        types = op.infer_types(tuple(v.type for v in operands), complete)
        nodes.append(Node(op, tuple(operands), complete, tuple(Value(t, op.name) for t in types)))
        return nodes[-1].outputs

    def value(thing: Any, dtype: DType | None) -> Value:
        return values(thing, dtype)[0]

    def values(thing: Any, dtype: DType | None = None) -> tuple[Value, ...]:
        if isinstance(thing, Value):
            return (thing,)
        if isinstance(thing, TermOutput):
            return (values(thing.term)[thing.index],)
        if _is_number(thing):
            as_dtype = None if dtype is None or _is_typed(thing) else dtype.numpy
            return (constant(np.asarray(thing, as_dtype)),)
        if id(thing) not in made:
            given = [None if _is_number(a) else value(a, None) for a in thing.args]
            kinds = [v.type.dtype for v in given if v is not None]
            kinds += [DType.of(a) for a in thing.args if _is_typed(a)]
            beside = next((kind for kind in kinds if kind is not BOOL), None)
            operands = [value(a, beside) if v is None else v for v, a in zip(given, thing.args)]
            made[id(thing)] = emit(thing.op, operands, thing.attrs)
        return made[id(thing)]

    assert op.expand is not None, f"{op.name} has no expansion"
    expansion = op.expand(*inputs, **attrs)
    results = tuple(value(t, None) for t in expansion) if isinstance(expansion, tuple) else values(expansion)
    return Graph(tuple(dict.fromkeys(inputs)), constants, tuple(nodes), results, op.name)


def _is_typed(thing: Any) -> bool:
    """True for an array that keeps its element type."""
    return isinstance(thing, np.ndarray) and thing.dtype != np.float64


def _is_number(thing: Any) -> bool:
    return isinstance(thing, (int, float, np.generic, np.ndarray))
