"""The writers of ops that are not pointwise."""

from . import control, indices, products, quantized, recurrent, reductions, shapes, windows  # noqa: F401
