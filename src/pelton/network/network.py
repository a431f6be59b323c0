"""Programs built and edited layer by layer in Python: inputs, layers, weights, control flow, outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np

from pelton.errors import InputError, near
from pelton.ir import dims
from pelton.ir.attributes import attributes_of
from pelton.ir.builder import Builder
from pelton.ir.dims import Undecided
from pelton.ir.graph import Graph, Node, Value, topological, unique
from pelton.ir.op import Op, get
from pelton.ir.text import to_text
from pelton.ir.types import DType, TensorType

from .composed import ComposedLayers
from .control import ControlFlow
from .declarations import Declarations, element_type
from .indices import check_indices
from .tensor import Operand, NetworkTensor

ELEMENT_TYPES = ("to", "accumulate", "dtype")  # attributes of operators that are element types, or their names


class Network(ControlFlow, ComposedLayers):
    """A network under construction, to be built by `pelton.build(net)`.

    >>> net = pelton.Network("mlp")
    >>> x = net.input("x", "f32[batch, 784]")
    >>> h = net.relu(net.linear(x, weight1, bias1))
    >>> net.output(net.softmax(net.linear(h, weight2, bias2)), "scores")
    >>> engine = pelton.build(net)

    Every operator of docs/operators.md is a method that takes tensors, arrays and numbers, and returns tensors whose
    types are known at once. What is computed from constants alone is computed at once, too. InputError for operands and
    attributes that an operator does not take. Networks of `pelton.import_onnx`, too, are edited with `tensor`,
    `replace` and `extract`.
    """

    def __init__(self, name: str = "main"):
        self.name = name
        self.builder = Builder(name, folds=True)
        self.warnings: list[str] = []  # for the user who builds this network
        # outputs f32[batch, boxes, 5 + classes] of relative center, width, height, objectness and scores
        self.box_outputs: list[str] = []
        # inputs that keep state from run to run: the output with their next values, and their initial ones
        self.states: dict[str, tuple[str, np.ndarray]] = {}
        self._outputs: dict[str, Value] = {}
        self._named: dict[str, Value] = {}
        self.declarations = Declarations()
        self._scopes: list[str] = []
        self._around: Network | None = None  # the network around this branch or body
        self._inner: Network | None = None  # the branch or body being built

    # --- inputs, constants, outputs

    def input(
        self, name: str, type: str | TensorType | Sequence[int | str], dtype: str | DType = "f32"
    ) -> NetworkTensor:
        """Adds an input to the network.

        type: such as "f32[batch, 3, 416, 416]" or "f32[1..8..32, 3]", or its shape. A name is a dynamic dimension, any
        size from 1 on, equal wherever it appears; `name=1..8..32` sets its minimum, the size to tune for, and its
        maximum, which may be left out.
        """
        if not isinstance(type, TensorType):
            type = self.declarations.tensor_type(type, dtype)
        if name in self._named:
            raise InputError(f"network {self.name!r} already has a tensor {name!r}; use another name for the input")
        value = Value(type, name)
        self.builder.inputs.append(value)
        return self._tensor(value, name)

    def constant(self, array: Any, name: str = "constant", dtype: str | DType | None = None) -> NetworkTensor:
        """Adds a constant from numbers, with floats as f32 by default, or from an array, which is not copied."""
        to = None if dtype is None else element_type(dtype).numpy
        try:
            made = np.asarray(array, to)
            if to is None and not isinstance(array, (np.ndarray, np.generic)) and made.dtype == np.float64:
                made = made.astype(np.float32)
            return self._tensor(self.builder.constant(made, name), self._unique(name))
        except (TypeError, ValueError) as e:
            raise InputError(f"constant {name!r}: {e}") from None

    def output(self, tensor: Operand, name: str = "") -> NetworkTensor:
        """Makes a tensor an output of the network, by its own name unless `name` is set."""
        value = self.value(tensor)
        name = name or self.name_of(self.wrap(value))
        if name in self._outputs:
            raise InputError(f"network {self.name!r} already has an output {name!r}; use another name")
        self._outputs[name] = value
        return self._tensor(value, name)

    @property
    def inputs(self) -> tuple[NetworkTensor, ...]:
        return tuple(map(self.wrap, self.builder.inputs))

    @property
    def outputs(self) -> dict[str, NetworkTensor]:
        return {name: self.wrap(v) for name, v in self._outputs.items()}

    def tensor(self, name: str) -> NetworkTensor:
        """Returns the tensor of that name; InputError if there is none."""
        if name not in self._named:
            raise InputError(f"network {self.name!r} has no tensor {name!r}{near(name, self._named)}")
        return self.wrap(self._named[name])

    def __contains__(self, name: str) -> bool:
        """True if a tensor has this name."""
        return name in self._named

    def alias(self, tensor: NetworkTensor, name: str) -> None:
        """Adds a further name of a tensor, for `tensor` and the outputs of a build."""
        if self._named.setdefault(name, self.value(tensor)) is not tensor.value:
            raise InputError(f"network {self.name!r} already has a tensor {name!r}; use another name")

    @property
    def tensors(self) -> dict[str, NetworkTensor]:
        """All named tensors, in order of creation."""
        return {name: self.wrap(v) for name, v in self._named.items()}

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefixes `name/` to the names of layers made within."""
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()

    # --- layers

    def apply(
        self, op: Op | str, operands: Sequence[Operand], attrs: Mapping[str, Any] | None = None, name: str = ""
    ) -> tuple[NetworkTensor, ...]:
        """Adds a layer of any operator; returns all its tensors. Absent operands at the end are left out."""
        if self._inner is not None:  # arithmetic on outer tensors inside a branch belongs to the branch
            return self._inner.apply(op, operands, attrs, name)
        op = get(op) if isinstance(op, str) else op
        label = self._unique("/".join((*self._scopes, name or op.name)))
        values, attrs = self._operands(op, operands), dict(attrs or {})
        try:
            for key in {"axis", "axes"} & attrs.keys() if op.kind != "nested" else ():
                attrs[key] = _from_front(attrs[key], values[0].type.rank)
            if op.instance is not None:
                attrs = attributes_of(op, attrs)
            elif op.kind != "nested":
                attrs |= {key: element_type(attrs[key]) for key in ELEMENT_TYPES if isinstance(attrs.get(key), str)}
            if op.configure is not None:
                values += tuple(map(self.builder.constant, op.configure(*(v.type for v in values), **attrs)))
            check_indices(op, values, attrs, self.builder.constants)
            hints = chain([label], (f"{label}.{i}" for i in range(1, 64)))
            made = self.builder.emit(op, values, attrs, names=hints, node_name=label)
        except Undecided as e:
            raise InputError(f"{e}; set sizes of the inputs, or ranges that determine it (layer {label!r})") from e
        except (TypeError, ValueError, IndexError) as e:
            raise InputError(f"{e} (layer {label!r})") from None
        return tuple(self._tensor(v, label if i == 0 else f"{label}.{i}") for i, v in enumerate(made))

    def _operands(self, op: Op, operands: Sequence[Operand]) -> tuple[Value, ...]:
        args = list(operands)
        while args and args[-1] is None:
            args.pop()
        beside = next((t.dtype for t in args if isinstance(t, NetworkTensor) and t.dtype is not DType.BOOL), None)
        if any(t is None for t in args):
            raise InputError(f"{op.name} needs a tensor, an array or a number as operand {args.index(None)}")
        return tuple(self.value(t, beside) for t in args)

    def value(self, operand: Operand, beside: DType | None = None) -> Value:
        """Returns the value of an operand. beside: the element type for numbers, and float64 arrays beside floats."""
        if isinstance(operand, NetworkTensor):
            if not self._sees(operand.network):
                raise InputError(
                    f"{operand!r} belongs to another network, {operand.network.name!r}, not to {self.name!r}"
                )
            return operand.value
        try:
            array = np.asarray(operand)
            if array.dtype == object and not all(isinstance(v, (str, bytes)) for v in array.flat):
                raise TypeError("numpy makes no numbers of it")
            if beside is not None and (not isinstance(operand, np.ndarray) or array.dtype == np.float64):
                if beside.is_float or array.dtype.kind not in "fc":
                    array = array.astype(beside.numpy)
            elif not isinstance(operand, (np.ndarray, np.generic)) and array.dtype == np.float64:
                array = array.astype(np.float32)
            return self.builder.shared_constant(array)
        except (TypeError, ValueError) as e:
            raise InputError(f"an operand must be a tensor, an array or a number, got {operand!r}: {e}") from None

    def tensor_of(self, operand: Operand) -> NetworkTensor:
        """Returns an operand as a tensor; a constant for an array or a number."""
        return operand if isinstance(operand, NetworkTensor) else self.wrap(self.value(operand))

    def _sees(self, other: Network) -> bool:
        return other is self or self._around is not None and self._around._sees(other)

    def traced(self, name: str, function: Callable[..., Any], types: Sequence[TensorType]) -> tuple[Graph, list[Value]]:
        """Returns the graph that a function builds, and the outer values that it reads."""
        inner = Network(f"{self.name}.{name}")
        inner._around, inner.declarations = self, self.declarations
        inputs = [inner.input(f"given{i}", t) for i, t in enumerate(types)]
        self._inner = inner
        try:
            outputs = function(inner, *inputs)
        finally:
            self._inner = None
        results = [inner.value(t) for t in (outputs if isinstance(outputs, (tuple, list)) else (outputs,))]
        own = {v for n in inner.builder.nodes for v in n.outputs} | {*inner.builder.inputs, *inner.builder.constants}
        read = dict.fromkeys(v for v in (*(v for n in inner.builder.nodes for v in n.inputs), *results) if v not in own)
        # outer values keep their identity only among the inputs
        graph = inner.builder.finish((*inner.builder.inputs, *read), {f"result{i}": v for i, v in enumerate(results)})
        return graph.replace(inputs=tuple(inner.builder.inputs)), list(read)

    # --- editing

    def replace(self, old: NetworkTensor | str, new: Operand) -> None:
        """Replaces `old` by `new` for all readers, including outputs, but not for the sources of `new` itself."""
        to, source = self.value(new), self.value(self.tensor(old) if isinstance(old, str) else old)
        if to.type != source.type:
            raise InputError(f"{old!r} cannot be replaced by {self.wrap(to)!r}, of another type")
        before = {n for _, n in self.builder.ancestors(to, ()) if n is not None}
        renewed = {
            n: Node(n.op, tuple(to if v is source else v for v in n.inputs), n.attrs, n.outputs, n.name)
            for n in self.builder.nodes
            if n not in before and source in n.inputs
        }
        nodes = [renewed.get(n, n) for n in self.builder.nodes]
        self.builder.nodes = list(topological(nodes, self.builder.inputs))
        self.builder.makers = {v: n for n in self.builder.nodes for v in n.outputs}
        self._outputs = {name: to if v is source else v for name, v in self._outputs.items()}

    def extract(self, inputs: Sequence[NetworkTensor | str], outputs: Sequence[NetworkTensor | str]) -> Network:
        """Returns the part of a network between tensors: `inputs` and `outputs` become its ports, by their names."""
        begin, end = (
            {t if isinstance(t, str) else t.name: self.tensor(t) if isinstance(t, str) else t for t in ports}
            for ports in (inputs, outputs)
        )
        cut = {self.value(t): Value(t.type, name) for name, t in begin.items()}
        return _between(self, cut, {name: self.value(t) for name, t in end.items()})

    # --- the program

    def graph(self, outputs: Mapping[str, NetworkTensor] | None = None) -> Graph:
        """Returns the program that the outputs (default: those of the network) need; all inputs stay."""
        values = self._outputs if outputs is None else {name: self.value(t) for name, t in outputs.items()}
        if not values:
            raise InputError(f"network {self.name!r} has no output; make one with output(tensor)")
        return self.builder.finish(self.builder.inputs, values)

    @classmethod
    def from_graph(cls, graph: Graph) -> Network:
        """Creates an editable network from a program."""
        net = cls(graph.name)
        net.builder.inputs = list(graph.inputs)
        net.builder.constants = dict(graph.constants)
        for node in graph.nodes:
            net.builder.write(node)
        for v in (*graph.inputs, *graph.constants, *(v for n in graph.nodes for v in n.outputs)):
            net._named[v.name] = v
        net.declarations.sizes = {
            s.name: dims.symbol(s.name, s.minimum, s.optimum, s.maximum)
            for s in dims.symbols([v.type.shape for v in graph.inputs])
        }
        net._outputs = {v.name: v for v in graph.outputs}
        return net

    def __repr__(self) -> str:
        """Returns the text of the program; without outputs, its inputs."""
        if self._outputs:
            return to_text(self.graph())
        return f"network {self.name}({', '.join(map(repr, self.inputs))})"

    # --- names and types

    def name_of(self, tensor: NetworkTensor) -> str:
        value = tensor.value
        return self.builder.names.get(value, value.name)

    def wrap(self, value: Value) -> NetworkTensor:
        return NetworkTensor(self, value)

    def _tensor(self, value: Value, name: str) -> NetworkTensor:
        """Returns a new tensor by a unique name."""
        self._named.setdefault(name, value)
        self.builder.names.setdefault(value, name)
        return NetworkTensor(self, value)

    def _unique(self, hint: str) -> str:
        return unique(hint, self._named)


