"""The words of the program representation, one file per family; importing this declares them all."""

from . import (  # noqa: F401  (declares)  # noqa: F401  (declares)  # noqa: F401  (declares; these are about all others)
    attention,
    control,
    conv,
    deform,
    foreign,
    labels,
    linear,
    math,
    memory,
    norm,
    pool,
    quantize,
    reduce,
    resize,
    rnn,
    roi,
    sample,
    shape,
    size_arithmetic,
    sizes,
    trees,
)
from .op import REGISTRY, Op, Term, composite, get, pointwise, structured

__all__ = ["REGISTRY", "Op", "Term", "composite", "get", "pointwise", "structured"]
