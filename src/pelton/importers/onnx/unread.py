"""An ONNX model before its nodes are read, as `pelton.partition` takes it: where the data decides what runs, parts of
it are read one by one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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
from pelton.ir.imported import Info
from pelton.ir.size_constraints import SizeConstraint
from pelton.ir.bindings import Broken, Binding
from pelton.ir.types import DType, TensorType
from pelton.ir.unread import Branches, HostCall, Interface, Known, Repeated, Scanned
from pelton.ops.foreign import DTYPES

from . import host_steps, names
from .file import Source, read
from .inputs import Inputs
from .load import check_outputs, convert_opset, given_inputs, opsets_of
from .node import attribute, schema_of
from .ports import Given
from .program import Program
from .scope import Scope, domain_of, node_label
from .translate import Translator


@dataclass(frozen=True, eq=False)
class OnnxNode:
    """A node of an ONNX graph by its names; `opset` is that of ai.onnx."""

    proto: onnx.NodeProto
    source: Source
    opset: int

    @property
    def name(self) -> str:
        return self.proto.name

    @property
    def called(self) -> str:
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
        """None also for the Scan of opset 8, which has batches."""
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
        """The initializers of a nested graph; ModelError where one cannot be read."""
        program, scope = Program(self.source), Scope({}, Scope({}))
        program.bind_initializers(self.proto, scope)
        if program.problems:
            raise ModelError(program.problems[0])
        return {
            name: program.builder.constants[value] for name, value in scope.bound.items() if isinstance(value, Value)
        }


class OnnxReader:
    """Reads nodes of the main graph, or of those nested in it, into one program."""

    def __init__(self, source: Source, opsets: Mapping[str, int], wanted: Iterable[str]):
        self._program = program = Program(source)
        self._scope = Scope(opsets, used_names=frozenset(wanted))
        self._translator = Translator(program)
        self.builder, self.bound = program.builder, self._scope.bound
        self.problems, self.on_data, self.warnings = program.problems, program.on_data, program.warnings
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
        """What the outputs of an `OnnxNode` stand for; BROKEN, with the problem noted, where it cannot be read."""
        return self._translator.node(node.proto, self._scope)


class OnnxModel:
    """An ONNX model that nobody has read yet, with what its caller gave of its inputs."""

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
        # element types and ranks that the model states; its sizes may be those of one example
        self._declared = {
            v.name: (DTYPES[t.elem_type], len(t.shape.dim))
            for v in (*source.model.graph.value_info, *source.model.graph.output)
            if (t := v.type.tensor_type).elem_type in DTYPES and t.HasField("shape")
        }

    def interface(self, settled: Mapping[str, SizeConstraint]) -> Interface:
        """What goes in and comes out where open sizes are settled so. ModelError where it cannot be read."""
        found, program = self._source, Program(self._source, self._arrays)
        scope = Scope(opsets_of(program))
        program.bind_initializers(found.model.graph, scope)
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
            str(found.path or ""),
            f"{found.model.producer_name} {found.model.producer_version}".strip(),
            found.model.ir_version,
            scope.opsets,
            sizes,
            tuple(inputs.defaulted),
            values=self._given.describe(),
        )
        return Interface(
            tuple(inputs.values),
            constants,
            tuple(wanted),
            inputs.unspecified,
            inputs.observed,
            program.warnings,
            inputs.assumptions(settled, found.name),
            info,
        )

    def reader(self, wanted: Iterable[str]) -> OnnxReader:
        """Reads nodes into a program of their own; `wanted` are the names that somebody reads."""
        return OnnxReader(self._source, self.opsets, wanted)

    def dtype(self, name: str) -> DType | None:
        """The element type of an output, or of what it is made of, as the model declares it."""
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
        return None

    def call(self, node: Any, reason: str) -> HostCall:
        """How an `OnnxNode` runs by itself. ModelError, for that reason, where nothing can run it."""
        return host_steps.call(self._source, self.opsets, node.proto, reason)

    def types(self, node: Any, known: Known, fresh: Callable[[str, int], Size]) -> list[TensorType | None]:
        """The types of the outputs of an `OnnxNode` where it runs by itself, as far as they can be told."""
        return host_steps.types(node.proto, self.opsets, known, self._declared, fresh)


def unread(
    source: str | os.PathLike | bytes | onnx.ModelProto | Source,
    shapes: Mapping[str, Shape] | None = None,
    outputs: Iterable[str] | None = None,
    values: Mapping[str, Any] | None = None,
    optimum: Mapping[str, Sequence[int]] | None = None,
) -> OnnxModel:
    """A model whose nodes are still to be read. Arguments and errors are those of `load`."""
    found = convert_opset(read(source))
    if found.model.functions:
        found = _in_place(found)
    arrays: dict[str, np.ndarray] = {}
    given = given_inputs(
        found.model.graph, {name: parse_shape(name, s) for name, s in (shapes or {}).items()}, values or {}, arrays
    )
    return OnnxModel(found, given, arrays, outputs, optimum)


def _in_place(found: Source) -> Source:
    """Functions in place of their calls. The onnx package leaves those of another opset alone, although their operators
    may be the same in both."""
    model = onnx.ModelProto()
    model.CopyFrom(found.model)
    opsets = {domain_of(o.domain): o.version for o in model.opset_import}
    for function in model.functions:
        used = {(domain_of(node.domain), node.op_type) for node in names.all_nodes(function)}
        for o in function.opset_import:
            domain = domain_of(o.domain)
            version = opsets.get(domain, o.version)
            if all(_same(op, domain, o.version, version) for d, op in used if d == domain):
                o.version = version
    try:
        return Source(onnx.inliner.inline_local_functions(model), found.path, found.opset)
    except (RuntimeError, ValueError, TypeError) as e:
        raise ModelError(f"the functions of {found.name} cannot be written in place of their calls: {e}") from None


def _same(op: str, domain: str, one: int, other: int) -> bool:
    """Whether an operator is the same in two opsets."""
    a, b = schema_of(op, one, domain), schema_of(op, other, domain)
    return one == other or a is not None and b is not None and a.since_version == b.since_version
