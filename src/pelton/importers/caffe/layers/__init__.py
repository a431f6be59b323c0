"""Readers of layers, one file for each family."""

from . import (  # noqa: F401
    activations,
    combinations,
    data,
    images,
    normalization,
    pooling,
    products,
    recurrent,
    shapes,
)
