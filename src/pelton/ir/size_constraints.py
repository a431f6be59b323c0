"""Constraints on unspecified sizes for models that cannot be read for all of them: bounds, multiples, numbers."""

from __future__ import annotations

import keyword
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from . import dims
from .dims import UNBOUNDED, Atom, SizeFunction, Dim, Size, Symbol, Undecided
from .dims_text import substituted
from .graph import unique

MAX_MINIMUM = 1024  # largest lower bound to try for a size
MAX_STEP = 1024  # largest number to try as a divisor of a size
MAX_ATTEMPTS = 12  # questions of one node about unspecified sizes, after which they become numbers


class Range(NamedTuple):
    """The bounds of a dynamic dimension, and the size that programs are tuned for."""

    minimum: int
    optimum: int
    maximum: int = UNBOUNDED

    def text(self) -> str:
        """Returns the bounds as written in messages."""
        return f"{self.minimum} to {self.maximum}" if self.maximum < UNBOUNDED else f"{self.minimum} or more"

    def __str__(self) -> str:
        return f"{self.minimum}..{self.optimum}..{self.maximum if self.maximum < UNBOUNDED else ''}"


@dataclass(frozen=True)
class UndecidedNode:
    """An unreadable node: where it is, the symbols in its operands, and the undecided question."""

    where: str
    symbols: tuple[Symbol, ...]
    question: Undecided | None
    conditional: bool = False  # True if it is in a graph that only some runs take


@dataclass(frozen=True)
class SizeRequirement:
    """A requirement of all runs whose inputs have `shapes`: sizes that are 0 ("=") or not below 0 (">="). `why` names
    the node that cannot be read otherwise."""

    shapes: Mapping[str, tuple[Size, ...]]
    needed: tuple[Size, ...]
    relation: str
    why: str


@dataclass(frozen=True)
class SizeConstraint:
    """The replacement of an unspecified size: narrower bounds, a number, or an expression of others; and the node that
    required it. With a `step`, it is that many times another size with the name `multiple(name, step)`."""

    size: Range | int | str
    why: str
    given_up: bool = False  # True if the number is arbitrary: another one might also work
    step: int = 1


def identifier(text: str, taken: Container[str]) -> str:
    """Returns a symbol name, as close to the text as possible."""
    hint = re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_") or "size"
    if hint[0].isdigit():
        hint = f"n_{hint}"
    elif keyword.iskeyword(hint) or hint in ("max", "min", "mod"):
        hint = f"{hint}_"
    return unique(hint, taken)


def multiple(name: str, step: int) -> str:
    """Returns the name of the size that times `step` is the size `name`."""
    return f"{name}_by_{step}"


def constrain(
    stuck: Sequence[UndecidedNode],
    open: Mapping[str, Symbol | None],
    observed: Collection[str] = (),
    numbers: bool = False,
) -> dict[str, SizeConstraint]:
    """Maps symbols to constraints that let an import pass its undecided nodes; empty if none would help.

    A constraint is bounds that decide the question, an equation of two sizes, or a multiple, else the optimum as a
    number. open: the unspecified sizes. observed: those whose optimum is the size of a run, which must remain possible.
    numbers: constrain to numbers only.
    """
    for s in stuck:
        q, asked = s.question, list[Symbol]()
        constraints: Mapping[str, SizeConstraint] = {}
        if q is not None:
            asked = sorted(
                (x for x in dims.symbols(q.difference) if x.name in open), key=lambda x: [*open].index(x.name)
            )
            constraints = {} if numbers else _answered(q, asked, observed, s.where)
        if constraints:
            return dict(constraints)
        fixed = _fewest(q, asked) if q is not None and asked else [x for x in s.symbols if x.name in open]
        if fixed:
            return {x.name: SizeConstraint(x.optimum, s.where, given_up=True) for x in fixed}
    return (
        {name: SizeConstraint(x.optimum, stuck[0].where, given_up=True) for name, x in open.items() if x is not None}
        if stuck
        else {}
    )


def admissible(q: Undecided) -> dict[str, Range]:
    """Returns bounds of the sizes, whatever they are now, within which the question's need holds; empty if neither
    lower nor upper bounds alone decide it."""
    difference = substituted(q.difference, {x.name: dims.symbol(x.name) for x in dims.symbols(q.difference)})
    return _narrowed(difference, [*dims.symbols(difference)], _not_below, ())


