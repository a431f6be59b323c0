"""Algorithms that derive a tensor's range from its values: largest value, entropy, percentile, squared error."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

from pelton.errors import InputError
from pelton.ir.bounds import Bounds

from .histogram import AbsoluteHistogram, ValueRange


class CalibrationAlgoType(enum.Enum):
    """TensorRT's names of its algorithms."""

    LEGACY_CALIBRATION = 0
    ENTROPY_CALIBRATION = 1
    ENTROPY_CALIBRATION_2 = 2
    MINMAX_CALIBRATION = 3


@dataclass(frozen=True)
class Algorithm:
    """Chooses the largest absolute value that a tensor's integers represent; larger values saturate.

    `title`: its name in the first line of tables. `observer`: the statistics to record of a tensor.
    """

    title: ClassVar[str]
    observer: ClassVar[type[ValueRange]] = AbsoluteHistogram

    def amax(self, seen: ValueRange) -> float:
        """Returns the end of the range, at most that of the values; `seen`: an `observer` with values other than 0."""
        raise NotImplementedError


@dataclass(frozen=True)
class MinMaxAlgorithm(Algorithm):
    """The largest absolute value: nothing saturates."""

    title = "MinMaxCalibration"
    observer = ValueRange

    def amax(self, seen: ValueRange) -> float:
        return seen.amax


@dataclass(frozen=True)
class EntropyAlgorithm(Algorithm):
    """The range whose quantized distribution differs least from the values', by Kullback-Leibler divergence.

    Migacz, "8-bit Inference with TensorRT", 2017: of a histogram of 2,048 bins, the first i become 128 levels, for each
    i from 128 on. Zeros would decide alone (most values after ReLU), so bin 0 counts only as much as bin 1.
    """

    title = "EntropyCalibration2"
    bins: int = 2048
    levels: int = 128

    def amax(self, seen: ValueRange) -> float:
        assert isinstance(seen, AbsoluteHistogram)
        counts, width = seen.coarse(self.bins)
        divergences = entropy_divergences(counts, self.levels)
        # the last of equal ones: it saturates least
        best = len(divergences) - 1 - int(np.argmin(divergences[::-1]))
        return min((best + self.levels) * width, seen.amax)


@dataclass(frozen=True)
class OldEntropyAlgorithm(EntropyAlgorithm):
    """The same algorithm under the name of TensorRT's older calibrator."""

    title = "EntropyCalibration"


def entropy_divergences(counts: np.ndarray, levels: int = 128) -> np.ndarray:
    """Returns the divergences in nats of the first `levels`, `levels` + 1, … and all counted bins, made `levels` steps.

    The reference P of i bins is their counts, with everything larger added to the last one. Q spreads the counts of
    each level evenly over its nonempty bins, scaled to the same total. Infinite where P has counts in a bin that is
    empty in Q, the last.
    """
    counts = np.asarray(counts, np.float64).copy()
    counts[0] = counts[1]
    total = counts.sum()
    if not total:
        return np.zeros(len(counts) - levels + 1)
    ends = np.arange(levels, len(counts) + 1)
    borders = _borders(len(counts), levels)
    below = np.concatenate(([0.0], np.cumsum(counts)))
    filled = np.concatenate(([0], np.cumsum(counts > 0)))
    sums, used = np.diff(below[borders]), np.diff(filled[borders])  # of every level, for every end
    inside, outside = below[ends], total - below[ends]
    outside[-1] = 0.0
    with np.errstate(divide="ignore", invalid="ignore"):
        level = np.where(sums > 0, np.log(sums / used), 0.0)  # ln of Q, without its total
        own = np.where(counts > 0, counts * np.log(counts), 0.0)
        last = counts[ends - 1]
        # Σ P ln P, of which only the last bin has more than its own
        entropy = np.cumsum(own)[ends - 1] - own[ends - 1] + _xlogx(last + outside)
        cross = (sums * level).sum(1) + outside * level[:, -1] - total * np.log(inside)
        divergences = (entropy - total * math.log(total) - cross) / total
    divergences[(last == 0) & (outside > 0) | (inside == 0)] = np.inf
    return divergences


def _xlogx(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x * np.log(x), 0.0)


