"""Translates ONNX graphs, branches and function bodies, each node by its reader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

import onnx

from pelton.errors import ModelError
from pelton.ir.dims import Undecided
from pelton.ir.imported import OnData
from pelton.ir.bindings import BROKEN, Broken, Binding
from pelton.ir.types import TensorType

from . import foreign as onnx_foreign, names
from .node import ADVICE, READERS, DataDependentControl, NodeReader, Reading, Reported, schema_of
from .plugins import reader_of_plugin
from .program import MAX_GROWTH, MIN_EXPANSION, Program
from .schemas import NEWEST
from .scope import Scope, domain_of, node_label

MAX_CALL_DEPTH = 64  # depth of nested function calls
_RAISED = (ValueError, TypeError, IndexError, KeyError, OverflowError, ZeroDivisionError, MemoryError)


class Translator:
    """Translates the nodes of a model and adds them to the graph under construction."""

    def __init__(self, program: Program):
        self.program = program

    # --- graphs, branches and function bodies

    def read(self, nodes: Sequence[onnx.NodeProto], scope: Scope, outputs: Iterable[str]) -> None:
        """Translates all nodes that the outputs need, and binds their outputs; problems are recorded, not raised."""
        outputs = tuple(outputs)
        try:
            ordered = names.ordered(nodes, outputs, scope.bound.__contains__)
        except ModelError as e:
            raise ModelError(f"{e} ({', '.join(p for p in (scope.title, self.program.source.name) if p)})") from None
        scope.used_names = frozenset(outputs).union(*map(names.read_by, ordered))
        for node in ordered:
            # a retry follows, with more constraints on sizes
            if scope.is_main and self.program.undecided and self.program.unspecified:
                return
            bindings = self.node(node, scope)
            for name, binding in zip(node.output, bindings):
                if name:
                    self.program.bind(scope, name, binding)

    def branch(self, n: Reading, graph: onnx.GraphProto, given: Mapping[str, Binding]) -> tuple[Binding, ...]:
        """Inlines a subgraph and returns the bindings of its outputs."""
        inner = Scope(
            n.scope.opsets,
            n.scope,
            n.scope.title,
            n.scope.calls,
            dict(given),
            declared=self.program.declared(graph),
            conditional=True,
        )
        self.program.bind_initializers(graph, inner)
        outputs = [o.name for o in graph.output]
        self.read(graph.node, inner, outputs)
        return self._results(n, inner, outputs)

    def _results(self, n: Reading, inner: Scope, outputs: Iterable[str]) -> tuple[Binding, ...]:
        bindings: list[Binding] = []
        for name in outputs:
            if name and not inner.sees(name):
                raise n.refuse(f"{n.op} has an output {name!r} that no node of its body writes")
            binding = inner.find(name) if name else None
            if isinstance(binding, Broken):
                raise Reported
            bindings.append(binding)
        return tuple(bindings)

    def call(
        self, n: Reading, function: onnx.FunctionProto, defaults: Mapping[str, onnx.AttributeProto]
    ) -> tuple[Binding, ...]:
        """Inlines a function body in place of the node that calls it."""
        key = f"{function.domain}::{function.name}:{function.overload}"
        if key in n.scope.calls or len(n.scope.calls) >= MAX_CALL_DEPTH:
            raise n.refuse(
                f"function {function.name} calls itself, or functions call each other more than {MAX_CALL_DEPTH} deep"
            )
        attributes = {**defaults, **{a.name: a for a in function.attribute_proto}, **n.attributes}
        opsets = {**n.scope.opsets, **{domain_of(o.domain): o.version for o in function.opset_import}}
        arguments = {name: n.bindings[i] if i < len(n.bindings) else None for i, name in enumerate(function.input)}
        inner = Scope(
            opsets,
            None,
            f"function {function.name} called by {node_label(n.node)!r}",
            (*n.scope.calls, key),
            dict(arguments),
            declared={function.output[i]: t for i, t in n.declared().items()},
            conditional=n.scope.conditional,
        )
        wanted = [name if n.is_output_used(i) else "" for i, name in enumerate(function.output)]
        self.read([names.with_attributes(node, attributes) for node in function.node], inner, filter(None, wanted))
        return self._results(n, inner, wanted)

    # --- nodes

    def node(self, node: onnx.NodeProto, scope: Scope) -> Sequence[Binding | Broken]:
        """Translates a node, records the result, and returns the bindings of its outputs; BROKEN, with a recorded
        problem, on failure."""
        mark = self.program.mark()
        bindings = self._translate(node, scope)
        if not scope.calls:  # nodes of a function's body are the meaning of the calling node
            self.program.note_imported(node, scope, mark)
        return bindings

    def _translate(self, node: onnx.NodeProto, scope: Scope) -> Sequence[Binding | Broken]:
        broken = (BROKEN,) * len(node.output)
        self.program.node_budget -= 1
        # functions that call each other twice, or nested loops: a small file may expand to any number of nodes
        if self.program.node_budget < 0:
            raise ModelError(
                f"the functions and loops of the model expand to more than {MIN_EXPANSION} nodes and {MAX_GROWTH}"
                f" for each node in the file ({self.program.where(node, scope)})"
            )
        read = names.read_by(node)
        for name in sorted(read):
            if not scope.sees(name):
                where = self.program.where(node, scope)
                self.program.problems.append(
                    f"{node.op_type} reads {name!r}, which is no input, no constant and no output of a node ({where})"
                )
                return broken
        if any(scope.find(name) is BROKEN for name in read):
            return broken
        try:
            translate = self._reader(
                node, scope, tuple(cast(Binding, scope.find(name)) if name else None for name in node.input)
            )
        except ModelError as e:
            self.program.problems.append(str(e))
            return broken
        except _RAISED as e:  # an opset that the onnx package cannot represent
            self.program.problems.append(
                f"{node.op_type} cannot be read: {type(e).__name__}: {e} ({self.program.where(node, scope)})"
            )
            return broken
        try:
            return translate()
        except Reported:
            pass
        except (ModelError, Undecided) as e:
            self._note_refusal(node, scope, e)
        except _RAISED as e:  # attributes that conform to the schema, but contradict each other
            self.program.note_undecided(node, scope)
            text = f"{node.op_type} cannot be read: {type(e).__name__}: {e} ({self.program.where(node, scope)})"
            self.program.problem(text, bool(self.program.undecided[-1].symbols))  # they may fit other sizes
        return broken

    def _note_refusal(self, node: onnx.NodeProto, scope: Scope, refusal: ModelError | Undecided) -> None:
        """Records why a node could not be read: as certain if the caller's ranges are the reason, else as a problem
        that other sizes, or the data, may solve."""
        question = refusal if isinstance(refusal, Undecided) else refusal.__cause__
        where, operator = self.program.where(node, scope), f"{node.op_type}: " if refusal is question else ""
        if reason := self.program.refusal_of_ranges(question):
            self.program.problems.append(f"{operator}{reason} ({where})")
            return
        self.program.note_undecided(node, scope, question)
        text = f"{operator}{refusal}; {ADVICE} ({where})" if refusal is question else str(refusal)
        self.program.problem(text, isinstance(refusal, OnData) or isinstance(question, Undecided))

    def _reader(
        self, node: onnx.NodeProto, scope: Scope, bindings: tuple[Binding, ...]
    ) -> Callable[[], Sequence[Binding]]:
        """Returns a function that translates a node; raises ModelError if there is none or the node is invalid."""
        domain = domain_of(node.domain)
        n = Reading(self.program, self, scope, node, domain, scope.opsets.get(domain, 0), None, bindings)
        local = self.program.functions.get((domain, node.op_type, node.overload))
        if local is not None:
            return partial(self.call, n, local, {})
        plugin = reader_of_plugin(domain, node.op_type)
        reader = plugin or READERS.get((domain, node.op_type))
        if not n.opset and (reader is None or not domain):
            raise n.refuse(
                f"{node.op_type} is of domain {domain or 'ai.onnx'!r}, which opset_import of the model must list"
            )
        n = replace(n, schema=schema_of(node.op_type, n.opset, domain))
        self._verify_version(n, reader is not None)
        if plugin is None or onnx.defs.has(node.op_type, domain):
            n.verify()
        if reader is not None:
            return partial(self._read_node, reader, n)
        if not onnx.defs.has(node.op_type, domain):
            raise n.refuse(
                f"there is no operator {n.op} in domain {domain or 'ai.onnx'!r} at opset {n.opset}; "
                "if it is an extension, define it in the model as a function, or register a pelton.Plugin that reads it"
            )
        return partial(self.body, n)

    def _verify_version(self, n: Reading, has_reader: bool) -> None:
        """Raises ModelError if the model's opset lacks the operator, or its reader does not support that version."""
        if n.schema is None:
            return
        since, newest = n.schema.since_version, NEWEST.get(n.domain)
        if n.opset and since > n.opset:
            raise n.refuse(
                f"{n.op} exists from opset {since} on, but the model imports {n.opset} of {n.domain or 'ai.onnx'!r};"
                f" export it for opset {since} or later"
            )
        if has_reader and newest is not None and since > newest:
            raise n.refuse(
                f"{n.op} of opset {since} is newer than the latest that this version of Pelton supports, {newest};"
                f" export the model for opset {newest}, or use a newer Pelton"
            )

    def _read_node(self, reader: NodeReader, n: Reading) -> tuple[Binding, ...]:
        """Translates a node by its reader, or as a foreign step if the reader needs data and types are known."""
        mark = self.program.mark()
        try:
            result = reader(n)
        except OnData as reason:
            self.program.rewind(mark)
            if isinstance(reason, DataDependentControl) or not n.domain and n.op in onnx_foreign.MISREAD:
                raise
            try:
                return self.foreign(n, {})
            except ModelError:
                raise reason from None
        return result if isinstance(result, tuple) else (result,)

    def body(self, n: Reading) -> tuple[Binding, ...]:
        """Translates a node by the function body of its schema, else as a foreign step."""
        function = onnx_foreign.schema_body(n)
        if function is None:
            return self.foreign(n, {})
        mark = self.program.mark()
        try:
            return self.call(
                n, function, {k: a.default_value for k, a in n.schema.attributes.items() if a.default_value.type}
            )
        except Reported:  # a part cannot be translated: the node as a whole may still run
            problems = self.program.problems[mark.problems :]
            self.program.rewind(mark)
        try:
            return self.foreign(n, {})
        except ModelError:
            self.program.problems += problems
            raise Reported from None

    def foreign(self, n: Reading, types: Mapping[int, TensorType]) -> tuple[Binding, ...]:
        """Translates a node as a step of the onnx package; `types` of outputs override declared and inferred ones."""
        values = onnx_foreign.step(n, types)
        if any(v is not None and v not in self.program.builder.constants for v in values):
            self.program.foreign_steps.append(f"{onnx_foreign.title(n)} (node {node_label(n.node)!r})")
        return values