def _answered(
    q: Undecided, asked: Sequence[Symbol], observed: Collection[str], where: str
) -> dict[str, SizeConstraint]:
    """Returns the constraints that decide a question without fixing sizes to one of several possible numbers."""
    known = any(x.name in observed for x in asked)
    if q.relation == "=" and (not known or dims.optimum(q.difference) == 0):
        difference = _primitive(q.difference)
        asked = [x for x in asked if x in dims.symbols(difference)]
        solution: Mapping[str, Range | int | str] = _solved(difference, asked)
        return (
            {name: SizeConstraint(size, where) for name, size in solution.items()}
            or _multiples(difference, asked, observed, where)
            or {name: SizeConstraint(size, where) for name, size in _pinned(difference, asked, observed).items()}
        )
    holds = _signed
    if q.relation == "=":
        holds = _unequal
    elif q.relation and not (known and dims.optimum(q.difference) < 0):
        holds = _not_below
    return {name: SizeConstraint(size, where) for name, size in _narrowed(q.difference, asked, holds, observed).items()}


def _unequal(low: int, high: int) -> bool:
    return low > 0 or high < 0


def _not_below(low: int, high: int) -> bool:
    return low >= 0


def _signed(low: int, high: int) -> bool:
    return low > 0 or high <= 0


def _fewest(q: Undecided, asked: Sequence[Symbol]) -> list[Symbol]:
    """Returns one of the sizes if fixing it decides the question, else all of them."""
    for x in reversed(asked):
        low, high = dims.bounds(substituted(q.difference, {x.name: x.optimum}))
        if low == high or (_unequal if q.relation == "=" else _signed)(low, high):
            return [x]
    return list(asked)


def _primitive(difference: Size) -> Size:
    """Removes the factors that are never 0 from a difference: it is 0 exactly where the rest is."""
    terms = difference.terms if isinstance(difference, Dim) else ()
    common = Counter(terms[0][0]) if terms else Counter[Atom]()
    for m, _ in terms:
        common &= Counter(m)
    factor: Size = math.prod(
        Dim([((atom,), 1)]) for atom in common.elements() if dims.bounds(Dim([((atom,), 1)]))[0] >= 1
    )
    primitive = dims.exact(difference, factor) if isinstance(factor, Dim) else None
    return difference if primitive is None else primitive


def _solved(difference: Size, asked: Sequence[Symbol]) -> dict[str, int | str]:
    """Returns a symbol, and its value that makes the difference 0: a number before other sizes, later symbols before
    earlier ones."""
    solution: dict[str, int | str] = {}
    terms = difference.terms if isinstance(difference, Dim) else ()
    for x in reversed(asked):  # a · x + b = 0
        a = sum(Dim([(tuple(y for y in m if y != x), c)]) if len(m) > 1 else c for m, c in terms if m.count(x) == 1)
        b = difference - a * dims.symbol(x.name, x.minimum, x.optimum, x.maximum)
        size = None if x in dims.symbols((a, b)) or not a else dims.exact(-b, a)
        if isinstance(size, int) and x.minimum <= size <= x.maximum:
            return {x.name: size}
        if isinstance(size, Dim) and dims.bounds(size)[0] >= 0:
            solution = solution or {x.name: str(size)}
    return solution


