"""Metrics of arrays beside loops in Python, and their refusals."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from pelton.errors import InputError
from pelton.metrics import Noise, agreement, by_output, cosine, cosines, lowest, matches, sqnr

INF, NAN = math.inf, math.nan


def plain_sqnr(reference, found):
    signal = math.fsum(abs(complex(a)) ** 2 for a in np.ravel(reference))
    noise = math.fsum(abs(complex(a) - complex(b)) ** 2 for a, b in zip(np.ravel(reference), np.ravel(found)))
    return 10 * math.log10(signal / noise)


@pytest.mark.parametrize("shape", [(1,), (7,), (3, 5), (2, 1, 3, 11), ()])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.complex64])
def test_sqnr_is_that_of_a_loop(shape, dtype):
    rng = np.random.default_rng(len(shape))
    a = (3 + rng.standard_normal(shape)).astype(dtype)
    b = (a.astype(np.complex128).real + rng.uniform(0.1, 0.2, shape)).astype(dtype)
    assert sqnr(a, b) == pytest.approx(plain_sqnr(a, b), abs=1e-9)


def test_sqnr_of_integers_does_not_wrap_around():
    a, b = np.array([0, 255, 3], np.uint8), np.array([1, 253, 4], np.uint8)
    assert sqnr(a, b) == pytest.approx(10 * math.log10((255**2 + 9) / (1 + 4 + 1)))
    assert sqnr(np.array([-128, 127], np.int8), np.array([127, -128], np.int8)) == pytest.approx(
        plain_sqnr([-128, 127], [127, -128])
    )
    assert sqnr([True, False], [True, True]) == 0


def test_sqnr_of_types_that_differ_is_in_float64():
    a, b = np.array([0.1, 0.7]), np.array([0.1, 0.7], np.float32)
    assert sqnr(a, b) == pytest.approx(plain_sqnr(a, b)) and 140 < sqnr(a, b) < 180


@pytest.mark.parametrize(
    "reference, found, db",
    [
        ([1.0, 2.0], [1.0, 2.0], INF),
        ([0.0, 0.0], [0.0, -0.0], INF),
        ([], [], INF),
        ([0.0, 0.0], [0.0, 1e-3], -INF),
        ([NAN, 1.0], [NAN, 1.0], INF),
        ([INF, 3.0], [INF, 3.3], 20),
        ([NAN, 3.0], [NAN, 3.3], 20),
        ([NAN, 1.0], [1.0, 1.0], -INF),
        ([1.0, 1.0], [1.0, NAN], -INF),
        ([INF, 1.0], [-INF, 1.0], -INF),
        ([INF, 1.0], [1e300, 1.0], -INF),
        ([1e300, 0.0], [1e300, 1e299], 20),
        ([1e308, 0.0], [-1e308, 0.0], 20 * math.log10(0.5)),
        ([1e-120, 0.0], [1e-120, 1e-121], 20),
        ([complex(NAN, 1)], [complex(NAN, 1)], INF),
        ([complex(1, INF)], [complex(2, INF)], -INF),
    ],
)
def test_corners_of_sqnr(reference, found, db):
    assert sqnr(reference, found) == pytest.approx(db)


@pytest.mark.parametrize("scale", [1.0, 1e200])
def test_noise_adds_up_over_arrays(scale):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 6, 5))
    sums = Noise()
    for i, (x, y) in enumerate(zip(a, b)):
        factor = scale if i == 3 else 1.0
        sums.add(x * factor, y * factor)
    a[3], b[3] = a[3] * scale, b[3] * scale
    assert sums.sqnr == pytest.approx(sqnr(a, b)) and math.isfinite(sums.sqnr)
    sums.add([NAN, 1], [1, 1])
    assert sums.nonfinite == 1 and sums.sqnr == -INF


def plain_matches(a, b):
    def first_largest(row):
        return max(range(len(row)), key=lambda i: (row[i], -i))

    return [first_largest(list(x)) == first_largest(list(y)) for x, y in zip(a, b)]


@pytest.mark.parametrize("classes", [1, 2, 13, 1000])
def test_agreement_is_that_of_a_loop(classes):
    rng = np.random.default_rng(classes)
    a = rng.integers(-3, 4, (41, classes)).astype(np.int8)  # with ties
    b = np.where(rng.random(a.shape) < 0.1, rng.integers(-3, 4, a.shape), a).astype(np.float32)
    assert matches(a, b).tolist() == plain_matches(a, b)
    assert agreement(a, b) == sum(plain_matches(a, b)) / 41
    assert agreement(a.T, b.T, axis=0) == agreement(a, b)
    assert agreement(a.reshape(1, 41, classes), b.reshape(1, 41, classes)) == agreement(a, b)


def test_rows_of_agreement():
    assert agreement([1, 3, 2], [0, 9, 1]) == 1 and agreement([1, 3, 2], [9, 0, 1]) == 0  # one axis: one row
    assert matches(np.zeros((2, 3, 4)), np.ones((2, 3, 4)), axis=1).shape == (2, 4)
    assert agreement([[2, 2, 1]], [[2, 3, 1]]) == 0  # of equal ones the first counts
    assert agreement([[NAN, 1], [1, 2], [INF, 1]], [[NAN, 1], [1, NAN], [5, 1]]) == 1 / 3
    for kind in ("float8_e4m3fn", "bfloat16"):
        a = np.array([[1, 2, 3], [3, 2, 1]]).astype(getattr(ml_dtypes, kind))
        assert matches(a, a[::-1]).tolist() == [False, False] and agreement(a, a) == 1
        assert agreement(a[:1], np.full((1, 3), NAN).astype(a.dtype)) == 0


def test_cosines_are_those_of_a_loop():
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((2, 5, 7)).astype(np.float32)
    want = [
        math.fsum(map(float, x.astype(float) * y)) / math.hypot(*map(float, x)) / math.hypot(*map(float, y))
        for x, y in zip(a, b)
    ]
    assert cosines(a, b) == pytest.approx(np.array(want)) and cosine(a[2], b[2]) == pytest.approx(want[2])
    assert cosines(a.T, b.T, axis=0) == pytest.approx(np.array(want))
    whole = float((a.astype(float) * b).sum() / np.sqrt((a.astype(float) ** 2).sum() * (b.astype(float) ** 2).sum()))
    assert cosine(a, b) == pytest.approx(whole)


@pytest.mark.parametrize(
    "reference, found, value",
    [
        ([1, 2], [2, 4], 1),
        ([1, 2], [-1, -2], -1),
        ([1, 0], [0, 1], 0),
        ([0, 0], [0, 0], 1),
        ([0, 0], [0, 1], 0),
        ([], [], 1),
        (3.0, 4.0, 1),
        ([NAN, 1], [NAN, 1], 0),
        ([1, 1], [INF, 1], 0),
        ([1e300, 1e300], [1e-300, 1e-300], 1),
        (np.array([200, 100], np.uint8), np.array([200, 100], np.uint8), 1),
    ],
)
def test_corners_of_cosine(reference, found, value):
    assert cosine(reference, found) == pytest.approx(value)


@pytest.mark.parametrize(
    "call, why",
    [
        (lambda: sqnr([1, 2], [[1, 2]]), r"shape \[2\], the result \[1, 2\]"),
        (lambda: sqnr([1, 2], 1.0), "shape"),
        (lambda: sqnr(["a"], ["a"]), "arrays of numbers are compared"),
        (lambda: sqnr([1.0], np.array([None])), "what was found is an array of object"),
        (lambda: agreement(1.0, 1.0), "no axis -1"),
        (lambda: agreement([1.0], [1.0], axis=1), "no axis 1"),
        (lambda: agreement(np.zeros((2, 0)), np.zeros((2, 0))), "no elements"),
        (lambda: agreement(np.zeros((0, 2)), np.zeros((0, 2))), "no rows"),
        (lambda: agreement([1j], [1j]), "no largest"),
        (lambda: cosine([1], [1, 2]), "shape"),
        (lambda: cosine([1j], [1j]), "real numbers"),
        (lambda: cosines(1.0, 1.0), "no axis"),
        (lambda: by_output(sqnr, {"y": [1]}, {"z": [1]}), "missing y; unknown z"),
        (lambda: by_output(sqnr, {"y": [1]}, {"y": [1, 2]}), "output 'y': the reference has shape"),
        (lambda: lowest({}), "no outputs"),
    ],
)
def test_refuses(call, why):
    with pytest.raises(InputError, match=why):
        call()


def test_several_outputs():
    reference, found = {"y": [1.0, 1.0], "z": [3.0]}, {"z": [3.3], "y": [1.0, 1.0]}
    each = by_output(sqnr, reference, found)
    assert list(each) == ["y", "z"] and each["y"] == INF and lowest(each) == ("z", pytest.approx(20))
    assert lowest({"a": 1.0, "b": NAN, "c": -INF})[0] == "b" and lowest({"a": 1.0, "b": 1.0}) == ("a", 1.0)
