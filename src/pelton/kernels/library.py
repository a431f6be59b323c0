"""All templates, in the order in which ties are broken: importing this declares them."""
from . import few  # noqa: F401  (before all that import gemm)
from . import attention, conv, conv_transpose, det, gather, gemm, moves, norm, order, pool, reduce, resize, rnn, rotary  # noqa: F401  (declares)
from . import scatter, softmax, strips, trees, pointwise  # noqa: F401  (declares)
from .template import TEMPLATES

__all__ = ["TEMPLATES"]
