"""All templates, in the order in which ties are broken: importing this declares them."""
from . import attention, blend, conv, conv_transpose, gather, gemm, moves, norm, order, pool, reduce  # noqa: F401  (declares)
from . import resize, rnn, roi, rotary, softmax, strips, pointwise  # noqa: F401
from .template import TEMPLATES

__all__ = ["TEMPLATES"]
