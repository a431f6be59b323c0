"""Readers of com.microsoft's operators, which ONNX Runtime writes into models; importing this package declares all of
them."""

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
