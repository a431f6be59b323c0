"""All templates, in the order in which ties are broken: importing this declares them."""

# isort: skip_file
# Importing a module first declares its imports: few comes before all that import gemm, gemm before convolutions.
from . import few, attention, blend, gemm, gemm_half, gemm_bf16  # noqa: F401  (declares)
from . import winograd, winograd_half, depthwise, conv, conv_transpose  # noqa: F401
from . import conv_int8, matmul_int8, winograd_int8, depthwise_int8  # noqa: F401
from . import boxes, coupled, det, gather, matmul, moves, norm, order, pool, reduce, resize  # noqa: F401
from . import rnn, rnn_int8, roi, rotary, scatter, softmax, strips, trees  # noqa: F401
from . import cache_write, codebook_linear, delta_rule, quantized_gather, quantized_linear  # noqa: F401
from . import sparse, sparse_int8  # noqa: F401
from . import pointwise, lookup  # noqa: F401  (the rest, and a faster form of some of it)
from pelton.codegen.template import TEMPLATES

__all__ = ["TEMPLATES"]