def _multiples(
    difference: Size, asked: Sequence[Symbol], observed: Collection[str], where: str
) -> dict[str, SizeConstraint]:
    """Returns a symbol, and the least divisor of it that makes the difference 0: a size halved five times and doubled
    five times is unchanged if 32 divides it."""
    for x in asked:
        for step in _steps(_divisors(difference, x)):
            if x.name in observed and x.optimum % step:
                continue
            bounds = Range(-(-max(x.minimum, 1) // step), max(round(x.optimum / step), 1), x.maximum // step)
            if not bounds.minimum <= bounds.optimum <= bounds.maximum:
                continue
            if dims.bounds(substituted(difference, {x.name: step * dims.symbol(x.name, *bounds)})) == (0, 0):
                return {x.name: SizeConstraint(bounds, where, step=step)}
    return {}


def _pinned(difference: Size, asked: Sequence[Symbol], observed: Collection[str]) -> dict[str, Range]:
    """Returns the bounds of a symbol within which the difference is 0, if there are any: a pool of six has one window
    in a length of 6 to 11."""
    for x in asked:
        if len(dims.symbols(difference)) > 1:
            continue
        near = (
            [x.optimum]
            if x.name in observed
            else [x.optimum, *range(x.minimum, min(x.minimum + MAX_MINIMUM, x.maximum) + 1)]
        )
        at = next((n for n in near if dims.at(difference, {x.name: n}) == 0), None)
        if at is None:
            continue

        def decided(low: int, high: int, x: Symbol = x) -> bool:
            return dims.bounds(
                substituted(difference, {x.name: dims.symbol(x.name, low, low, high) if low < high else low})
            ) == (0, 0)

        low = _first(lambda n, at=at: decided(n, at), x.minimum - 1, at)  # type: ignore[misc]
        high = -_first(lambda n, low=low: decided(low, -n), -x.maximum - 1, -at)  # type: ignore[misc]
        if low < high:
            return {x.name: Range(low, min(max(x.optimum, low), high), high)}
    return {}


def _divisors(size: Size, x: Symbol) -> set[int]:
    """Returns the divisors of quotients whose operand contains a symbol."""
    divisors = set[int]()
    for m, _ in size.terms if isinstance(size, Dim) else ():
        for atom in m:
            if isinstance(atom, SizeFunction) and x in dims.symbols(atom.args):
                divisors.update(*(_divisors(a, x) for a in atom.args))
                if atom.fn == "floordiv" and isinstance(atom.args[1], int):
                    divisors.add(atom.args[1])
    return divisors


def _steps(divisors: Iterable[int]) -> list[int]:
    """Returns the products of some numbers, the smaller ones first."""
    products = {1}
    for d in sorted(x for x in divisors if x > 1):
        for n in sorted(products):
            while n * d <= MAX_STEP:
                n *= d
                products.add(n)
    return sorted(products - {1})


def _narrowed(
    difference: Size, asked: Sequence[Symbol], holds: Callable[[int, int], bool], observed: Collection[str]
) -> dict[str, Range]:
    """Returns bounds of one symbol, else of all together, within which the difference's bounds are as wanted; around
    the usual sizes if possible."""

    def decided(bounds: Mapping[str, Range]) -> bool:
        return holds(*dims.bounds(substituted(difference, {name: dims.symbol(name, *r) for name, r in bounds.items()})))

    def raised(xs: Sequence[Symbol], n: int) -> dict[str, Range]:
        return {x.name: Range(max(n, x.minimum), max(n, x.optimum), max(n, x.maximum)) for x in xs}

    def lowered(xs: Sequence[Symbol], n: int) -> dict[str, Range]:
        return {x.name: Range(min(n, x.minimum), min(n, x.optimum), min(n, x.maximum)) for x in xs}

    def possible(xs: Sequence[Symbol], bounds: Mapping[str, Range]) -> bool:
        return all(bounds[x.name].optimum == x.optimum for x in xs if x.name in observed)

    each = [[x] for x in asked] + ([list(asked)] if len(asked) > 1 else [])
    for xs, far in [*((xs, max(x.optimum for x in xs)) for xs in each), *((xs, MAX_MINIMUM) for xs in each)]:
        if possible(xs, raised(xs, far)) and decided(raised(xs, far)):
            return raised(xs, _first(lambda n, xs=xs: decided(raised(xs, n)), 0, far))  # type: ignore[misc]
    for xs, far in [
        *((xs, max(x.optimum for x in xs)) for xs in each),
        *((xs, max(x.minimum for x in xs)) for xs in each),
    ]:
        if possible(xs, lowered(xs, far)) and decided(lowered(xs, far)):
            largest = -_first(lambda n, xs=xs: decided(lowered(xs, -n)), -dims.UNBOUNDED, -far)  # type: ignore[misc]
            return lowered(xs, largest)
    return {}


def _first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Returns the first number for which a condition holds: false for `low`, true for `high`, switching once."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
