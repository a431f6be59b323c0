"""Verifies programs: every value is produced once and before its use, every type is the inferred one."""

from __future__ import annotations

import numpy as np

from pelton.errors import BuildError

from .graph import Graph, Node, Value, bodies
from .types import TensorType


def verify(graph: Graph) -> None:
    """Returns if the program is well formed; otherwise raises BuildError with the node and the reason."""
    defined: set[Value] = set()

    def define(value: Value, where: str) -> None:
        if value in defined:
            raise BuildError(f"{value!r} is defined twice, the second time by {where}, in graph {graph.name!r}")
        defined.add(value)

    for v in graph.inputs:
        define(v, "the graph's inputs")
    for v, array in graph.constants.items():
        define(v, "a constant")
        _check_constant(graph, v, array)
    for node in graph.nodes:
        for v in node.inputs:
            if v not in defined:
                raise BuildError(f"{_named(node)} reads {v!r} before it is written, in graph {graph.name!r}")
        _check_types(graph, node)
        for body in bodies(node):
            verify(body.graph)
        for v in node.outputs:
            define(v, _named(node))
    for v in graph.outputs:
        if v not in defined:
            raise BuildError(f"output {v!r} is never written in graph {graph.name!r}")
    for kind, values in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        names = [v.name for v in dict.fromkeys(values)]
        if len(set(names)) < len(names):
            repeated = next(n for n in names if names.count(n) > 1)
            raise BuildError(f"two {kind} are named {repeated!r} in graph {graph.name!r}")


def _named(node: Node) -> str:
    return f"node {node.name!r} ({node.op.name})" if node.name else f"node {node!r}"


def _check_constant(graph: Graph, value: Value, array: np.ndarray) -> None:
    try:
        array_type = TensorType.of(array)
    except TypeError as e:
        raise BuildError(f"constant {value!r} is no tensor: {e}, in graph {graph.name!r}") from None
    if array_type != value.type:
        raise BuildError(f"constant {value!r} holds an array of type {array_type}, in graph {graph.name!r}")


def _check_types(graph: Graph, node: Node) -> None:
    try:
        if node.op.complete(node.attrs).keys() != node.attrs.keys():
            raise TypeError(
                f"{node.op.name} needs its attributes {sorted(node.op.attrs.keys() - node.attrs.keys())} to be explicit"
            )
        types = node.op.infer_types(tuple(v.type for v in node.inputs), node.attrs)
    except (TypeError, ValueError) as e:
        raise BuildError(f"{_named(node)} does not fit its inputs: {e}, in graph {graph.name!r}") from e
    if types != tuple(v.type for v in node.outputs):
        raise BuildError(
            f"{_named(node)} must have outputs {', '.join(map(str, types)) or 'nothing'}, but has"
            f" {', '.join(map(repr, node.outputs)) or 'none'}, in graph {graph.name!r}"
        )
