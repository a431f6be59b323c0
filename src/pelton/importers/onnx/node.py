"""The interface of an ONNX node to its reader, and the registry of readers that the files of `ops/` fill."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import repeat
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import onnx

from pelton.errors import ModelError
from pelton.importers.reading import ADVICE, ImportRecord, Operands
from pelton.ir import lineage
from pelton.ir.builder import Builder
from pelton.ir.dims import Size, Undecided, is_known
from pelton.ir.expansion import expand_op
from pelton.ir.graph import Value
from pelton.ir.imported import OnData
from pelton.ir.op import Untyped
from pelton.ir.bindings import ValueSequence, Binding, kind_of
from pelton.ir.types import I64, STRING, DType, TensorType
from pelton.ops import Op, get
from pelton.ops.foreign import DTYPES

from .program import Program
from .schemas import Schema, faults, schema_of as schema_of
from .scope import Scope, node_label

MICROSOFT = "com.microsoft"
_RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
MAX_FILLED = 1 << 20  # elements of generated constants


class Reported(Exception):
    """A dependence of a node could not be imported; the problem is recorded already."""


class DataDependentControl(OnData):
    """Control flow, or the number of values, depends on data: a script can run it, a step of an engine cannot."""


class NodeReader(Protocol):
    def __call__(self, n: Reading) -> Binding | tuple[Binding, ...]: ...


class SubgraphTranslator(Protocol):
    """Translates subgraphs and function bodies of nodes."""

    def branch(self, n: Reading, graph: onnx.GraphProto, given: Mapping[str, Binding]) -> tuple[Binding, ...]: ...

    def body(self, n: Reading) -> tuple[Binding, ...]: ...

    def foreign(self, n: Reading, types: Mapping[int, TensorType]) -> tuple[Binding, ...]: ...


READERS: dict[tuple[str, str], NodeReader] = {}
_KNOWN: dict[tuple[str, str], tuple[frozenset[str] | None, int | None]] = {}  # attributes, number of inputs


def reads(
    *ops: str, domain: str = "", attributes: str | None = None, inputs: int | None = None
) -> Callable[[NodeReader], NodeReader]:
    """Declares a function as the reader of ONNX operators; it emits ops and returns a binding per output.

    attributes, inputs: names of the known attributes and number of known inputs; others are refused. None: all of the
    operator's schema.
    """

    def declare(reader: NodeReader) -> NodeReader:
        for op in ops:
            READERS[domain, op] = reader
            _KNOWN[domain, op] = None if attributes is None else frozenset(attributes.split()), inputs
        return reader

    return declare


@dataclass
class Reading(Operands):
    """A node, the bindings of its inputs, and its reader's tools to translate it."""

    program: Program
    translator: SubgraphTranslator
    scope: Scope
    node: onnx.NodeProto
    domain: str
    opset: int
    schema: Schema  # None if the onnx package has none
    bindings: tuple[Binding, ...]

    @property
    def op(self) -> str:
        return self.node.op_type

    @property
    def builder(self) -> Builder:
        """The builder of the graph under construction."""
        return self.program.builder

    @property
    def is_random(self) -> bool:
        return self.op in _RANDOM

    @functools.cached_property
    def attributes(self) -> dict[str, onnx.AttributeProto]:
        return {a.name: a for a in self.node.attribute}

    @property
    def where(self) -> str:
        """The node's location, for messages."""
        return self.program.where(self.node, self.scope)

    @property
    def record(self) -> ImportRecord:
        return self.program

    def refuse(self, reason: str) -> ModelError:
        """Builds the error to raise, with the node's location."""
        return ModelError(f"{reason} ({self.where})")

    def error(self, reason: str) -> ModelError:
        return self.refuse(f"{self.op} {reason}")

    def data_dependent_control(self) -> DataDependentControl:
        """Builds the error to raise if only a script can run the node."""
        return DataDependentControl(f"the operation of {self.op} depends on the data ({self.where})")

    # --- inputs

    def input(self, i: int) -> Value:
        """Returns the i-th input; raises ModelError if it is absent."""
        value = self.optional(i)
        if value is None:
            raise self.refuse(f"{self.op} needs input {i}")
        return value

    def optional(self, i: int) -> Value | None:
        binding = self.bindings[i] if i < len(self.bindings) else None
        if binding is not None and not isinstance(binding, Value):
            raise self.refuse(f"{self.op} needs a tensor as input {i}, got {kind_of(binding)}")
        return binding

    def items(self, i: int) -> tuple[Value, ...]:
        binding = self.bindings[i] if i < len(self.bindings) else None
        if not isinstance(binding, ValueSequence):
            raise self.refuse(f"{self.op} needs a sequence as input {i}")
        known = tuple(v for v in binding.values if v is not None)
        if len(known) < len(binding.values):
            raise OnData(
                f"{self.op} needs parts of a sequence with data-dependent sizes; fix the model's sizes ({self.where})"
            )
        return known

    def length(self, i: int) -> int:
        """Returns the number of values of a sequence."""
        binding = self.bindings[i] if i < len(self.bindings) else None
        return len(binding.values) if isinstance(binding, ValueSequence) else len(self.items(i))

    @property
    def inputs(self) -> tuple[Value, ...]:
        """All inputs of an operator without optional ones."""
        return tuple(self.input(i) for i in range(len(self.bindings)))

    def value(self, binding: Binding) -> Value:
        """Returns a binding that must be a tensor; raises ModelError if it is not."""
        if not isinstance(binding, Value):
            raise self.refuse(f"{self.op} needs tensors, got {kind_of(binding)}")
        return binding

    def known(self, value: Value | None) -> np.ndarray | None:
        """Returns the array of a constant; None for other values."""
        array = None if value is None else self.builder.constants.get(value)
        lineage.read(array)
        return array

    def elements(self, i: int) -> np.ndarray | None:
        array = self.builder.elements(self.input(i))
        lineage.read(array)
        return array

    def operand(self, i: int) -> Value:
        return self.input(i)

    def note_deciding_inputs(self, i: int) -> None:
        """Records that the value of input i would avoid a foreign step."""
        self.program.note_deciding_inputs(self.input(i))

    def some_integers(self, i: int, what: str) -> tuple[Size, ...] | None:
        """Does `integers` for an optional input; None if it is absent."""
        return None if self.optional(i) is None else self.integers(i, what)

    def is_output_used(self, i: int) -> bool:
        """True if a node or an output of the graph uses the i-th output."""
        return i < len(self.node.output) and bool(self.node.output[i]) and self.node.output[i] in self.scope.used_names

    def declared(self) -> dict[int, TensorType]:
        """Returns the model's declared types of this node's outputs."""
        known = self.scope.declared
        return {i: known[name] for i, name in enumerate(self.node.output) if name in known}

    # --- attributes

    def attr(self, name: str, default: Any = None) -> Any:
        """Returns the value of an attribute: the node's, else the schema's default, else `default`."""
        proto = self.attributes.get(name)
        if proto is None and self.schema is not None and name in self.schema.attributes:
            standard = self.schema.attributes[name].default_value
            proto = standard if standard.type else None
        if proto is None:
            return default
        return attribute(proto)

    def flag(self, name: str, default: int = 0) -> bool:
        return bool(self.attr(name, default))

    # --- output

    def emit(self, op: str | Op, *inputs: Value, **attrs: Any) -> Value:
        """Emits an op with one output; folds constant inputs."""
        (value,) = self.emit_all(op, *inputs, **attrs)
        return value

    def emit_all(self, op: str | Op, *inputs: Value, **attrs: Any) -> tuple[Value, ...]:
        """Emits an op with any number of outputs; folds constant inputs."""
        op = get(op) if isinstance(op, str) else op
        try:
            # ops that are decomposed later are named after the last op of their expansion
            last = expand_op(op, inputs, op.complete(attrs)).nodes[-1].op if op.stepwise else op
            hint = f"{next(filter(None, self.node.output), '')}.{last.name}"
            return self.builder.emit(
                op, inputs, attrs, names=repeat(hint), node_name=node_label(self.node), random=self.is_random
            )
        except Undecided as e:
            raise self.refuse(f"{e}; {ADVICE}") from e
        except Untyped as e:
            raise OnData(f"{e} ({self.where})") from None
        except (TypeError, ValueError) as e:
            raise self.refuse(str(e)) from None

    def branch(self, graph: onnx.GraphProto, given: Mapping[str, Binding]) -> tuple[Binding, ...]:
        """Inlines a nested graph and returns the bindings of its outputs."""
        return self.translator.branch(self, graph, given)

    def body(self) -> tuple[Binding, ...]:
        """Translates the node by the function body of its schema, else as a foreign step."""
        return self.translator.body(self)

    def foreign(self, types: Mapping[int, TensorType] = MappingProxyType({})) -> tuple[Binding, ...]:
        """Translates the node as a step that the onnx package runs; `types` overrides declared types of outputs."""
        return self.translator.foreign(self, types)

    def constant(self, array: Any, dtype: DType | None = None) -> Value:
        return self.builder.shared_constant(np.asarray(array, dtype.numpy if dtype else None))

    def like(self, value: Value, number: float) -> Value:
        """Returns a scalar of the element type of `value`; 0 is the empty string. Raises ModelError for other numbers
        among strings."""
        if value.type.dtype is not STRING:
            return self.constant(number, value.type.dtype)
        if number:
            raise self.refuse(f"{self.node.op_type} of strings has the number {number:g} among them")
        return self.constant("", STRING)

    def sizes(self, found: Any) -> Value:
        """Returns sizes as i64: a constant, or a value that is computed from dynamic dimensions at run time."""
        return self.builder.from_sizes(np.asarray(found, object), I64, next(filter(None, self.node.output), ""))

    def filled(self, number: float, shape: tuple[Size, ...], dtype: DType) -> Value:
        """Returns a tensor filled with one number."""
        few = is_known(*shape) and math.prod(shape) <= MAX_FILLED
        return self.constant(np.full(shape, number), dtype) if few else self.expand(self.constant(number, dtype), shape)

    def count(self, size: Size, dtype: DType = I64) -> Value:
        """Returns 0, 1, … size − 1."""
        return (
            self.constant(np.arange(size), dtype)
            if is_known(size) and size <= MAX_FILLED
            else self.emit("iota", size=size, dtype=dtype)
        )

    def reshape(self, x: Value, shape: Iterable[Size]) -> Value:
        shape = tuple(shape)
        if is_known(*shape, *x.type.shape) and math.prod(shape) != x.type.size:
            raise self.refuse(f"{self.op} cannot reshape {x.type} to {list(shape)}, of another number of elements")
        return x if shape == x.type.shape else self.emit("reshape", x, shape=shape)

    def transpose(self, x: Value, perm: Iterable[int]) -> Value:
        perm = tuple(perm)
        return x if perm == tuple(range(x.type.rank)) else self.emit("transpose", x, perm=perm)

    def cast(self, x: Value, to: DType) -> Value:
        return x if x.type.dtype is to else self.emit("cast", x, to=to)

    def expand(self, x: Value, shape: tuple[Size, ...]) -> Value:
        return x if shape == x.type.shape else self.emit("expand", x, shape=shape)

    def slice(self, x: Value, axis: int, start: Size, end: Size) -> Value:
        return (
            x
            if (start, end) == (0, x.type.shape[axis])
            else self.emit("slice", x, starts=(start,), ends=(end,), axes=(axis,), steps=(1,))
        )

    # --- checks

    def axis(self, axis: int, rank: int, what: str = "an axis") -> int:
        """Normalizes an axis to count from the front; raises ModelError if it is out of range."""
        return super().axis(axis, rank, what) if rank or axis else 0  # a scalar has an axis 0 too

    def dtype(self, code: int) -> DType:
        if code not in DTYPES:
            names = {v: k for k, v in onnx.TensorProto.DataType.items()}
            raise self.refuse(f"{self.op} asks for element type {names.get(code, code)}, which is not supported")
        return DTYPES[code]

    def verify(self) -> None:
        """Checks inputs and attributes against the schema and the reader's knowledge; raises ModelError."""
        attributes, inputs = _KNOWN.get((self.domain, self.op), (None, None))
        for fault in faults(self.schema, self.node, len(self.bindings), attributes, inputs):
            raise self.refuse(fault)


def attribute(found: onnx.AttributeProto) -> Any:
    """Returns the value of an attribute: text decoded, lists as tuples, tensors and graphs unchanged."""
    value = onnx.helper.get_attribute_value(found)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if found.type == onnx.AttributeProto.STRINGS:
        return tuple(v.decode("utf-8", "replace") for v in value)
    return tuple(value) if isinstance(value, (list, Mapping)) or found.type in _LISTS else value


_LISTS = {onnx.AttributeProto.FLOATS, onnx.AttributeProto.INTS, onnx.AttributeProto.TENSORS, onnx.AttributeProto.GRAPHS}
