"""Models of which the data decides what runs or how large it is: cut into programs, and a script that runs these and what cannot be part of one."""
from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.inliner

from pelton.engine.model import Port
from pelton.engine.program import DEEPEST, Action, Block, Host, Run
from pelton.errors import ModelError
from pelton.ir import dims
from pelton.ir.dims import Dim, Size
from pelton.ir.graph import Graph, Value
from pelton.ir.imported import Imported, Info, Met
from pelton.ir.settle import Settled
from pelton.ir.things import Items, Rows
from pelton.ir.types import TensorType
from pelton.ops.foreign import DTYPES

from . import host_steps, control_flow
from pelton.importers.onnx import names as onnx_names
from pelton.importers.imported import Shape, parse_shape
from pelton.importers.onnx.load import PATIENCE, check_outputs, converted, given_inputs, opsets_of
from pelton.importers.onnx.file import Source, read
from pelton.importers.onnx.inputs import Inputs
from pelton.importers.onnx.ports import Given
from pelton.importers.onnx.program import Program
from pelton.importers.onnx.node import schema_of
from pelton.importers.onnx.scope import Scope, called, domain_of
from .segment import Known, Segment, Symbols, Unsettled

SPARE = 1 << 20                 # bytes of constants that are kept a second time, so that what sizes an engine does not take can run by reference


@dataclass(frozen=True)
class Scripted:
    """A model as a script whose engines are still to be built, one per program."""

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Port, ...]
    main: Block
    programs: tuple[Imported, ...]
    constants: Mapping[str, np.ndarray]
    host: tuple[str, ...]                      # what runs by reference: "onnx::StringSplit (node 'split')"
    met: tuple[Met, ...]
    info: Info


def load(source: str | os.PathLike | bytes | onnx.ModelProto | Source, shapes: Mapping[str, Shape] | None = None, outputs: Iterable[str] | None = None,
         values: Mapping[str, Any] | None = None, usual: Mapping[str, Sequence[int]] | None = None) -> Scripted:
    """A model as a script. Arguments and errors are those of `onnx.load`."""
    found = converted(read(source))
    if found.model.functions:
        found = _in_place(found)
    arrays: dict[str, np.ndarray] = {}
    given = given_inputs(found.model.graph, {name: parse_shape(name, s) for name, s in (shapes or {}).items()}, values or {}, arrays)
    settled: dict[str, Settled] = {}
    tries = Counter[str]()                                 # by who wanted to know more of the sizes of the inputs
    while True:
        try:
            silent = {where for where, count in tries.items() if count > PATIENCE}
            return _read(Program(found, arrays), given, settled, outputs, usual, silent)
        except Unsettled as e:
            tries.update(s.why for s in e.settled.values())
            settled.update(e.settled)


def _in_place(found: Source) -> Source:
    """Functions in place of their calls. The onnx package leaves those of another opset alone, although their operators may be the same in both."""
    model = onnx.ModelProto()
    model.CopyFrom(found.model)
    opsets = {domain_of(o.domain): o.version for o in model.opset_import}
    for function in model.functions:
        used = {(domain_of(node.domain), node.op_type) for node in onnx_names.all_nodes(function)}
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


