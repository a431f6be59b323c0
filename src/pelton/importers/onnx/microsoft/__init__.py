"""How the operators of com.microsoft read, which ONNX Runtime writes into models; importing this declares all
readers."""

from . import attention, nchwc, quantization, recurrent, refused, streams, tokens, twins  # noqa: F401
