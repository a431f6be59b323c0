"""Statistics of a tensor in one streaming pass: its range, and a histogram of its absolute values."""

from __future__ import annotations

import math

import numpy as np

BINS = 1 << 14
CHUNK = 1 << 16  # elements counted at a time, so that intermediate arrays fit a core's cache


class ValueRange:
    """The smallest and the largest value of a tensor over any number of arrays.

    `nonfinite`: True if it had infinite values or NaN; counting stops then.
    """

    def __init__(self) -> None:
        self.low, self.high, self.elements, self.nonfinite = math.inf, -math.inf, 0, False

    @property
    def amax(self) -> float:
        """The largest absolute value; 0 without values."""
        return max(-self.low, self.high, 0.0)

    def add(self, array: np.ndarray) -> None:
        """Counts the elements of an array of floats."""
        if not array.size or self.nonfinite:
            return
        low, high = float(array.min()), float(array.max())  # NaN if there is one
        if not (math.isfinite(low) and math.isfinite(high)):
            self.nonfinite = True
            return
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.elements += array.size
        self._count(array)

    def _count(self, array: np.ndarray) -> None:
        """Counts finite elements, which `low` and `high` already include."""


class AbsoluteHistogram(ValueRange):
    """Counts of absolute values in `BINS` bins from 0 to a power of two, which doubles as values pass it.

    The limit is the smallest power of two above the largest value, so the bins do not depend on the split or order of
    the arrays: doubling merges two bins exactly. Bin i counts |x| with i · width ≤ |x| < (i + 1) · width.
    """

    def __init__(self) -> None:
        super().__init__()
        self._counts, self._exponent = np.zeros(BINS, np.int64), -math.inf  # values are below 2 ** exponent

    @property
    def width(self) -> float:
        """The width of a bin."""
        return math.ldexp(1.0, int(self._exponent)) / BINS if math.isfinite(self._exponent) else 0.0

    @property
    def counts(self) -> np.ndarray:
        """i64[n], the counts of all bins up to that of the largest value; empty if all values are 0."""
        return self._counts[: math.floor(self.amax / self.width) + 1] if self.amax else self._counts[:0]

    def coarse(self, bins: int) -> tuple[np.ndarray, float]:
        """Returns (counts, width) of at most so many bins up to the largest value, each of a whole number of own
        bins."""
        counts = self.counts
        merged = max(1, math.ceil(len(counts) / bins))
        padded = np.pad(counts, (0, -len(counts) % merged))
        return padded.reshape(-1, merged).sum(1), self.width * merged

    def _count(self, array: np.ndarray) -> None:
        amax = self.amax
        if not amax:
            self._counts[0] += array.size
            return
        exponent = math.frexp(amax)[1]
        if exponent > self._exponent:
            self._merge(exponent)
        # f64 only for types whose products with a power of two could overflow or round
        flat, wide = array.reshape(-1), np.float64 if array.dtype.itemsize > 4 or abs(exponent) > 100 else np.float32
        scale = wide(math.ldexp(BINS, -int(self._exponent)))
        for start in range(0, flat.size, CHUNK):
            scaled = np.abs(flat[start : start + CHUNK], dtype=wide)
            scaled *= scale
            self._counts += np.bincount(scaled.astype(np.intp), minlength=BINS)

    def _merge(self, exponent: int) -> None:
        """Widens the bins, so that values below 2 ** exponent fit."""
        steps = exponent - self._exponent
        if steps >= BINS.bit_length():  # all in bin 0, as before the limit was known
            merged = self._counts.sum(keepdims=True)
        else:
            merged = self._counts.reshape(-1, 1 << int(steps)).sum(1)
        self._counts = np.zeros(BINS, np.int64)
        self._counts[: len(merged)] = merged
        self._exponent = exponent
