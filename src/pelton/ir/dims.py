"""Dynamic dimensions: integer expressions over named sizes with bounds, in a canonical form.

A size is an int where it is known, else a Dim: a polynomial with integer coefficients over atoms, which are named
sizes, and quotients, maxima and minima that do not simplify (a remainder is written with a quotient). Equal expressions
compare and hash equal; unequal ones are *not known to be equal*. Comparisons that the bounds do not decide raise
Undecided, and so does everything that needs a number (`range`, `int`, numpy): no size silently becomes a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .dims_atoms import FAR, UNBOUNDED, Atom, Monomial, Size, SizeFunction, Symbol, Whole, cancel
from .dims_bounds import bounds

__all__ = ["UNBOUNDED", "Atom", "Monomial", "Size", "SizeFunction", "Symbol", "bounds"]  # defined below this file


class Undecided(ValueError):
    """A question whose answer depends on dynamic dimensions: the sign of a difference. `relation` to 0 is the caller's
    requirement: "=", ">=", or "" for any. All of `needed` have that relation to 0 in every run that the caller can
    serve; empty if the caller has an alternative."""

    def __init__(self, message: str, difference: Size = 0, relation: str = "", needed: tuple[Size, ...] = ()):
        super().__init__(message)
        self.difference, self.relation, self.needed = difference, relation, needed

    def reworded(self, message: str) -> Undecided:
        """Returns the same question with another message."""
        return Undecided(message, self.difference, self.relation, self.needed)


class Dim(Whole):
    """A size known only at run time, built from symbols by arithmetic, which returns an int where it is constant."""

    __slots__ = ("terms", "_hash", "_bounds")

    def __init__(self, terms: Iterable[tuple[Monomial, int]]):
        self.terms: tuple[tuple[Monomial, int], ...] = tuple(terms)
        self._hash = hash(self.terms)
        self._bounds: tuple[int, int] | None = None

    @property
    def is_factor(self) -> bool:
        """True if the text of the Dim needs no parentheses as an operand."""
        return (
            len(self.terms) == 1
            and self.terms[0][1] == 1
            and len(self.terms[0][0]) == 1
            and not (isinstance(self.terms[0][0][0], SizeFunction) and self.terms[0][0][0].fn == "floordiv")
        )

    @staticmethod
    def from_terms(terms: Mapping[Monomial, int]) -> Size:
        return from_terms(terms)

    @staticmethod
    def sum_of(sizes: Iterable[Size]) -> Size:
        return sum_of(sizes)

    def split_multiples(self, b: Size) -> tuple[Size, Size]:
        return split_multiples(self, b)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __bool__(self) -> bool:
        return True  # as `!= 0`: not known to be zero

    def __add__(self, other: Size) -> Size:
        return sum_of((self, other)) if isinstance(other, (int, Dim)) else NotImplemented

    def __neg__(self) -> Dim:
        return Dim((m, -c) for m, c in self.terms)

    def __pos__(self) -> Dim:
        return self

    def __sub__(self, other: Size) -> Size:
        return sum_of((self, -other)) if isinstance(other, (int, Dim)) else NotImplemented

    def __rsub__(self, other: int) -> Size:
        return sum_of((-self, other)) if isinstance(other, int) else NotImplemented

    def __mul__(self, other: Size) -> Size:
        return product_of(self, other) if isinstance(other, (int, Dim)) else NotImplemented

    def __floordiv__(self, other: Size) -> Size:
        return floordiv(self, other) if isinstance(other, (int, Dim)) else NotImplemented

    def __rfloordiv__(self, other: int) -> Size:
        return floordiv(other, self) if isinstance(other, int) else NotImplemented

    def __mod__(self, other: Size) -> Size:
        return mod(self, other) if isinstance(other, (int, Dim)) else NotImplemented

    def __rmod__(self, other: int) -> Size:
        return mod(other, self) if isinstance(other, int) else NotImplemented

    __radd__, __rmul__ = __add__, __mul__

    def __lt__(self, other: Size) -> bool:
        return _less(self, other, "<")

    def __gt__(self, other: Size) -> bool:
        return _less(other, self, ">", self)

    def __le__(self, other: Size) -> bool:
        return not _less(other, self, "<=", self)

    def __ge__(self, other: Size) -> bool:
        return not _less(self, other, ">=")

    def __int__(self) -> int:
        raise Undecided(f"the size {self} is known only when the program runs")

    def __truediv__(self, other: object) -> float:
        raise Undecided(f"the divided size {self} is known only at run time")

    __index__, __rtruediv__ = __int__, __truediv__

    def __abs__(self) -> Size:
        return self if self >= 0 else -self

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        parts = []
        for monomial, c in sorted(self.terms, key=lambda t: (-len(t[0]), list(map(str, t[0])))):
            factors = [
                f"({a})"
                if isinstance(a, SizeFunction) and a.fn == "floordiv" and (len(monomial) > 1 or c != 1)
                else str(a)
                for a in monomial
            ]
            if abs(c) != 1 or not factors:
                factors.insert(0, str(abs(c)))
            parts.append(("-" if c < 0 else "+", "*".join(factors)))
        text = " ".join(f"{sign} {term}" for sign, term in parts)
        return text[2:] if text.startswith("+ ") else "-" + text[2:]


def symbol(name: str, minimum: int = 1, optimum: int = 1, maximum: int = UNBOUNDED) -> Size:
    """Creates the named size, or an int if its bounds are equal.

    Raises ValueError unless 0 <= minimum <= optimum <= maximum and the name is an identifier.
    """
    if not name.isidentifier() or name in ("max", "min", "mod"):
        raise ValueError(f"{name!r} is no name for a size; use letters, digits and _, without a digit in front")
    if not 0 <= minimum <= optimum <= maximum:
        raise ValueError(
            f"the bounds of {name} must be minimum ≤ optimum ≤ maximum, got {minimum}..{optimum}..{maximum}"
        )
    return minimum if minimum == maximum else Dim((((Symbol(name, minimum, optimum, maximum),), 1),))


# --- arithmetic


def from_terms(terms: Mapping[Monomial, int]) -> Size:
    kept = {m: c for m, c in terms.items() if c}
    if kept.keys() <= {()}:
        return kept.get((), 0)
    # no real model needs this, and it would grow without end
    if len(kept) > 256 or any(len(m) > 32 or abs(c) > FAR for m, c in kept.items()):
        raise Undecided("a size has more than 256 terms or 32 factors; fix it")
    return Dim(sorted(kept.items(), key=lambda t: (len(t[0]), list(map(str, t[0])))))


def terms_of(x: Size) -> Iterable[tuple[Monomial, int]]:
    return x.terms if isinstance(x, Dim) else (((), int(x)),)


def sum_of(xs: Iterable[Size]) -> Size:
    total: dict[Monomial, int] = {}
    for x in xs:
        for m, c in terms_of(x):
            total[m] = total.get(m, 0) + c
    return from_terms(total)


def product_of(a: Size, b: Size) -> Size:
    total: dict[Monomial, int] = {}
    for m, c in terms_of(a):
        for n, d in terms_of(b):
            both = tuple(sorted((*m, *n), key=str))
            total[both] = total.get(both, 0) + c * d
    return from_terms(total)


def _less(a: Size, b: Size, sign: str, first: Size | None = None) -> bool:
    """Returns a < b, by the bounds of the difference."""
    low, high = bounds(b - a)
    if low > 0:
        return True
    if high <= 0:
        return False
    left, right = (a, b) if first is None or first is a else (b, a)
    raise Undecided(f"{left} {sign} {right} depends on dynamic dimensions", b - a)


def equal(a: Size, b: Size) -> bool:
    """Returns True if two sizes are equal; raises Undecided if that depends on a run (`==` is False there)."""
    low, high = bounds(a - b)
    if low <= 0 <= high and low < high:
        raise Undecided(f"{a} = {b} depends on dynamic dimensions", a - b, "=")
    return low == high == 0


def split_multiples(a: Size, b: Size) -> tuple[Size, Size]:
    """Returns (quotient, rest): the terms of a that b divides, divided by b, and the other terms.

    If b has several terms, the quotient is zero unless b divides a as a whole.
    """
    parts = list(terms_of(b))
    if len(parts) > 1:
        quotient = exact(a, b)
        return (0, a) if quotient is None else (quotient, 0)
    ((by, k),) = parts
    even: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for m, c in terms_of(a):
        others = cancel(m, by)
        if others is not None and c % k == 0:
            even[others] = even.get(others, 0) + c // k
        else:
            rest[m] = c
    return from_terms(even), from_terms(rest)


def exact(a: Size, b: Size) -> Size | None:
    """Returns q with q · b = a, by long division, or None."""
    lead, k = list(terms_of(b))[-1]
    q: Size = 0
    while a:
        m, c = list(terms_of(a))[-1]
        factor = cancel(m, lead)
        if factor is None or c % k:
            return None
        part = from_terms({factor: c // k})
        q, a = q + part, a - part * b
    return q


def floordiv(a: Size, b: Size) -> Size:
    """Returns ⌊a / b⌋ for b ≥ 1."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if not b >= 1:
        raise Undecided(f"{a} is divided by {b}, which may not be positive")
    quotient, rest = split_multiples(a, b)
    low, high = bounds(rest)
    if isinstance(b, int) and low // b == high // b:
        return quotient + low // b
    if low >= 0 and high < bounds(b)[0]:
        return quotient
    if isinstance(b, int):
        if isinstance(rest, Dim):
            constant = dict(rest.terms).get((), 0)
            whole = constant // b
            quotient, rest = quotient + whole, rest - whole * b
            if isinstance(rest, Dim) and rest.terms[-1][1] < 0:  # ⌊−a / b⌋ = −⌈a / b⌉ = −⌊(a + b − 1) / b⌋
                return quotient - floordiv(b - 1 - rest, b)
            shared = math.gcd(b, *(c for m, c in terms_of(rest) if m))
            if isinstance(rest, Dim) and shared > 1:  # ⌊(4a + 3) / 6⌋ = ⌊(2a + 1) / 3⌋
                return quotient + floordiv(from_terms({m: c // shared for m, c in rest.terms}), b // shared)
        if isinstance(rest, Dim) and len(rest.terms) == 1 and rest.terms[0][1] == 1 and len(rest.terms[0][0]) == 1:
            (atom,) = rest.terms[0][0]
            if isinstance(atom, SizeFunction) and atom.fn == "floordiv" and isinstance(atom.args[1], int):
                return quotient + floordiv(atom.args[0], atom.args[1] * b)
    return quotient + Dim((((SizeFunction("floordiv", (rest, b)),), 1),))


def mod(a: Size, b: Size) -> Size:
    """Returns a − ⌊a / b⌋ · b for b ≥ 1."""
    return a % b if isinstance(a, int) and isinstance(b, int) else a - floordiv(a, b) * b


def maximum(*sizes: Size) -> Size:
    """Returns the largest of some sizes."""
    return _extreme("max", sizes)


def minimum(*sizes: Size) -> Size:
    """Returns the smallest of some sizes."""
    return _extreme("min", sizes)


def _extreme(fn: str, sizes: tuple[Size, ...]) -> Size:
    """Returns the maximum or minimum, without sizes that another one provably dominates."""
    kept: list[Size] = []
    for x in dict.fromkeys(sizes):

        def dominates(y: Size, x: Size = x) -> bool:
            low, high = bounds(y - x)
            return low >= 0 if fn == "max" else high <= 0

        if any(map(dominates, kept)):
            continue
        kept = [y for y in kept if not (bounds(y - x)[1] <= 0 if fn == "max" else bounds(y - x)[0] >= 0)] + [x]
    return kept[0] if len(kept) == 1 else Dim((((SizeFunction(fn, tuple(sorted(kept, key=str))),), 1),))


# --- bounds


def is_known(*sizes: Size) -> bool:
    """True if all of the sizes are numbers."""
    return not any(isinstance(s, Dim) for s in sizes)


# --- numbers for symbols

_FUNCTIONS: dict[str, Callable[..., int]] = {"floordiv": lambda a, b: a // b, "max": max, "min": min}


def at(x: Size, sizes: Mapping[str, int]) -> int:
    """Evaluates a size for these values of its symbols; KeyError for a symbol without one."""
    if not isinstance(x, Dim):
        return x

    def number(atom: Atom) -> int:
        return sizes[atom.name] if isinstance(atom, Symbol) else _FUNCTIONS[atom.fn](*(at(a, sizes) for a in atom.args))

    return sum(c * math.prod(map(number, m)) for m, c in x.terms)


def optimum(x: Size) -> int:
    """Evaluates a size with every symbol at its optimum."""
    return at(x, {s.name: s.optimum for s in symbols(x)})


def symbols(x: Any) -> dict[Symbol, None]:
    """Returns the symbols in a size, or in nested tuples and lists of sizes, in order of appearance."""
    result: dict[Symbol, None] = {}
    if isinstance(x, Dim):
        for m, _ in x.terms:
            for atom in m:
                result.update({atom: None} if isinstance(atom, Symbol) else symbols(atom.args))
    elif isinstance(x, (tuple, list)):
        for part in x:
            result.update(symbols(part))
    return result


def map_dims(x: Any, to: Callable[[Size], Any]) -> Any:
    """Returns x with `to` applied to every Dim in it; searches tuples, and returns other objects unchanged."""
    if isinstance(x, Dim):
        return to(x)
    return tuple(map_dims(part, to) for part in x) if type(x) is tuple and symbols(x) else x
