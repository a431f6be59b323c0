"""All templates for GPUs, in the order in which ties are broken: importing this declares them."""

# isort: skip_file

# Those for CPUs first, in their own order: templates here derive from some of them.
from pelton.codegen.c.templates import library  # noqa: F401

from . import attention, order, matmul, moves, picks, few, gemm, conv, im2col, recurrent  # noqa: F401  (declares)
from . import quantized_linear, roi, rows, window  # noqa: F401
from pelton.codegen.vendor import cublaslt, cudnn  # noqa: F401
from . import pointwise  # noqa: F401  (the rest)
from pelton.codegen.template import GPU_TEMPLATES

__all__ = ["GPU_TEMPLATES"]
