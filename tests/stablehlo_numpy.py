"""Blocks of StableHLO whose pointwise operations numpy computes while they are written."""

from __future__ import annotations

import re

import numpy as np

from pelton.exporters.stablehlo.blocks import Operations, Record, SsaValue
from pelton.ir.types import TensorType

COMPARE = dict(EQ=np.equal, NE=np.not_equal, LT=np.less, LE=np.less_equal, GT=np.greater, GE=np.greater_equal)
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def _remainder(a, b):
    return np.fmod(a, b)


def _quotient(a, b):
    if a.dtype.kind == "f":
        return a / b
    return (np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))).astype(a.dtype)


ELEMENTS = dict(
    add=np.add,
    subtract=np.subtract,
    multiply=np.multiply,
    divide=_quotient,
    remainder=_remainder,
    minimum=np.minimum,
    maximum=np.maximum,
    power=np.power,
    atan2=np.arctan2,
    exponential=np.exp,
    exponential_minus_one=np.expm1,
    log=np.log,
    log_plus_one=np.log1p,
    sqrt=np.sqrt,
    tanh=np.tanh,
    sine=np.sin,
    cosine=np.cos,
    floor=np.floor,
    ceil=np.ceil,
    round_nearest_even=np.rint,
    abs=np.abs,
    sign=np.sign,
    negate=np.negative,
    select=np.where,
    clamp=lambda low, x, high: np.minimum(np.maximum(x, low), high),
    shift_left=np.left_shift,
    shift_right_arithmetic=np.right_shift,
    shift_right_logical=np.right_shift,
)
ELEMENTS |= {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert}


class Computed(Operations):
    """A block that computes its values, by name."""

    def __init__(self):
        super().__init__(Record())
        self.known: dict[str, np.ndarray] = {}

    def take(self, name: str, array: np.ndarray) -> SsaValue:
        self.known[name] = array
        return SsaValue(name, TensorType.of(array))

    def array(self, x: SsaValue) -> np.ndarray:
        return x.array if x.array is not None else self.known[x.name]

    def op(self, name, operands, results, attrs=None, regions=()):
        made = super().op(name, operands, results, attrs, regions)
        arrays, attrs, (type,) = [self.array(x) for x in operands], attrs or {}, results
        with np.errstate(all="ignore"):
            if name == "compare":
                value = COMPARE[attrs["comparison_direction"].split()[-1].rstrip(">")](*arrays)
            elif name == "convert":
                value = arrays[0].astype(type.dtype.numpy)
            elif name == "bitcast_convert":
                value = arrays[0].view(type.dtype.numpy)
            elif name == "broadcast_in_dim":
                axes = map(int, re.findall(r"\d+", attrs["broadcast_dimensions"].partition(":")[2]))
                shape = [1] * len(type.shape)
                for axis, n in zip(axes, arrays[0].shape):
                    shape[axis] = n
                value = np.broadcast_to(arrays[0].reshape(shape), type.shape)
            else:
                value = ELEMENTS[name](*arrays)
        assert value.shape == type.shape and value.dtype == type.dtype.numpy, f"{name}: {value.dtype}{value.shape}"
        self.known[made[0].name] = np.asarray(value)
        return made
