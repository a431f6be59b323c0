"""Programs as ONNX models: the inverse of `pelton.importers.onnx`."""

from __future__ import annotations

from . import ops  # noqa: F401  (the writers)
from .write import to_onnx

__all__ = ["to_onnx"]
