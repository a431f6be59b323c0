"""One ONNX node as its reader sees it, and the table of readers that every file of `ops/` adds to."""
from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import onnx

from pelton.errors import ModelError
from pelton.ir.dims import Dim, Size, is_known
from pelton.ir.graph import Value
from pelton.ir.types import I64, DType, TensorType
from pelton.ops.foreign import DTYPES
from pelton.ops.op import Op

from pelton.importers.imported import OnData

if TYPE_CHECKING:
    from .translate import Program
    from .scope import Scope

MICROSOFT = "com.microsoft"
FILLED = 1 << 20                       # elements that a constant made of nothing may have
Schema = Any                           # onnx.defs.OpSchema, of which the stubs of onnx lack half, or None


@dataclass(frozen=True)
class Items:
    """An ONNX sequence: it exists while importing only, as a list of values. None stands for one whose size depends on the data: it counts, that is all."""

    values: tuple[Value | None, ...]


@dataclass(frozen=True)
class Entries:
    """An ONNX map that is an input: its keys and its values, as many of each."""

    keys: Value
    values: Value


@dataclass(frozen=True)
class Rows:
    """A sequence of ONNX maps: one per row of a matrix, with a key per column. Only outputs are that."""

    matrix: Value
    keys: tuple[str, ...] | tuple[int, ...]


class Reported(Exception):
    """What is needed could not be read, and that has been noted already."""


class Branches(OnData):
    """What the data decides is what runs, or how much of it there is: a script can do that, one step of an engine cannot."""


Thing = Value | Items | Entries | Rows | None            # what a name stands for; None is an absent optional


def kind_of(thing: Thing) -> str:
    """What it is, for people."""
    return {Value: "a tensor", Entries: "a map", type(None): "an absent optional"}.get(type(thing), "a sequence")


class Reader(Protocol):
    def __call__(self, n: Reading) -> Thing | tuple[Thing, ...]: ...


READERS: dict[tuple[str, str], Reader] = {}


def reads(*ops: str, domain: str = "") -> Callable[[Reader], Reader]:
    """Declares a function as the reader of ONNX ops: it emits our ops and gives a thing per output."""
    def declare(reader: Reader) -> Reader:
        for op in ops:
            READERS[domain, op] = reader
        return reader
    return declare


@functools.cache
def schema_of(op: str, opset: int, domain: str) -> Schema:
    """The schema in force at an opset, else the oldest there is (an op used before its time), else None."""
    try:
        return onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError:
        history = [s for s in onnx.defs.get_all_schemas_with_history() if (s.name, s.domain) == (op, domain)]
        return min(history, key=lambda s: s.since_version, default=None)


