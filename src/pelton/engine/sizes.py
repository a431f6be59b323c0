"""Engines with dynamic dimensions: resolves the numbers of a plan for one set of sizes.

A number of the plan that depends on the sizes of inputs is a text there, and `EnginePlan.sizes` maps the text to its
expression: a tree of integers, names of symbols, and ["+", …], ["*", …], ["//", a, b], ["%", a, b], ["max", …], ["min",
…].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol

from pelton.errors import InputError

from .plan import UNBOUNDED, Buffer, EnginePlan, Number, Port, Slice, Step, DynamicDimension, Tensor
from .memory import Lifetime, assign

FUNCTIONS: dict[str, Callable[[list[int]], int]] = {
    "+": sum,
    "*": math.prod,
    "max": max,
    "min": min,
    "//": lambda ab: ab[0] // ab[1],
    "%": lambda ab: ab[0] % ab[1],
}
MAX_DEPTH = 200  # levels of a tree


def evaluate(tree: Any, sizes: Mapping[str, int]) -> int:
    """Evaluates a tree; raises KeyError for a symbol without a value, ZeroDivisionError for a division by 0."""
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return sizes[tree]
    return FUNCTIONS[tree[0]]([evaluate(t, sizes) for t in tree[1:]])


def is_well_formed(tree: Any, names: set[str], depth: int = 0) -> bool:
    """Returns True if this is an expression over these symbols."""
    if type(tree) is int:
        return True
    if isinstance(tree, str):
        return tree in names
    if (
        not isinstance(tree, (list, tuple))
        or len(tree) < 2
        or not isinstance(tree[0], str)
        or tree[0] not in FUNCTIONS
        or depth > MAX_DEPTH
    ):
        return False
    if tree[0] in ("//", "%") and len(tree) != 3:
        return False
    return all(is_well_formed(t, names, depth + 1) for t in tree[1:])


class Sized(Protocol):
    """An engine or a script, whose inputs may have dynamic dimensions."""

    @property
    def inputs(self) -> tuple[Port, ...]: ...
    @property
    def symbols(self) -> tuple[DynamicDimension, ...]: ...
    @property
    def sizes(self) -> Mapping[str, Any]: ...


def multiple_of(engine: Sized, d: int | str) -> tuple[str, int]:
    """Returns (symbol, k) if a size of an input is k times a symbol (k is mostly 1), else ("", 1)."""
    tree = engine.sizes.get(d, d) if isinstance(d, str) else d
    if (
        isinstance(tree, (list, tuple))
        and len(tree) == 3
        and tree[0] == "*"
        and type(tree[1]) is int
        and tree[1] > 0
        and isinstance(tree[2], str)
    ):
        return tree[2], tree[1]
    return (tree, 1) if isinstance(tree, str) else ("", 1)


Place = tuple[str, int, int]  # an input, its axis, and the factor of the symbol there


def places(engine: Sized) -> dict[str, Place]:
    """Returns symbol → the first axis of an input that is a multiple of it."""
    first: dict[str, Place] = {}
    for port in engine.inputs:
        for axis, d in enumerate(port.shape):
            name, k = multiple_of(engine, d)
            if name:
                first.setdefault(name, (port.name, axis, k))
    return first


def solve(
    engine: Sized, shapes: Mapping[str, tuple[int, ...]], known: Mapping[str, Place] | None = None
) -> dict[str, int]:
    """Returns symbol → its value for inputs of these shapes, all of the right rank; raises InputError if out of bounds.

    Sizes that are neither symbols nor multiples of one are ignored: callers compare the results of `at` with the shapes
    of the inputs. known: the places of the symbols, for callers that keep them.
    """
    return bounded(engine, _symbols(shapes, places(engine) if known is None else known), shapes)


def _symbols(shapes: Mapping[str, tuple[int, ...]], known: Mapping[str, Place]) -> dict[str, int]:
    """Returns symbol → its value for inputs of these shapes, within its bounds or not."""
    return {symbol: shapes[name][axis] // k for symbol, (name, axis, k) in known.items()}


def bounded(
    engine: Sized, found: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({})
) -> dict[str, int]:
    """Returns symbol → its value in `found`, or its optimum; raises InputError if it is out of its bounds.

    shapes: those of the inputs, for messages.
    """
    sizes = {}
    for s in engine.symbols:
        size = found.get(s.name, s.optimum)
        if not s.minimum <= size <= s.maximum:
            raise InputError(
                f"{_out_of_range(engine, s, size, shapes)}; build the engine for another range with shapes="
            )
        sizes[s.name] = size
    return sizes


def _out_of_range(engine: Sized, s: DynamicDimension, size: int, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Describes the axis of a symbol, its range, and the size that it received."""
    port, axis, k = next(
        (p, i, k)
        for p in engine.inputs
        for i, d in enumerate(p.shape)
        for name, k in [multiple_of(engine, d)]
        if name == s.name
    )
    extent = shapes[port.name][axis] if port.name in shapes else k * size
    return f"axis {axis} of input {port.name!r} ({port.shape[axis]}) may have {_range(s, k)}, got {extent}"


