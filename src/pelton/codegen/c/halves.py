"""Weights in half precision: eligibility, type and loss."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from pelton.ir.graph import Value
from pelton.ir.types import BF16, F16, F32, DType
from pelton.plan.region import Region

from pelton.codegen.template import Tactic, Target, Template

from .emit import memory_type

STORED = (F32, F16, BF16)  # by the parameter HALF of a tactic, as in product.h
# The parameter LOSS of a tactic: weights are unchanged, rounded as the build's precision allows, or rounded though it
# does not.
EXACT, ASKED, UNASKED = 0, 1, 2
# Relative to the norm of an output's weights: the largest loss without subnormal halves.
MAX_LOSS = {F16: 2.0**-11, BF16: 2.0**-8}

Known = TypeVar("Known", bool, float, np.ndarray)

# by array: templates ask repeatedly
_FOUND: dict[tuple[int, str], tuple[weakref.ref[np.ndarray], bool | float | np.ndarray]] = {}


class HalfWeights(Template):
    """Base of template variants that read weights in half precision and compute in f32.

    Their tactics add two parameters, HALF and LOSS.
    """

    unasked_margin = 0.1  # the error of halves is a hundred times that of Winograd
    fewest = 1 << 14  # weights; fewer are read from L1

    def half_operand(self, region: Region) -> tuple[Value, int]:
        """Returns the operand to store in half precision, and its axis of outputs."""
        raise NotImplementedError

    def half_type(self, region: Region, target: Target) -> tuple[DType, int] | None:
        """Returns the type to store weights in, and the loss: exact, or as the target allows; else None."""
        array = region.body.constants.get(self.half_operand(region)[0])
        if array is None or array.size < self.fewest or array.dtype != np.float32:
            return None
        exact = exact_type(array)
        if exact is not None:
            return exact, EXACT
        if target.half is F32 or self.rounding_rejection(region, target.half) is not None:
            return None
        return target.half, ASKED

    def rounding_rejection(self, region: Region, dtype: DType) -> str | None:
        """Returns the reason why constant weights cannot be rounded to a type, or None."""
        weights, axis = self.half_operand(region)
        return rejection(region.body.constants[weights], axis, dtype)

    def is_exact(self, tactic: Tactic) -> bool:
        return tactic["LOSS"] == EXACT and super().is_exact(tactic)

    def margin(self, tactic: Tactic) -> float:
        of_halves = {EXACT: 0.0, ASKED: 0.02, UNASKED: self.unasked_margin}[tactic["LOSS"]]
        return max(of_halves, super().margin(tactic))

    def tolerance(self, tactic: Tactic) -> float:
        """Adds the largest error of rounded weights, if their errors do not cancel."""
        return super().tolerance(tactic) + (0.0 if tactic["LOSS"] == EXACT else MAX_LOSS[self.stored(tactic)])

    def stored(self, tactic: Tactic) -> DType:
        return STORED[tactic["HALF"]]


def with_halves(tactic: Tactic, stored: DType, loss: int) -> Tactic:
    """Returns the tactic with weights of this type."""
    params = (*tactic.params, ("HALF", STORED.index(stored)), ("LOSS", loss))
    return Tactic(tactic.template, tactic.isa, params)


def weight_text(tactic: Tactic, stored: DType) -> str:
    """Emits the type of weights, and HALF where the tactic lacks it."""
    return f"typedef {memory_type(stored)} weight;\n" + (
        "" if "HALF" in dict(tactic.params) else "enum : idx { HALF = 0 };\n"
    )


def exact_type(array: np.ndarray) -> DType | None:
    """Returns the half-precision type that holds every element of an f32 array exactly, or None."""
    return next((dtype for dtype in (F16, BF16) if known(array, f"is {dtype.value}", _TESTS[dtype])), None)


def rejection(array: np.ndarray, axis: int, dtype: DType, scale: float = 1.0) -> str | None:
    """Returns the reason to reject a type in which weights, times a scale, lose more than rounded normal numbers do, or
    None."""
    lost = known(array, f"loss {axis} {dtype.value} {scale}", lambda a: loss(np.float32(scale) * a, axis, dtype))
    if np.isinf(lost):
        return f"weights up to {np.abs(array).max():.3g} exceed {dtype.value}"
    if lost > MAX_LOSS[dtype]:
        return f"weights of an output are too small for {dtype.value}, and would be off by {lost:.1e}"
    return None


def loss(array: np.ndarray, axis: int, dtype: DType) -> float:
    """Returns the largest error of any output's weights rounded to a type, relative to their norm; infinite on
    overflow.

    An output below 2⁻²⁰ of the largest norm counts as one of that norm: its results are smaller than the rounding
    errors of f32.
    """
    rows = np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
    norms, errors = np.zeros(len(rows)), np.zeros(len(rows))
    step = max(1, (1 << 20) // max(rows.shape[1], 1))
    with np.errstate(over="ignore"):
        for i in range(0, len(rows), step):
            part = rows[i : i + step]
            rounded = part.astype(dtype.numpy).astype(np.float32)
            if not np.isfinite(rounded).all():
                return float("inf")
            norms[i : i + step] = np.sqrt(np.square(part, dtype=np.float64).sum(1))
            errors[i : i + step] = np.sqrt(np.square(rounded - part, dtype=np.float64).sum(1))
    floor = norms.max(initial=0.0) * 2.0**-20
    return float((errors / np.maximum(np.maximum(norms, floor), np.finfo(np.float64).tiny)).max(initial=0.0))


def _is_f16(array: np.ndarray) -> bool:
    """True if f16 holds all numbers exactly: ten bits of fraction, and normal, zero, or a multiple of 2⁻²⁴."""
    if (array.view(np.uint32) & 0x1FFF).any():
        return False
    magnitude = np.abs(array)
    small = magnitude[magnitude < 2.0**-14] * np.float32(2.0**24)
    return bool((magnitude <= 65504.0).all() and (np.rint(small) == small).all())


def _is_bf16(array: np.ndarray) -> bool:
    return not (array.view(np.uint32) & 0xFFFF).any()


def _by_parts(test: Callable[[np.ndarray], bool]) -> Callable[[np.ndarray], bool]:
    """Runs a test part by part: arrays that fail usually do so in the first part."""

    def run(array: np.ndarray) -> bool:
        flat = np.ascontiguousarray(array).reshape(-1)
        return all(test(flat[i : i + (1 << 16)]) for i in range(0, flat.size, 1 << 16))

    return run


_TESTS = {F16: _by_parts(_is_f16), BF16: _by_parts(_is_bf16)}


def known(array: np.ndarray, what: str, compute: Callable[[np.ndarray], Known]) -> Known:
    """Returns a result for an array, computed at most once."""
    key = id(array), what
    seen = _FOUND.get(key)
    if seen is None or seen[0]() is not array:
        seen = _FOUND[key] = weakref.ref(array, lambda _: _FOUND.pop(key, None)), compute(array)
    return seen[1]  # type: ignore[return-value]
