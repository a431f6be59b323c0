"""Programs as TFLite models: the inverse of `pelton.importers.tflite`."""

from __future__ import annotations

from . import edgetpu
from .quantizer import calibrated_values, quantized
from .write import LAYOUTS, TFLiteFile, prepared, to_tflite

__all__ = ["LAYOUTS", "TFLiteFile", "calibrated_values", "edgetpu", "prepared", "quantized", "to_tflite"]
