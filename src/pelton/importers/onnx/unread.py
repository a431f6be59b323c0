"""ONNX models with data-dependent control flow, for `pelton.partition`: nodes are imported on demand."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnx.inliner

from pelton.errors import ModelError
from pelton.importers.imported import Shape, parse_shape
from pelton.ir import dims
from pelton.ir.dims import Size
from pelton.ir.graph import Value
from pelton.ir.imported import ImportedNode, Info
from pelton.ir.size_constraints import SizeConstraint
from pelton.ir.bindings import Broken, Binding
from pelton.ir.types import DType, TensorType
from pelton.ir.unread import Branches, HostCall, Interface, Known, Repeated, Scanned
from pelton.ops.foreign import DTYPES

from . import host_steps, names
from .file import Source, metadata_of, read
from .foreign import element_types
from .inputs import Inputs
from .load import check_outputs, given_inputs, opsets_of
from .node import attribute, schema_of
from .old_opsets import modernized
from .ports import Given
from .program import Program
from .scope import Scope, domain_of, node_label
from .translate import Translator


@dataclass(frozen=True, eq=False)
class OnnxNode:
    """A node of an ONNX graph; `opset` is that of ai.onnx."""

    proto: onnx.NodeProto
    source: Source
    opset: int

    @property
    def name(self) -> str:
        return self.proto.name

    @property
    def label(self) -> str:
        return node_label(self.proto)

    @property
    def title(self) -> str:
        return f"{self.proto.domain or 'onnx'}::{self.proto.op_type}"

    @property
    def domain(self) -> str:
        return domain_of(self.proto.domain)

    @property
    def operator(self) -> str:
        return self.proto.op_type

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        return tuple(self.proto.input)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self.proto.output)

    @cached_property
    def reads(self) -> set[str]:
        return names.read_by(self.proto)

    @property
    def control(self) -> Branches | Repeated | Scanned | None:
        """The control flow of If, Loop and Scan; None for Scan of opset 8, which has batches."""
        a = {a.name: attribute(a) for a in self.proto.attribute}

        def graph(name: str) -> OnnxGraph:
            return OnnxGraph(a[name], self.source, self.opset)

        match self.proto.domain, self.proto.op_type:
            case "", "If":
                return Branches(graph("then_branch"), graph("else_branch"))
            case "", "Loop":
                return Repeated(graph("body"))
            case "", "Scan" if self.opset >= 9:
                return Scanned(
                    graph("body"),
                    a["num_scan_inputs"],
                    *(
                        a.get(f"scan_{name}") or ()
                        for name in ("input_axes", "input_directions", "output_axes", "output_directions")
                    ),
                )
        return None


@dataclass(frozen=True, eq=False)
class OnnxGraph:
    """A graph of an ONNX model, or one nested in it."""

    proto: onnx.GraphProto
    source: Source
    opset: int

    @property
    def name(self) -> str:
        return self.proto.name

    @cached_property
    def nodes(self) -> tuple[OnnxNode, ...]:
        return tuple(OnnxNode(node, self.source, self.opset) for node in self.proto.node)

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(i.name for i in self.proto.input)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(o.name for o in self.proto.output)

    def constants(self) -> dict[str, np.ndarray]:
        """Returns the initializers of a nested graph; raises ModelError if one cannot be read."""
        program, scope = Program(self.source), Scope({}, Scope({}))
        program.bind_initializers(self.proto, scope)
        if program.problems:
            raise ModelError(program.problems[0])
        return {
            name: program.builder.constants[value] for name, value in scope.bound.items() if isinstance(value, Value)
        }


class OnnxReader:
    """Imports nodes of the main graph, or of nested graphs, into one program."""

    def __init__(self, source: Source, opsets: Mapping[str, int], wanted: Iterable[str]):
        self._program = program = Program(source)
        self._scope = Scope(opsets, used_names=frozenset(wanted))
        self._translator = Translator(program)
        self.builder, self.bound = program.builder, self._scope.bound
        self.problems, self.on_data, self.warnings = program.problems, program.on_data, program.warnings
        self.imported_nodes: list[ImportedNode] = []
        self.unknown, self.undecided, self.foreign_steps = program.unknown, program.undecided, program.foreign_steps

    @property
    def known_sizes(self) -> Any:
        return self._program.known_sizes

    @known_sizes.setter
    def known_sizes(self, names: Any) -> None:
        self._program.known_sizes = names

    @property
    def unanswered(self) -> Any:
        return self._program.unanswered

    @unanswered.setter
    def unanswered(self, places: Any) -> None:
        self._program.unanswered = places

    def bind(self, name: str, binding: Binding | Broken) -> None:
        self._program.bind(self._scope, name, binding)

    def read(self, node: Any) -> Sequence[Binding | Broken]:
        """Imports a node and returns the bindings of its outputs; BROKEN, with a recorded problem, on failure."""
        mark = self._program.mark()
        bindings = self._translator.node(node.proto, self._scope)
        self.imported_nodes = self._program.imported_nodes(mark.imported_nodes)
        return bindings


class OnnxModel:
    """An ONNX model with unread nodes, and the shapes and values of its inputs."""

    def __init__(
        self,
        source: Source,
        given: Given,
        arrays: dict[str, np.ndarray],
        outputs: Iterable[str] | None,
        optimum: Mapping[str, Sequence[int]] | None,
    ):
        self._source, self._given, self._arrays, self._optimum = source, given, arrays, optimum
        self._outputs = outputs if outputs is None or isinstance(outputs, str) else list(outputs)
        self.name = source.name
        self.opsets = opsets_of(Program(source))
        self.graph = OnnxGraph(source.model.graph, source, self.opsets.get("", 9))
        # declared element types and ranks; declared sizes may be those of one example
        self._declared = {
            v.name: (DTYPES[t.elem_type], len(t.shape.dim))
            for v in (*source.model.graph.value_info, *source.model.graph.output)
            if (t := v.type.tensor_type).elem_type in DTYPES and t.HasField("shape")
        }

    def interface(self, settled: Mapping[str, SizeConstraint]) -> Interface:
        """Returns inputs and outputs under constraints on unspecified sizes; raises ModelError if they are invalid."""
        source, program = self._source, Program(self._source, self._arrays)
        scope = Scope(opsets_of(program))
        program.bind_initializers(source.model.graph, scope)
        inputs = Inputs(program, scope, self._given, settled, self._optimum)
        if program.problems:
            raise ModelError(program.problems[0])
        wanted = check_outputs(program, scope, self._outputs)
        held = program.builder.constants
        constants = {name: held[v] for name, v in scope.bound.items() if isinstance(v, Value) and v in held}
        sizes = {
            s.name: (s.minimum, s.optimum, s.maximum if s.maximum < dims.UNBOUNDED else None)
            for s in dims.symbols([v.type.shape for v in inputs.values])
        }
        info = Info(
            str(source.path or ""),
            metadata_of(source.model),
            source.model.ir_version,
            scope.opsets,
            sizes,
            tuple(inputs.defaulted),
            values=self._given.describe(),
            files=tuple(source.files),
            conversion=source.conversion,
        )
        return Interface(
            tuple(inputs.values),
            constants,
            tuple(wanted),
            inputs.unspecified,
            inputs.observed,
            program.warnings,
            inputs.assumptions(settled, source.name),
            info,
            {p.name: tuple(t.name for t in p.tensors) for p in self._given.parts if p.sequence},
            {"inputs": self._given.forms(), "outputs": {}},
        )

    def reader(self, wanted: Iterable[str]) -> OnnxReader:
        """Returns a reader that imports nodes into a new program; `wanted` are names to be read later."""
        return OnnxReader(self._source, self.opsets, wanted)

    def dtype(self, name: str) -> DType | None:
        """Returns the declared element type of an output, or of its elements."""
        for v in (*self._source.model.graph.output, *self._source.model.graph.value_info):
            type = v.type
            while type.WhichOneof("value") not in ("tensor_type", "sparse_tensor_type", None):
                if type.HasField("map_type"):
                    type = type.map_type.value_type
                elif type.HasField("optional_type"):
                    type = type.optional_type.elem_type
                else:
                    type = type.sequence_type.elem_type
            if v.name == name and type.tensor_type.elem_type in DTYPES:
                return DTYPES[type.tensor_type.elem_type]
        return DTYPES.get(self._inferred.get(name, 0))

    @cached_property
    def _inferred(self) -> dict[str, int]:
        """Types that the model does not declare."""
        return element_types(self._source.model)

    def call(self, node: Any, reason: str) -> HostCall:
        """Prepares an `OnnxNode` to run on the host; raises ModelError with the reason if nothing can run it."""
        return host_steps.call(self._source, self.opsets, node.proto, reason)

    def types(self, node: Any, known: Known, fresh: Callable[[str, int], Size]) -> list[TensorType | None]:
        """Returns the output types of an `OnnxNode` that runs on the host, as far as they are known."""
        return host_steps.types(node.proto, self.opsets, known, self._declared, fresh)


def unread(
    source: str | os.PathLike | bytes | onnx.ModelProto | Source,
    shapes: Mapping[str, Shape] | None = None,
    outputs: Iterable[str] | None = None,
    values: Mapping[str, Any] | None = None,
    optimum: Mapping[str, Sequence[int]] | None = None,
) -> OnnxModel:
    """Opens a model whose nodes are imported on demand; arguments and errors are those of `load`."""
    origin = modernized(read(source))
    if origin.model.functions:
        origin = _inline_functions(origin)
    arrays: dict[str, np.ndarray] = {}
    spec = given_inputs(
        origin.model.graph, {name: parse_shape(name, s) for name, s in (shapes or {}).items()}, values or {}, arrays
    )
    return OnnxModel(origin, spec, arrays, outputs, optimum)


def _inline_functions(found: Source) -> Source:
    """Inlines the model's functions.

    The onnx package does not inline functions of another opset; those with equal operators in both get the model's
    opset first.
    """
    model = onnx.ModelProto()
    model.CopyFrom(found.model)
    opsets = {domain_of(o.domain): o.version for o in model.opset_import}
    for function in model.functions:
        used = {(domain_of(node.domain), node.op_type) for node in names.all_nodes(function)}
        for o in function.opset_import:
            domain = domain_of(o.domain)
            version = opsets.get(domain, o.version)
            if all(_is_same(op, domain, o.version, version) for d, op in used if d == domain):
                o.version = version
    try:
        return replace(found, model=onnx.inliner.inline_local_functions(model))
    except (RuntimeError, ValueError, TypeError) as e:
        raise ModelError(f"the functions of {found.name} cannot be inlined: {e}") from None


def _is_same(op: str, domain: str, one: int, other: int) -> bool:
    """True if an operator is the same in two opsets."""
    a, b = schema_of(op, one, domain), schema_of(op, other, domain)
    return one == other or a is not None and b is not None and a.since_version == b.since_version