@dataclass
class Reading:
    """A node, its inputs as things of our program, and what its reader needs to translate it."""

    program: Program
    scope: Scope
    node: onnx.NodeProto
    domain: str
    opset: int
    schema: Schema                     # None where the onnx package has none
    things: tuple[Thing, ...]

    @property
    def op(self) -> str:
        return self.node.op_type

    @functools.cached_property
    def attributes(self) -> dict[str, onnx.AttributeProto]:
        return {a.name: a for a in self.node.attribute}

    @property
    def where(self) -> str:
        """What messages say of the node's place."""
        return self.program.where(self.node, self.scope)

    def refuse(self, reason: str) -> ModelError:
        """The error to raise; says where."""
        return ModelError(f"{reason} ({self.where})")

    def branches(self) -> Branches:
        """The error to raise where a script has to do it."""
        return Branches(f"what {self.op} does depends on the data ({self.where})")

    # --- inputs

    def input(self, i: int) -> Value:
        """The i-th input; refuses where it is absent."""
        value = self.optional(i)
        if value is None:
            raise self.refuse(f"{self.op} needs input {i}")
        return value

    def optional(self, i: int) -> Value | None:
        thing = self.things[i] if i < len(self.things) else None
        if thing is not None and not isinstance(thing, Value):
            raise self.refuse(f"{self.op} needs a tensor as input {i}, got {kind_of(thing)}")
        return thing

    def items(self, i: int) -> tuple[Value, ...]:
        thing = self.things[i] if i < len(self.things) else None
        if not isinstance(thing, Items):
            raise self.refuse(f"{self.op} needs a sequence as input {i}")
        known = tuple(v for v in thing.values if v is not None)
        if len(known) < len(thing.values):
            raise OnData(f"{self.op} needs the parts of a sequence whose sizes depend on the data; give the model fixed sizes ({self.where})")
        return known

    def length(self, i: int) -> int:
        """How many values a sequence has."""
        thing = self.things[i] if i < len(self.things) else None
        return len(thing.values) if isinstance(thing, Items) else len(self.items(i))

    @property
    def inputs(self) -> tuple[Value, ...]:
        """All inputs of an op that has no optional ones."""
        return tuple(self.input(i) for i in range(len(self.things)))

    def value(self, thing: Thing) -> Value:
        """A thing that has to be a tensor."""
        if not isinstance(thing, Value):
            raise self.refuse(f"{self.op} needs tensors, got {kind_of(thing)}")
        return thing

    def known(self, value: Value | None) -> np.ndarray | None:
        """The array of a constant, None for everything else."""
        return None if value is None else self.program.constants.get(value)

    def numbers(self, i: int, what: str) -> np.ndarray:
        """The constant that input i has to be, or sizes as objects."""
        array = self.program.numbers(self.input(i))
        if array is None:
            self.program.asked.append(self.input(i))
            inputs = self.program.lacks(self.input(i))
            reason = (f"on {_inputs(inputs)} of the model; give what it is with values={{{inputs[0]!r}: ...}}" if inputs else
                      "on the data; give the model fixed sizes, or declare the shapes of its outputs")
            raise OnData(f"{self.op} needs a constant as its {what}, but it depends {reason} ({self.where})", inputs)
        return array

    def lacks(self, i: int) -> None:
        """Notes that knowing input i would spare a foreign step."""
        self.program.lacks(self.input(i))

    def integers(self, i: int, what: str) -> tuple[Size, ...]:
        """A constant input as integers, or sizes."""
        return tuple(d if isinstance(d, Dim) else int(d) for d in self.numbers(i, what).reshape(-1))

    def some_integers(self, i: int, what: str) -> tuple[Size, ...] | None:
        """The same for an input that may be absent."""
        return None if self.optional(i) is None else self.integers(i, what)

    def wants(self, i: int) -> bool:
        """Whether anybody reads the i-th output."""
        return i < len(self.node.output) and bool(self.node.output[i]) and self.node.output[i] in self.scope.wanted

    def declared(self) -> dict[int, TensorType]:
        """The types that the model itself states for outputs of this node."""
        known = self.scope.declared
        return {i: known[name] for i, name in enumerate(self.node.output) if name in known}

    # --- attributes

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute as Python: the node's, else the schema's default, else `default`."""
        found = self.attributes.get(name)
        if found is None and self.schema is not None and name in self.schema.attributes:
            standard = self.schema.attributes[name].default_value
            found = standard if standard.type else None
        if found is None:
            return default
        return attribute(found)

    def flag(self, name: str, default: int = 0) -> bool:
        return bool(self.attr(name, default))

    # --- output

    def emit(self, op: str | Op, *inputs: Value, **attrs: Any) -> Value:
        """One application of an op with one output; evaluated at once where all inputs are constants."""
        (value,) = self.emit_all(op, *inputs, **attrs)
        return value

    def emit_all(self, op: str | Op, *inputs: Value, **attrs: Any) -> tuple[Value, ...]:
        return self.program.emit(self, op, inputs, attrs)

    def foreign(self, types: Mapping[int, TensorType] = MappingProxyType({})) -> tuple[Thing, ...]:
        """The whole node as one step run by the onnx package; `types` of outputs as far as the reader knows better."""
        return self.program.foreign(self, types)

    def constant(self, array: Any, dtype: DType | None = None) -> Value:
        return self.program.constant(np.asarray(array, dtype.numpy if dtype else None))

    def like(self, value: Value, number: float) -> Value:
        """A scalar of the element type of `value`."""
        return self.constant(number, value.type.dtype)

    def sizes(self, found: Any) -> Value:
        """Sizes as i64: a constant, or a value that is known when the program runs."""
        return self.program.sized(np.asarray(found, object), I64, self.node)

    def filled(self, number: float, shape: tuple[Size, ...], dtype: DType) -> Value:
        """One number everywhere."""
        few = is_known(*shape) and math.prod(shape) <= FILLED
        return self.constant(np.full(shape, number), dtype) if few else self.expand(self.constant(number, dtype), shape)

    def count(self, size: Size, dtype: DType = I64) -> Value:
        """0, 1, … size − 1."""
        return self.constant(np.arange(size), dtype) if is_known(size) and size <= FILLED else self.emit("iota", size=size, dtype=dtype)

    def reshape(self, x: Value, shape: Iterable[Size]) -> Value:
        shape = tuple(shape)
        if is_known(*shape, *x.type.shape) and math.prod(shape) != x.type.size:
            raise self.refuse(f"{self.op} would have to make {list(shape)} of {x.type}, which has another number of elements")
        return x if shape == x.type.shape else self.emit("reshape", x, shape=shape)

    def transpose(self, x: Value, perm: Iterable[int]) -> Value:
        perm = tuple(perm)
        return x if perm == tuple(range(x.type.rank)) else self.emit("transpose", x, perm=perm)

    def cast(self, x: Value, to: DType) -> Value:
        return x if x.type.dtype is to else self.emit("cast", x, to=to)

    def expand(self, x: Value, shape: tuple[Size, ...]) -> Value:
        return x if shape == x.type.shape else self.emit("expand", x, shape=shape)

    def slice(self, x: Value, axis: int, start: Size, end: Size) -> Value:
        return x if (start, end) == (0, x.type.shape[axis]) else self.emit("slice", x, starts=(start,), ends=(end,), axes=(axis,), steps=(1,))

    # --- checks

    def axis(self, axis: int, rank: int) -> int:
        """The axis counted from the front; refuses where it is outside."""
        if not -rank <= axis < max(rank, 1):
            raise self.refuse(f"{self.op} needs an axis between {-rank} and {rank - 1}, got {axis}")
        return axis % max(rank, 1)

    def axes(self, axes: Iterable[int], rank: int) -> tuple[int, ...]:
        found = tuple(sorted(self.axis(a, rank) for a in axes))
        if len(set(found)) < len(found):
            raise self.refuse(f"{self.op} needs different axes, got {list(found)}")
        return found

    def dtype(self, code: int) -> DType:
        if code not in DTYPES:
            names = {v: k for k, v in onnx.TensorProto.DataType.items()}
            raise self.refuse(f"{self.op} asks for element type {names.get(code, code)}, which is not supported")
        return DTYPES[code]

    def verify(self) -> None:
        """Inputs and attributes against the schema; refuses what a reader could not read."""
        schema = self.schema
        if schema is None:
            return
        low, high = schema.min_input, schema.max_input
        if not low <= len(self.things) <= high:
            counts = f"{low}" if low == high else f"{low} to {high}" if high < 2**30 else f"{low} and more"
            raise self.refuse(f"{self.op} needs {counts} inputs, got {len(self.things)}")
        for name, spec in schema.attributes.items():
            given = self.attributes.get(name)
            if given is None and spec.required:
                raise self.refuse(f"{self.op} needs attribute {name!r}")
            if given is not None and given.type != spec.type.value:
                raise self.refuse(f"{self.op} needs attribute {name!r} as {spec.type.name}, got {onnx.AttributeProto.AttributeType.Name(given.type)}")
        for name in self.attributes.keys() - schema.attributes.keys():
            self.program.warn(f"{self.op} has no attribute {name!r}; ignored ({self.where})")


def _inputs(names: tuple[str, ...]) -> str:
    return ("input " if len(names) == 1 else "inputs ") + " and ".join(map(repr, names))


def attribute(found: onnx.AttributeProto) -> Any:
    """An attribute's value: text decoded, lists as tuples, tensors and graphs as they are."""
    value = onnx.helper.get_attribute_value(found)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if found.type == onnx.AttributeProto.STRINGS:
        return tuple(v.decode("utf-8", "replace") for v in value)
    return tuple(value) if isinstance(value, (list, Mapping)) or found.type in _LISTS else value


_LISTS = {onnx.AttributeProto.FLOATS, onnx.AttributeProto.INTS, onnx.AttributeProto.TENSORS, onnx.AttributeProto.GRAPHS}
