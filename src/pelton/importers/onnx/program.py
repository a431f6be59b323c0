"""What an import has found out so far: the program that is being written, good names for its values, problems, warnings
and open questions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, cast

import numpy as np
import onnx

from pelton.errors import ModelError
from pelton.ir import dims
from pelton.ir.builder import Builder
from pelton.ir.dims import Size, Undecided
from pelton.ir.dims_text import parse as parse_size
from pelton.ir.graph import Value
from pelton.ir.imported import ImportedNode
from pelton.ir.size_constraints import UndecidedNode
from pelton.ir.bindings import BROKEN, Broken, Binding
from pelton.ir.types import TensorType
from pelton.ops.foreign import DTYPES

from . import names
from .file import Source, array_of, dense
from .ports import decides
from .scope import Scope, node_label, domain_of

# functions and loops may expand to MIN_EXPANSION nodes, and MAX_GROWTH more for each node in the file
MIN_EXPANSION, MAX_GROWTH = 20_000, 50


class ProgramMark(NamedTuple):
    """Where a program stands: how many there are of each."""

    nodes: int
    foreign_steps: int
    problems: int
    undecided: int


class Program:
    """What an import has found out so far."""

    def __init__(self, source: Source, arrays: dict[str, np.ndarray] | None = None):
        self.source = source
        self.builder = Builder(source.model.graph.name or "main", folds=True)
        self._arrays = {} if arrays is None else arrays  # initializers of the main graph that have been read already
        self.functions = {(domain_of(f.domain), f.name, f.overload): f for f in source.model.functions}
        self._named_in_main: set[Value] = set()
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self.foreign_steps: list[str] = []
        self.undecided: list[UndecidedNode] = []
        self.imported_nodes: list[ImportedNode] = []
        # those of the problems that readers had with what a node reads: for other sizes there may be none
        self.reader_problems: set[str] = set()
        # those of the problems that are no more than that something depends on the data
        self.on_data: set[str] = set()
        self.unknown: list[Value] = []  # what readers wanted to know the numbers of, and could not
        self.inputs: set[Value] = set()  # values that are inputs of the model, whole
        self.deciding_inputs: dict[str, None] = {}  # inputs whose values a reader wanted to know, in order
        self.unspecified: Mapping[str, str] = {}  # the symbols of sizes that nobody gave
        self.unanswered: Collection[str] = ()  # nodes that have asked for them in vain
        self.known_sizes: Collection[str] = ()  # those of them for which it is known what a run has
        self.dimensions: dict[str, Size] = {}  # what the model's names of dimensions stand for
        # whether inputs got other sizes than the model says: so do inner tensors
        self.resized = False
        self.node_budget = MIN_EXPANSION + MAX_GROWTH * sum(
            map(names.nodes_in, (source.model.graph, *source.model.functions))
        )

    # --- what is said of it

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def where(self, node: onnx.NodeProto, scope: Scope) -> str:
        return ", ".join(p for p in (f"node {node_label(node)!r}", scope.title, self.source.name) if p)

    def problem(self, text: str, on_data: bool) -> None:
        """Notes what a reader could not do."""
        self.problems.append(text)
        self.reader_problems.add(text)
        if on_data:
            self.on_data.add(text)

    def has_only_data_problems(self) -> bool:
        """Whether there is no other problem than that something depends on the data."""
        return self.on_data.issuperset(self.problems)

    @property
    def has_certain_problems(self) -> bool:
        """Whether any of the problems is one whatever the sizes of the inputs are."""
        return not self.reader_problems.issuperset(self.problems)

    def note_undecided(self, node: onnx.NodeProto, scope: Scope, question: BaseException | None = None) -> None:
        """Notes which sizes a node met that could not be read."""
        read = [binding for name in sorted(names.read_by(node)) if isinstance(binding := scope.find(name), Value)]
        met = dims.symbols([(*v.type.shape, *self.builder.sizes.get(v, np.empty(0)).flat) for v in read])
        self.undecided.append(
            UndecidedNode(self.where(node, scope), tuple(met), question if isinstance(question, Undecided) else None)
        )

    def mark(self) -> ProgramMark:
        """Where the program stands, for `rewind`."""
        return ProgramMark(len(self.builder.nodes), len(self.foreign_steps), len(self.problems), len(self.undecided))

    def rewind(self, mark: ProgramMark) -> None:
        """Takes back the nodes written and the problems noted since."""
        del (
            self.builder.nodes[mark.nodes :],
            self.foreign_steps[mark.foreign_steps :],
            self.problems[mark.problems :],
            self.undecided[mark.undecided :],
        )

    # --- names

    def bind(self, scope: Scope, name: str, binding: Binding | Broken) -> None:
        scope.bound[name] = binding
        if isinstance(binding, Value):
            if scope.is_main and binding not in self._named_in_main:
                self._named_in_main.add(binding)
                self.builder.names[binding] = name
            else:
                self.builder.names.setdefault(binding, name)

    def bind_initializers(self, graph: onnx.GraphProto, scope: Scope) -> None:
        """Binds the initializers of a graph."""
        dense_arrays = ((t.name, lambda t=t: array_of(t, self.source)) for t in graph.initializer)
        sparse_arrays = ((t.values.name, lambda t=t: dense(t, self.source)) for t in graph.sparse_initializer)
        for name, array in (*dense_arrays, *sparse_arrays):
            if name in scope.bound:
                self.problems.append(f"initializer {name!r} is there twice ({self.source.name})")
                continue
            try:
                held = self._arrays.get(name) if scope.is_main else None
                held = array() if held is None else held
                if scope.is_main:
                    self._arrays[name] = held
                value: Value | Broken = self.builder.constant(held, name)
            except ModelError as e:
                self.problems.append(str(e))
                value = BROKEN
            self.bind(scope, name, value)

    def declared(self, graph: onnx.GraphProto) -> dict[str, TensorType]:
        """The types that a graph states for its tensors, those of which every size is a number or made of the sizes of
        inputs."""
        if self.resized:
            return {}
        found = {}
        for v in (*graph.value_info, *graph.output):
            tensor = v.type.tensor_type
            sizes = [d.dim_value if d.HasField("dim_value") else self.dimension(d.dim_param) for d in tensor.shape.dim]
            if (
                tensor.elem_type in DTYPES
                and tensor.HasField("shape")
                and all(d is not None and (isinstance(d, dims.Dim) or d >= 0) for d in sizes)
            ):
                found[v.name] = TensorType(DTYPES[tensor.elem_type], tuple(cast(Size, d) for d in sizes))
        return found

    def dimension(self, name: str) -> Size | None:
        """What a name of a dimension, or an expression of such names, stands for."""
        if name not in self.dimensions:
            try:
                return parse_size(name, self.dimensions)
            except ValueError:
                return None
        return self.dimensions[name]

    # --- what decides a value

    def raise_size_question(self, value: Value, where: str) -> None:
        """Raises the question of what the sizes of a run are, where these alone decide a value and those are known: it
        is answered for sizes around them."""
        if where in self.unanswered:
            return
        found = list[Undecided]()
        for v, maker in self.builder.ancestors(value, self.builder.questions):
            if v in self.builder.questions:
                found.append(self.builder.questions[v])
            elif maker is None:
                return
        for question in found:
            asked = {s.name for s in dims.symbols(question.difference)}
            if asked and asked <= set(self.known_sizes):
                raise question

    def note_deciding_inputs(self, value: Value) -> tuple[str, ...]:
        """The inputs of the model that decide a value which a reader would have to know, and notes them; none where
        data has a part in it."""
        found = list[str]()
        for v, maker in self.builder.ancestors(value, self.inputs):
            if v in self.inputs:
                if not decides(v.type.dtype, v.type.rank):
                    return ()
                found.append(v.name)
            elif maker is None:
                # of a sequence, or of a body that is read once for all of its turns
                return ()
        self.deciding_inputs.update(dict.fromkeys(sorted(found)))
        return tuple(sorted(found))
