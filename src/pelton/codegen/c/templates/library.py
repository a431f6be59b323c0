"""All templates, in the order in which ties are broken: importing this declares them."""

from . import few  # noqa: F401  (before all that import gemm)
from . import (  # noqa: F401  (declares)
    attention,
    blend,
    conv,
    conv_transpose,
    coupled,
    det,
    gather,
    gemm,
    matmul,
    moves,
    norm,
    order,
    pool,
    reduce,
    resize,
)
from . import rnn, roi, rotary, scatter, softmax, strips, trees  # noqa: F401  (declares)
from . import pointwise  # noqa: F401  (takes what nobody else did)
from pelton.codegen.template import TEMPLATES

__all__ = ["TEMPLATES"]
