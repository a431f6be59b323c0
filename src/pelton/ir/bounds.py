"""Interval arithmetic: bounds of a program's values that hold for all inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .graph import Graph, Node, Value
from .scalar import Scalar
from .types import BOOL


# Minimum ratio of the ranges below and above 0 for symmetric quantization.
SYMMETRIC = 0.9


class ByteGrid(NamedTuple):
    """The numbers scale · (q − zero) that bytes q represent: i8 if `signed`, from −127 on and with zero 0, else u8."""

    scale: float
    zero: int
    signed: bool


class Bounds(NamedTuple):
    """A closed interval that contains all elements; NaN aside."""

    low: float
    high: float

    def union(self, other: Bounds) -> Bounds:
        return Bounds(min(self.low, other.low), max(self.high, other.high))

    def byte_grid(self) -> ByteGrid:
        """Returns the grid that quantizes this interval and 0: u8 unless it reaches about as far below 0 as above,
        where i8 has the same steps."""
        low = min(self.low, 0.0)
        if low < -SYMMETRIC * self.high:
            return ByteGrid(self.high / 127, 0, True)
        scale = (self.high - low) / 255
        return ByteGrid(scale, round(-low / scale) if scale else 0, False)


ANY = Bounds(-math.inf, math.inf)


def value_bounds(graph: Graph) -> dict[Value, Bounds]:
    """Returns the bounds of every float value of a program; `ANY` if unknown."""
    bounds: dict[Value, Bounds] = {}
    for v, array in graph.constants.items():
        bounds[v] = _of_array(array) if v.type.dtype.is_float else ANY
    for node in graph.nodes:
        bounds.update((v, _of_node(node, bounds)) for v in node.outputs)
    return bounds


def _of_array(array: np.ndarray) -> Bounds:
    if array.size == 0:
        return Bounds(0.0, 0.0)
    low, high = float(array.min()), float(array.max())
    return ANY if math.isnan(low) or math.isnan(high) else Bounds(low, high)


def _of_node(node: Node, found: dict[Value, Bounds]) -> Bounds:
    if not all(v.type.dtype.is_float for v in node.outputs):
        return ANY
    operands = [found.get(v, ANY) for v in node.inputs]
    if node.op.keeps_range:
        return operands[0].union(Bounds(0.0, 0.0))
    if node.op.moves:
        inside = Bounds(0.0, 0.0)
        for v, bounds in zip(node.inputs, operands):
            inside = inside.union(bounds) if v.type.dtype.is_float else inside
        return inside
    if node.op.scalar is None:
        return ANY
    return _of_scalar(node.op.trace(tuple(v.type.dtype for v in node.inputs), node.attrs), operands)


def _of_scalar(e: Scalar | float, operands: list[Bounds]) -> Bounds:
    """Returns the bounds of an expression whose inputs lie within those of the operands."""
    if not isinstance(e, Scalar):
        return Bounds(float(e), float(e))
    if not e.dtype.is_float:
        return ANY
    if e.fn == "input":
        return operands[e.args[0]]
    if e.fn == "select":
        return _of_scalar(e.args[1], operands).union(_of_scalar(e.args[2], operands))
    rule = _RULES.get(e.fn)
    if rule is None or any(isinstance(a, Scalar) and a.dtype is BOOL for a in e.args):
        return ANY
    result = rule(*(_of_scalar(a, operands) for a in e.args))
    return ANY if math.isnan(result.low) or math.isnan(result.high) else result


def _corners(a: Bounds, b: Bounds, product: Callable[[float, float], float]) -> Bounds:
    """Returns the bounds of a function that is monotonic in each operand."""
    products = [product(x, y) for x in a for y in b]
    return Bounds(min(products), max(products))


def _mul(a: Bounds, b: Bounds) -> Bounds:
    # 0 times anything finite is 0, and an infinite end stands for finite numbers
    return _corners(a, b, lambda x, y: 0.0 if x == 0 or y == 0 else x * y)


def _div(a: Bounds, b: Bounds) -> Bounds:
    if b.low <= 0 <= b.high:
        return ANY
    return _mul(a, Bounds(1 / b.high, 1 / b.low))


def _abs(a: Bounds) -> Bounds:
    if a.low <= 0 <= a.high:
        return Bounds(0.0, max(-a.low, a.high))
    return Bounds(min(abs(a.low), abs(a.high)), max(abs(a.low), abs(a.high)))


def _exp(x: float) -> float:
    return math.inf if x > 700 else math.exp(x)


_RULES: dict[str, Callable[..., Bounds]] = {
    "add": lambda a, b: Bounds(a.low + b.low, a.high + b.high),
    "sub": lambda a, b: Bounds(a.low - b.high, a.high - b.low),
    "mul": _mul,
    "div": _div,
    "neg": lambda a: Bounds(-a.high, -a.low),
    "abs": _abs,
    "minimum": lambda a, b: Bounds(min(a.low, b.low), min(a.high, b.high)),
    "maximum": lambda a, b: Bounds(max(a.low, b.low), max(a.high, b.high)),
    "exp": lambda a: Bounds(_exp(a.low), _exp(a.high)),
    "sqrt": lambda a: Bounds(math.sqrt(max(a.low, 0.0)), math.sqrt(max(a.high, 0.0))),
    "tanh": lambda a: Bounds(math.tanh(a.low), math.tanh(a.high)),
    "erf": lambda a: Bounds(math.erf(a.low), math.erf(a.high)),
}
