"""Bounds of dynamic dimensions: interval arithmetic, tightened by facts about quotients, extremes and factors.

`dims` is above this file: here, a Dim is anything with `terms` and methods that build others.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from .dims_atoms import FAR, Atom, Monomial, Size, SizeFunction, Symbol, cancel


def bounds(x: Any) -> tuple[int, int]:
    """Returns a safe lower and upper bound of a size, not always tight."""
    if getattr(x, "terms", None) is None:
        return x, x
    if x._bounds is None:
        x._bounds = _bounds_of_terms(x)
    return x._bounds


def _bounds_of_terms(x: Any) -> tuple[int, int]:
    """Returns the lower and upper bound of a Dim, computed from its terms."""
    low = high = 0
    for m, c in x.terms:
        a, b = _product_bounds(m)
        low, high = low + min(c * a, c * b), high + max(c * a, c * b)
    if len(x.terms) > 1:
        for lower, upper in (_by_quotients(x), _by_quotients(x, outermost=True), _by_extremes(x), _by_factor(x)):
            low, high = max(low, lower), min(high, upper)
    return low, high


def _product_bounds(atoms: Iterable[Atom]) -> tuple[int, int]:
    return functools.reduce(_times, map(_atom_bounds, atoms), (1, 1))


def _times(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


def _quotient_in(m: Monomial) -> SizeFunction | None:
    """Returns the first quotient by a number among the factors."""
    for atom in m:
        if isinstance(atom, SizeFunction) and atom.fn == "floordiv" and isinstance(atom.args[1], int):
            return atom
    return None


def _has_quotients(x: Size) -> bool:
    return any(getattr(a, "fn", "") == "floordiv" for m, _ in getattr(x, "terms", ()) for a in m)


def _by_quotients(x: Any, outermost: bool = False) -> tuple[int, int]:
    """Bounds x by ⌊a / k⌋ = (a − r) / k with a remainder r from 0 to k − 1.

    outermost: only for quotients whose a contains quotients, such as ⌊(t − ⌊t / 2⌋) / 3⌋.
    """
    quotients = [(m, _quotient_in(m)) for m, _ in x.terms]
    if outermost:
        quotients = [(m, q if q and _has_quotients(q.args[0]) else None) for m, q in quotients]
    whole = math.lcm(*(int(q.args[1]) for _, q in quotients if q is not None))
    if whole == 1:
        return -FAR, FAR
    terms, low, high = [], 0, 0
    for (m, c), (_, q) in zip(x.terms, quotients):
        if q is None:
            terms.append(x.from_terms({m: c * whole}))
            continue
        a, k = q.args
        factor = c * whole // k
        others = cancel(m, (q,)) or ()
        terms.append(x.from_terms({others: factor}) * a)
        rests = [factor * (k - 1) * r for r in _product_bounds(others)] + [0]
        low, high = low - max(rests), high - min(rests)
    lower, upper = bounds(x.sum_of(terms))
    return -(-(lower + low) // whole), (upper + high) // whole


def _by_extremes(x: Any) -> tuple[int, int]:
    """Bounds x by its extremes: a maximum (minimum) is one of its operands, and no less (no more) than each of them."""
    extreme = next((a for m, _ in x.terms for a in m if isinstance(a, SizeFunction) and a.fn in ("max", "min")), None)
    if extreme is None:
        return -FAR, FAR
    uses = [(m, c) for m, c in x.terms if extreme in m]

    def substituted(part: Size) -> Size:
        """Replaces the extreme in x by a part."""
        terms: list[Size] = []
        for m, c in x.terms:
            if extreme in m:
                terms.append(math.prod((part if a == extreme else x.from_terms({(a,): 1}) for a in m), start=c))
            else:
                terms.append(x.from_terms({m: c}))
        return x.sum_of(terms)

    each = [bounds(substituted(part)) for part in extreme.args]
    low, high = min(a for a, _ in each), max(b for _, b in each)
    (monomial, coefficient), *others = uses
    alone = not others and monomial.count(extreme) == 1
    if alone and _product_bounds(cancel(monomial, (extreme,)) or ())[0] >= 0:
        if (coefficient > 0) == (extreme.fn == "max"):
            low = max(a for a, _ in each)
        else:
            high = min(b for _, b in each)
    return low, high


def _by_factor(x: Any) -> tuple[int, int]:
    """Bounds x by factoring out the atom that most terms share: b·t − 6·b = b · (t − 6), not negative for t ≥ 6."""
    uses = Counter(a for m, _ in x.terms for a in set(m))
    atom, shared = max(uses.items(), key=lambda use: use[1])
    if shared < 2:
        return -FAR, FAR
    quotient, rest = x.split_multiples(type(x)((((atom,), 1),)))
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
