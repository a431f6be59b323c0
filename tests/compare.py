"""Tolerances of results, by element type and largest expected value, never by test."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

# Units of rounding of the element type that a chain of operations may lose, relative to the largest value wanted.
_ROUNDINGS = {
    "float64": 2.0**-40,
    "float32": 2e-5,
    "float16": 4e-3,
    "bfloat16": 3e-2,
    "float8_e4m3fn": 0.15,
    "float8_e4m3fnuz": 0.15,
    "float8_e5m2": 0.3,
    "float8_e5m2fnuz": 0.3,
    "float8_e8m0fnu": 1.1,
    "float6_e2m3fn": 0.15,
    "float6_e3m2fn": 0.3,
    "float4_e2m1fn": 0.6,
    "complex64": 2e-5,
    "complex128": 2.0**-40,
}


def tolerance(dtype) -> float:
    """The largest error allowed, relative to the largest value wanted; zero for integers, bools and strings."""
    return _ROUNDINGS.get(np.dtype(dtype).name, 0.0)


def assert_close(got, want, dtype=None, *, about: str = "") -> None:
    """Arrays, sequences of arrays or name → array: `got` has the outputs of `want`, of their shapes and types, near
    their values.

    `dtype` is the element type whose tolerance counts where that is coarser than the arrays' own (a float16 program
    checked in float32). NaNs and infinities must lie where they are wanted.
    """
    if isinstance(want, Mapping):
        if not isinstance(got, Mapping) or got.keys() != want.keys():
            raise AssertionError(
                f"{about}: expected outputs {sorted(want)}, got"
                f" {sorted(got) if isinstance(got, Mapping) else type(got).__name__}"
            )
        for name in want:
            assert_close(got[name], want[name], dtype, about=f"{about}[{name}]")
    elif isinstance(want, (tuple, list)):
        if not isinstance(got, (tuple, list)) or len(got) != len(want):
            raise AssertionError(
                f"{about}: expected {len(want)} outputs, got"
                f" {len(got) if isinstance(got, (tuple, list)) else type(got).__name__}"
            )
        for i, (g, w) in enumerate(zip(got, want)):
            assert_close(g, w, dtype, about=f"{about}[{i}]")
    else:
        _assert_array_close(got, np.asarray(want), dtype, about)


def _assert_array_close(got, want: np.ndarray, dtype, about: str) -> None:
    if got is None:
        raise AssertionError(f"{about}: expected an array, got none")
    got = np.asarray(got)
    if got.shape != want.shape or got.dtype != want.dtype:
        raise AssertionError(f"{about}: expected {want.dtype}{list(want.shape)}, got {got.dtype}{list(got.shape)}")
    allowed = max(tolerance(want.dtype), tolerance(dtype) if dtype is not None else 0.0)
    if want.size == 0:
        return
    if allowed == 0.0:
        wrong = np.asarray(got != want)
        if wrong.any():
            at = _first(wrong)
            raise AssertionError(
                f"{about}: {wrong.sum()} of {want.size} elements differ, first at {at}: expected {want[at]!r}, got"
                f" {got[at]!r}"
            )
        return
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    got, want = got.astype(wide), want.astype(wide)
    for what, find in (("NaN", np.isnan), ("infinity", np.isinf)):
        misplaced = find(got) != find(want)
        if misplaced.any():
            at = _first(misplaced)
            raise AssertionError(f"{about}: {what} misplaced at {at}: expected {want[at]}, got {got[at]}")
    infinite = np.isinf(want)
    if (got[infinite] != want[infinite]).any():
        raise AssertionError(f"{about}: infinities of the wrong sign")
    finite = np.isfinite(want)
    if not finite.any():
        return
    scale = np.abs(want[finite]).max()
    error = np.where(finite, np.abs(np.where(finite, got, 0) - np.where(finite, want, 0)), 0.0)
    if error.max() > allowed * scale:
        at = np.unravel_index(error.argmax(), error.shape)
        raise AssertionError(
            f"{about}: the error {error.max():.3g} is more than {allowed:.2g} of the largest value {scale:.4g}; "
            f"worst at {list(map(int, at))}: expected {want[at]:.9g}, got {got[at]:.9g}"
        )


def _first(where: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(where)[0])
