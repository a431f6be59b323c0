"""How the operators of com.microsoft read, which ONNX Runtime writes into models; importing this declares all
readers."""

from . import (  # noqa: F401
    attention,
    experts,
    few_bits,
    grouped,
    hyper_connections,
    nchwc,
    quantization,
    recurrent,
    refused,
    state,
    tokens,
    twins,
)
