"""Patterns: programs with variables, traced from a function and matched against a graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pelton.ir.graph import Node, Value
from pelton.ops.op import REQUIRED, Op, Term

from .draft import Draft


@dataclass(frozen=True)
class Variable:
    """A variable that matches any value; at all its occurrences the same one."""

    name: str


@dataclass(frozen=True)
class Many:
    """A variable that matches all further inputs of an op (`concat(*xs)`)."""

    name: str


@dataclass(frozen=True)
class Attribute:
    """A variable that matches any value of an attribute; at all its occurrences equal ones."""

    name: str


@dataclass(frozen=True)
class Rest:
    """A variable that matches all attributes that the pattern does not name (`**conv`)."""

    name: str


@dataclass(frozen=True)
class Family:
    """Matches any op of a kind; a rule reads the actual one from `node`. Examples use `example` instead."""

    kind: str
    example: Op

    def __call__(self, *args, **attrs) -> Term:
        return Term(self, args, attrs)  # type: ignore[arg-type]

    @property
    def name(self) -> str:
        return f"any {self.kind} op"


class _Any:
    def __repr__(self) -> str:
        return "ANY"


# any value of an attribute, bound under the attribute's own name
ANY = _Any()


@dataclass(frozen=True, eq=False)
class Applied:
    """An op applied to patterns, compared by identity: a term used twice in a pattern is one node of the graph."""

    op: Op | Family
    args: tuple
    attrs: tuple[tuple[str, Any], ...]
    rest: bool

    @property
    def orders(self) -> tuple[tuple, ...]:
        swapped = isinstance(self.op, Op) and self.op.commutative and len(self.args) == 2
        return (self.args, self.args[::-1]) if swapped else (self.args,)


@dataclass(frozen=True)
class Pattern:
    """A traced pattern: its root, the function's term, the bound names, and those without a default."""

    root: Applied
    term: Term
    names: frozenset[str]
    required: frozenset[str]


Bound = dict[Any, Any]  # name → value, tuple of values or attribute; Applied → the value that it matched


def trace(fn: Callable) -> Pattern:
    """Traces a pattern function by calling it with variables for its parameters.

    Parameters with a default keep it (they capture variables of loops). Keyword-only parameters are attributes, `*xs`
    all further inputs, and `**rest` the attributes that the term does not name, except those whose default is None:
    these must be absent. Without `**rest`, unnamed attributes must have their defaults. Raises TypeError if the
    function returns no Term, or a term leaves out an attribute without a default.
    """
    args: list[Any] = []
    attrs: dict[str, Any] = {}
    for p in inspect.signature(fn).parameters.values():
        if p.default is not p.empty:
            continue
        if p.kind is p.VAR_KEYWORD:
            attrs["**" + p.name] = Rest(p.name)
        elif p.kind is p.KEYWORD_ONLY:
            attrs[p.name] = Attribute(p.name)
        elif p.kind is p.VAR_POSITIONAL:
            args.append(Many(p.name))
        else:
            args.append(Variable(p.name))
    term = fn(*args, **attrs)
    if not isinstance(term, Term):
        raise TypeError(f"a pattern must return a term, not {term!r}")
    names: dict[str, bool] = {}
    root = _compile(term, names, {})
    return Pattern(root, term, frozenset(names), frozenset(n for n, required in names.items() if required))


def _compile(term: Term, names: dict[str, bool], memo: dict[int, Applied]) -> Applied:
    if id(term) in memo:
        return memo[id(term)]
    args = tuple(_compile(a, names, memo) if isinstance(a, Term) else a for a in term.args)
    names.update((a.name, True) for a in args if isinstance(a, (Variable, Many)))
    named = {k: v for k, v in term.attrs.items() if not isinstance(v, Rest)}
    rest = len(named) < len(term.attrs)
    if isinstance(term.op, Op) and not rest:
        for k, default in term.op.attrs.items():
            if named.setdefault(k, default) is REQUIRED:
                raise TypeError(f"the pattern must set {term.op.name}'s {k}: a value, ANY, or **rest")
    elif isinstance(term.op, Op):
        for k, default in term.op.attrs.items():
            if default is None:
                named.setdefault(k, None)
        names.update((k, default is REQUIRED) for k, default in term.op.attrs.items() if k not in named)
    expected = tuple((k, Attribute(k) if v is ANY else v) for k, v in named.items())
    names.update((v.name, True) for _, v in expected if isinstance(v, Attribute))
    memo[id(term)] = Applied(term.op, args, expected, rest)
    return memo[id(term)]


