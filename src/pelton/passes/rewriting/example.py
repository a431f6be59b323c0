"""Builds the program of a rule's example: the pattern with values for all of its variables."""

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
    """Draws random elements of a type, between two numbers (integers and bools as they come)."""
    if type.dtype is BOOL:
        return rng.integers(0, 2, type.shape).astype(bool)
    if type.dtype.is_integer:
        return rng.integers(max(0, int(low)), max(1, int(high)) + 1, type.shape).astype(type.dtype.numpy)
    return rng.uniform(low, high, type.shape).astype(type.dtype.numpy)


class ExampleBuilder:
    """Builds a graph from terms with texts, arrays or numbers as leaves.

    `f32[2, 3]` is an input, `=f32[2, 3]` a constant, and `x: f32[2, 3]` one input wherever it occurs. `dtype`, if set,
    replaces f32: float64 shows the algebra of a rule best. Constants are drawn from 0.5 to 2, which suits variances and
    divisors.
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
        # a rule may return a variable itself, and an input cannot replace a graph output
        (value,) = self._draft.build(copy(self._inputs[-1]))
        if name:
            self._named[name] = value
        return value

    def fill(self, term: Any, given: Mapping[str, Any], memo: dict[Any, Any]) -> Any:
        """Fills the leaves of a pattern or term with the values of an example."""
        if isinstance(term, str):
            return self.leaf(term)
        key = term.name if isinstance(term, (Variable, Many)) else id(term)
        if key not in memo:
            memo[key] = self._fill(term, given, memo), term  # kept alive, so that its id stays unique
        return memo[key][0]

    def _fill(self, term: Any, given: Mapping[str, Any], memo: dict[Any, Any]) -> Any:
        if isinstance(term, Variable):
            return self.fill(given[term.name], {}, memo)
        if isinstance(term, Many):
            return tuple(self.fill(part, {}, memo) for part in given[term.name])
        if isinstance(term, np.ndarray) and term.dtype == np.float32 and self._dtype is not None:
            return term.astype(self._dtype.numpy)
        if not isinstance(term, Term):
            return term
        op: Op = term.op.example if isinstance(term.op, Family) else term.op
        args: list[Any] = []
        for a in term.args:
            filled = self.fill(a, given, memo) if isinstance(a, (Variable, Many, Term, str, np.ndarray)) else a
            args.extend(filled if isinstance(a, Many) else (filled,))
        attrs: dict[str, Any] = {}
        for k, v in term.attrs.items():
            if isinstance(v, Rest):
                attrs.update((a, given[a]) for a in op.attrs if a in given and a not in term.attrs)
            elif v is ANY:
                attrs[k] = given[k]
            else:
                attrs[k] = given[v.name] if isinstance(v, Attribute) else v
        return Term(op, tuple(args), attrs)

    def graph(self, term: Any) -> Graph:
        """Returns the program that computes a (filled) term; node k is called `n<k>`."""
        outputs = self._draft.build(term)
        nodes = tuple(Node(n.op, n.inputs, n.attrs, n.outputs, f"n{i}") for i, n in enumerate(self._draft.nodes))
        constants = self._draft.constants
        return Graph(tuple(self._inputs), constants, nodes, outputs)


def program(pattern: Pattern, given: Mapping[str, Any], *, seed: int = 0, dtype: DType | None = None) -> Graph:
    """Builds the program of a pattern with the example's values for its variables."""
    builder = ExampleBuilder(seed, dtype)
    return builder.graph(builder.fill(pattern.term, given, {}))
