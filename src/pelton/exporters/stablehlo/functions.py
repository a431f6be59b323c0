"""Functions that StableHLO lacks, of its own ones: the error function, and inverse and hyperbolic functions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from pelton.ir.types import F64

from .blocks import Operations, SsaValue

FAR = {True: 6.0, False: 4.0}  # where erf is 1, in f64 and in f32


@functools.cache
def _near(wide: bool) -> tuple[float, ...]:
    """Returns the coefficients c of erf(x) = x · Σ cₙ x²ⁿ for |x| ≤ 1, its Taylor series."""
    terms = 20 if wide else 11
    return tuple(2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(terms))


@functools.cache
def _tail(wide: bool) -> tuple[float, ...]:
    """Returns the coefficients of e^(x²) · erfc(x) in t, which is −1 to 1 for x from 1 to FAR: an interpolation in
    Chebyshev's points."""
    far, degree = FAR[wide], 22 if wide else 11

    points = np.polynomial.chebyshev.chebpts1(degree + 1)
    scaled = [math.exp(x * x) * math.erfc(x) for x in _from_unit(points, far)]
    return tuple(np.polynomial.chebyshev.cheb2poly(np.polynomial.chebyshev.chebfit(points, scaled, degree)))


def _from_unit(t: np.ndarray, far: float) -> np.ndarray:
    """Returns x of t = a − b / (x + 1), with t(1) = −1 and t(far) = 1."""
    a, b = _unit(far)
    return b / (a - t) - 1


def _unit(far: float) -> tuple[float, float]:
    b = 2 / (1 / 2 - 1 / (far + 1))
    return b / 2 - 1, b


def _polynomial(s: Operations, x: SsaValue, coefficients: Sequence[float]) -> SsaValue:
    total = s.full(coefficients[-1], x)
    for c in reversed(coefficients[:-1]):
        total = s.add(s.multiply(total, x), c)
    return total


def erf(s: Operations, x: SsaValue) -> SsaValue:
    """Writes the error function: a Taylor series up to 1, e^(−x²) times a polynomial beyond."""
    wide = x.dtype is F64
    square, size = s.multiply(x, x), s.unary("abs", x)
    near = s.multiply(x, _polynomial(s, square, _near(wide)))
    a, b = _unit(FAR[wide])
    held = s.one("clamp", [s.full(1.0, x), size, s.full(FAR[wide], x)], x.type)
    t = s.subtract(a, s.divide(b, s.add(held, 1.0)))
    rest = s.multiply(s.unary("exponential", s.unary("negate", s.multiply(held, held))), _polynomial(s, t, _tail(wide)))
    far = s.multiply(s.unary("sign", x), s.subtract(1.0, rest))
    return s.select(s.compare("LT", size, 1.0), near, far)


def _arc_sine(s: Operations, x: SsaValue) -> SsaValue:
    return s.binary("atan2", x, _leg(s, x))


def _arc_cosine(s: Operations, x: SsaValue) -> SsaValue:
    return s.binary("atan2", _leg(s, x), x)


def _leg(s: Operations, x: SsaValue) -> SsaValue:
    """Writes √(1 − x²)."""
    return s.unary("sqrt", s.multiply(s.subtract(1.0, x), s.add(x, 1.0)))


def _sinh(s: Operations, x: SsaValue) -> SsaValue:
    """Writes (u + u / (u + 1)) / 2, u = e^|x| − 1; beyond 20, e^(|x| − log 2), which overflows only where sinh does."""
    size = s.unary("abs", x)
    u = s.unary("exponential_minus_one", size)
    small = s.multiply(s.add(u, s.divide(u, s.add(u, 1.0))), 0.5)
    large = s.unary("exponential", s.subtract(size, math.log(2)))
    return s.multiply(s.unary("sign", x), s.select(s.compare("LT", size, 20.0), small, large))


def _cosh(s: Operations, x: SsaValue) -> SsaValue:
    size = s.unary("abs", x)
    grown = s.unary("exponential", s.subtract(size, math.log(2)))
    return s.add(grown, s.divide(0.25, grown))


def _asinh(s: Operations, x: SsaValue) -> SsaValue:
    """Writes log1p(|x| + x² / (1 + √(1 + x²))); for large x, log |x| + log 2."""
    size = s.unary("abs", x)
    held = s.binary("minimum", size, 1e6)
    square = s.multiply(held, held)
    small = s.add(held, s.divide(square, s.add(s.unary("sqrt", s.add(square, 1.0)), 1.0)))
    large = s.add(s.unary("log", size), math.log(2))
    grown = s.select(s.compare("LT", size, 1e6), s.unary("log_plus_one", small), large)
    return s.multiply(s.unary("sign", x), grown)


def _acosh(s: Operations, x: SsaValue) -> SsaValue:
    """Writes log1p(t + √(2t + t²)), t = x − 1; for large x, log x + log 2."""
    t = s.subtract(x, 1.0)
    held = s.binary("minimum", t, 1e6)
    small = s.add(held, s.unary("sqrt", s.multiply(held, s.add(held, 2.0))))
    large = s.add(s.unary("log", x), math.log(2))
    return s.select(s.compare("LT", x, 1e6), s.unary("log_plus_one", small), large)


def _atanh(s: Operations, x: SsaValue) -> SsaValue:
    positive, negative = s.unary("log_plus_one", x), s.unary("log_plus_one", s.unary("negate", x))
    return s.multiply(s.subtract(positive, negative), 0.5)


# primitive of scalar expressions → what writes it
FUNCTIONS: dict[str, Callable[[Operations, SsaValue], SsaValue]] = {
    "erf": erf,
    "tan": lambda s, x: s.divide(s.unary("sine", x), s.unary("cosine", x)),
    "asin": _arc_sine,
    "acos": _arc_cosine,
    "atan": lambda s, x: s.binary("atan2", x, 1.0),
    "sinh": _sinh,
    "cosh": _cosh,
    "asinh": _asinh,
    "acosh": _acosh,
    "atanh": _atanh,
}
