"""All templates, in the order in which ties are broken: importing this declares them."""
from . import attention, conv, conv_transpose, gather, gemm, matmul, moves, norm, order, pool, reduce, resize, rnn, rotary, softmax, strips  # noqa: F401  (declares)
from . import pointwise  # noqa: F401  (takes what nobody else did)
from .template import TEMPLATES

__all__ = ["TEMPLATES"]
