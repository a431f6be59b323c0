"""Operators that the onnx package's evaluator lacks, or implements for fewer data than the standard allows.

Each function makes a class, so that the package is imported only when needed.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from .suppression import non_max_suppression


@functools.cache
def operators() -> tuple[Any, ...]:
    """Returns the classes for `ReferenceEvaluator`."""
    return _bernoulli(), _cast(), _multinomial(), _non_max_suppression()


def _bernoulli() -> Any:
    from onnx.helper import tensor_dtype_to_np_dtype
    from onnx.reference.ops._op_common_random import _CommonRandom

    class Bernoulli(_CommonRandom):
        """1 where a random number of [0, 1) is below the probability, which rounding may have made more than 1."""

        op_domain = ""

        def _run(self, x: Any, dtype: Any = None, seed: Any = None) -> tuple[Any]:
            kind = x.dtype if dtype is None else tensor_dtype_to_np_dtype(dtype)
            return (np.asarray(self._get_state(seed).random_sample(x.shape) < x).astype(kind),)

    return Bernoulli


def _multinomial() -> Any:
    from onnx.helper import tensor_dtype_to_np_dtype
    from onnx.reference.ops._op_common_random import _CommonRandom

    class Multinomial(_CommonRandom):
        """Draws classes from unnormalized log-probabilities [batch, classes]; never one that is not finite."""

        op_domain = ""

        def _run(self, x: Any, dtype: Any = None, sample_size: Any = None, seed: Any = None) -> tuple[Any]:
            finite = np.isfinite(x)
            if not finite.any(-1).all():
                row = np.flatnonzero(~finite.any(-1))[0]
                raise ValueError(f"row {row} needs a class of a finite logarithmic probability")
            x = np.where(finite, x, -np.inf).astype(np.float64)
            total = np.cumsum(np.exp(x - x.max(-1, keepdims=True)), -1)
            at = self._get_state(seed).random_sample((len(x), sample_size or 1)) * total[:, -1:]
            drawn = (total[:, None] <= at[..., None]).sum(-1)
            return (drawn.astype(tensor_dtype_to_np_dtype(dtype or 6)),)

    return Multinomial


def _non_max_suppression() -> Any:
    from onnx.reference.op_run import OpRun

    class NonMaxSuppression(OpRun):
        """Accepts limits that are scalars, absent, or negative."""

        op_domain = ""

        def _run(self, *inputs: Any, center_point_box: Any = 0) -> Any:
            return non_max_suppression(*inputs, center=bool(center_point_box))

    return NonMaxSuppression


def _cast() -> Any:
    from onnx.helper import tensor_dtype_to_np_dtype
    from onnx.reference.ops.op_cast import Cast_25

    class Cast(Cast_25):
        """Converts texts such as "100.5" or "1E8" to integers, by truncation."""

        op_domain = ""

        def _run(self, x: Any, to: Any = None, saturate: Any = 1, round_mode: Any = "up") -> tuple[Any]:
            kind = None if to == 8 else tensor_dtype_to_np_dtype(to)
            if x.dtype.kind not in "OU" or kind is None or kind.kind not in "iu":
                return super()._run(x, to, saturate, round_mode)
            wide = np.uint64 if kind == np.uint64 else np.int64
            return (np.array([_whole(text) for text in x.flat], wide).astype(kind).reshape(x.shape),)

    return Cast


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        return int(float(text))
