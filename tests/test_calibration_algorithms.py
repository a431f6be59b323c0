"""Ranges by entropy, percentile and squared error beside plain loops in float64, and their histogram."""

import math

import numpy as np
import pytest

import pelton
from pelton.calibration.algorithms import (
    ENTROPY,
    MIN_MAX,
    LegacyAlgorithm,
    PercentileAlgorithm,
    SquaredErrorAlgorithm,
    entropy_divergences,
)
from pelton.calibration.histogram import BINS, AbsoluteHistogram, ValueRange


def seen(*arrays, observer=AbsoluteHistogram):
    found = observer()
    for array in arrays:
        found.add(array)
    return found


def values(kind: str, seed: int, count: int = 20_000) -> np.ndarray:
    """Values such as layers give; the outlier is where calibrators differ."""
    x = np.random.default_rng(seed).standard_normal(count)
    if kind == "relu":
        x = np.maximum(x, 0)
    elif kind == "heavy":
        x = x**3
    elif kind == "outlier":
        x[7] = 40.0
    elif kind == "steps":
        x = np.round(x * 4) / 4
    elif kind == "tiny":
        x = x * 1e-35
    elif kind == "huge":
        x = x * 1e37
    return x.astype(np.float32)


KINDS = ("gauss", "relu", "heavy", "outlier", "steps", "tiny", "huge")


