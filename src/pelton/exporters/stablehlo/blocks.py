"""Blocks of StableHLO operations: the text of a function or of a region, written in order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from pelton.ir.graph import Node, Value
from pelton.ir.types import BOOL, DType, TensorType, broadcast_shapes

from .literals import dense, element, integers, pairs, quoted, tensor

ALIKE = 64  # elements up to which equal constants of a block are shared


@dataclass(frozen=True, eq=False)
class SsaValue:
    """A value of the text. `array`: its elements, if it is a constant."""

    name: str
    type: TensorType
    array: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype


@dataclass
class Record:
    """What all blocks of a module share: the count of values, operands, and layers without a form."""

    numbers: Iterator[int] = field(default_factory=count)
    layer: str = ""
    read: set[str] = field(default_factory=set)  # names of operands
    problems: list[tuple[Node, str]] = field(default_factory=list)


Operands = Sequence[SsaValue]
_STATEMENT = re.compile(r'^ *%\w+(?::\d+)? = "stablehlo\.', re.M)


class Operations:
    """The operations of one block. Its constants come first, so that writers may be tried and taken back."""

    def __init__(self, record: Record, depth: int = 2):
        self.record, self.depth = record, depth
        self.head = ""  # its arguments
        self.constants: list[SsaValue] = []  # become text when it is written, if an operation reads them
        self.body: list[str] = []
        self.values: dict[Value, SsaValue] = {}
        self.arrays: dict[Value, np.ndarray] = {}
        self._alike: dict[Any, SsaValue] = {}

    # --- values and constants

    def value(self, value: Value) -> SsaValue:
        """Returns a value of the program; constants are written when they are read."""
        if value not in self.values:
            self.values[value] = self.constant(self.arrays[value])
        return self.values[value]

    def constant(self, array: Any, dtype: DType | None = None) -> SsaValue:
        """Writes a constant, shared with equal ones of this block if it is small or all its elements are equal."""
        array = np.asarray(array, None if dtype is None else dtype.numpy)
        type = TensorType.of(array)
        splat = array.size > 0 and not any(array.strides)
        key: Any = None
        if splat or array.size <= ALIKE:
            key = (type, splat, array.reshape(-1)[:1].tobytes() if splat else array.tobytes())
            if key in self._alike:
                return self._alike[key]
        made = SsaValue(f"%c{next(self.record.numbers)}", type, array)
        self.constants.append(made)
        if key is not None:
            self._alike[key] = made
        return made

    def full(self, number: Any, like: SsaValue | TensorType) -> SsaValue:
        """Returns a tensor of equal numbers."""
        type = like.type if isinstance(like, SsaValue) else like
        return self.constant(np.broadcast_to(np.asarray(number).astype(type.dtype.numpy), type.shape))

    # --- operations

    def op(
        self,
        name: str,
        operands: Operands,
        results: Sequence[TensorType],
        attrs: Mapping[str, str] | None = None,
        regions: Sequence[Operations] = (),
    ) -> tuple[SsaValue, ...]:
        """Writes an operation and returns its results."""
        indent, number = "  " * self.depth, next(self.record.numbers)
        self.record.read.update(x.name for x in operands)
        left = f"%{number}" + (f":{len(results)}" if len(results) > 1 else "")
        inner = ", ".join("{\n" + "".join(r.text()) + indent + "}" for r in regions)
        inside = ", ".join(f"{k} = {v}" for k, v in (attrs or {}).items())
        types = ", ".join(tensor(x.type) for x in operands)
        to = ", ".join(tensor(t) for t in results)
        line = f'{indent}{left} = "stablehlo.{name}"({", ".join(x.name for x in operands)})'
        line += (f" ({inner})" if regions else "") + (f" {{{inside}}}" if inside else "")
        line += f" : ({types}) -> {to if len(results) == 1 else f'({to})'}"
        line += f" loc({quoted(self.record.layer)})" if self.record.layer else ""
        self.body.append(line + "\n")
        if len(results) == 1:
            return (SsaValue(f"%{number}", results[0]),)
        return tuple(SsaValue(f"%{number}#{i}", t) for i, t in enumerate(results))

    def one(
        self, name: str, operands: Operands, result: TensorType, attrs: Mapping[str, str] | None = None
    ) -> SsaValue:
        return self.op(name, operands, [result], attrs)[0]

    def region(self, types: Sequence[TensorType] = ()) -> tuple[Operations, list[SsaValue]]:
        """Returns a new block with arguments of these types, for a region of an operation."""
        inner = Operations(self.record, self.depth + 1)
        arguments = [SsaValue(f"%a{next(self.record.numbers)}", t) for t in types]
        if arguments:
            inside = ", ".join(f"{a.name}: {tensor(a.type)}" for a in arguments)
            inner.head = f"{'  ' * (inner.depth - 1)}^bb0({inside}):\n"
        return inner, arguments

    def finish(self, results: Operands, terminator: str = "stablehlo.return") -> None:
        """Ends the block with its results."""
        self.record.read.update(r.name for r in results)
        names, types = ", ".join(r.name for r in results), ", ".join(tensor(r.type) for r in results)
        self.body.append(f'{"  " * self.depth}"{terminator}"({names}) : ({types}) -> ()\n')

    def text(self) -> Iterator[str]:
        """Yields the text of the block in pieces."""
        yield self.head
        for c in self._needed():
            text = tensor(c.type)
            yield f'{"  " * self.depth}{c.name} = "stablehlo.constant"() {{value = '
            yield dense(c.array)  # type: ignore[arg-type]
            yield f" : {text}}} : () -> {text}\n"
        yield from self.body

    def _needed(self) -> list[SsaValue]:
        return [c for c in self.constants if c.name in self.record.read]

    def count(self) -> int:
        """Counts the operations of the block and of its regions, without those that return."""
        counted = sum(len(_STATEMENT.findall(line)) for line in self.body)
        return counted + len(self._needed())

    # --- elements

    def unary(self, name: str, x: SsaValue) -> SsaValue:
        return self.one(name, [x], x.type)

    def binary(self, name: str, a: SsaValue | float, b: SsaValue | float) -> SsaValue:
        """Writes an operation of two tensors, which broadcast; numbers take the other's type."""
        x, y = self.together(a, b)
        return self.one(name, [x, y], x.type)

    def together(self, *operands: SsaValue | float) -> list[SsaValue]:
        """Broadcasts operands to one shape; numbers take the element type of the first tensor."""
        tensors = [x for x in operands if isinstance(x, SsaValue)]
        shape = broadcast_shapes(*(x.shape for x in tensors))
        like = TensorType(tensors[0].dtype, shape)
        return [self.broadcast(x, shape) if isinstance(x, SsaValue) else self.full(x, like) for x in operands]

    def add(self, a: SsaValue | float, b: SsaValue | float) -> SsaValue:
        return self.binary("add", a, b)

    def subtract(self, a: SsaValue | float, b: SsaValue | float) -> SsaValue:
        return self.binary("subtract", a, b)

    def multiply(self, a: SsaValue | float, b: SsaValue | float) -> SsaValue:
        return self.binary("multiply", a, b)

    def divide(self, a: SsaValue | float, b: SsaValue | float) -> SsaValue:
        return self.binary("divide", a, b)

    def compare(self, direction: str, a: SsaValue | float, b: SsaValue | float) -> SsaValue:
        """Writes a comparison: EQ, NE, LT, LE, GT or GE."""
        x, y = self.together(a, b)
        signed = "SIGNED" if x.dtype.is_signed else "UNSIGNED"
        kind = "FLOAT" if x.dtype.is_float else signed
        attrs = {
            "comparison_direction": f"#stablehlo<comparison_direction {direction}>",
            "compare_type": f"#stablehlo<comparison_type {kind}>",
        }
        return self.one("compare", [x, y], x.type.with_dtype(BOOL), attrs)

    def select(self, condition: SsaValue, a: SsaValue | float, b: SsaValue | float) -> SsaValue:
        x, y = self.together(a, b)
        shape = broadcast_shapes(condition.shape, x.shape)
        operands = [self.broadcast(v, shape) for v in (condition, x, y)]
        return self.one("select", operands, operands[1].type)

    def clamp(self, x: SsaValue, low: float, high: float) -> SsaValue:
        like = TensorType(x.dtype)
        return self.one("clamp", [self.full(low, like), x, self.full(high, like)], x.type)

    def convert(self, x: SsaValue, to: DType) -> SsaValue:
        """Converts elements; writers take care of values that the type does not hold."""
        if x.dtype is to:
            return x
        if x.array is not None and x.array.size == 1 and to.bits >= 8 and to.value[:2] not in ("f8", "f6"):
            return self.constant(x.array.astype(to.numpy))
        return self.one("convert", [x], x.type.with_dtype(to))

    # --- shapes

    def broadcast(self, x: SsaValue, shape: Sequence[int]) -> SsaValue:
        """Broadcasts as numpy does."""
        shape = tuple(shape)
        return self.spread(x, shape, range(len(shape) - len(x.shape), len(shape)))

    def spread(self, x: SsaValue, shape: Sequence[int], axes: Sequence[int]) -> SsaValue:
        """Broadcasts x, whose axis i becomes axis axes[i] of the result."""
        type = TensorType(x.dtype, tuple(shape))
        if x.type == type:
            return x
        if x.array is not None and x.array.size == 1:
            return self.full(x.array.reshape(()), type)
        return self.one("broadcast_in_dim", [x], type, {"broadcast_dimensions": integers(axes)})

    def reshape(self, x: SsaValue, shape: Sequence[int]) -> SsaValue:
        type = TensorType(x.dtype, tuple(shape))
        return x if x.type == type else self.one("reshape", [x], type)

    def transpose(self, x: SsaValue, perm: Sequence[int]) -> SsaValue:
        if list(perm) == list(range(len(perm))):
            return x
        return self.one("transpose", [x], x.type.with_shape(x.shape[p] for p in perm), {"permutation": integers(perm)})

    def slice(self, x: SsaValue, axis: int, start: int, end: int, step: int = 1) -> SsaValue:
        """Slices one axis; a step is positive."""
        n = x.shape[axis]
        if (start, end, step) == (0, n, 1):
            return x
        starts, limits, steps = [0] * len(x.shape), list(x.shape), [1] * len(x.shape)
        starts[axis], limits[axis], steps[axis] = start, end, step
        shape = (*x.shape[:axis], max(0, -(-(end - start) // step)), *x.shape[axis + 1 :])
        attrs = {"start_indices": integers(starts), "limit_indices": integers(limits), "strides": integers(steps)}
        return self.one("slice", [x], TensorType(x.dtype, shape), attrs)

    def reverse(self, x: SsaValue, axes: Sequence[int]) -> SsaValue:
        return self.one("reverse", [x], x.type, {"dimensions": integers(axes)}) if axes else x

    def concatenate(self, xs: Operands, axis: int) -> SsaValue:
        if len(xs) == 1:
            return xs[0]
        shape = list(xs[0].shape)
        shape[axis] = sum(x.shape[axis] for x in xs)
        return self.one("concatenate", xs, TensorType(xs[0].dtype, tuple(shape)), {"dimension": f"{axis} : i64"})

    def pad(
        self, x: SsaValue, value: SsaValue | float, sides: Sequence[tuple[int, int]], between: Sequence[int] = ()
    ) -> SsaValue:
        """Pads both sides of each axis, and `between` elements; negative pads crop."""
        between = between or [0] * len(sides)
        if not any(a or b for a, b in sides) and not any(between):
            return x
        shape = (n + a + b + max(0, n - 1) * k for n, (a, b), k in zip(x.shape, sides, between))
        number = value if isinstance(value, SsaValue) else self.full(value, TensorType(x.dtype))
        attrs = {
            "edge_padding_low": integers(a for a, _ in sides),
            "edge_padding_high": integers(b for _, b in sides),
            "interior_padding": integers(between),
        }
        return self.one("pad", [x, self.reshape(number, ())], TensorType(x.dtype, tuple(shape)), attrs)

    def iota(self, shape: Sequence[int], axis: int, dtype: DType) -> SsaValue:
        """Returns the index along an axis."""
        element(dtype)
        return self.one("iota", [], TensorType(dtype, tuple(shape)), {"iota_dimension": f"{axis} : i64"})

    # --- sums

    def reduce(self, kind: str, x: SsaValue, axes: Sequence[int], start: float) -> SsaValue:
        """Combines the elements along axes, which disappear, by an operation of two numbers."""
        if not axes:
            return x
        type = TensorType(x.dtype, tuple(n for i, n in enumerate(x.shape) if i not in axes))
        inner = self._combination(kind, x.dtype)
        operands = [x, self.full(start, TensorType(x.dtype))]
        return self.op("reduce", operands, [type], {"dimensions": integers(sorted(axes))}, [inner])[0]

    def reduce_window(
        self,
        kind: str,
        x: SsaValue,
        start: float,
        window: Sequence[int],
        strides: Sequence[int],
        dilations: Sequence[int],
        sides: Sequence[tuple[int, int]],
    ) -> SsaValue:
        """Combines the elements of each window; padding is `start`. All sequences have one entry for each axis."""
        shape = (
            (n + a + b - (k - 1) * d - 1) // s + 1
            for n, k, s, d, (a, b) in zip(x.shape, window, strides, dilations, sides)
        )
        attrs = {
            "window_dimensions": integers(window),
            "window_strides": integers(strides),
            "base_dilations": integers([1] * len(window)),
            "window_dilations": integers(dilations),
            "padding": pairs(sides),
        }
        operands = [x, self.full(start, TensorType(x.dtype))]
        type = TensorType(x.dtype, tuple(shape))
        return self.op("reduce_window", operands, [type], attrs, [self._combination(kind, x.dtype)])[0]

    def _combination(self, kind: str, dtype: DType) -> Operations:
        inner, (a, b) = self.region([TensorType(dtype)] * 2)
        inner.finish([inner.one(kind, [a, b], a.type)])
        return inner
