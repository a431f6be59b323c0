"""Writes an ONNX model: names, constants, sizes, and the nodes of nested graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import helper

from pelton.ir.graph import Graph, Node, Value, unique
from pelton.ir.types import STRING, DType, TensorType
from pelton.ops.foreign import CODES, dims_as_onnx

from .schemas import check, given_type
from .sizes import SizeNodes

ALIKE = 64  # elements up to which equal constants are shared


class ModelWriter:
    """Writes a program as a model of one opset.

    Constants of nested graphs, and sizes, belong to the main graph, which all graphs can read.
    """

    def __init__(self, graph: Graph, opset: int, write_node: Callable[[ModelWriter, Node], None]):
        self.opset = opset
        self.write_node = partial(write_node, self)
        self.opsets = {"": opset}  # domain → version
        self.functions: list[onnx.FunctionProto] = []
        self.arrays: dict[str, np.ndarray] = {}  # initializer → its elements
        self.front: list[onnx.NodeProto] = []  # nodes that compute sizes, only from inputs
        self.stack: list[list[onnx.NodeProto]] = [[]]  # nodes of the main graph, and of those nested in it
        self.untyped: dict[Value, None] = {}  # values whose types onnx cannot infer
        self._dtypes: dict[str, DType] = {}
        self._names: dict[Value, str] = {}
        self._constants: dict[Value, np.ndarray] = {}
        self._alike: dict[Any, str] = {}
        self._hint, self._label = "", ""  # of the current node
        values = (*graph.inputs, *graph.constants, *(v for n in graph.nodes for v in n.outputs), *graph.outputs)
        self._taken = {v.name for v in values}
        for v in values:
            self.bind(v, v.name)
        self._constants.update(graph.constants)
        self.sizes = SizeNodes(self, graph.inputs)

    # --- values

    def name(self, value: Value) -> str:
        """Returns the name of a value; constants become initializers when they are read."""
        name = self._names[value]
        if value in self._constants:
            self.arrays.setdefault(name, self._constants[value])
        return name

    def bind(self, value: Value, name: str) -> None:
        self._names[value] = name
        self._dtypes.setdefault(name, value.type.dtype)

    def bind_constant(self, value: Value, array: np.ndarray) -> None:
        self._constants[value] = array
        self.bind(value, self.constant(array))

    def known(self, value: Value) -> np.ndarray | None:
        return self._constants.get(value)

    def dtype(self, name: str) -> DType:
        return self._dtypes[name]

    def fresh(self, hint: str) -> str:
        name = unique(hint, self._taken)
        self._taken.add(name)
        return name

    def constant(self, array: np.ndarray) -> str:
        """Adds an initializer, shared with equal ones if it is small; returns its name."""
        dtype, key = DType.of(array), None
        if array.size <= ALIKE:
            key = (dtype, array.shape, tuple(array.flat) if dtype is STRING else array.tobytes())
            if key in self._alike:
                return self._alike[key]
        name = self.fresh("constant")
        self.arrays[name], self._dtypes[name], self._alike[key or name] = array, dtype, name
        return name

    # --- nodes

    def emit(
        self,
        kind: str,
        inputs: Iterable[str],
        gives: Sequence[DType | None],
        attrs: Mapping[str, Any],
        domain: str = "",
        hint: str = "",
    ) -> tuple[str, ...]:
        """Appends a node to the current graph; raises Unwritable if ONNX has no such node."""
        inputs, attrs = list(inputs), {k: v for k, v in attrs.items() if v is not None}
        while inputs and not inputs[-1]:
            inputs.pop()
        dtypes = [self._dtypes[name] if name else None for name in inputs]
        schema = check(kind, self.opsets.setdefault(domain, 1), dtypes, gives, attrs, domain)
        names = [self.fresh(f"{hint or self._hint}.{kind}") for _ in gives]
        for i, (name, dtype) in enumerate(zip(names, gives)):
            output_dtype = given_type(schema, dtypes, i) if dtype is None else dtype
            assert output_dtype is not None, f"the output element type of {kind} is unknown"
            self._dtypes[name] = output_dtype
        self.append(helper.make_node(kind, inputs, names, domain=domain, **attrs))
        return tuple(names)

    def emit_custom(self, kind: tuple[str, str], inputs: Sequence[str], node: Node) -> list[str]:
        """Appends a node of another package's operator, with the attributes of the op."""
        domain, operator = kind
        self.opsets.setdefault(domain, 1)
        names = [self.fresh(f"{self._hint}.{operator}") for _ in node.outputs]
        self._dtypes.update((name, v.type.dtype) for name, v in zip(names, node.outputs))
        made = helper.make_node(operator, inputs, names, domain=domain)
        made.attribute.extend(
            helper.make_attribute(k, a, attr_type=onnx.AttributeProto.INTS if a == () else None)
            for k, a in node.attrs.items()
        )
        self.append(made)
        self.untyped.update((v, None) for v in node.outputs)
        return names

    def append(self, made: onnx.NodeProto) -> None:
        made.name = made.name or self._label
        self.stack[-1].append(made)

    @contextmanager
    def outside(self, hint: str) -> Iterator[None]:
        """Emits the nodes of the block at the beginning of the main graph."""
        kept, self.stack = self.stack, [self.front]
        label, self._label = self._label, ""
        hint, self._hint = self._hint, hint
        try:
            yield
        finally:
            self.stack, self._label, self._hint = kept, label, hint

    def enter(self, node: Node) -> tuple[str, str]:
        """Names new nodes after a node; returns the previous names."""
        before = self._hint, self._label
        self._hint, self._label = self._names.get(node.outputs[0], self._hint), node.name or self._label
        return before

    def leave(self, before: tuple[str, str]) -> None:
        self._hint, self._label = before

    def settle(self, value: Value, name: str, mark: int) -> str:
        """Renames the result `name` of nodes from `mark` on to the value's own name, if any; returns the name.

        Copies results of earlier nodes: with a mark behind all nodes, every result."""
        made = self.stack[-1][mark:]
        own = self._names.get(value)
        if own is None:
            self.bind(value, name)
            return name
        if not any(name in n.output for n in made):
            self.stack[-1].append(helper.make_node("Identity", [name], [own]))
        else:
            for n in made:
                for names in (n.input, n.output):
                    names[:] = [own if other == name else other for other in names]
        return own

    def declared(self, hint: str, type: TensorType) -> onnx.ValueInfoProto:
        """Declares an input of a nested graph that stands for no value."""
        return value_info(self.fresh(hint), type)

    def nested(self, graph: Graph, given: Sequence[str], own: int, name: str) -> onnx.GraphProto:
        """Writes a graph within a node. Its first `own` inputs are its own; the others are these names around it."""
        values = [v for n in graph.nodes for v in n.outputs]
        for v in (*graph.inputs[:own], *values, *graph.constants):
            self._names[v] = self.fresh(v.name)
            self._dtypes[self._names[v]] = v.type.dtype
        for v, outer in zip(graph.inputs[own:], given, strict=True):
            self._names[v] = outer
        self._constants.update(graph.constants)
        self.stack.append([])
        try:
            for node in graph.nodes:
                self.write_node(node)
            outputs = list[str]()
            for v in graph.outputs:
                output = self.name(v)
                if v not in values or output in outputs:
                    (output,) = self.emit("Identity", [output], [v.type.dtype], {}, hint=v.name)
                outputs.append(output)
        finally:
            nodes = self.stack.pop()
        inputs = [value_info(self._names[v], v.type) for v in graph.inputs[:own]]
        return helper.make_graph(nodes, name, inputs, [value_info(n, v.type) for n, v in zip(outputs, graph.outputs)])


def value_info(name: str, type: TensorType) -> onnx.ValueInfoProto:
    """Returns a declared tensor; dynamic dimensions are names or expressions of these."""
    return helper.make_tensor_value_info(name, CODES[type.dtype.value], dims_as_onnx(type.shape))
