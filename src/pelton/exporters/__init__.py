"""Exporters of programs to model files, one folder per format."""

from __future__ import annotations

from .onnx import to_onnx
from .stablehlo import to_stablehlo
from .tflite import to_tflite

__all__ = ["to_onnx", "to_stablehlo", "to_tflite"]
