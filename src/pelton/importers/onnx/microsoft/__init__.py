"""How the operators of com.microsoft read, which ONNX Runtime writes into models; importing this declares all
readers."""

from . import attention, hyper_connections, nchwc, quantization, recurrent, refused, tokens, twins  # noqa: F401
