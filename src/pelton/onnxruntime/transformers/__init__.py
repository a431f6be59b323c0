"""The part of ONNX Runtime's tools for transformers that libraries need to run models; the rest is missing unless ONNX
Runtime is installed beside Pelton."""

from pelton.onnxruntime.missing import missing_names

__getattr__ = missing_names("onnxruntime.transformers")
