"""TFLite models with data-dependent control flow, for `pelton.partition`: operators are read on demand."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from pelton.errors import ModelError
from pelton.importers.imported import Shape, check_inputs
from pelton.importers.input_sizes import InputSizes, UndecidedLayer
from pelton.importers.network import info_of, with_inputs
from pelton.importers.reading import ImportRecord
from pelton.ir.bindings import BROKEN, Binding, Broken
from pelton.ir.dims import Size
from pelton.ir.graph import Graph, Value, unique
from pelton.ir.imported import ImportedNode, OnData
from pelton.ir.size_constraints import SizeConstraint
from pelton.ir.types import DType, TensorType
from pelton.ir.unread import Branches, HostCall, Interface, Known, Repeated
from pelton.network import Network

from . import single
from .file import ModelSpec, OperatorSpec, SubgraphSpec, TensorSpec, opened
from .held import Held
from .load import DEEPEST, MOST, ModelReader, Ports, naming_damage
from .node import TFLiteReading
from .shapes import shapes_of

COPY = OperatorSpec("COPY", False, 1, (0,), (1,), None, b"")  # an input that is also an output, under another name


@dataclass(frozen=True, eq=False)
class TFLiteNode:
    """An operator with the names of its inputs and outputs; `inputs` of WHILE are those of loops, as in ONNX."""

    spec: OperatorSpec
    subgraph: SubgraphSpec
    where: str
    operands: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nested: Callable[[], Branches | Repeated] | None = None

    name = ""
    domain = ""

    @property
    def label(self) -> str:
        return f"{self.operator} → {next(filter(None, self.outputs), '')}"

    @property
    def title(self) -> str:
        return f"tflite::{self.operator}"

    @property
    def operator(self) -> str:
        return self.spec.name

    @property
    def reads(self) -> set[str]:
        return set(filter(None, (*self.inputs, *self.operands)))

    @cached_property
    def control(self) -> Branches | Repeated | None:
        return None if self.nested is None else self.nested()


@dataclass(frozen=True, eq=False)
class TFLiteGraph:
    """A subgraph, with its calls inlined."""

    name: str
    nodes: tuple[TFLiteNode, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    held: Mapping[str, np.ndarray]

    def constants(self) -> Mapping[str, np.ndarray]:
        return self.held


@dataclass
class _Naming:
    """Unique names of the tensors of all graphs of a model, with their specifications."""

    model: ModelSpec
    specs: dict[str, TensorSpec] = field(default_factory=dict)
    left: int = MOST

    def name(self, hint: str, spec: TensorSpec) -> str:
        name = unique(hint or "tensor", self.specs)
        self.specs[name] = spec
        return name

    def graph(self, number: int, given: Sequence[str], prefix: str, depth: int, own: bool = False) -> TFLiteGraph:
        """Returns a nested graph that reads outer names, or, with `own`, inputs of these names."""
        subgraph = self.model.subgraph(number)
        if len(given) != len(subgraph.inputs):
            raise ModelError(f"{subgraph.name!r} needs {len(subgraph.inputs)} inputs, got {len(given)}")
        names = dict(zip(subgraph.inputs, given))
        part = _Part(self, subgraph, names, f"{prefix}/{subgraph.name}/", depth)
        nodes = tuple(part.nodes())
        outputs = tuple(part.name(i) for i in subgraph.outputs)
        return TFLiteGraph(subgraph.name, nodes, tuple(given) if own else (), outputs, part.held)


class _Part:
    """A subgraph in a graph: the names of its tensors, by index. held: constants, also of called subgraphs."""

    def __init__(
        self,
        naming: _Naming,
        subgraph: SubgraphSpec,
        names: dict[int, str],
        prefix: str,
        depth: int,
        held: dict[str, np.ndarray] | None = None,
    ):
        self.naming, self.subgraph, self.names, self.prefix, self.depth = naming, subgraph, names, prefix, depth
        self.held = {} if held is None else held
        if depth > DEEPEST:
            raise ModelError(f"{naming.model.name}: subgraphs call each other more than {DEEPEST} deep")

    def name(self, number: int) -> str:
        if number < 0:
            return ""
        if number not in self.names:
            spec = self.subgraph.tensors[number]
            name = self.names[number] = self.naming.name(self.prefix + spec.name, spec)
            if spec.data is not None:
                self.held[name] = spec.data
            elif 0 in spec.shape and spec.dtype is not None:
                self.held[name] = np.zeros(spec.shape, spec.dtype.numpy)
        return self.names[number]

    def nodes(self) -> list[TFLiteNode]:
        nodes: list[TFLiteNode] = []
        for number, spec in enumerate(self.subgraph.operators):
            self.naming.left -= 1
            if self.naming.left < 0:
                raise ModelError(f"{self.naming.model.name} has more than {MOST} operators")
            where = self.naming.model.where(number, spec, self.subgraph)
            nodes += self._called(spec) if spec.name in ("CALL", "STABLEHLO_COMPOSITE") else self._node(spec, where)
        return nodes

    def _called(self, spec: OperatorSpec) -> list[TFLiteNode]:
        """Returns the operators of a called subgraph, to inline them."""
        option = "subgraph" if spec.name == "CALL" else "decomposition"
        subgraph = self._subgraph(spec, option, len(spec.outputs))
        names = dict(zip(subgraph.inputs, map(self.name, spec.inputs)))
        part = _Part(self.naming, subgraph, names, f"{self.prefix}{subgraph.name}/", self.depth + 1, self.held)
        made, copied = {i for inner in subgraph.operators for i in inner.outputs}, list[tuple[int, str]]()
        for i, inner in zip(spec.outputs, subgraph.outputs):
            if inner in made and inner not in part.names:
                part.names[inner] = self.name(i)
            else:
                copied.append((inner, self.name(i)))
        return [*part.nodes(), *(part.copy(inner, name) for inner, name in copied)]

    def copy(self, number: int, name: str) -> TFLiteNode:
        """Copies a tensor to another name."""
        inputs = (self.name(number),)
        return TFLiteNode(COPY, self.subgraph, f"output {name!r} of {self.naming.model.name}", inputs, inputs, (name,))

    def _subgraph(self, spec: OperatorSpec, option: str, outputs: int) -> SubgraphSpec:
        subgraph = self.naming.model.subgraph(_option(spec, option))
        if len(subgraph.inputs) != len(spec.inputs) or len(subgraph.outputs) < outputs:
            raise ModelError(f"{spec.name} does not fit its graph {subgraph.name!r}")
        return subgraph

    def _node(self, spec: OperatorSpec, where: str) -> list[TFLiteNode]:
        operands = tuple(map(self.name, spec.inputs))
        outputs = tuple(self.name(i) for i in spec.outputs)
        if spec.name == "WHILE":
            return self._while(spec, where, operands, outputs)
        nested = None
        if spec.name == "IF":
            prefix = f"{self.prefix}{outputs[0] if outputs else spec.name}"

            def nested() -> Branches:
                numbers = (_option(spec, "then"), _option(spec, "other"))
                return Branches(*(self.naming.graph(i, operands[1:], prefix, self.depth + 1) for i in numbers))

        return [TFLiteNode(spec, self.subgraph, where, operands, operands, outputs, nested)]

    def _while(
        self, spec: OperatorSpec, where: str, operands: tuple[str, ...], outputs: tuple[str, ...]
    ) -> list[TFLiteNode]:
        """Returns a loop whose body computes the next round's condition, and before it the first one's."""
        naming, prefix = self.naming, f"{self.prefix}{outputs[0] if outputs else spec.name}"
        condition = self._subgraph(spec, "condition", 1)
        first = _Part(naming, condition, dict(zip(condition.inputs, operands)), f"{prefix}/first/", self.depth + 1)
        nodes = first.nodes()
        begins = first.name(condition.outputs[0])
        self.held.update(first.held)

        def nested() -> Repeated:
            subgraph = self._subgraph(spec, "body", len(spec.outputs))
            state = [naming.name(f"{prefix}/{subgraph.tensors[i].name}", subgraph.tensors[i]) for i in subgraph.inputs]
            turn = [naming.name(f"{prefix}/{k}", condition.tensors[condition.outputs[0]]) for k in ("turn", "go_on")]
            body = naming.graph(_option(spec, "body"), state, prefix, self.depth + 1)
            again = naming.graph(_option(spec, "condition"), body.outputs, prefix, self.depth + 1)
            return Repeated(
                TFLiteGraph(
                    subgraph.name,
                    (*body.nodes, *again.nodes),
                    (*turn, *state),
                    (*again.outputs, *body.outputs),
                    {**body.held, **again.held},
                )
            )

        loop = TFLiteNode(spec, self.subgraph, where, operands, ("", begins, *operands), outputs, nested)
        return [*nodes, loop]


def _option(spec: OperatorSpec, name: str) -> int:
    if spec.options is None or name not in spec.options.values:
        raise ModelError(f"{spec.name} lacks its option {name!r}")
    return int(spec.options.values[name])


class TFLiteReader(ImportRecord):
    """Reads operators of the main graph, or of nested graphs, into one program."""

    def __init__(self, model: ModelSpec, specs: Mapping[str, TensorSpec]):
        self._net, self._specs = Network(model.title), specs
        super().__init__(self._net.builder)
        self._reader = ModelReader(model, self._net, self)
        self._held: dict[str, Held] = {}
        self.bound: dict[str, Binding | Broken] = {}
        self.imported_nodes: list[ImportedNode] = []

    def bind(self, name: str, binding: Binding | Broken) -> None:
        self.bound[name] = binding
        if isinstance(binding, Value) and name not in self._held:  # else it is an operator's output
            array = self.builder.constants.get(binding)
            self._held[name] = Held(self._net, self._specs[name], self._net.wrap(binding) if array is None else array)

    def read(self, node: Any) -> Sequence[Binding | Broken]:
        """Applies an operator; returns BROKEN, with a recorded problem, on failure."""
        since, problems = len(self.builder.nodes), len(self.problems)
        bindings: list[Binding | Broken] = [BROKEN] * len(node.outputs)
        try:
            if node.spec is COPY:
                to = self._specs[node.outputs[0]]
                inputs = (self._held[node.operands[0]],)
                outputs = {
                    1: TFLiteReading(self._net, self._reader, COPY, inputs, (to,), node.where).finished(inputs[0], to)
                }
            else:
                held = {i: self._held[name] for i, name in zip(node.spec.inputs, node.operands) if name}
                outputs = self._reader.operator(node.spec, node.subgraph, held, node.where)
            results = [outputs[i] for i in node.spec.outputs if i >= 0]
            if any(x.imaginary is not None or x.variable for x in results):
                raise ModelError(f"{node.operator} outputs complex numbers or a variable, which scripts do not support")
            bindings = [x.raw().value for x in results]
            self._held.update(zip(filter(None, node.outputs), results))
        except ModelError as e:
            question = e.question if isinstance(e, UndecidedLayer) else None
            values = [binding for name in node.operands if isinstance(binding := self.bound.get(name), Value)]
            self.note_undecided_node(node.where, values, question)
            self.problem(str(e), isinstance(e, (OnData, UndecidedLayer)))
        self.imported_nodes = [
            ImportedNode(
                node.label,
                "",
                node.operator,
                [self.bound.get(name) for name in node.operands],
                self.builder.nodes[since:],
                problems=self.problems[problems:],
                where=node.where,
            )
        ]
        return bindings


class TFLiteModel:
    """A TFLite model with unread operators, and the shapes and values of its inputs."""

    opsets: Mapping[str, int] = {}

    def __init__(
        self, source: Any, shapes: Mapping[str, Shape], values: Mapping[str, Any], optimum: Mapping[str, Sequence[int]]
    ):
        self._source, self._shapes, self._values, self._optimum = source, shapes, values, optimum
        self._model = model = opened(source)
        self.name, self._ports = model.name, Ports(model)
        check_inputs(model.name, (*shapes, *values), self._ports.inputs.values())
        if model.keeps_state:
            raise ModelError(f"{model.name} keeps state, which scripts do not support")
        self._naming = _Naming(model)
        self.graph = self._main()

    def _main(self) -> TFLiteGraph:
        subgraph, naming, ports = self._ports.subgraph, self._naming, self._ports
        for i, name in ports.inputs.items():
            naming.specs[name] = subgraph.tensors[i]
        made = {i for spec in subgraph.operators for i in spec.outputs}
        own = {i: naming.name(name, subgraph.tensors[i]) for i, name in ports.outputs.items() if i in made}
        part = _Part(naming, subgraph, {**own, **ports.inputs}, "", 0)
        nodes = part.nodes()
        outputs = []
        for i in ports.outputs:
            outputs.append(part.name(i))
            if i not in made:  # an input or a constant
                outputs[-1] = naming.name(ports.outputs[i], subgraph.tensors[i])
                nodes.append(part.copy(i, outputs[-1]))
        title = self._model.title
        return TFLiteGraph(title, tuple(nodes), tuple(ports.inputs.values()), tuple(outputs), part.held)

    def interface(self, settled: Mapping[str, SizeConstraint]) -> Interface:
        """Returns inputs and outputs under constraints on unspecified sizes; raises ModelError if they are invalid."""
        sizes = InputSizes(Network(self._model.title), settled)
        self._ports.declare(sizes, self._shapes, self._values)
        declared = Graph(tuple(sizes.net.builder.inputs), {}, (), (), self.graph.name)
        graph, described = with_inputs(declared, self._shapes, self._values, self._optimum)
        path = os.fsdecode(self._source) if isinstance(self._source, (str, os.PathLike)) else ""
        constants = {v.name: a for v, a in graph.constants.items()}
        places = {str(d): f"{v.name}[{axis}]" for v in graph.inputs for axis, d in enumerate(v.type.shape)}
        return Interface(
            graph.inputs,
            {**self.graph.held, **constants},
            self.graph.outputs,
            {name: places[name] for name in sizes.free if name in places},
            (),
            self._ports.warnings,
            [f"dynamic dimension {k} had to be {s.size} for {s.why}" for k, s in settled.items()],
            info_of(graph, path, "TFLite", described, self._ports.warnings),
        )

    def reader(self, wanted: Iterable[str]) -> TFLiteReader:
        """Returns a reader that reads operators into a new program."""
        return TFLiteReader(self._model, self._naming.specs)

    def dtype(self, name: str) -> DType | None:
        """Returns the element type of a tensor."""
        return self._naming.specs[name].dtype

    def call(self, node: Any, reason: str) -> HostCall:
        """Prepares an operator to run on the host; raises ModelError with the reason if it cannot run."""
        try:
            if node.spec is COPY:
                raise ModelError(f"{node.where} cannot be copied alone")
            text = single.to_text(node.spec, node.subgraph, node.where)
        except ModelError as e:
            raise ModelError(reason or str(e)) from None
        return HostCall("tflite", text, node.operands, tuple(filter(None, node.outputs)))

    def types(self, node: Any, known: Known, fresh: Callable[[str, int], Size]) -> list[TensorType | None]:
        """Returns the types of an operator's outputs on the host, as far as they are known."""
        inputs = [known.type(name) if name else None for name in node.operands]
        types: list[TensorType | None] = []
        for name, shape in zip(
            node.outputs, shapes_of(node.spec, inputs, [self._naming.specs[o] for o in node.outputs])
        ):
            dtype = self._naming.specs[name].dtype
            if dtype is None or shape is None:
                types.append(None)
                continue
            sizes = [fresh(f"{name}_{axis}", len(shape)) if d is None else d for axis, d in enumerate(shape)]
            types.append(TensorType(dtype, tuple(sizes)))
        return types


def unread(
    source: Any,
    shapes: Mapping[str, Shape] | None = None,
    outputs: Iterable[str] | None = None,
    values: Mapping[str, Any] | None = None,
    optimum: Mapping[str, Sequence[int]] | None = None,
) -> TFLiteModel:
    """Opens a model whose operators are read on demand; arguments and errors are those of `pelton.importers.load`."""
    if outputs is not None:
        raise ModelError("a TFLite model that becomes a script returns its own outputs; leave out outputs=")
    with naming_damage(source):
        return TFLiteModel(source, shapes or {}, values or {}, optimum or {})