def misfit(engine: Sized, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Describes the first axis that does not fit, with its range and size; "" if there is none, or for other inputs."""
    if shapes.keys() != {p.name for p in engine.inputs} or any(
        len(shapes[p.name]) != len(p.shape) for p in engine.inputs
    ):
        return ""
    values = _symbols(shapes, places(engine))
    for s in engine.symbols:
        size = values.setdefault(s.name, s.optimum)
        if not s.minimum <= size <= s.maximum:
            return _out_of_range(engine, s, size, shapes)
    for port, fit in zip(engine.inputs, ports(engine, values)):
        for axis, (d, wanted, size) in enumerate(zip(port.shape, fit.shape, shapes[port.name])):
            k = multiple_of(engine, d)[1]
            if wanted != size and k > 1 and size % k:
                return f"axis {axis} of input {port.name!r} ({d}) must be a multiple of {k}, got {size}"
            if wanted != size:
                others = " for the other sizes given" if isinstance(d, str) else ""
                return f"axis {axis} of input {port.name!r} ({d}) must be {wanted}{others}, got {size}"
    return ""


def _range(s: DynamicDimension, k: int) -> str:
    maximum = UNBOUNDED if s.maximum >= UNBOUNDED // k else k * s.maximum
    return s.range() if k == 1 else f"multiples of {k}, {replace(s, minimum=k * s.minimum, maximum=maximum).range()}"


def ports(engine: Sized, values: Mapping[str, int]) -> tuple[Port, ...]:
    """Returns the inputs with their shapes for these values of the symbols."""
    return tuple(
        replace(p, shape=tuple(evaluate(engine.sizes[d], values) if isinstance(d, str) else d for d in p.shape))
        for p in engine.inputs
    )


def accepts(engine: Sized, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Returns True if the inputs accept arrays of these shapes."""
    if shapes.keys() != {p.name for p in engine.inputs} or any(
        len(shapes[p.name]) != len(p.shape) for p in engine.inputs
    ):
        return False
    try:
        return all(p.shape == shapes[p.name] for p in ports(engine, solve(engine, shapes)))
    except InputError:
        return False


def optimum_sizes(engine: EnginePlan) -> dict[str, int]:
    """Returns the sizes that the engine was tuned for."""
    return {s.name: s.optimum for s in engine.symbols}


def at(engine: EnginePlan, sizes: Mapping[str, int]) -> EnginePlan:
    """Returns the engine for these values of its symbols, all numbers resolved and memory laid out.

    An engine without symbols is returned unchanged.
    """
    if not engine.symbols:
        return engine
    numbers = {text: evaluate(tree, sizes) for text, tree in engine.sizes.items()}

    def number(n: Number) -> int:
        return numbers[n] if isinstance(n, str) else n

    def shape(ns: tuple[Number, ...]) -> tuple[int, ...]:
        return tuple(map(number, ns))

    def port(p: Port) -> Port:
        return replace(p, shape=shape(p.numbers))

    def place(s: Slice) -> Slice:
        return s if type(s.offset) is int else Slice(s.buffer, number(s.offset))

    def tensor(t: Tensor) -> Tensor:
        return Tensor(place(t.slice), t.dtype, shape(t.shape), shape(t.strides))

    def step(s: Step) -> Step:
        if s.host:
            return replace(s, inputs=tuple(map(tensor, s.inputs)), outputs=tuple(map(tensor, s.outputs)))
        return Step(
            s.name,
            s.symbol,
            tuple(map(place, s.args)),
            shape(s.dims),
            number(s.tiles),
            s.grain,
            s.wave,
            number(s.scratch),
            number(s.phases),
            info={**s.info, **{k: numbers[s.info[k]] for k in ("flops", "bytes") if isinstance(s.info.get(k), str)}},
            outputs=tuple(map(tensor, s.outputs)),
            alternatives=tuple(map(step, s.alternatives)),
        )

    def buffer(b: Buffer) -> Buffer:
        if type(b.size) is int and type(b.offset) is int and not b.values:
            return b  # such as constants
        return Buffer(b.kind, number(b.offset), number(b.size), shape(b.values), b.dtype)

    steps = tuple(map(step, engine.steps))
    buffers = list(map(buffer, engine.buffers))
    offsets, arena = assign({i: Lifetime(int(buffers[i].size), *waves) for i, waves in lives(steps, buffers).items()})
    for i, offset in offsets.items():
        b = buffers[i]
        buffers[i] = Buffer(b.kind, offset, b.size, b.values, b.dtype)
    return replace(
        engine,
        inputs=tuple(map(port, engine.inputs)),
        outputs=tuple(map(port, engine.outputs)),
        buffers=tuple(buffers),
        steps=steps,
        arena=arena,
        symbols=(),
        sizes={},
    )


def lives(steps: Sequence[Step], buffers: Sequence[Buffer]) -> dict[int, tuple[int, int]]:
    """Returns buffer in the arena → the waves of the first and the last step that uses it, alternatives included."""
    waves: dict[int, tuple[int, int]] = {}
    for s in steps:
        for i in {
            *(a.buffer for k in (s, *s.alternatives) for a in k.args),
            *(t.slice.buffer for t in (*s.inputs, *s.outputs)),
        }:
            if buffers[i].kind == "arena":
                waves[i] = (waves[i][0] if i in waves else s.wave, s.wave)
    return dict(sorted(waves.items()))