def _read(program: Program, given: Given, settled: Mapping[str, Settled], asked: Iterable[str] | None, usual: Mapping[str, Sequence[int]] | None,
          silent: Collection[str]) -> Scripted:
    found, graph = program.source, program.source.model.graph
    scope = Scope(opsets_of(program))
    program.constants_of(graph, scope)
    inputs = Inputs(program, scope, given, settled, usual)
    if program.problems:
        raise ModelError(program.problems[0])
    names = check_outputs(program, scope, asked)
    held = program.builder.constants
    constants = {name: held[v] for name, v in scope.bound.items() if isinstance(v, Value) and v in held}
    known = Known({v.name: v.type for v in inputs.values}, constants)
    taken = {s.name for v in inputs.values for s in dims.symbols(v.type.shape)}
    cut = Cut(found, scope.opsets, taken, inputs.open, inputs.met, silent)
    steps = cut.block(graph.node, known, names, {*known.types, *known.constants})
    main = Block(tuple(v.name for v in inputs.values), tuple(steps), tuple(cut.name(known, name) for name in names))
    told = [*program.warnings, *cut.warnings]
    for text in inputs.told(settled, found.name):
        told.append(text)
    sizes = {s.name: (s.least, s.usual, s.most if s.most < dims.UNBOUNDED else None) for s in dims.symbols([v.type.shape for v in inputs.values])}
    info = Info(str(found.path or ""), f"{found.model.producer_name} {found.model.producer_version}".strip(), found.model.ir_version, scope.opsets, sizes,
                tuple(inputs.defaulted), tuple(cut.host), (), given.told(), tuple(dict.fromkeys(told)))
    ports = tuple(_port(name, known.type(name), graph) for name in names)
    return Scripted(graph.name or "main", tuple(inputs.values), ports, main, tuple(cut.programs), cut.arrays, tuple(cut.host), tuple(cut.met), info)


def _port(name: str, found: TensorType | None, graph: onnx.GraphProto) -> Port:
    """An output as it is known before a run; "..." stands for whatever shape it has, or for a list."""
    if found is not None:
        return Port(name, found.dtype.value, tuple(str(d) if isinstance(d, Dim) else int(d) for d in found.shape))      # type: ignore[misc]
    for v in (*graph.output, *graph.value_info):
        type = v.type
        while type.WhichOneof("value") not in ("tensor_type", "sparse_tensor_type", None):
            type = type.map_type.value_type if type.HasField("map_type") else (type.optional_type if type.HasField("optional_type") else
                                                                               type.sequence_type).elem_type
        if v.name == name and type.tensor_type.elem_type in DTYPES:
            return Port(name, DTYPES[type.tensor_type.elem_type].value, ("...",))                                       # type: ignore[arg-type]
    raise ModelError(f"what type output {name!r} has is not known before a run; the model should declare it")


