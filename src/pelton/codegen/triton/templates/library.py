"""All templates for GPUs, in the order in which ties are broken: importing this declares them."""

from pelton.codegen.c.templates import (  # noqa: F401  (those for CPUs first, in their own order: some of what they know is shared)
    library,
)
from pelton.codegen.template import GPU_TEMPLATES
from pelton.codegen.vendor import cublaslt, cudnn  # noqa: F401

from . import (  # noqa: F401  (declares)
    attention,
    conv,
    im2col,
    matmul,
    moves,
    order,
    picks,
    pointwise,  # noqa: F401  (takes what nobody else did)
    product,
    recurrent,
    roi,
    rows,
    window,
)

__all__ = ["GPU_TEMPLATES"]
