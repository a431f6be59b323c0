"""Differences of values from the expected ones, counted over any number of samples."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pelton import metrics
from pelton.compiler.accuracy import relative_error
from pelton.errors import InputError
from pelton.ir.types import STRING, DType


@dataclass(frozen=True)
class InScales:
    """The error of a quantized value, in steps of its scale. `scale`: the largest, if there are several; `steps`: the
    largest difference; `one`, `more`: the shares of elements with an error of one step, and of more."""

    scale: float
    steps: float
    one: float
    more: float


@dataclass(frozen=True)
class Difference:
    """The error of a value. `error`: the largest difference among elements that are finite in both, relative to the
    largest expected value; `nonfinite`: the number of elements that are infinite or NaN on one side only; `largest`:
    the largest expected value; `sqnr`: in dB (`metrics.sqnr`), None for values other than numbers; `quantized`: None if
    the value is not quantized."""

    name: str
    dtype: str
    error: float
    nonfinite: int
    largest: float
    sqnr: float | None
    quantized: InScales | None

    def json(self) -> dict[str, Any]:
        """Returns the fields under the keys of `pelton compare --json`; infinite SQNR as a text, which JSON lacks."""
        keys = {"nonfinite": "lost", "largest": "most", "sqnr": "sqnr_db"}
        fields = {keys.get(name, name): value for name, value in asdict(self).items()}
        if self.sqnr is not None and math.isinf(self.sqnr):
            fields["sqnr_db"] = str(self.sqnr)
        return fields


class Tally:
    """Counts the differences of one value, sample by sample. scale: that of the value, if it is quantized."""

    def __init__(self, name: str, dtype: DType, scale: np.ndarray | None = None):
        self.name, self.dtype, self.scale = name, dtype, scale
        self.found_dtype = ""
        self.off = self.largest = self.steps = 0.0
        self.nonfinite = self.elements = self.one = self.more = 0
        self.noise = metrics.Noise()
        self.same = self.rows = 0

    def add(self, got: np.ndarray, want: np.ndarray) -> None:
        """Adds arrays of equal shapes; `want` in float64 for floats."""
        self.found_dtype = str(got.dtype)
        if self.dtype is STRING:
            self.off = max(self.off, relative_error(self.dtype, got, want))
            return
        if not self.dtype.is_float:
            self.off = max(self.off, relative_error(self.dtype, got, want))
            self.noise.add(want, got)
            if self.scale is not None:
                self._add_steps(got.astype(np.float64), want.astype(np.float64))
                self._add_matches(got, want)
            return
        got = got.astype(np.float64)
        with np.errstate(over="ignore"):
            # values that overflow the type in the model may be infinite in the engine
            rounded = want.astype(self.dtype.numpy).astype(np.float64)
        numbers = np.isfinite(got) & np.isfinite(rounded)
        nonfinite = ~numbers & (got != rounded) & ~(np.isnan(got) & np.isnan(rounded))
        self.largest = max(self.largest, float(np.abs(rounded[np.isfinite(rounded)]).max(initial=0.0)))
        self.off = max(self.off, float(np.abs(got[numbers] - want[numbers]).max(initial=0.0)))
        self.nonfinite += int(nonfinite.sum())
        self.noise.add(np.where(np.isfinite(rounded), want, rounded), got)
        self._add_matches(got, rounded)
        if self.scale is not None:
            self._add_steps(got, want)

    def _add_steps(self, got: np.ndarray, want: np.ndarray) -> None:
        with np.errstate(invalid="ignore"):
            steps = np.abs(got - want) / self.scale
        steps = steps[np.isfinite(steps)]
        self.steps = max(self.steps, float(steps.max(initial=0.0)))
        self.elements += got.size
        self.one += int(((steps >= 0.5) & (steps < 1.5)).sum())
        self.more += int((steps >= 1.5).sum())

    def _add_matches(self, got: np.ndarray, want: np.ndarray) -> None:
        """Counts rows along the last axis of more than one element."""
        axis = next((i for i in reversed(range(want.ndim)) if want.shape[i] > 1), None)
        if axis is not None and want.size:
            matches = metrics.matches(want, got, axis)
            self.same, self.rows = self.same + int(matches.sum()), self.rows + matches.size

    @property
    def agreement(self) -> float | None:
        """The share of rows whose largest element is at the right index; None for values without rows of scores."""
        return self.same / self.rows if self.rows else None

    def difference(self) -> Difference:
        error = self.off
        if self.dtype.is_float:
            error = self.off / max(self.largest, 1e-30) if self.off else 0.0
        quantized = None
        if self.scale is not None:
            elements = max(self.elements, 1)
            quantized = InScales(float(self.scale.max()), self.steps, self.one / elements, self.more / elements)
        sqnr = None if self.dtype is STRING else self.noise.sqnr
        return Difference(self.name, self.found_dtype, error, self.nonfinite, self.largest, sqnr, quantized)


def check_shapes(who: str, name: str, got: np.ndarray, want: np.ndarray) -> None:
    """Raises InputError if an output of another runtime has another shape than the model's."""
    if got.shape != want.shape:
        raise InputError(f"{who} returns output {name!r} with shape {list(got.shape)}, the model {list(want.shape)}")
