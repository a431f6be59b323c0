"""The program that a rule's own example stands for: its pattern, with something real in the place of every name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pelton.ir.graph import Graph, Node, Value
from pelton.ir.types import BOOL, DType, TensorType
from pelton.ops.memory import copy
from pelton.ops.op import Op, Term

from .draft import Draft
from .pattern import ANY, Attribute, Family, Many, Pattern, Rest, Variable


def draw(type: TensorType, rng: np.random.Generator, low: float, high: float) -> np.ndarray:
    """Random elements of a type, between two numbers (integers and bools as they come)."""
    if type.dtype is BOOL:
        return rng.integers(0, 2, type.shape).astype(bool)
    if type.dtype.is_integer:
        return rng.integers(max(0, int(low)), max(1, int(high)) + 1, type.shape).astype(type.dtype.numpy)
    return rng.uniform(low, high, type.shape).astype(type.dtype.numpy)


class Example:
    """Makes a graph out of terms whose leaves are texts: `f32[2, 3]` is an input, `=f32[2, 3]` a constant, arrays and
    numbers are themselves; `x: f32[2, 3]` is the same input wherever it stands.

    `dtype` takes the place of f32, where given: the algebra of a rule shows best in float64. Constants are drawn from
    0.5 to 2, which suits variances and divisors.
    """

    def __init__(self, seed: int = 0, dtype: DType | None = None):
        self._rng, self._dtype = np.random.default_rng(seed), dtype
        self._inputs: list[Value] = []
        self._named: dict[str, Value] = {}
        self._draft = Draft(Graph((), {}, (), ()))

    def leaf(self, text: str) -> Value:
        name, _, text = text.rpartition(":")
        if name in self._named:
            return self._named[name]
        if self._dtype is not None:
            text = text.replace("f32", self._dtype.value)
        type = TensorType.parse(text.strip().lstrip("="))
        if text.strip().startswith("="):
            return self._draft.constant(draw(type, self._rng, 0.5, 2.0))
        self._inputs.append(Value(type, self._draft.fresh(name or f"x{len(self._inputs)}")))
        # a rule may give back what it met, which no input can replace
        (value,) = self._draft.build(copy(self._inputs[-1]))
        if name:
            self._named[name] = value
        return value

    def fill(self, thing: Any, given: Mapping[str, Any], memo: dict[Any, Any]) -> Any:
        """A pattern or a term of an example, with values for its leaves."""
        if isinstance(thing, str):
            return self.leaf(thing)
        key = thing.name if isinstance(thing, (Variable, Many)) else id(thing)
        if key not in memo:
            memo[key] = self._filled(thing, given, memo), thing  # held, so that its id stays its own
        return memo[key][0]

    def _filled(self, thing: Any, given: Mapping[str, Any], memo: dict[Any, Any]) -> Any:
        if isinstance(thing, Variable):
            return self.fill(given[thing.name], {}, memo)
        if isinstance(thing, Many):
            return tuple(self.fill(part, {}, memo) for part in given[thing.name])
        if isinstance(thing, np.ndarray) and thing.dtype == np.float32 and self._dtype is not None:
            return thing.astype(self._dtype.numpy)
        if not isinstance(thing, Term):
            return thing
        op: Op = thing.op.example if isinstance(thing.op, Family) else thing.op
        args: list[Any] = []
        for a in thing.args:
            filled = self.fill(a, given, memo) if isinstance(a, (Variable, Many, Term, str, np.ndarray)) else a
            args.extend(filled if isinstance(a, Many) else (filled,))
        attrs: dict[str, Any] = {}
        for k, v in thing.attrs.items():
            if isinstance(v, Rest):
                attrs.update((a, given[a]) for a in op.attrs if a in given and a not in thing.attrs)
            elif v is ANY:
                attrs[k] = given[k]
            else:
                attrs[k] = given[v.name] if isinstance(v, Attribute) else v
        return Term(op, tuple(args), attrs)

    def graph(self, term: Any) -> Graph:
        """The program that computes a (filled) term; node k is called `n<k>`."""
        outputs = self._draft.build(term)
        nodes = tuple(Node(n.op, n.inputs, n.attrs, n.outputs, f"n{i}") for i, n in enumerate(self._draft.nodes))
        constants = self._draft.constants
        return Graph(tuple(self._inputs), constants, nodes, outputs)


def program(pattern: Pattern, given: Mapping[str, Any], *, seed: int = 0, dtype: DType | None = None) -> Graph:
    """The program that a pattern is, with what an example gives for its names."""
    made = Example(seed, dtype)
    return made.graph(made.fill(pattern.term, given, {}))
