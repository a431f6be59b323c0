"""The state of an import: the graph under construction, names of its values, problems, warnings, undecided nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, cast

import numpy as np
import onnx

from pelton.errors import ModelError
from pelton.importers.reading import ImportRecord
from pelton.ir import dims, lineage
from pelton.ir.builder import Builder
from pelton.ir.dims import Size, Undecided
from pelton.ir.dims_text import parse as parse_size
from pelton.ir.graph import Value
from pelton.ir.imported import ImportedNode
from pelton.ir.size_constraints import Range, SizeRequirement, admissible
from pelton.ir.bindings import BROKEN, Broken, Binding
from pelton.ir.types import TensorType
from pelton.ops.foreign import DTYPES

from . import names
from .file import ExternalFileError, Source, array_of, dense
from .scope import Scope, node_label, domain_of

# functions and loops may expand to MIN_EXPANSION nodes, and MAX_GROWTH more for each node in the file
MIN_EXPANSION, MAX_GROWTH = 20_000, 50


class ProgramMark(NamedTuple):
    """A position in the state of an import, to rewind to: lengths of its lists."""

    nodes: int
    foreign_steps: int
    problems: int
    undecided: int
    imported_nodes: int


class Program(ImportRecord):
    """The state of an import."""

    def __init__(self, source: Source, arrays: dict[str, np.ndarray] | None = None):
        super().__init__(Builder(source.model.graph.name or "main", folds=True))
        self.source = source
        self._arrays = {} if arrays is None else arrays  # initializers of the main graph, read once
        self.functions = {(domain_of(f.domain), f.name, f.overload): f for f in source.model.functions}
        self._named_in_main: set[Value] = set()
        # shared by all attempts of the import: size requirements of all runs, and the inputs in their terms
        self.requirements: list[SizeRequirement] = []
        self.shapes: Mapping[str, tuple[Size, ...]] = {}
        self._imported_nodes: list[tuple[onnx.NodeProto, ImportedNode]] = []  # one for each reading of a node
        self.unspecified: Mapping[str, str] = {}  # symbol of an unspecified dimension → its first axis
        self.requested: Mapping[str, str] = {}  # symbol of a range that the caller gave → its first axis
        self.dimensions: dict[str, Size] = {}  # the model's names of dimensions → sizes
        self.resized = False  # True if inputs have other sizes than declared, and so may inner tensors
        self.node_budget = MIN_EXPANSION + MAX_GROWTH * sum(
            map(names.nodes_in, (source.model.graph, *source.model.functions))
        )

    # --- messages

    def where(self, node: onnx.NodeProto, scope: Scope) -> str:
        return ", ".join(p for p in (f"node {node_label(node)!r}", scope.title, self.source.name) if p)

    def note_undecided(self, node: onnx.NodeProto, scope: Scope, question: BaseException | None = None) -> None:
        """Records a node that could not be imported, with the symbols that its inputs depend on."""
        read = [binding for name in sorted(names.read_by(node)) if isinstance(binding := scope.find(name), Value)]
        self.note_undecided_node(self.where(node, scope), read, question, scope.conditional)

    def refusal_of_ranges(self, question: BaseException | None) -> str:
        """Explains why the caller's ranges are refused, if they leave a requirement open; "" otherwise."""
        if not isinstance(question, Undecided) or question.relation != ">=":
            return ""
        asked = dims.symbols(question.difference)
        requests = {
            self.requested[x.name]: Range(x.minimum, x.optimum, x.maximum) for x in asked if x.name in self.requested
        }
        if not asked or len(requests) < len(asked):
            return ""
        possible = [bounds.text() for bounds in admissible(question).values()]
        if len(requests) == len(possible) == 1:
            ((label, bounds),) = requests.items()
            return f"{question}, so {label} must be {possible[0]}, but shapes= asks for {bounds}"
        ranges = " and ".join(f"{bounds} for {label}" for label, bounds in requests.items())
        return f"{question}, but shapes= asks for {ranges}"

    def mark(self) -> ProgramMark:
        """Returns the current position, for `rewind`."""
        return ProgramMark(
            len(self.builder.nodes),
            len(self.foreign_steps),
            len(self.problems),
            len(self.undecided),
            len(self._imported_nodes),
        )

    def rewind(self, mark: ProgramMark) -> None:
        """Drops the nodes and problems added since."""
        del (
            self.builder.nodes[mark.nodes :],
            self.foreign_steps[mark.foreign_steps :],
            self.problems[mark.problems :],
            self.undecided[mark.undecided :],
            self._imported_nodes[mark.imported_nodes :],
        )

    # --- results of nodes

    def note_imported(self, node: onnx.NodeProto, scope: Scope, since: ProgramMark) -> None:
        """Records the result of a node, without the records of nodes in its graphs."""
        inner = [record for _, record in self._imported_nodes[since.imported_nodes :]]
        theirs = {id(written) for record in inner for written in record.written}
        noted = {text for record in inner for text in record.problems}
        record = ImportedNode(
            node_label(node),
            domain_of(node.domain),
            node.op_type,
            [scope.find(name) if name and scope.sees(name) else None for name in node.input],
            [written for written in self.builder.nodes[since.nodes :] if id(written) not in theirs],
            problems=[text for text in self.problems[since.problems :] if text not in noted],
            where=self.where(node, scope),
        )
        self._imported_nodes.append((node, record))

    def imported_nodes(self, since: int = 0) -> list[ImportedNode]:
        """Returns the result of each node; one in an unrolled loop is read several times."""
        readings: dict[int, list[ImportedNode]] = {}
        for node, found in self._imported_nodes[since:]:
            readings.setdefault(id(node), []).append(found)
        return [
            replace(
                found[0],
                written=[written for one in found for written in one.written],
                problems=list(dict.fromkeys(text for one in found for text in one.problems)),
            )
            for found in readings.values()
        ]

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
        """Binds the names of a graph's initializers to constants."""
        dense_arrays = ((t.name, lambda t=t: array_of(t, self.source)) for t in graph.initializer)
        sparse_arrays = ((t.values.name, lambda t=t: dense(t, self.source)) for t in graph.sparse_initializer)
        broken: set[str] = set()  # faults that are one problem, however many tensors have them
        for name, array in (*dense_arrays, *sparse_arrays):
            if name in scope.bound:
                self.problems.append(f"there are two initializers {name!r} ({self.source.name})")
                continue
            try:
                held = self._arrays.get(name) if scope.is_main else None
                held = array() if held is None else held
                if scope.is_main:
                    self._arrays[name] = held
                constant = self.builder.constant(held, name)
                value: Value | Broken = constant
                lineage.name(self.builder.constants[constant], name)
            except ModelError as e:
                value = BROKEN
                what = e.file if isinstance(e, ExternalFileError) else str(e)
                if what not in broken:
                    self.problems.append(str(e))
                broken.add(what)
            self.bind(scope, name, value)

    def declared(self, graph: onnx.GraphProto) -> dict[str, TensorType]:
        """Returns the declared types of a graph's tensors whose sizes are numbers or expressions of inputs' sizes."""
        if self.resized:
            return {}
        types = {}
        for v in (*graph.value_info, *graph.output):
            tensor = v.type.tensor_type
            sizes = [d.dim_value if d.HasField("dim_value") else self.dimension(d.dim_param) for d in tensor.shape.dim]
            if (
                tensor.elem_type in DTYPES
                and tensor.HasField("shape")
                and all(d is not None and (isinstance(d, dims.Dim) or d >= 0) for d in sizes)
            ):
                types[v.name] = TensorType(DTYPES[tensor.elem_type], tuple(cast(Size, d) for d in sizes))
        return types

    def dimension(self, name: str) -> Size | None:
        """Returns the size of a named dimension, or of an expression of such names; None if unknown."""
        if name not in self.dimensions:
            try:
                return parse_size(name, self.dimensions)
            except ValueError:
                return None
        return self.dimensions[name]
