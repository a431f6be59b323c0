"""Readers of the layers of Keras."""

from . import activation, attention, convolution, images, merging, normalization, pooling, products, recurrent, shapes  # noqa: F401
