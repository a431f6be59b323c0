"""The ops of the program representation, one file per family; importing this declares them all."""

from .op import REGISTRY, Op, Term, composite, get, pointwise, structured
from . import (  # noqa: F401  (declares)
    math,
    activations,
    logic,
    linear,
    conv,
    conv_transpose,
    deform,
    detection,
    memory,
    pool,
    norm,
    quantize,
    reduce,
    resize,
    roi,
    sample,
    shape,
    index,
    sizes,
)
from . import attention, boxes, cache, foreign, labels, rnn, state, trees  # noqa: F401  (declares)
from . import control, size_arithmetic  # noqa: F401  (declares; these concern all other ops)

__all__ = ["REGISTRY", "Op", "Term", "composite", "get", "pointwise", "structured"]