@cache
def _borders(bins: int, levels: int) -> np.ndarray:
    """Returns i64[bins - levels + 1, levels + 1]: the first bin of each level if the first `levels`, `levels` + 1, …
    bins become `levels` steps: bin x is of level ⌊x · levels / i⌋."""
    ends = np.arange(levels, bins + 1)[:, None]
    return -(-ends * np.arange(levels + 1) // levels)


@dataclass(frozen=True)
class PercentileAlgorithm(Algorithm):
    """The value that `percentile` per cent of all absolute values, including zeros, do not exceed.

    Raises InputError for a percentile that is not above 0 and at most 100.
    """

    title = "PercentileCalibration"
    percentile: float = 99.99

    def __post_init__(self) -> None:
        value = self.percentile
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not 0 < value <= 100:
            raise InputError(f"a percentile is a number above 0 and up to 100, such as 99.99, got {value!r}")

    def amax(self, seen: ValueRange) -> float:
        assert isinstance(seen, AbsoluteHistogram)
        if self.percentile == 100:
            return seen.amax
        counts = seen.counts
        below = np.cumsum(counts)
        wanted = seen.elements * self.percentile / 100
        i = int(np.searchsorted(below, wanted))
        inside = (wanted - (below[i] - counts[i])) / counts[i]  # the share of the bin
        return min((i + inside) * seen.width, seen.amax)


@dataclass(frozen=True)
class SquaredErrorAlgorithm(Algorithm):
    """The range with the smallest mean squared error of quantizing, of `steps` ranges from 1/16 to all of the largest
    value, with all values at the centers of their bins.

    Steps are those of the bytes that the range becomes: half as long if nothing is negative. Saturation errors count
    `saturation` times: they have one sign and do not cancel in sums, unlike rounding errors.
    """

    title = "MseCalibration"
    steps: int = 121
    saturation: float = 4.0

    def amax(self, seen: ValueRange) -> float:
        assert isinstance(seen, AbsoluteHistogram)
        candidates = np.linspace(seen.amax / 16, seen.amax, self.steps)
        counts = seen.counts
        filled = np.flatnonzero(counts)
        centers, weights = (filled + 0.5) * seen.width, counts[filled].astype(np.float64)
        errors = [weights @ self._errors(centers, float(end), seen.low) for end in candidates]
        return float(candidates[int(np.argmin(errors))])

    def _errors(self, x: np.ndarray, end: float, low: float) -> np.ndarray:
        """Returns (x - q(x))² for absolute values x of any size, of a tensor whose range is cut at ±end."""
        scale = Bounds(max(-end, low), end).byte_grid().scale
        errors = x / scale
        np.rint(errors, out=errors)
        errors *= scale
        np.minimum(errors, end, out=errors)
        errors -= x
        np.square(errors, out=errors)
        errors[np.searchsorted(x, end, "right") :] *= self.saturation
        return errors


@dataclass(frozen=True)
class LegacyAlgorithm(PercentileAlgorithm):
    """A quantile of the absolute values, for TensorRT's oldest calibrator."""

    title = "LegacyCalibration"


ENTROPY, MIN_MAX, MSE = EntropyAlgorithm(), MinMaxAlgorithm(), SquaredErrorAlgorithm()
# The default without a calibrator. Two networks on CIFAR-10, calibrated on 400 of 500 pictures, SQNR in dB of the
# logits of the other 100 (mean of five splits), errors of saturation counted once, 4, 16 and 64 times: 38.1, 38.4,
# 38.5, 38.1 and 36.4, 36.5, 36.3, 35.9; largest value 38.1 and 35.6; steps of s8 for all tensors, counted once: 36.8
# and 34.9. A sentence encoder, equalized, counted once, 4 and 16 times: 21.9, 23.6, 24.0; largest value 24.0.
DEFAULT = MSE
# TensorRT's type → the algorithm; the calibrator supplies LEGACY_CALIBRATION's quantile
BY_TYPE = {
    CalibrationAlgoType.ENTROPY_CALIBRATION: OldEntropyAlgorithm(),
    CalibrationAlgoType.ENTROPY_CALIBRATION_2: ENTROPY,
    CalibrationAlgoType.MINMAX_CALIBRATION: MIN_MAX,
}