def matches(pattern: Applied, node: Node, draft: Draft, bound: Bound | None = None) -> Iterator[Bound]:
    """Yields all matches of a pattern with this node as root, as bindings."""
    bound = _attributes(pattern, node, {} if bound is None else bound)
    if bound is None:
        return
    if pattern.args and isinstance(pattern.args[-1], Many):
        fixed, many = pattern.args[:-1], pattern.args[-1].name
        if len(node.inputs) >= len(fixed):
            for b in _arguments(fixed, node.inputs[: len(fixed)], node, draft, bound):
                yield {**b, many: node.inputs[len(fixed) :]}
    elif len(pattern.args) == len(node.inputs):
        for args in pattern.orders:
            yield from _arguments(args, node.inputs, node, draft, bound)


def _attributes(pattern: Applied, node: Node, bound: Bound) -> Bound | None:
    if node.op is not pattern.op and not (isinstance(pattern.op, Family) and node.op.kind == pattern.op.kind):
        return None
    if not pattern.attrs and not pattern.rest:
        return bound
    bound = dict(bound)
    for name, expected in pattern.attrs:
        actual = node.attrs[name]
        if isinstance(expected, Attribute):
            expected = bound.setdefault(expected.name, actual)
        if expected != actual:
            return None
    if pattern.rest:
        named = {name for name, _ in pattern.attrs}
        for name, actual in node.attrs.items():
            if name not in named and bound.setdefault(name, actual) != actual:
                return None
    return bound


def _arguments(patterns: tuple, values: tuple[Value, ...], node: Node, draft: Draft, bound: Bound) -> Iterator[Bound]:
    if not patterns:
        yield bound
        return
    first, value = patterns[0], values[0]
    for b in _argument(first, value, draft, bound):
        yield from _arguments(patterns[1:], values[1:], node, draft, b)


def _argument(pattern: Any, value: Value, draft: Draft, bound: Bound) -> Iterator[Bound]:
    if isinstance(pattern, Variable):
        known = bound.get(pattern.name)
        if known is None:
            yield {**bound, pattern.name: value}
        elif known is value or _equal_numbers(draft.constants.get(known), draft.constants.get(value)):
            yield bound
    elif isinstance(pattern, Applied):
        matched = bound.get(pattern)
        if matched is not None:
            if matched is value:
                yield bound
            return
        node = draft.producer.get(value)
        if node is not None and len(node.outputs) == 1:
            for b in matches(pattern, node, draft, bound):
                yield {**b, pattern: value}
    elif is_number(draft.constants.get(value), pattern):
        yield bound


def is_number(array: np.ndarray | None, number: float) -> bool:
    """True if a constant is this number: exactly for plain ones (1, 0.5, 6), within rounding for others (√½).

    Only constants of rank 0 are numbers: they never change the shape of other operands (made so by the rule `numbers`).
    """
    if array is None or array.ndim or (array.dtype.kind == "b") != isinstance(number, bool):
        return False
    if array.dtype.kind in "iub" or float(np.float16(number)) == number:
        return bool(array == number)
    try:
        return abs(float(array) - number) <= 8 * abs(number) * _epsilon(array.dtype)
    except (TypeError, ValueError):  # strings and complex numbers
        return False


def _equal_numbers(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    """True if two constants are the same number; larger equal constants are one value already (by the pass `equal`)."""
    return (
        one is not None
        and other is not None
        and one.ndim == other.ndim == 0
        and one.dtype == other.dtype
        and one.item() == other.item()
    )


def _epsilon(dtype: np.dtype) -> float:
    if dtype.kind == "f":
        # written-out decimals seldom have more than nine digits
        return max(float(np.finfo(dtype).eps), 2.0**-26)
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).eps)
