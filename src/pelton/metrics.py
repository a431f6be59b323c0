"""Distances between arrays and a reference: signal to quantization noise, top-1 agreement, cosines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pelton.errors import InputError

SAFE = 400  # base-2 exponent up to which squares are far from the limits of float64


@dataclass
class Noise:
    """The sums behind an SQNR, over any number of arrays, without keeping the arrays.

    `signal`: Σ |reference|², `noise`: Σ |reference − found|², both in float64 and in units of 4^`exponent`;
    `nonfinite`: number of elements that are infinite or NaN in one array and not the same in the other.
    """

    signal: float = 0.0
    noise: float = 0.0
    nonfinite: int = 0
    exponent: int = 0

    def add(self, reference: Any, found: Any) -> None:
        """Adds arrays of equal shapes, of numbers or bools. Raises InputError for others."""
        reference, found = _pair(reference, found)
        finite = np.isfinite(reference) & np.isfinite(found)
        if not finite.all():
            same = (reference == found) | (np.isnan(reference) & np.isnan(found))
            self.nonfinite += int((~finite & ~same).sum())
            reference, found = reference[finite], found[finite]
        largest = max(float(np.abs(part).max(initial=0.0)) for a in (reference, found) for part in _parts(a))
        exponent = max(self.exponent, math.frexp(largest)[1] - SAFE)
        if exponent > self.exponent:
            self.signal = math.ldexp(self.signal, 2 * (self.exponent - exponent))
            self.noise = math.ldexp(self.noise, 2 * (self.exponent - exponent))
            self.exponent = exponent
        if exponent:
            reference, found = reference * 2.0**-exponent, found * 2.0**-exponent
        self.signal += _squares(reference)
        self.noise += _squares(reference - found)

    @property
    def ratio(self) -> float:
        """Noise power divided by signal power; `sqnr` as a ratio."""
        return 10 ** (-self.sqnr / 10)

    @property
    def sqnr(self) -> float:
        """10 · log10(signal / noise) in dB; see `sqnr`."""
        if self.nonfinite:
            return -math.inf
        if not self.noise:
            return math.inf
        return 10 * (math.log10(self.signal) - math.log10(self.noise)) if self.signal else -math.inf


def decibels(noise: float) -> float:
    """Converts noise power divided by signal power to an SQNR in dB; inf for 0."""
    if not noise:
        return math.inf
    return -10 * math.log10(noise) if noise < math.inf else -math.inf


def sqnr(reference: Any, found: Any) -> float:
    """Returns the signal-to-quantization-noise ratio 10 · log10(Σ ref² / Σ (ref − found)²) in dB, over all elements.

    Takes arrays of equal shapes, of numbers or bools; computes in float64, complex numbers by absolute value. inf if no
    element differs or there are none; −inf if the reference is zero and `found` is not, or if an element is infinite or
    NaN in one array and not the same in the other. Elements equally infinite or NaN in both are left out. Never NaN.
    Raises InputError for other shapes or types.
    """
    sums = Noise()
    sums.add(reference, found)
    return sums.sqnr


def matches(reference: Any, found: Any, axis: int = -1) -> np.ndarray:
    """Returns True where both have their largest element along `axis` at the same position: bools of their shape
    without `axis`. Of equal elements the first counts, as in `numpy.argmax`; a row with a NaN never matches.

    Raises InputError for different shapes, arrays without axes, a missing or empty axis, and types without an order.
    """
    reference, found = _arrays(reference, found)
    if "c" in (reference.dtype.kind, found.dtype.kind):
        raise InputError("complex numbers have no largest element")
    if not -reference.ndim <= axis < reference.ndim:
        raise InputError(
            f"there is no axis {axis} in shape {list(reference.shape)}; the axis that holds one score for each class"
            " is needed"
        )
    if not reference.shape[axis]:
        raise InputError(f"axis {axis} of shape {list(reference.shape)} has no elements, and so no largest one")
    known = ~(_is_nan(reference) | _is_nan(found)).any(axis)
    return (_comparable(reference).argmax(axis) == _comparable(found).argmax(axis)) & known


def agreement(reference: Any, found: Any, axis: int = -1) -> float:
    """Returns top-1 agreement: the share of rows along `axis`, 0 to 1, whose largest elements match (`matches`). An
    array of one axis is one row. Raises InputError as `matches` does, and if there are no rows."""
    same = matches(reference, found, axis)
    if not same.size:
        raise InputError(f"arrays of shape {list(np.shape(reference))} have no rows to compare")
    return float(same.mean())


def cosine(reference: Any, found: Any) -> float:
    """Returns the cosine of the angle between two arrays as flat vectors, −1 to 1, in float64.

    1 if both are zero, 0 if one is; 0 if an element is infinite or NaN. Raises InputError for different shapes and for
    types other than real numbers and bools.
    """
    reference, found = _pair(reference, found)
    return float(cosines(reference.reshape(-1), found.reshape(-1)))


def cosines(reference: Any, found: Any, axis: int = -1) -> np.ndarray:
    """Returns the cosine (`cosine`) of each pair of vectors along `axis`: float64 of the arrays' shape without it."""
    reference, found = _pair(reference, found)
    if np.iscomplexobj(reference) or np.iscomplexobj(found):
        raise InputError("cosines need real numbers, got complex ones")
    if not -reference.ndim <= axis < reference.ndim:
        raise InputError(f"there is no axis {axis} in shape {list(reference.shape)}")
    finite = (np.isfinite(reference) & np.isfinite(found)).all(axis)
    units, lengths = [], []
    for a in (reference, found):
        a = np.where(np.expand_dims(finite, axis), a, 0.0)
        largest = np.abs(a).max(axis, keepdims=True, initial=0.0)
        a = a / np.where(largest, largest, 1.0)  # keeps squares from overflow and underflow
        length = np.sqrt((a * a).sum(axis, keepdims=True))
        units.append(a / np.where(length, length, 1.0))
        lengths.append(length.squeeze(axis) > 0)
    both_zero = finite & ~lengths[0] & ~lengths[1]
    return np.where(both_zero, 1.0, np.clip((units[0] * units[1]).sum(axis), -1.0, 1.0))


