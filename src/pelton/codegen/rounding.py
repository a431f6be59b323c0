"""Tails that round to small integers and read these again: equivalent forms of fewer instructions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pelton.ir.graph import Node, Value
from pelton.ir.types import F32, I8, I16, U8, U16, DType
from pelton.ops.words import add, cast, clip, mul, relu, round_
from pelton.plan.region import Region

from .grid import scalar_constant

SMALL = (U8, I8, U16, I16)


@dataclass(frozen=True)
class Rounded:
    """cast(clip(round(x) + zero, low, high)): all numbers are whole, and the type holds both limits."""

    round: Node
    clip: Node
    zero: float
    low: float
    high: float
    to: DType

    @property
    def x(self) -> Value:
        return self.round.inputs[0]

    @property
    def saturates(self) -> bool:
        """True if the limits are those of an 8-bit type."""
        return self.to in (U8, I8) and (self.low, self.high) == (self.to.lowest, self.to.highest)


class Rounding:
    """The roundings in a region's tail. made: the node of each value of the tail."""

    def __init__(self, region: Region, made: Mapping[Value, Node]):
        self.region, self.made = region, made

    def of(self, node: Node | None) -> Rounded | None:
        """Returns the rounding that a cast to a small integer type ends, or None."""
        clipped = self.made.get(node.inputs[0]) if node is not None and node.op is cast else None
        if node is None or clipped is None or clipped.op is not clip or node.output.type.dtype not in SMALL:
            return None
        x, low, high = clipped.inputs
        least, most, to = self.number(low), self.number(high), node.output.type.dtype
        if x.type.dtype is not F32 or least is None or most is None or least != round(least) or most != round(most):
            return None
        if not to.lowest <= least <= most <= to.highest:
            return None
        rounded, zero = self.made.get(x), 0.0
        if rounded is not None and rounded.op is add:
            rounded, zero = self.made.get(rounded.inputs[0]), self.number(rounded.inputs[1])
        if rounded is None or rounded.op is not round_ or zero is None or zero != round(zero):
            return None
        return Rounded(rounded, clipped, zero, least, most, to)

    def read_again(self, node: Node) -> tuple[Rounded, float] | None:
        """Returns the rounding that a node reads back as f32, and the number that it adds; None for other nodes, and
        where the rounded value may be NaN, which becomes 0 as an integer."""
        back, number = node, 0.0
        if node.op is add:
            made, added = self.made.get(node.inputs[0]), self.number(node.inputs[1])
            if made is None or added is None:
                return None
            back, number = made, added
        if back.op is not cast or back.output.type.dtype is not F32:
            return None
        rounded = self.of(self.made.get(back.inputs[0]))
        return None if rounded is None or self.largest(rounded.x) is None else (rounded, number)

    def largest(self, v: Value) -> float | None:
        """Returns the largest magnitude of a value in f32; None if it may be NaN or infinite, or is unknown."""
        if (array := self.region.body.constants.get(v)) is not None:
            most = float(np.abs(array.astype(np.float64)).max(initial=0))
            return most if np.isfinite(most) else None
        if v.type.dtype.is_integer:
            return float(max(-v.type.dtype.lowest, v.type.dtype.highest))
        node = self.made.get(v)
        if node is None or v.type.dtype is not F32 or node.op not in (cast, round_, relu, clip, add, mul):
            return None
        operands = [self.largest(x) for x in node.inputs]
        known = [x for x in operands if x is not None]
        if len(known) < len(operands):
            return None
        if node.op is clip:
            return max(known[1:])
        most = {add: sum(known), mul: float(np.prod(known))}.get(node.op, known[0] + 1)
        return most if most < 2.0**100 else None

    def number(self, v: Value) -> float | None:
        """Returns the number in a constant of one element, or None."""
        return scalar_constant(self.region, v)
