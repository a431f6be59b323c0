"""Walks ONNX graphs, branches and function bodies and writes one program of our ops, folding what is constant."""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import onnx

from pelton.errors import ModelError
from pelton.ir import dims
from pelton.ir.dims import Size, Undecided
from pelton.ir.dims_text import parse as parse_size
from pelton.ir.evaluate import evaluate_node
from pelton.ir.graph import Node, Value
from pelton.ir.types import I64, DType, TensorType
from pelton.ops.foreign import DTYPES
from pelton.ops.op import Op, Untyped, get

from . import foreign as onnx_foreign, names, sizes as onnx_sizes
from pelton.importers.imported import OnData
from .file import Source, array_of, dense
from .ports import decides
from .node import READERS, Branches, Reader, Reading, Reported, Thing, schema_of
from .scope import BROKEN, Broken, Met, Scope, Stuck, called, domain_of

SMALL = 1 << 20                        # constants up to this many elements may grow out of smaller ones
FEW = 1 << 12                          # sizes that are reckoned with one by one
ADVICE = "give numbers, or ranges that decide it, with shapes="
DEEPEST = 64                           # functions within functions
WRITTEN = (20_000, 50)                 # nodes that functions and loops may be written out to: so many, and so many for each in the file
WORK = 1 << 28                         # operations that a node of constants may take to be evaluated at once
_RAISED = (ValueError, TypeError, IndexError, KeyError, OverflowError, ZeroDivisionError, MemoryError)


