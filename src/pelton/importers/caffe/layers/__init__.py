"""Readers of layers, one file for each family."""

from . import (  # noqa: F401
    activations,
    combinations,
    data,
    detection,
    images,
    normalization,
    pooling,
    products,
    recurrent,
    shapes,
)
