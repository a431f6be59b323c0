"""Expands quantize and dequantize ops into arithmetic in f32, and folds what has constant operands."""

from __future__ import annotations

import numpy as np

from pelton.ir import dims
from pelton.ir.expansion import expand_op
from pelton.ir.folding import compute, is_worth_folding
from pelton.ir.graph import Graph, Node, Value, remove_dead_nodes, unique
from pelton.ir.types import TensorType

SMALL = 1 << 20  # elements: limit of a folded constant, as in imports, unless an operand has more
FEW = 64  # elements: limit of constants that expansions share


def converts(node: Node) -> bool:
    """Whether a node quantizes or dequantizes."""
    return node.op.stepwise


def in_f32(graph: Graph) -> Graph:
    """The program with every such node expanded, and the resulting constant nodes folded."""
    if not any(map(converts, graph.nodes)):
        return graph
    return _Expansion(graph).graph()


class _Expansion:
    """A program whose nodes are expanded one by one."""

    def __init__(self, graph: Graph):
        self.source = graph
        self.constants: dict[Value, np.ndarray] = dict(graph.constants)
        self.nodes: list[Node] = []
        made = (v for n in graph.nodes for v in n.outputs)
        self._names = {v.name for v in (*graph.inputs, *graph.constants, *made)}
        self._numbers: dict[tuple, Value] = {}
        for v, array in graph.constants.items():
            if array.size <= FEW and array.dtype.kind not in "OUST":
                self._numbers.setdefault(_key(array), v)
        self._new: set[Value] = set()  # constants that expanded nodes read or produce

    def graph(self) -> Graph:
        for node in self.source.nodes:
            if converts(node):
                self._expand(node)
            else:
                self._add(node)
        return remove_dead_nodes(self.source.replace(nodes=tuple(self.nodes), constants=self.constants))

    def _expand(self, node: Node) -> None:
        """Adds the nodes of an expansion; the last one produces the output of the node."""
        body = expand_op(node.op, node.inputs, node.attrs)
        last = body.nodes[-1]
        stem = node.output.name.partition(f".{last.op.name}")[0]
        to = {v: self._number(a) for v, a in body.constants.items()} | {last.output: node.output}
        self._new.update(v for v in node.inputs if v in self.constants)
        for step in body.nodes:
            if step is not last:
                to[step.output] = Value(step.output.type, self._fresh(f"{stem}.{step.op.name}"))
            inputs = tuple(to.get(v, v) for v in step.inputs)
            self._add(Node(step.op, inputs, step.attrs, (to[step.output],), node.name))

    def _add(self, node: Node) -> None:
        """Adds a node, or its value if it reads only constants, at least one of them new."""
        if not self._is_foldable(node):
            self.nodes.append(node)
            return
        found = compute(node, tuple(self.constants[v] for v in node.inputs))
        self.constants.update(zip(node.outputs, found))
        self._new.update(node.outputs)

    def _is_foldable(self, node: Node) -> bool:
        known = all(v in self.constants for v in node.inputs) and not self._new.isdisjoint(node.inputs)
        types, given = tuple(v.type for v in node.outputs), tuple(v.type for v in node.inputs)
        if not known or node.op.kind == "foreign":
            return False
        if dims.symbols((*node.attrs.values(), *(t.shape for t in types))):
            return False
        return all(t.size <= max(SMALL, *(g.size for g in given)) for t in types) and is_worth_folding(
            node.op, given, types, node.attrs
        )

    def _number(self, array: np.ndarray) -> Value:
        """A constant of an expansion, shared by all equal ones."""
        if _key(array) not in self._numbers:
            value = Value(TensorType.of(array), self._fresh("constant"))
            self._numbers[_key(array)] = value
            self.constants[value] = array
        return self._numbers[_key(array)]

    def _fresh(self, hint: str) -> str:
        name = unique(hint, self._names)
        self._names.add(name)
        return name


def _key(array: np.ndarray) -> tuple:
    return array.dtype.name, array.shape, array.tobytes()
