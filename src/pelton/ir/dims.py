"""Sizes that a run decides: whole-number expressions over named sizes with bounds, in a canonical form.

A size is an int where it is known, else a Dim: a polynomial with whole coefficients over atoms (named sizes, and
quotients, maxima and minima that do not come out even; a remainder is what a quotient leaves). Equal expressions
compare and hash equal; unequal ones are *not known to be equal*. What `<` and its like cannot decide from the bounds
raises Undecided, and so does everything that needs a number (`range`, `int`, numpy): nothing is quietly taken as some
number.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

UNBOUNDED = 1 << 40  # stands for no upper bound; more than any axis has
_FAR = 1 << 400  # beyond what bounds come to


class Undecided(ValueError):
    """A question whose answer depends on dynamic dimensions: the sign of a difference. `relation` to 0 is what the
    caller needs to hold: "=", ">=", or "" for any."""

    def __init__(self, message: str, difference: Size = 0, relation: str = ""):
        super().__init__(message)
        self.difference, self.relation = difference, relation


@dataclass(frozen=True)
class Symbol:
    """A named size (an identifier) from `minimum` to `maximum`; programs are tuned for `optimum`."""

    name: str
    minimum: int = 1
    optimum: int = 1
    maximum: int = UNBOUNDED

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class SizeFunction:
    """A function of sizes that no polynomial is: "floordiv", "max" or "min"."""

    fn: str
    args: tuple[Size, ...]

    def __str__(self) -> str:
        if self.fn != "floordiv":
            return f"{self.fn}({', '.join(map(str, self.args))})"
        a, b = (f"({x})" if isinstance(x, Dim) and not x.single else str(x) for x in self.args)
        return f"{a}//{b}"


if TYPE_CHECKING:
    # a Dim has an int's arithmetic; where only a number will do it raises Undecided, which no type can say
    Whole = int
else:
    Whole = object
Size = Whole  # an int or a Dim
Atom = Symbol | SizeFunction
Monomial = tuple[Atom, ...]  # sorted by text; the empty one is the constant term


class Dim(Whole):
    """A size that a run decides. Made of symbols by arithmetic; what comes out constant is an int."""

    __slots__ = ("terms", "_hash", "_bounds")

    def __init__(self, terms: Iterable[tuple[Monomial, int]]):
        self.terms: tuple[tuple[Monomial, int], ...] = tuple(terms)
        self._hash = hash(self.terms)
        self._bounds: tuple[int, int] | None = None

    @property
    def single(self) -> bool:
        """Whether it prints as one factor."""
        return (
            len(self.terms) == 1
            and self.terms[0][1] == 1
            and len(self.terms[0][0]) == 1
            and not (isinstance(self.terms[0][0][0], SizeFunction) and self.terms[0][0][0].fn == "floordiv")
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __bool__(self) -> bool:
        return True  # as `!= 0`: not known to be nothing

    def __add__(self, other: Size) -> Size:
        return _sum((self, other)) if isinstance(other, (int, Dim)) else NotImplemented

    def __neg__(self) -> Dim:
        return Dim((m, -c) for m, c in self.terms)

    def __pos__(self) -> Dim:
        return self

    def __sub__(self, other: Size) -> Size:
        return _sum((self, -other)) if isinstance(other, (int, Dim)) else NotImplemented

    def __rsub__(self, other: int) -> Size:
        return _sum((-self, other)) if isinstance(other, int) else NotImplemented

    def __mul__(self, other: Size) -> Size:
        return _product(self, other) if isinstance(other, (int, Dim)) else NotImplemented

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
        raise Undecided(f"the size {self}, of which a part is asked for, is known only when the program runs")

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
    """The named size; an int where its bounds leave one choice. ValueError for bounds in the wrong order and names that
    are no identifiers."""
    if not name.isidentifier() or name in ("max", "min", "mod"):
        raise ValueError(f"{name!r} is no name for a size; letters, digits and _ make one")
    if not 0 <= minimum <= optimum <= maximum:
        raise ValueError(
            f"the bounds of {name} should rise from minimum over optimum to maximum, got {minimum}..{optimum}..{maximum}"
        )
    return minimum if minimum == maximum else Dim((((Symbol(name, minimum, optimum, maximum),), 1),))


# --- arithmetic


def _made(terms: Mapping[Monomial, int]) -> Size:
    kept = {m: c for m, c in terms.items() if c}
    if kept.keys() <= {()}:
        return kept.get((), 0)
    # nobody means it, and it grows without end
    if len(kept) > 256 or any(len(m) > 32 or abs(c) > _FAR for m, c in kept.items()):
        raise Undecided("a size that takes so much arithmetic is not reckoned with")
    return Dim(sorted(kept.items(), key=lambda t: (len(t[0]), list(map(str, t[0])))))


def _terms(x: Size) -> Iterable[tuple[Monomial, int]]:
    return x.terms if isinstance(x, Dim) else (((), int(x)),)


def _sum(xs: Iterable[Size]) -> Size:
    total: dict[Monomial, int] = {}
    for x in xs:
        for m, c in _terms(x):
            total[m] = total.get(m, 0) + c
    return _made(total)


def _product(a: Size, b: Size) -> Size:
    total: dict[Monomial, int] = {}
    for m, c in _terms(a):
        for n, d in _terms(b):
            both = tuple(sorted((*m, *n), key=str))
            total[both] = total.get(both, 0) + c * d
    return _made(total)


def _less(a: Size, b: Size, sign: str, first: Size | None = None) -> bool:
    """a < b, by the bounds of the difference."""
    low, high = bounds(b - a)
    if low > 0:
        return True
    if high <= 0:
        return False
    left, right = (a, b) if first is None or first is a else (b, a)
    raise Undecided(f"whether {left} {sign} {right} depends on sizes that only a run decides", b - a)


def equal(a: Size, b: Size) -> bool:
    """Whether two sizes are the same; Undecided where that depends (`==` says no there)."""
    low, high = bounds(a - b)
    if low <= 0 <= high and low < high:
        raise Undecided(f"whether {a} = {b} depends on sizes that only a run decides", a - b, "=")
    return low == high == 0


def _without(m: Monomial, n: Monomial) -> Monomial | None:
    """The quotient of two monomials; None where it is none."""
    rest = list(m)
    for atom in n:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def _split(a: Size, b: Size) -> tuple[Size, Size]:
    """(quotient, rest): the terms of a that b divides, divided; and the others. b is an int or a monomial, else only
    its own multiples are found."""
    parts = list(_terms(b))
    if len(parts) > 1:
        quotient = exact(a, b)
        return (0, a) if quotient is None else (quotient, 0)
    ((by, k),) = parts
    even: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for m, c in _terms(a):
        found = _without(m, by)
        if found is not None and c % k == 0:
            even[found] = even.get(found, 0) + c // k
        else:
            rest[m] = c
    return _made(even), _made(rest)


def exact(a: Size, b: Size) -> Size | None:
    """q with q · b = a, by long division; None where there is none."""
    lead, k = list(_terms(b))[-1]
    q: Size = 0
    while a:
        m, c = list(_terms(a))[-1]
        factor = _without(m, lead)
        if factor is None or c % k:
            return None
        part = _made({factor: c // k})
        q, a = q + part, a - part * b
    return q


def floordiv(a: Size, b: Size) -> Size:
    """⌊a / b⌋ for b ≥ 1."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if not b >= 1:
        raise Undecided(f"{a} is divided by {b}, which is not known to be positive")
    quotient, rest = _split(a, b)
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
            shared = math.gcd(b, *(c for m, c in _terms(rest) if m))
            if isinstance(rest, Dim) and shared > 1:  # ⌊(4a + 3) / 6⌋ = ⌊(2a + 1) / 3⌋
                return quotient + floordiv(_made({m: c // shared for m, c in rest.terms}), b // shared)
        if isinstance(rest, Dim) and len(rest.terms) == 1 and rest.terms[0][1] == 1 and len(rest.terms[0][0]) == 1:
            (atom,) = rest.terms[0][0]
            if isinstance(atom, SizeFunction) and atom.fn == "floordiv" and isinstance(atom.args[1], int):
                return quotient + floordiv(atom.args[0], atom.args[1] * b)
    return quotient + Dim((((SizeFunction("floordiv", (rest, b)),), 1),))


def mod(a: Size, b: Size) -> Size:
    """a − ⌊a / b⌋ · b for b ≥ 1."""
    return a % b if isinstance(a, int) and isinstance(b, int) else a - floordiv(a, b) * b


def maximum(*sizes: Size) -> Size:
    """The largest of some sizes."""
    return _extreme("max", sizes)


def minimum(*sizes: Size) -> Size:
    """The smallest of some sizes."""
    return _extreme("min", sizes)


def _extreme(fn: str, sizes: tuple[Size, ...]) -> Size:
    """Sizes that another one surely covers drop out."""
    kept: list[Size] = []
    for x in dict.fromkeys(sizes):

        def covers(y: Size, x: Size = x) -> bool:
            low, high = bounds(y - x)
            return low >= 0 if fn == "max" else high <= 0

        if any(map(covers, kept)):
            continue
        kept = [y for y in kept if not (bounds(y - x)[1] <= 0 if fn == "max" else bounds(y - x)[0] >= 0)] + [x]
    return kept[0] if len(kept) == 1 else Dim((((SizeFunction(fn, tuple(sorted(kept, key=str))),), 1),))


# --- bounds


def bounds(x: Size) -> tuple[int, int]:
    """The least and the largest that a size may be: true, not always tight. Interval arithmetic, and what is known of
    quotients, extremes, factors."""
    if not isinstance(x, Dim):
        return x, x
    if x._bounds is None:
        low = high = 0
        for m, c in x.terms:
            a, b = _product_bounds(m)
            low, high = low + min(c * a, c * b), high + max(c * a, c * b)
        if len(x.terms) > 1:
            for lower, upper in (_by_quotients(x), _by_quotients(x, outermost=True), _by_extremes(x), _by_factor(x)):
                low, high = max(low, lower), min(high, upper)
        x._bounds = low, high
    return x._bounds


def _product_bounds(atoms: Iterable[Atom]) -> tuple[int, int]:
    return functools.reduce(_times, map(_atom_bounds, atoms), (1, 1))


def _times(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


def _by_quotients(x: Dim, outermost: bool = False) -> tuple[int, int]:
    """Bounds by ⌊a / k⌋ = (a − r) / k with a rest r from 0 to k − 1. outermost: of those alone of which a has quotients
    of its own, as t − ⌊t / 2⌋ may have."""
    found = [
        (
            m,
            next(
                (a for a in m if isinstance(a, SizeFunction) and a.fn == "floordiv" and isinstance(a.args[1], int)),
                None,
            ),
        )
        for m, _ in x.terms
    ]
    if outermost:
        found = [
            (
                m,
                (
                    q
                    if q
                    and any(getattr(a, "fn", "") == "floordiv" for n, _ in getattr(q.args[0], "terms", ()) for a in n)
                    else None
                ),
            )
            for m, q in found
        ]
    whole = math.lcm(*(int(q.args[1]) for _, q in found if q is not None))
    if whole == 1:
        return -_FAR, _FAR
    terms, low, high = [], 0, 0
    for (m, c), (_, q) in zip(x.terms, found):
        if q is None:
            terms.append(_made({m: c * whole}))
            continue
        a, k = q.args
        factor = c * whole // k
        others = _without(m, (q,)) or ()
        terms.append(_made({others: factor}) * a)
        rests = [factor * (k - 1) * r for r in _product_bounds(others)] + [0]
        low, high = low - max(rests), high - min(rests)
    lower, upper = bounds(_sum(terms))
    return -(-(lower + low) // whole), (upper + high) // whole


def _by_extremes(x: Dim) -> tuple[int, int]:
    """Bounds by a maximum (a minimum) being one of its parts, and no less (no more) than each of them."""
    extreme = next((a for m, _ in x.terms for a in m if isinstance(a, SizeFunction) and a.fn in ("max", "min")), None)
    if extreme is None:
        return -_FAR, _FAR
    uses = [(m, c) for m, c in x.terms if extreme in m]
    each = [
        bounds(
            _sum(
                [
                    (
                        _made({m: c})
                        if extreme not in m
                        else math.prod((part if a == extreme else _made({(a,): 1}) for a in m), start=c)
                    )
                    for m, c in x.terms
                ]
            )
        )
        for part in extreme.args
    ]
    low, high = min(a for a, _ in each), max(b for _, b in each)
    if (
        len(uses) == 1
        and uses[0][0].count(extreme) == 1
        and _product_bounds(_without(uses[0][0], (extreme,)) or ())[0] >= 0
    ):
        if (uses[0][1] > 0) == (extreme.fn == "max"):
            low = max(a for a, _ in each)
        else:
            high = min(b for _, b in each)
    return low, high


def _by_factor(x: Dim) -> tuple[int, int]:
    """Bounds by the atom that most terms have, taken out of them: b·t − 6·b = b · (t − 6), which t ≥ 6 keeps from being
    negative."""
    uses = Counter(a for m, _ in x.terms for a in set(m))
    atom, shared = max(uses.items(), key=lambda use: use[1])
    if shared < 2:
        return -_FAR, _FAR
    quotient, rest = _split(x, Dim((((atom,), 1),)))
    low, high = _times(_atom_bounds(atom), bounds(quotient))
    lower, upper = bounds(rest)
    return low + lower, high + upper


def _atom_bounds(atom: Atom) -> tuple[int, int]:
    if isinstance(atom, Symbol):
        return atom.minimum, atom.maximum
    each = [bounds(a) for a in atom.args]
    if atom.fn == "floordiv":
        corners = [a // b for a in each[0] for b in each[1]]
        return min(corners), max(corners)
    pick = max if atom.fn == "max" else min
    return pick(a for a, _ in each), pick(b for _, b in each)


def is_known(*sizes: Size) -> bool:
    """Whether all of the sizes are numbers."""
    return not any(isinstance(s, Dim) for s in sizes)


# --- numbers for symbols

_FUNCTIONS: dict[str, Callable[..., int]] = {"floordiv": lambda a, b: a // b, "max": max, "min": min}


def at(x: Size, sizes: Mapping[str, int]) -> int:
    """The number that a size is for these values of the symbols; KeyError for a symbol that has none."""
    if not isinstance(x, Dim):
        return x

    def number(atom: Atom) -> int:
        return sizes[atom.name] if isinstance(atom, Symbol) else _FUNCTIONS[atom.fn](*(at(a, sizes) for a in atom.args))

    return sum(c * math.prod(map(number, m)) for m, c in x.terms)


def optimum(x: Size) -> int:
    """The number that a size is when every symbol has its optimum."""
    return at(x, {s.name: s.optimum for s in symbols(x)})


def symbols(x: Any) -> dict[Symbol, None]:
    """The symbols in a size, or in tuples of sizes and other things, in order of appearance."""
    found: dict[Symbol, None] = {}
    if isinstance(x, Dim):
        for m, _ in x.terms:
            for atom in m:
                found.update({atom: None} if isinstance(atom, Symbol) else symbols(atom.args))
    elif isinstance(x, (tuple, list)):
        for part in x:
            found.update(symbols(part))
    return found


def map_dims(x: Any, to: Callable[[Size], Any]) -> Any:
    """A thing with every Dim in it replaced, tuples gone through."""
    if isinstance(x, Dim):
        return to(x)
    return tuple(map_dims(part, to) for part in x) if type(x) is tuple and symbols(x) else x