class Program:
    """What an import has found out so far: the program itself, good names for its values, problems and warnings."""

    def __init__(self, source: Source, arrays: dict[str, np.ndarray] | None = None):
        self.source = source
        self._arrays = {} if arrays is None else arrays    # initializers of the main graph that have been read already
        self.functions = {(domain_of(f.domain), f.name, f.overload): f for f in source.model.functions}
        self.constants: dict[Value, np.ndarray] = {}
        self.nodes: list[Node] = []
        self.makers: dict[Value, Node] = {}                # value → the node that makes it
        self.names: dict[Value, str] = {}                  # value → what the model calls it, names of the main graph first
        self._named_in_main: set[Value] = set()
        self.problems: list[str] = []
        self.warnings: list[str] = []
        self.foreigners: list[str] = []
        self.stuck: list[Stuck] = []
        self.met: list[Met] = []
        self.by_readers: set[str] = set()                  # those of the problems that readers had with what a node reads: for other sizes there may be none
        self.on_data: set[str] = set()                     # those of the problems that are no more than that something depends on the data
        self.asked: list[Value] = []                       # what readers wanted to know the numbers of, and could not
        self.sizes: dict[Value, np.ndarray] = {}           # integers (and floats) that are sizes or made of them, as objects
        self.questions: dict[Value, Undecided] = {}        # values that would be sizes, or follow from them, if this were known
        self.inputs: set[Value] = set()                    # values that are inputs of the model, whole
        self.lacking: dict[str, None] = {}                 # inputs whose values a reader wanted to know, in order
        self.open: Mapping[str, str] = {}                  # the symbols of sizes that nobody gave
        self.silent: Collection[str] = ()                  # nodes that have asked for them in vain
        self.told: Collection[str] = ()                    # those of them for which it is known what a run has
        self.dimensions: dict[str, Size] = {}              # what the model's names of dimensions stand for
        self.resized = False                               # whether inputs got other sizes than the model says: so do inner tensors
        self._small: dict[tuple, Value] = {}
        self.left = WRITTEN[0] + WRITTEN[1] * sum(map(names.nodes_in, (source.model.graph, *source.model.functions)))

    def warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)

    def where(self, node: onnx.NodeProto, scope: Scope) -> str:
        return ", ".join(p for p in (f"node {called(node)!r}", scope.title, self.source.name) if p)

    # --- graphs, branches and function bodies

    def read(self, nodes: Sequence[onnx.NodeProto], scope: Scope, outputs: Iterable[str]) -> None:
        """Binds everything that the outputs need. Problems are noted, not raised."""
        outputs = tuple(outputs)
        try:
            ordered = names.ordered(nodes, outputs, scope.bound.__contains__)
        except ModelError as e:
            raise ModelError(f"{e} ({', '.join(p for p in (scope.title, self.source.name) if p)})") from None
        scope.wanted = frozenset(outputs).union(*map(names.read_by, ordered))
        for node in ordered:
            if scope.main and self.stuck and self.open:     # it will be tried again, with less left open
                return
            made, wrong = len(self.nodes), len(self.problems)
            things = self.node(node, scope)
            if scope.main:
                inputs = [scope.find(name) if name and scope.sees(name) else None for name in node.input]
                self.met.append(Met(node, inputs, self.nodes[made:], self.problems[wrong:]))
            for name, thing in zip(node.output, things):
                if name:
                    self.bind(scope, name, thing)

    def bind(self, scope: Scope, name: str, thing: Thing | Broken) -> None:
        scope.bound[name] = thing
        if isinstance(thing, Value):
            if scope.main and thing not in self._named_in_main:
                self._named_in_main.add(thing)
                self.names[thing] = name
            else:
                self.names.setdefault(thing, name)

    def constants_of(self, graph: onnx.GraphProto, scope: Scope) -> None:
        """Binds the initializers of a graph."""
        dense_arrays = ((t.name, lambda t=t: array_of(t, self.source)) for t in graph.initializer)
        sparse_arrays = ((t.values.name, lambda t=t: dense(t, self.source)) for t in graph.sparse_initializer)
        for name, array in (*dense_arrays, *sparse_arrays):
            if name in scope.bound:
                self.problems.append(f"initializer {name!r} is there twice ({self.source.name})")
                continue
            try:
                held = self._arrays.get(name) if scope.main else None
                held = array() if held is None else held
                if scope.main:
                    self._arrays[name] = held
                value: Value | Broken = self.hold(held, name)
            except ModelError as e:
                self.problems.append(str(e))
                value = BROKEN
            self.bind(scope, name, value)

    def declared(self, graph: onnx.GraphProto) -> dict[str, TensorType]:
        """The types that a graph states for its tensors, those of which every size is a number or made of the sizes of inputs."""
        if self.resized:
            return {}
        found = {}
        for v in (*graph.value_info, *graph.output):
            tensor = v.type.tensor_type
            sizes = [d.dim_value if d.HasField("dim_value") else self.dimension(d.dim_param) for d in tensor.shape.dim]
            if tensor.elem_type in DTYPES and tensor.HasField("shape") and all(d is not None and (isinstance(d, dims.Dim) or d >= 0) for d in sizes):
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

    def branch(self, n: Reading, graph: onnx.GraphProto, given: Mapping[str, Thing]) -> tuple[Thing, ...]:
        """A subgraph written in place: what its outputs stand for."""
        inner = Scope(n.scope.opsets, n.scope, n.scope.title, n.scope.calls, dict(given), declared=self.declared(graph))
        self.constants_of(graph, inner)
        outputs = [o.name for o in graph.output]
        self.read(graph.node, inner, outputs)
        return self._results(n, inner, outputs)

    def _results(self, n: Reading, inner: Scope, outputs: Iterable[str]) -> tuple[Thing, ...]:
        found: list[Thing] = []
        for name in outputs:
            if name and not inner.sees(name):
                raise n.refuse(f"{n.op} should give {name!r}, which nothing inside of it makes")
            thing = inner.find(name) if name else None
            if isinstance(thing, Broken):
                raise Reported
            found.append(thing)
        return tuple(found)

    def call(self, n: Reading, function: onnx.FunctionProto, defaults: Mapping[str, onnx.AttributeProto]) -> tuple[Thing, ...]:
        """A function body written in place of the node that calls it."""
        key = f"{function.domain}::{function.name}:{function.overload}"
        if key in n.scope.calls or len(n.scope.calls) >= DEEPEST:
            raise n.refuse(f"function {function.name} calls itself, or functions call each other more than {DEEPEST} deep")
        attributes = {**defaults, **{a.name: a for a in function.attribute_proto}, **n.attributes}
        opsets = {**n.scope.opsets, **{domain_of(o.domain): o.version for o in function.opset_import}}
        given = {name: n.things[i] if i < len(n.things) else None for i, name in enumerate(function.input)}
        inner = Scope(opsets, None, f"function {function.name} called by {called(n.node)!r}", (*n.scope.calls, key), dict(given),
                      declared={function.output[i]: t for i, t in n.declared().items()})
        wanted = [name if n.wants(i) else "" for i, name in enumerate(function.output)]
        self.read([names.with_attributes(node, attributes) for node in function.node], inner, filter(None, wanted))
        return self._results(n, inner, wanted)

    # --- nodes

    def node(self, node: onnx.NodeProto, scope: Scope) -> Sequence[Thing | Broken]:
        """What the outputs of a node stand for; BROKEN, with the problem noted, where it cannot be read."""
        broken = (BROKEN,) * len(node.output)
        self.left -= 1
        if self.left < 0:                                  # functions that call each other twice, loops within loops: a small file may stand for anything
            raise ModelError(f"the functions and loops of the model, written out, are more than {WRITTEN[0]} nodes and {WRITTEN[1]} for each in the file "
                             f"({self.where(node, scope)})")
        read = names.read_by(node)
        for name in sorted(read):
            if not scope.sees(name):
                self.problems.append(f"{node.op_type} reads {name!r}, which is no input, no constant and no output of a node ({self.where(node, scope)})")
                return broken
        if any(scope.find(name) is BROKEN for name in read):
            return broken
        try:
            read_it = self._reader(node, scope, tuple(cast(Thing, scope.find(name)) if name else None for name in node.input))
        except ModelError as e:
            self.problems.append(str(e))
            return broken
        except _RAISED as e:                                # an opset that no number of the onnx package can be
            self.problems.append(f"{node.op_type} cannot be read: {type(e).__name__}: {e} ({self.where(node, scope)})")
            return broken
        try:
            return read_it()
        except ModelError as e:
            self._is_stuck(node, scope, e.__cause__)
            self._problem(str(e), isinstance(e, OnData) or isinstance(e.__cause__, Undecided))
        except Reported:
            pass
        except Undecided as e:
            self._is_stuck(node, scope, e)
            self._problem(f"{node.op_type}: {e}; {ADVICE} ({self.where(node, scope)})", True)
        except _RAISED as e:                                # attributes that fit the schema, but not each other
            self._is_stuck(node, scope)
            text = f"{node.op_type} cannot be read: {type(e).__name__}: {e} ({self.where(node, scope)})"
            self._problem(text, bool(self.stuck[-1].met))   # they may fit for the sizes of a run
        return broken

    def _problem(self, text: str, on_data: bool) -> None:
        self.problems.append(text)
        self.by_readers.add(text)
        if on_data:
            self.on_data.add(text)

    def only_on_data(self) -> bool:
        """Whether there is no other problem than that something depends on the data."""
        return self.on_data.issuperset(self.problems)

    @property
    def certain(self) -> bool:
        """Whether any of the problems is one whatever the sizes of the inputs are."""
        return not self.by_readers.issuperset(self.problems)

    def _is_stuck(self, node: onnx.NodeProto, scope: Scope, question: BaseException | None = None) -> None:
        read = [thing for name in sorted(names.read_by(node)) if isinstance(thing := scope.find(name), Value)]
        met = dims.symbols([(*v.type.shape, *self.sizes.get(v, np.empty(0)).flat) for v in read])
        self.stuck.append(Stuck(self.where(node, scope), tuple(met), question if isinstance(question, Undecided) else None))

    def _reader(self, node: onnx.NodeProto, scope: Scope, things: tuple[Thing, ...]) -> Callable[[], Sequence[Thing]]:
        """What reads a node. ModelError where nothing does, or its schema has no such node."""
        domain = domain_of(node.domain)
        n = Reading(self, scope, node, domain, scope.opsets.get(domain, 0), None, things)
        local = self.functions.get((domain, node.op_type, node.overload))
        if local is not None:
            return partial(self.call, n, local, {})
        reader = READERS.get((domain, node.op_type))
        if not n.opset and (reader is None or not domain):
            raise n.refuse(f"{node.op_type} is of domain {domain or 'ai.onnx'!r}, which the model does not import; its opset_import should list it")
        n = replace(n, schema=schema_of(node.op_type, n.opset, domain))
        if n.schema is not None and n.schema.since_version > n.opset:
            self.warn(f"{n.op} exists from opset {n.schema.since_version} on, but the model imports {n.opset}; "
                      f"read as of {n.schema.since_version} ({self.where(node, scope)})")
            n = replace(n, opset=n.schema.since_version)
        n.verify()
        if reader is not None:
            return partial(self._by, reader, n)
        if n.schema is None:
            raise n.refuse(f"there is no operator {n.op} in domain {domain or 'ai.onnx'!r} at opset {n.opset}; "
                           "if it is an extension, put its meaning into the model as a function")
        return partial(self.body, n)

    def _by(self, reader: Reader, n: Reading) -> tuple[Thing, ...]:
        """The node by its reader; where that would have to know the data, as a foreign step, if its types are known."""
        mark = self.mark()
        try:
            found = reader(n)
        except OnData as reason:
            self.rewind(mark)
            if isinstance(reason, Branches):
                raise
            try:
                return self.foreign(n, {})
            except ModelError:
                raise reason from None
        return found if isinstance(found, tuple) else (found,)

    def body(self, n: Reading) -> tuple[Thing, ...]:
        """The node through the function body that its schema has for it, else as a foreign step."""
        function = onnx_foreign.schema_body(n)
        if function is None:
            return self.foreign(n, {})
        mark = self.mark()
        try:
            return self.call(n, function, {k: a.default_value for k, a in n.schema.attributes.items() if a.default_value.type})
        except Reported:                                   # a part of it cannot be read: the whole may still run
            problems = self.problems[mark[2]:]
            self.rewind(mark)
        try:
            return self.foreign(n, {})
        except ModelError:
            self.problems += problems
            raise Reported from None

    def foreign(self, n: Reading, types: Mapping[int, TensorType]) -> tuple[Thing, ...]:
        """The node as one step of the onnx package; `types` of outputs as far as the reader knows better than the model and onnx."""
        found = onnx_foreign.step(self, n, types)
        if any(v is not None and v not in self.constants for v in found):
            self.foreigners.append(f"{onnx_foreign.title(n)} (node {called(n.node)!r})")
        return found

    def mark(self) -> tuple[int, int, int, int]:
        """Where the program stands, for `rewind`."""
        return len(self.nodes), len(self.foreigners), len(self.problems), len(self.stuck)

    def rewind(self, mark: tuple[int, int, int, int]) -> None:
        """Takes back the nodes written and the problems noted since."""
        del self.nodes[mark[0]:], self.foreigners[mark[1]:], self.problems[mark[2]:], self.stuck[mark[3]:]

    # --- ops of ours

    def emit(self, n: Reading, op: str | Op, inputs: Iterable[Value], attrs: Mapping[str, Any]) -> tuple[Value, ...]:
        """Appends a node, or evaluates it where all its inputs are constants and the result is not out of proportion, or sizes."""
        op, inputs = get(op) if isinstance(op, str) else op, tuple(inputs)
        name, hint = called(n.node), f"{next(filter(None, n.node.output), '')}.{op.name}"
        try:
            complete = op.complete(attrs)
            types = op.infer_types(tuple(v.type for v in inputs), complete)
        except Undecided as e:
            raise n.refuse(f"{e}; {ADVICE}") from e
        except Untyped as e:
            raise OnData(f"{e} ({n.where})") from None
        except (TypeError, ValueError) as e:
            raise n.refuse(str(e)) from None
        constants = self.constants
        depends = bool(dims.symbols((*complete.values(), *(t.shape for t in types))))
        if (depends or op.heavy or onnx_foreign.is_random(n) or any(v not in constants for v in inputs)
                or any(t.size > max((SMALL, *(v.type.size for v in inputs))) for t in types)
                or op.operations(tuple(v.type for v in inputs), types, complete) > WORK):
            sizes, question = None, None
            try:
                sizes = None if depends else self._folded(op, inputs, complete, types[0].dtype)
            except Undecided as e:
                question = e
            if sizes is not None and (types[0].dtype.is_integer or onnx_sizes.numbers(sizes)):
                return (self.sized(sizes, types[0].dtype, n.node),)
            outputs = tuple(Value(t, hint) for t in types)
            self.nodes.append(Node(op, inputs, complete, outputs, name))
            self.makers.update((v, self.nodes[-1]) for v in outputs)
            if question is not None:
                self.questions[outputs[0]] = question
            if sizes is not None:
                self.sizes[outputs[0]] = sizes              # floats of sizes are sizes again when they are rounded
            return outputs
        node = Node(op, inputs, complete, tuple(Value(t, hint) for t in types), name)
        try:
            found = evaluate_node(node, tuple(constants[v] for v in inputs))
        except _RAISED as e:
            raise n.refuse(f"{op.name} of constants failed: {e}") from None
        return tuple(self.hold(np.asarray(a, v.type.dtype.numpy, order="C"), v.name) for a, v in zip(found, node.outputs))

    def ask(self, value: Value, where: str) -> None:
        """Raises the question of what the sizes of a run are, where these alone decide a value and those are known: it is answered for sizes around them."""
        seen, open_values, found = {value}, [] if where in self.silent else [value], list[Undecided]()
        while open_values:
            v = open_values.pop()
            if v in self.questions:
                found.append(self.questions[v])
            elif v in self.makers and self.numbers(v) is None:
                new = [i for i in self.makers[v].inputs if i not in seen]
                seen.update(new)
                open_values += new
            elif self.numbers(v) is None:
                return
        for question in found:
            asked = {s.name for s in dims.symbols(question.difference)}
            if asked and asked <= set(self.told):
                raise question

    def numbers(self, value: Value) -> np.ndarray | None:
        """The array of a constant, or sizes as objects; None for everything else."""
        return self.constants.get(value, self.sizes.get(value))

    def lacks(self, value: Value) -> tuple[str, ...]:
        """The inputs of the model that decide a value which a reader would have to know, and notes them; none where data has a part in it."""
        seen, open_values, found = {value}, [value], list[str]()
        while open_values:
            v = open_values.pop()
            if v in self.constants or v in self.sizes and v not in self.makers:
                continue
            if v in self.inputs:
                if not decides(v.type.dtype, v.type.rank):
                    return ()
                found.append(v.name)
            elif v in self.makers:
                new = [i for i in self.makers[v].inputs if i not in seen]
                seen.update(new)
                open_values += new
            else:
                return ()                                   # of a sequence, or of a body that is read once for all of its turns
        self.lacking.update(dict.fromkeys(sorted(found)))
        return tuple(sorted(found))

    def sized(self, found: np.ndarray, dtype: DType, node: onnx.NodeProto) -> Value:
        """Integers out of sizes: a constant, where all of them are numbers."""
        if onnx_sizes.numbers(found):
            return self.constant(found.astype(dtype.numpy))
        value = Value(TensorType(dtype, found.shape), f"{next(filter(None, node.output), '')}.sizes")
        self.sizes[value] = found
        return value

    def filled(self) -> list[Node]:
        """The nodes that give the values of sizes where the program reads them as data."""
        made, written = [], {v for n in self.nodes for v in n.outputs}
        for v, array in self.sizes.items():
            if v not in written and v.type.dtype.is_integer:
                whole = v if v.type.dtype is I64 else Value(v.type.with_dtype(I64), v.name)
                made.append(Node(get("sizes"), (), {"values": tuple(array.flat), "shape": array.shape}, (whole,), self.names.get(v, "")))
                if whole is not v:
                    made.append(Node(get("cast"), (whole,), get("cast").complete({"to": v.type.dtype}), (v,), self.names.get(v, "")))
        return made

    def _folded(self, op: Op, inputs: Sequence[Value], attrs: Mapping[str, Any], to: DType) -> np.ndarray | None:
        """The result of an op on sizes; None for everything else."""
        held = [a for v in inputs if (a := self.numbers(v)) is not None and a.size <= FEW]
        if len(held) < len(inputs) or not any(v in self.sizes for v in inputs):
            return None
        return onnx_sizes.folded(op, held, attrs, to)

    def constant(self, array: np.ndarray) -> Value:
        """A constant; equal small ones are one."""
        if array.size > 64 or array.dtype.kind in "OUST":
            return self.hold(array, "constant")
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self._small:
            self._small[key] = self.hold(array, "constant")
        return self._small[key]

    def hold(self, array: np.ndarray, name: str) -> Value:
        """A constant of its own."""
        array = array.astype(object) if array.dtype.kind in "UST" else array
        value = Value(TensorType.of(array), name)
        self.constants[value] = array
        return value
