"""All templates for GPUs, in the order in which ties are broken: importing this declares them."""

from pelton.codegen.c.templates import (  # noqa: F401  (those for CPUs first, in their own order: some of what they know is shared)
    library,
)

from . import (  # noqa: F401  (declares)
    attention,
    order,
    matmul,
    moves,
    picks,
    product,
    conv,
    im2col,
    recurrent,
    roi,
    rows,
    window,
)
from pelton.codegen.vendor import cublaslt, cudnn  # noqa: F401
from . import pointwise  # noqa: F401  (takes what nobody else did)
from pelton.codegen.template import GPU_TEMPLATES

__all__ = ["GPU_TEMPLATES"]
