"""All templates, in the order in which ties are broken: importing this declares them."""

# Importing a module declares what it imports first: few comes before all that import gemm, gemm before convolutions.
from pelton.codegen.template import TEMPLATES

from . import (  # noqa: F401  (declares)  # noqa: F401  # noqa: F401  # noqa: F401
    attention,
    blend,
    conv,
    conv_transpose,
    coupled,
    depthwise,
    det,
    few,
    gather,
    gemm,
    matmul,
    moves,
    norm,
    order,
    pointwise,  # noqa: F401  (takes what no other template does)
    pool,
    reduce,
    resize,
    rnn,
    roi,
    rotary,
    scatter,
    softmax,
    strips,
    trees,
    winograd,
)

__all__ = ["TEMPLATES"]
