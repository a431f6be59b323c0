"""All templates, in the order in which ties are broken: importing this declares them."""
from . import attention, blend, conv, conv_transpose, det, few, gather, gemm, matmul, moves, norm, order, pool, reduce  # noqa: F401  (declares)
from . import resize, rnn, roi, rotary, scatter, softmax, strips, trees  # noqa: F401  (declares)
from . import pointwise  # noqa: F401  (takes what nobody else did)
from .template import TEMPLATES

__all__ = ["TEMPLATES"]