def plain_divergence(counts, i: int, levels: int) -> float:
    """The divergence of the first i bins made `levels` levels, step by step as published."""
    counts = [float(c) for c in counts]
    counts[0] = counts[1]
    reference = counts[:i]
    reference[-1] += sum(counts[i:])
    level_of = [x * levels // i for x in range(i)]
    expanded = [0.0] * i
    for level in range(levels):
        inside = [x for x in range(i) if level_of[x] == level and counts[x]]
        for x in inside:
            expanded[x] = sum(counts[y] for y in inside) / len(inside)
    p, q = sum(reference), sum(expanded)
    found = 0.0
    for a, b in zip(reference, expanded):
        if a and not b:
            return math.inf
        if a:
            found += a / p * math.log(a / p / (b / q))
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_entropy_is_that_of_a_plain_loop(kind, seed):
    counts, _ = seen(values(kind, seed)).coarse(300)
    found = entropy_divergences(counts, 32)
    want = [plain_divergence(counts, i, 32) for i in range(32, len(counts) + 1)]
    assert np.isfinite(want).any() and found.shape == (len(want),)
    np.testing.assert_allclose(found, want, rtol=1e-9, atol=1e-12)


def test_entropy_of_sparse_counts_with_holes_at_both_ends():
    rng = np.random.default_rng(5)
    for hole in (0, 1, 5):
        counts = rng.integers(0, 4, 200) * (rng.random(200) < 0.4)
        counts[:hole], counts[-1] = 0, 3
        want = [plain_divergence(counts, i, 16) for i in range(16, 201)]
        np.testing.assert_allclose(entropy_divergences(counts, 16), want, rtol=1e-9, atol=1e-12)


def test_zeros_do_not_decide_the_entropy():
    """However many zeros there are, as after ReLU, the range is that of the other values."""
    x = np.abs(values("gauss", 1, 50_000))
    few, many = (ENTROPY.amax(seen(x, np.zeros(n, np.float32))) for n in (10, 10_000_000))
    assert few == many and few > 2


def test_entropy_cuts_an_outlier_off_and_min_max_does_not():
    found = seen(values("outlier", 0))
    assert MIN_MAX.amax(found) == 40.0 and 2.5 < ENTROPY.amax(found) < 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("percentile", [50, 99, 99.9, 99.99, 100])
def test_percentiles_are_numpys_to_a_bin(kind, percentile):
    x = values(kind, 2, 20_011)  # no percentile lies between two values
    found = seen(x)
    want = np.percentile(np.abs(x.astype(np.float64)), percentile, method="inverted_cdf")
    assert abs(PercentileAlgorithm(percentile).amax(found) - want) <= found.width
    assert LegacyAlgorithm(percentile).amax(found) == PercentileAlgorithm(percentile).amax(found)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sign", ["both", "above", "mostly above"])
def test_the_squared_error_is_the_smallest_of_the_values_themselves(kind, sign):
    """With the steps that the range gets, and four times that of what saturates."""
    x = values(kind, 1).astype(np.float64)
    x = {"both": x, "above": np.abs(x), "mostly above": np.maximum(x, -0.3 * x.max())}[sign]

    def error(amax: float) -> float:
        low = max(-amax, x.min())
        scale = amax / 127 if low < -0.9 * amax else (amax - min(low, 0)) / 255
        inside = np.abs(x) <= amax
        errors = np.where(inside, np.rint(x / scale) * scale - x, np.sign(x) * amax - x)
        return (np.square(errors) * np.where(inside, 1, 4)).sum()

    best = min(error(amax) for amax in np.abs(x).max() * np.linspace(1 / 16, 1, 121))
    assert error(SquaredErrorAlgorithm().amax(seen(x.astype(np.float32)))) <= 1.01 * best + 1e-9


@pytest.mark.parametrize("given", [0, -1, 100.5, math.nan, math.inf, True, "99", None])
def test_percentiles_that_are_none(given):
    with pytest.raises(pelton.InputError, match="a percentile is a number above 0 and up to 100"):
        PercentileAlgorithm(given)


@pytest.mark.parametrize("kind", KINDS)
def test_histograms_do_not_depend_on_splits_and_order(kind):
    """Ranges that double merge bins exactly, from whatever array they began."""
    x = values(kind, 3)
    x[::97] *= np.float32(1e-3)
    whole = seen(x)
    rng = np.random.default_rng(0)
    for pieces in (2, 7, 300):
        parts = np.array_split(np.sort(x) if pieces == 7 else rng.permutation(x), pieces)
        found = seen(*parts)
        assert found.width == whole.width and np.array_equal(found.counts, whole.counts)
        assert (found.low, found.high, found.elements) == (whole.low, whole.high, whole.elements)
        for algorithm in (ENTROPY, MIN_MAX, PercentileAlgorithm(99.9), SquaredErrorAlgorithm()):
            assert algorithm.amax(found) == algorithm.amax(whole)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_histogram_counts_what_numpy_counts(dtype):
    x = (np.random.default_rng(0).standard_normal((7, 11, 13)) * 3).astype(dtype)
    found = seen(x[:4], x[4:, ::-1])
    edges = np.arange(len(found.counts) + 1) * found.width
    want = np.searchsorted(np.sort(np.abs(x.astype(np.float64)).ravel()), edges)
    assert np.array_equal(found.counts, np.diff(want)) and found.counts[-1] > 0
    assert BINS // 2 < len(found.counts) <= BINS


def test_a_value_at_a_power_of_two_and_a_range_that_grows_by_far():
    found = seen(np.float32([1e-30]), np.float32([0]), np.float32([2.0, -2.0]), np.float32([1.9999999]))
    assert found.width * BINS == 4.0
    assert found.counts[0] == 2 and found.counts[-1] == 2 and found.counts.sum() == 5
    assert len(seen(np.zeros(5, np.float32)).counts) == 0
    counts, width = found.coarse(2048)
    assert counts.sum() == 5 and len(counts) <= 2048 and width == found.width * 5


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("observer", [ValueRange, AbsoluteHistogram])
def test_values_that_are_not_finite_are_noticed(bad, observer):
    found = seen(np.float32([1, 2]), np.float32([1, bad]), np.float32([9]), observer=observer)
    assert found.nonfinite and found.amax == 2
    assert not seen(np.float32([]), np.float32([1]), observer=observer).nonfinite
