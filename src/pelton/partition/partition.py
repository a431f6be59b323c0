"""Partitions a model into straight-line programs, and a script that runs these and the nodes between them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pelton.engine.plan import Port
from pelton.engine.script import DEEPEST, Action, Block, HostAction, RunAction
from pelton.errors import ModelError
from pelton.ir import dims
from pelton.ir.dims import Dim, Size
from pelton.ir.graph import Graph, Value
from pelton.ir.imported import Forms, Imported, Info, ImportedNode
from pelton.ir.size_constraints import MAX_ATTEMPTS, SizeConstraint
from pelton.ir.bindings import ValueSequence, MapSequence
from pelton.ir.types import TensorType
from pelton.ir.unread import Known, Unread, UnreadGraph, UnreadNode, order

from . import control_flow
from .control_flow import ScriptMark
from .segment import Segment, Symbols, Unsettled

# bytes of constants that a script stores twice, to run a segment by reference for sizes that its engine rejects
MAX_FALLBACK_CONSTANTS = 1 << 20


@dataclass(frozen=True)
class UnbuiltScript:
    """A model as a script whose engines, one per program, are not built yet."""

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Port, ...]
    main: Block
    programs: tuple[Imported, ...]
    constants: Mapping[str, np.ndarray]
    host: tuple[str, ...]  # nodes that run by reference: "onnx::StringSplit (node 'split')"
    imported_nodes: tuple[ImportedNode, ...]
    info: Info
    forms: Forms


def partition_model(model: Unread) -> UnbuiltScript:
    """Partitions a model into a script; raises ModelError if that is impossible."""
    settled: dict[str, SizeConstraint] = {}
    tries = Counter[str]()  # by the node that needed constraints on input sizes
    while True:
        try:
            return _read(model, settled, {where for where, count in tries.items() if count > MAX_ATTEMPTS})
        except Unsettled as e:
            tries.update(s.why for s in e.settled.values())
            settled.update(e.settled)


def _read(model: Unread, settled: Mapping[str, SizeConstraint], unanswered: Collection[str]) -> UnbuiltScript:
    """Partitions the model under constraints on unspecified sizes."""
    iface = model.interface(settled)
    lists = {name: None for name in iface.sequences}
    known = Known({**lists, **{v.name: v.type for v in iface.inputs}}, dict(iface.constants), {}, dict(iface.sequences))
    partitioner = ModelPartitioner(
        model,
        {s.name for v in iface.inputs for s in dims.symbols(v.type.shape)},
        iface.open,
        iface.observed,
        unanswered,
    )
    steps = partitioner.block(model.graph.nodes, known, iface.outputs, {*known.types, *known.constants})
    glue = (HostAction(name, "list", "", parts, (name,)) for name, parts in iface.sequences.items())
    main = Block(
        tuple(v.name for v in iface.inputs),
        (*glue, *steps),
        tuple(partitioner.name(known, name) for name in iface.outputs),
    )
    info = replace(
        iface.info,
        foreign=tuple(partitioner.host),
        warnings=tuple(dict.fromkeys([*iface.warnings, *partitioner.warnings, *iface.assumptions])),
    )
    ports = tuple(_port(model, name, known.type(name)) for name in iface.outputs)
    return UnbuiltScript(
        model.graph.name or "main",
        iface.inputs,
        ports,
        main,
        tuple(partitioner.programs),
        partitioner.arrays,
        tuple(partitioner.host),
        tuple(partitioner.imported_nodes),
        info,
        iface.forms,
    )


def _port(model: Unread, name: str, found: TensorType | None) -> Port:
    """Returns the port of an output, as known at build time; shape "..." means any shape, or a list."""
    if found is not None:
        shape = tuple(str(d) if isinstance(d, Dim) else int(d) for d in found.shape)
        return Port(name, found.dtype.value, shape)
    dtype = model.dtype(name)
    if dtype is None:
        raise ModelError(f"the element type of output {name!r} is unknown at build time; declare it in the model")
    return Port(name, dtype.value, ("...",))


class ModelPartitioner:
    """Partitions blocks of nodes into programs and the steps between them."""

    def __init__(
        self,
        model: Unread,
        given: set[str],
        unspecified: Mapping[str, str],
        observed: Collection[str],
        unanswered: Collection[str],
    ):
        self.model, self.symbols, self.unspecified = model, Symbols(given), unspecified
        self._observed, self._unanswered = observed, unanswered
        self._given = frozenset(given)  # sizes of the inputs, which fit every engine or are rejected earlier
        self.programs: list[Imported] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.host: list[str] = []
        self.imported_nodes: list[ImportedNode] = []
        self.warnings: list[str] = []
        self._named: dict[int, str] = {}  # id of a constant → its name in the script
        self._depth = 0

    # --- names

    def name(self, known: Known, name: str) -> str:
        """Returns the name in the script of a name of the model; all blocks share the constants."""
        name = known.aliases.get(name, name)
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

    def mark(self) -> ScriptMark:
        """Returns the current position, for `rewind`."""
        return ScriptMark(len(self.programs), len(self.host), len(self.imported_nodes))

    def rewind(self, mark: ScriptMark) -> None:
        del self.programs[mark.programs :], self.host[mark.host :], self.imported_nodes[mark.imported_nodes :]

    # --- blocks

    def block(
        self, nodes: Sequence[UnreadNode], known: Known, outputs: Sequence[str], own: Iterable[str]
    ) -> list[Action]:
        """Builds the steps that compute the outputs, and adds their results to `known`.

        own: the names defined before the block.
        """
        own = set(own)
        titles = [node.name or node.operator for node in nodes]
        rest = [
            nodes[i]
            for i in order(
                titles, [node.reads for node in nodes], [node.outputs for node in nodes], outputs, own.__contains__
            )
        ]
        made = {name for node in rest for name in node.outputs}
        for node in rest:
            for name in sorted(node.reads):
                if name not in known and name not in made:
                    raise ModelError(
                        f"{node.operator} reads {name!r}, which is not an input, a constant or an output of a node"
                        f" ({self.model.name})"
                    )
        steps: list[Action] = []
        while rest:
            segment = Segment(self.model, known, rest, self.symbols, self.unspecified, self._observed, self._unanswered)
            for text in segment.reader.warnings:
                if text not in self.warnings:
                    self.warnings.append(text)
            if segment.unreadable:  # as early as possible: the following nodes then form one segment
                steps += [
                    self._single_node_step(node, known, segment.reasons.get(id(node), ""))
                    for node in segment.unreadable
                ]
                unreadable = set(map(id, segment.unreadable))
                rest = [node for node in rest if id(node) not in unreadable]
            else:
                steps += self._run(segment, known, outputs, {name for node in segment.waiting for name in node.reads})
                rest = segment.waiting
        for name in outputs:
            if name not in known:
                raise ModelError(f"output {name!r} is not produced by any node ({self.model.name})")
        return steps

    def inner(
        self, graph: UnreadGraph, known: Known, given: Mapping[str, TensorType | None]
    ) -> tuple[Block, list[TensorType | None]]:
        """Builds the block of a nested graph; returns it with the types of its outputs."""
        inside = known.copy()
        for name in [*given, *(o for n in graph.nodes for o in n.outputs)]:
            inside.forget(name)
        inside.types.update(given)
        constants = graph.constants()
        for name, array in constants.items():
            inside.forget(name)
            inside.constants[name] = array
        self._depth += 1
        if self._depth > DEEPEST:
            raise ModelError(f"graphs are nested more than {DEEPEST} deep ({self.model.name})")
        outputs = graph.outputs
        try:
            steps = self.block(graph.nodes, inside, outputs, {*given, *constants})
        finally:
            self._depth -= 1
        return Block(tuple(given), tuple(steps), tuple(self.name(inside, o) for o in outputs)), [
            inside.type(o) for o in outputs
        ]

    # --- steps

    def _single_node_step(self, node: UnreadNode, known: Known, reason: str) -> Action:
        """Builds the step of a node that cannot be part of a program."""
        action = control_flow.step(self, node, known)
        self.imported_nodes.append(
            ImportedNode(node.label, node.domain, node.operator, step="decomposed" if action else "host")
        )
        if action is None:
            action = self.host_action(node, known, reason)
            for name, t in zip(
                node.outputs, self.model.types(node, known, lambda hint, rank: self.symbols.fresh(hint, rank=rank))
            ):
                if name:
                    self.set_type(known, name, t)
            self.host.append(f"{node.title} (node {node.name or next(filter(None, node.outputs), node.operator)!r})")
        return action

    def host_action(self, node: UnreadNode, known: Known, reason: str = "") -> HostAction:
        """Builds the step that runs a node on the host; raises ModelError with the reason if nothing can run it."""
        host_call = self.model.call(node, reason)
        return HostAction(
            node.name or f"{node.operator} → {next(filter(None, node.outputs), '')}",
            host_call.call,
            host_call.text,
            tuple(self.name(known, name) for name in host_call.inputs),
            host_call.outputs,
        )

    def set_type(self, known: Known, name: str, t: TensorType | None) -> None:
        known.forget(name)
        known.types[name] = t

    def _run(self, segment: Segment, known: Known, outputs: Collection[str], later: Collection[str]) -> list[Action]:
        """Builds the step that runs a segment as a program, and steps for its non-tensor results.

        outputs: the outputs of the block. later: the names that its other nodes read.
        """
        after: list[Action] = []
        tensors: dict[str, Value] = {}
        lists = False
        builder, constants = segment.reader.builder, segment.reader.builder.constants
        for name, binding in segment.results({*outputs, *later}).items():
            if (
                isinstance(binding, Value)
                and binding in constants
                and not segment.settled
                and name not in segment.made_of_data_sizes
            ):
                known.types.pop(name, None)
                known.constants[name] = constants[binding]
            elif isinstance(binding, Value) and binding in segment.inputs and not segment.settled and name not in later:
                self._alias(known, name, segment.inputs[binding])
            elif isinstance(binding, Value):
                # also constants that depend on assumptions, which are checked at run time
                tensors[name] = binding
            elif isinstance(binding, MapSequence):
                tensors[f"{name}.rows"] = binding.matrix
                after.append(
                    HostAction(name, "rows", json.dumps({"keys": list(binding.keys)}), (f"{name}.rows",), (name,))
                )
                self.set_type(known, name, None)
                lists = True
            else:
                parts = binding.values if isinstance(binding, ValueSequence) else ()
                inside = {f"{name}[{i}]": v for i, v in enumerate(parts) if v is not None}
                held = {k: v for k, v in inside.items() if v in constants}
                known.constants.update({k: constants[v] for k, v in held.items()})
                tensors.update({k: v for k, v in inside.items() if k not in held})
                after.append(
                    HostAction(
                        name,
                        "none" if binding is None else "list",
                        "",
                        tuple(self.name(known, k) for k in inside),
                        (name,),
                    )
                )
                self.set_type(known, name, None)
                if len(inside) == len(parts) and binding is not None:
                    known.sequences[name] = tuple(inside)
                lists = True
        if not tensors:
            self.imported_nodes += (replace(node, written=()) for node in segment.imported_nodes)
            return after
        graph, feeds = segment.pruned(builder.finish(list(segment.inputs), tensors))
        graph = graph.replace(name=f"{self.model.graph.name or 'main'}.{len(self.programs)}")
        before = known.copy()
        for name, value in tensors.items():
            self._learn(segment, known, name, value)
        fallback = None if lists else self._fallback(segment, before, graph)
        run = RunAction(len(self.programs), feeds, tuple(tensors), fallback)
        info = Info(opsets=self.model.opsets, foreign=tuple(segment.reader.foreign_steps))
        self.imported_nodes += (replace(node, program=len(self.programs)) for node in segment.imported_nodes)
        self.programs.append(Imported(graph, info))
        return [run, *after]

    def _alias(self, known: Known, name: str, source: str) -> None:
        """Aliases a value, as Identity does, instead of running a program that copies it."""
        self.set_type(known, name, known.types[source])
        known.aliases[name] = known.aliases.get(source, source)
        if source in known.sizes:
            known.sizes[name] = known.sizes[source]

    def _learn(self, segment: Segment, known: Known, name: str, value: Value) -> None:
        """Records the type of a result as it is known outside its segment."""
        shape: list[Size] = []
        for axis, d in enumerate(value.type.shape):
            outside = None if d == 0 and name in segment.made_of_data_sizes else segment.size_outside(d)
            shape.append(self.symbols.fresh(f"{name}_{axis}", *_bounds(d)) if outside is None else outside)
        self.set_type(known, name, TensorType(value.type.dtype, tuple(shape)))
        numbers = segment.reader.builder.sizes.get(value)
        if (
            numbers is not None
            and value.type.dtype.is_integer
            and not segment.settled
            and all(isinstance(n, (int, Dim)) for n in numbers.flat)
        ):
            outside_numbers = [segment.size_outside(n) for n in numbers.flat]
            if None not in outside_numbers:
                known.sizes[name] = np.array(outside_numbers, object).reshape(numbers.shape)

    def _fallback(self, segment: Segment, known: Known, graph: Graph) -> Block | None:
        """Builds the block that runs a segment node by node, for sizes its engine rejects; None if not worthwhile."""
        reads = {name for node in segment.taken for name in node.reads}
        constant_bytes = sum(known.constants[name].nbytes for name in reads if name in known.constants)
        symbols = {s.name for s in dims.symbols([v.type.shape for v in graph.inputs])}
        if not segment.assumed and (symbols <= self._given or constant_bytes > MAX_FALLBACK_CONSTANTS):
            return None
        wanted, steps = {v.name for v in graph.outputs}, list[HostAction]()
        for node in reversed(segment.taken):
            if not wanted.isdisjoint(node.outputs):
                try:
                    steps.append(self.host_action(node, known))
                except ModelError:
                    return None  # nothing else can run it: other sizes are rejected
                wanted.update(node.reads)
        return Block((), tuple(reversed(steps)), tuple(v.name for v in graph.outputs))


def _bounds(d: Size) -> tuple[int, int, int]:
    """Returns bounds of a size unknown outside its segment; a number may be an assumption, so it bounds nothing."""
    low, high = dims.bounds(d) if isinstance(d, Dim) else (0, dims.UNBOUNDED)
    return 0, max(dims.optimum(d), 0), min(max(high, 0), dims.UNBOUNDED)