def by_output(
    metric: Callable[[Any, Any], float], reference: Mapping[str, Any], found: Mapping[str, Any]
) -> dict[str, float]:
    """Computes a metric for each output, by name, in the reference's order. Raises InputError if the names differ; an
    InputError of the metric is prefixed with the output's name."""
    if set(reference) != set(found):
        missing, more = [n for n in reference if n not in found], [n for n in found if n not in reference]
        raise InputError(
            f"outputs of other names: expected {', '.join(reference) or 'none'}; "
            + "; ".join(
                f"{what} {', '.join(names)}" for what, names in (("missing", missing), ("unknown", more)) if names
            )
        )
    values = {}
    for name, array in reference.items():
        try:
            values[name] = metric(array, found[name])
        except InputError as e:
            raise InputError(f"output {name!r}: {e}") from None
    return values


def lowest(values: Mapping[str, float]) -> tuple[str, float]:
    """Returns name and value of the lowest: a NaN if there is one, the first of equals. Raises InputError if empty."""
    if not values:
        raise InputError("there are no outputs to compare")
    return min(values.items(), key=lambda item: -math.inf if math.isnan(item[1]) else item[1])


def _arrays(reference: Any, found: Any) -> tuple[np.ndarray, np.ndarray]:
    """Converts both to arrays of numbers or bools of one shape."""
    pair = np.asarray(reference), np.asarray(found)
    for what, a in zip(("the reference", "what was found"), pair):
        if a.dtype.kind in "OSUTMm" or (a.dtype.kind == "V" and a.dtype.names):
            raise InputError(f"{what} is an array of {a.dtype}; arrays of numbers are compared")
    if pair[0].shape != pair[1].shape:
        raise InputError(f"the reference has shape {list(pair[0].shape)}, the result {list(pair[1].shape)}")
    return pair


def _pair(reference: Any, found: Any) -> tuple[np.ndarray, np.ndarray]:
    """Converts both to float64 or complex128."""
    pair = _arrays(reference, found)
    wide = np.complex128 if any(a.dtype.kind == "c" for a in pair) else np.float64
    return pair[0].astype(wide, copy=False), pair[1].astype(wide, copy=False)


def _comparable(a: np.ndarray) -> np.ndarray:
    """Converts types that numpy does not order (bfloat16, float8) to float32, which is exact."""
    return a.astype(np.float32) if a.dtype.kind == "V" else a


def _is_nan(a: np.ndarray) -> np.ndarray:
    a = _comparable(a)
    return np.isnan(a) if a.dtype.kind == "f" else np.zeros(a.shape, bool)


def _parts(a: np.ndarray) -> tuple[np.ndarray, ...]:
    return (a.real, a.imag) if np.iscomplexobj(a) else (a,)


def _squares(a: np.ndarray) -> float:
    return float(sum(np.square(part).sum() for part in _parts(a)))


STRETCH = 4.0  # factor that widens the range of several correct results


def difference(
    found: np.ndarray,
    expected: np.ndarray,
    tolerance: float,
    others: Sequence[np.ndarray] = (),
    share: float = 0.0,
) -> str:
    """Describes the difference of an array from the expected one, to follow its name: "is off by …"; "" if they agree.

    Floats agree up to `tolerance` times the largest expected one, with the same infinities and NaN; other types if no
    more than `share` of the elements differ. others: equally correct results of other roundings; values within their
    range agree.
    """
    if found.shape != expected.shape:
        return f"has shape {list(found.shape)} instead of {list(expected.shape)}"
    every = [found, *(a for a in others if a.shape == found.shape)]
    if expected.dtype.kind not in "fV" and found.dtype.kind not in "fV":
        settled = np.logical_and.reduce([a == found for a in every])
        count = int(((found != expected) & settled).sum())
        return f"differs in {count} of {expected.size} elements" if count > share * expected.size else ""
    wide, want = [a.astype(np.float64) for a in every], expected.astype(np.float64)
    finite = np.isfinite(want)
    largest = float(np.abs(want[finite]).max(initial=0.0))
    with np.errstate(invalid="ignore", over="ignore"):
        low, high = np.minimum.reduce(wide), np.maximum.reduce(wide)
        margin = tolerance * largest + STRETCH * (high - low)
        close = finite & (want >= low - margin) & (want <= high + margin)
        for a in wide:
            close |= ~finite & ((a == want) | np.isnan(a) & np.isnan(want))
        off = np.abs(wide[0] - want)[~close & finite]
    if close.all():
        return ""
    if np.isfinite(off).all() and off.size:
        return f"is off by {off.max():.3g}, where the largest element is {largest:.3g}"
    return f"has infinities or NaN that differ, in {int((~close).sum())} of {want.size} elements"
