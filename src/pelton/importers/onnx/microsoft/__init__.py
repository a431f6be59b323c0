"""How the operators of com.microsoft read, which ONNX Runtime writes into models; importing this declares all
readers."""

from . import attention, experts, few_bits, grouped, quantization, state  # noqa: F401
