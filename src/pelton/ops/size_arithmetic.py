"""Ops on sizes, for importers' exact arithmetic, also on dynamic dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pelton.ir import sizes
from pelton.ir.dims import maximum, minimum
from pelton.ir.op import get
from pelton.ir.sizes import divided, floor, is_below, is_equal, negative, product, quotient, total, whole_number
from pelton.ir.types import DType


def _sign(x: Any) -> int:
    if is_equal(x, 0):
        return 0
    return -1 if is_below(x, 0) else 1


POINTWISE: dict[str, Callable] = {
    "add": total,
    "sub": lambda a, b: total(a, negative(b)),
    "mul": product,
    "neg": negative,
    "abs": lambda a: negative(a) if is_below(a, 0) else a,
    "minimum": minimum,
    "maximum": maximum,
    "clip": lambda x, low, high: minimum(maximum(x, low), high),
    "mod": lambda a, b: a % b if b >= 1 else -(-a % -b),
    "fmod": lambda a, b: a - quotient(a, b) * b,
    "equal": is_equal,
    "less": is_below,
    "greater": lambda a, b: is_below(b, a),
    "less_equal": lambda a, b: not is_below(b, a),
    "greater_equal": lambda a, b: not is_below(a, b),
    "where": lambda c, a, b: a if c else b,
    "floor": floor,
    "ceil": lambda x: -floor(negative(x)),
    "sign": _sign,
}
REDUCTIONS: dict[str, Callable] = {
    "reduce_sum": total,
    "reduce_prod": product,
    "reduce_max": maximum,
    "reduce_min": minimum,
}


def _division(to: DType) -> Callable:
    return divided if to.is_float else quotient


def _cast(to: DType) -> Callable:
    if to.is_integer:
        return whole_number
    return (lambda x: not is_equal(x, 0)) if to is DType.BOOL else _same


def _same(x: Any) -> Any:
    return x


sizes.POINTWISE.update({get(name): fn for name, fn in POINTWISE.items()})
sizes.REDUCTIONS.update({get(name): fn for name, fn in REDUCTIONS.items()})
sizes.BY_TYPE.update({get("div"): _division, get("cast"): _cast})
