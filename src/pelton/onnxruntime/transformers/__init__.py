"""Of ONNX Runtime's tools for transformers, what other libraries need to run models; the rest is missing, unless ONNX
Runtime is installed beside Pelton."""

from pelton.onnxruntime.missing import missing_names

__getattr__ = missing_names("onnxruntime.transformers")
