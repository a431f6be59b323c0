"""The comparer itself: it fails when it must."""

from __future__ import annotations

import numpy as np
import pytest
from compare import assert_close, tolerance

ONES = np.ones((2, 3), np.float32)


def changed(value, at=(1, 2), array=ONES) -> np.ndarray:
    out = array.copy()
    out[at] = value
    return out


@pytest.mark.parametrize(
    "got, want",
    [
        (ONES, ONES),
        (changed(1 + 1e-6), ONES),
        (changed(np.nan), changed(np.nan)),
        (changed(np.inf), changed(np.inf)),
        (np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32)),
        (np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)),
        (np.array(["a", "b"], object), np.array(["a", "b"], object)),
        ({"y": ONES}, {"y": ONES}),
        ((ONES, ONES), [ONES, ONES]),
    ],
)
def test_accepts(got, want):
    assert_close(got, want)


@pytest.mark.parametrize(
    "got, want, reason",
    [
        (changed(1.001), ONES, "error"),
        (changed(1e-3, array=np.zeros((2, 3), np.float32)), np.zeros((2, 3), np.float32), "error"),
        (changed(np.nan), ONES, "NaN"),
        (ONES, changed(np.nan), "NaN"),
        (changed(np.inf), ONES, "infinity"),
        (ONES, changed(np.inf), "infinity"),
        (changed(-np.inf), changed(np.inf), "wrong sign"),
        (changed(np.inf), changed(np.nan), "NaN"),
        (ONES.T, ONES, "expected float32"),
        (ONES[0], ONES, "expected float32"),
        (ONES.astype(np.float64), ONES, "expected float32"),
        (np.array([1, 2, 4]), np.array([1, 2, 3]), "differ"),
        (np.array([True]), np.array([False]), "differ"),
        (np.array(["a"], object), np.array(["b"], object), "differ"),
        (None, ONES, "got none"),
        ({}, {"y": ONES}, "expected outputs"),
        ({"y": ONES, "z": ONES}, {"y": ONES}, "expected outputs"),
        (ONES, {"y": ONES}, "expected outputs"),
        ((ONES,), (ONES, ONES), "expected 2 outputs"),
        ({"y": changed(2)}, {"y": ONES}, r"\[y\].*error"),
    ],
)
def test_refuses(got, want, reason):
    with pytest.raises(AssertionError, match=reason):
        assert_close(got, want)


def test_a_coarser_type_widens_the_tolerance_and_a_finer_one_does_not_narrow_it():
    assert_close(changed(1.001), ONES, np.float16)
    with pytest.raises(AssertionError):
        assert_close(changed(1.1), ONES, np.float16)
    assert_close(changed(1 + 1e-6), ONES, np.float64)
    assert tolerance(np.int32) == 0


def test_the_error_is_relative_to_the_largest_value_not_to_each():
    large = changed(1e6)
    assert_close(changed(1.5, (0, 0), large), large)
