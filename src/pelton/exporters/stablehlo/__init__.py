"""Programs as StableHLO, for compilers of OpenXLA: XLA, with its TPUs, and IREE."""

from __future__ import annotations

from . import ops  # noqa: F401  (the writers)
from .write import StableHlo, to_stablehlo

__all__ = ["StableHlo", "to_stablehlo"]
