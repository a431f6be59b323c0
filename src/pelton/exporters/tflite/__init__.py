"""Programs as TFLite models: the inverse of `pelton.importers.tflite`."""

from __future__ import annotations

from .write import TFLiteFile, to_tflite

__all__ = ["TFLiteFile", "to_tflite"]
