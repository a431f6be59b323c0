"""Parts of dynamic dimensions: named sizes, functions of sizes, and products of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

UNBOUNDED = 1 << 40  # no upper bound; more than any axis has
FAR = 1 << 400  # beyond all bounds of sizes


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
    """A non-polynomial function of sizes: "floordiv", "max" or "min"."""

    fn: str
    args: tuple[Size, ...]

    def __str__(self) -> str:
        if self.fn != "floordiv":
            return f"{self.fn}({', '.join(map(str, self.args))})"
        a, b = (f"({x})" if not getattr(x, "is_factor", True) else str(x) for x in self.args)
        return f"{a}//{b}"


if TYPE_CHECKING:
    # a Dim has an int's arithmetic, but raises Undecided where a number is required, which no type can express
    Whole = int
else:
    Whole = object
Size = Whole  # an int or a Dim
Atom = Symbol | SizeFunction
Monomial = tuple[Atom, ...]  # sorted by text; the empty one is the constant term


def cancel(m: Monomial, n: Monomial) -> Monomial | None:
    """Returns the quotient of two monomials, or None if it is no monomial."""
    rest = list(m)
    for atom in n:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)
