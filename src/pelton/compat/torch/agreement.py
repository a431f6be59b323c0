"""Compares what a new engine gives with what torch gives for the same graph and the same arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .frozen import Unsupported

# of the largest element of an output: far above what other orders of sums do, far below any mistake
TOLERANCES = {torch.float16: 0.1, torch.bfloat16: 0.1}
TOLERANCE = 0.01
MAX_SHARE = 0.1  # of integers that may differ: ranks and rounded numbers, where what they come from is close


def check_agreement(found: Sequence[Any], expected: Sequence[Any]) -> None:
    """Unsupported if outputs of an engine are not those of torch, up to rounding."""
    for place, (a, b) in enumerate(zip(found, expected)):
        if not isinstance(b, torch.Tensor) or not b.numel():
            continue
        if a.shape != b.shape or a.dtype != b.dtype:
            raise Unsupported(
                f"output {place} of its engine is {a.dtype} {list(a.shape)}, that of torch {b.dtype} {list(b.shape)}"
            )
        if b.is_floating_point():
            error, tolerance = _relative_error(a.double(), b.double()), TOLERANCES.get(b.dtype, TOLERANCE)
        else:
            error, tolerance = float((a != b).double().mean()), MAX_SHARE
        if not error <= tolerance:
            raise Unsupported(
                f"output {place} of its engine differs from that of torch by {error:.2g}, at most {tolerance} is taken"
                " for rounding; please report this"
            )


def _relative_error(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest difference by the largest element, of those that are finite; infinite if others are not equal."""
    finite = b.isfinite()
    if not torch.equal(torch.where(finite, 0.0, a).nan_to_num(7.0), torch.where(finite, 0.0, b).nan_to_num(7.0)):
        return float("inf")
    a, b = a[finite], b[finite]
    return float((a - b).abs().max() / b.abs().max().clamp_min(1e-30)) if b.numel() else 0.0
