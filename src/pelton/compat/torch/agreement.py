"""Compares a new engine's outputs with torch's, for the same graph and arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pelton import metrics

from .frozen import Unsupported

# of the largest element of an output: far above the effect of summation order, far below any mistake
TOLERANCES = {torch.float16: 0.1, torch.bfloat16: 0.1}
TOLERANCE = 0.01
MAX_SHARE = 0.1  # of integers that may differ: ranks and rounded numbers of close values


def check_agreement(found: Sequence[Any], expected: Sequence[Any]) -> None:
    """Raises Unsupported if an engine's outputs differ from torch's by more than rounding."""
    for place, (a, b) in enumerate(zip(found, expected)):
        if not isinstance(b, torch.Tensor) or not b.numel():
            continue
        if a.dtype != b.dtype:
            raise Unsupported(f"output {place} of its engine is of {a.dtype}, that of torch of {b.dtype}")
        tolerance = TOLERANCES.get(b.dtype, TOLERANCE)
        text = metrics.difference(_array(a), _array(b), tolerance, share=MAX_SHARE)
        if text:
            raise Unsupported(
                f"output {place} of its engine differs from that of torch: it {text}; at most {tolerance:g} of that is"
                " taken for rounding; please report this"
            )


def _array(tensor: torch.Tensor) -> Any:
    tensor = tensor.detach()
    return (tensor.float() if tensor.dtype is torch.bfloat16 else tensor).numpy()