class Cut:
    """Cuts blocks of nodes into programs and steps between them."""

    def __init__(self, source: Source, opsets: Mapping[str, int], given: set[str], open: Mapping[str, str], met: Collection[str], silent: Collection[str]):
        self.source, self.opsets, self.symbols, self.open, self._met, self._silent = source, opsets, Symbols(given), open, met, silent
        self._given = frozenset(given)                     # sizes of the inputs, which fit every engine or are refused before
        self.programs: list[Imported] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.host: list[str] = []
        self.met: list[Met] = []                           # nodes of the main graph
        self.warnings: list[str] = []
        self._named: dict[int, str] = {}                   # id of a constant → its name in the script
        self._depth = 0
        graph = source.model.graph                         # element types and ranks that the model states; its sizes may be those of one example
        self.declared = {v.name: (DTYPES[t.elem_type], len(t.shape.dim)) for v in (*graph.value_info, *graph.output)
                         if (t := v.type.tensor_type).elem_type in DTYPES and t.HasField("shape")}

    # --- names

    def name(self, known: Known, name: str) -> str:
        """What a name of the model is called in the script; constants are there for all blocks."""
        if name not in known.constants or not name:
            return name
        array = known.constants[name]
        if id(array) not in self._named:
            unique, k = f"={name}", 1
            while unique in self.arrays:
                k += 1
                unique = f"={name}#{k}"
            self._named[id(array)], self.arrays[unique] = unique, array
        return self._named[id(array)]

    def mark(self) -> tuple[int, int]:
        """Where the script stands, for `rewind`."""
        return len(self.programs), len(self.host)

    def rewind(self, mark: tuple[int, int]) -> None:
        del self.programs[mark[0]:], self.host[mark[1]:]

    # --- blocks

    def block(self, nodes: Sequence[onnx.NodeProto], known: Known, outputs: Sequence[str], own: Iterable[str]) -> list[Action]:
        """The steps that make the outputs; what they make is added to what is known. `own` are the names that the block has to begin with."""
        own = set(own)
        rest = onnx_names.ordered(nodes, outputs, own.__contains__)
        made = {name for node in rest for name in node.output}
        for node in rest:
            for name in onnx_names.read_by(node):
                if name not in known and name not in made:
                    raise ModelError(f"{node.op_type} reads {name!r}, which is no input, no constant and no output of a node ({self.source.name})")
        steps: list[Action] = []
        while rest:
            segment = Segment(self.source, self.opsets, known, rest, self.symbols, self.open, self._met, self._silent)
            for text in segment.program.warnings:
                if text not in self.warnings:
                    self.warnings.append(text)
            if segment.hard:                               # as early as can be, so that what follows is one segment
                for node in segment.hard:
                    steps += self._alone(node, known, segment.reasons.get(id(node), ""))
                hard = set(map(id, segment.hard))
                rest = [node for node in rest if id(node) not in hard]
            else:
                needed = {*outputs}.union(*map(onnx_names.read_by, segment.rest))
                steps += self._run(segment, known, needed)
                rest = segment.rest
        for name in outputs:
            if name not in known:
                raise ModelError(f"output {name!r} is made by no node ({self.source.name})")
        return steps

    def inner(self, graph: onnx.GraphProto, known: Known, given: Mapping[str, TensorType | None]) -> tuple[Block, list[TensorType | None]]:
        """A nested graph, and the types of its outputs."""
        inside = known.copy()
        for name in [*given, *(o for n in graph.node for o in n.output)]:
            inside.types.pop(name, None)
            inside.constants.pop(name, None)
            inside.sizes.pop(name, None)
        inside.types.update(given)
        program = Program(self.source)
        scope = Scope(self.opsets, Scope(self.opsets))
        program.constants_of(graph, scope)
        if program.problems:
            raise ModelError(program.problems[0])
        for name, value in scope.bound.items():
            inside.types.pop(name, None)
            inside.constants[name] = program.builder.constants[value]                          # type: ignore[index]
        self._depth += 1
        if self._depth > DEEPEST:
            raise ModelError(f"graphs are nested more than {DEEPEST} deep ({self.source.name})")
        outputs = [o.name for o in graph.output]
        try:
            steps = self.block(graph.node, inside, outputs, {*given, *scope.bound})
        finally:
            self._depth -= 1
        return Block(tuple(given), tuple(steps), tuple(self.name(inside, o) for o in outputs)), [inside.type(o) for o in outputs]

    # --- steps

    def _alone(self, node: onnx.NodeProto, known: Known, reason: str) -> list[Action]:
        """A node that no program can hold."""
        nested = control_flow.READERS.get((node.domain, node.op_type))
        found = nested(self, node, known) if nested is not None else None
        if not self._depth:
            self.met.append(Met(called(node), domain_of(node.domain), node.op_type, step="decomposed" if found else "host"))
        if found is None:
            found = self.hosted(node, known, reason)
            for name, t in zip(node.output, host_steps.types(self, node, known)):
                if name:
                    self.know(known, name, t)
            self.host.append(f"{node.domain or 'onnx'}::{node.op_type} (node {node.name or next(filter(None, node.output), node.op_type)!r})")
        return [found]

    def hosted(self, node: onnx.NodeProto, known: Known, reason: str = "") -> Host:
        call, text, inputs = host_steps.call(self.source, self.opsets, node, reason)
        return Host(node.name or f"{node.op_type} → {next(filter(None, node.output), '')}", call, text,
                    tuple(self.name(known, name) for name in inputs), host_steps.outputs(call, node))

    def know(self, known: Known, name: str, t: TensorType | None) -> None:
        known.constants.pop(name, None)
        known.sizes.pop(name, None)
        known.types[name] = t

    def _run(self, segment: Segment, known: Known, needed: Collection[str]) -> list[Action]:
        """A segment as a program of its own, and what it gives that is no tensor."""
        after: list[Action] = []
        tensors: dict[str, Value] = {}
        lists = False
        program, constants = segment.program, segment.program.builder.constants
        self.met += program.met if not self._depth else ()
        for name, thing in segment.results(needed).items():
            if isinstance(thing, Value) and thing in constants and not segment.settled and name not in segment.by_numbers:
                known.types.pop(name, None)
                known.constants[name] = constants[thing]
            elif isinstance(thing, Value):
                tensors[name] = thing                      # constants, too, of which something is assumed, which is checked where the engine runs
            elif isinstance(thing, Rows):
                tensors[f"{name}.rows"] = thing.matrix
                after.append(Host(name, "rows", json.dumps({"keys": list(thing.keys)}), (f"{name}.rows",), (name,)))
                self.know(known, name, None)
                lists = True
            else:
                parts = thing.values if isinstance(thing, Items) else ()
                inside = {f"{name}[{i}]": v for i, v in enumerate(parts) if v is not None}
                held = {k: v for k, v in inside.items() if v in constants}
                known.constants.update({k: constants[v] for k, v in held.items()})
                tensors.update({k: v for k, v in inside.items() if k not in held})
                after.append(Host(name, "none" if thing is None else "list", "", tuple(self.name(known, k) for k in inside), (name,)))
                self.know(known, name, None)
                lists = True
        if not tensors:
            return after
        graph, feeds = segment.pruned(program.builder.finished(list(segment.inputs), tensors))
        graph = graph.replace(name=f"{self.source.model.graph.name or 'main'}.{len(self.programs)}")
        before = known.copy()
        for name, value in tensors.items():
            self._learn(segment, known, name, value)
        otherwise = None if lists else self._otherwise(segment, before, graph)
        run = Run(len(self.programs), feeds, tuple(tensors), otherwise)
        info = Info(opsets=self.opsets, foreign=tuple(program.foreigners))
        self.programs.append(Imported(graph, info))
        return [run, *after]

    def _learn(self, segment: Segment, known: Known, name: str, value: Value) -> None:
        """The type of a result as it is known outside of its segment."""
        shape: list[Size] = []
        for axis, d in enumerate(value.type.shape):
            outside = None if d == 0 and name in segment.by_numbers else segment.out(d)
            shape.append(self.symbols.fresh(f"{name}_{axis}", *_bounds(d)) if outside is None else outside)
        self.know(known, name, TensorType(value.type.dtype, tuple(shape)))
        numbers = segment.program.builder.sizes.get(value)
        if numbers is not None and value.type.dtype.is_integer and not segment.settled and all(isinstance(n, (int, Dim)) for n in numbers.flat):
            outside_numbers = [segment.out(n) for n in numbers.flat]
            if None not in outside_numbers:
                known.sizes[name] = np.array(outside_numbers, object).reshape(numbers.shape)

    def _otherwise(self, segment: Segment, known: Known, graph: Graph) -> Block | None:
        """The nodes of a segment one by one by reference, where its sizes may not fit, and that is no waste."""
        reads = {name for node in segment.taken for name in onnx_names.read_by(node)}
        spare = sum(known.constants[name].nbytes for name in reads if name in known.constants)
        found = {s.name for s in dims.symbols([v.type.shape for v in graph.inputs])}
        if not segment.assumed and (found <= self._given or spare > SPARE):
            return None
        wanted, steps = {v.name for v in graph.outputs}, list[Host]()
        for node in reversed(segment.taken):
            if wanted & set(node.output):
                try:
                    steps.append(self.hosted(node, known))
                except ModelError:
                    return None                            # nothing else can run it: sizes that do not fit are refused
                wanted |= onnx_names.read_by(node)
        return Block((), tuple(reversed(steps)), tuple(v.name for v in graph.outputs))


def _bounds(d: Size) -> tuple[int, int, int]:
    """From 0 on, where it is not known outside; a number that was assumed says nothing of what else may come."""
    low, high = dims.bounds(d) if isinstance(d, Dim) else (0, dims.UNBOUNDED)
    return 0, max(dims.usual(d), 0), min(max(high, 0), dims.UNBOUNDED)