def _between(net: Network, cut: Mapping[Value, Value], outputs: Mapping[str, Value]) -> Network:
    """Returns the network of the nodes that compute `outputs` from the values in `cut`, which become inputs."""
    needed, nodes = {cut.get(v, v) for v in outputs.values()}, []
    for n in reversed(net.builder.nodes):
        if any(v in needed and v not in cut for v in n.outputs):
            nodes.append(Node(n.op, tuple(cut.get(v, v) for v in n.inputs), n.attrs, n.outputs, n.name))
            needed.update(nodes[-1].inputs)
    missing = [v.name for v in net.builder.inputs if v in needed and v not in cut]
    if missing:
        raise InputError(f"the outputs also depend on {', '.join(map(repr, missing))}; name these among the inputs")
    builder = net.builder
    part = Graph(
        tuple(cut.values()),
        {v: a for v, a in builder.constants.items() if v in needed},
        tuple(reversed(nodes)),
        tuple(cut.get(v, v) for v in outputs.values()),
        net.name,
    )
    result = Network.from_graph(part)
    for v in part.constants:
        result.builder.names[v] = builder.names.get(v, v.name)
    result._outputs = dict(zip(outputs, part.outputs))
    return result


def _from_front(axes: Any, rank: int) -> Any:
    """Returns axes, which may count from the end, counted from the front; ValueError for those before the first."""
    if isinstance(axes, (tuple, list)):
        return tuple(_from_front(a, rank) for a in axes)
    if axes < -rank:
        raise ValueError(f"needs an axis between {-rank} and {rank - 1}, got {axes}")
    return axes + rank if axes < 0 else axes
