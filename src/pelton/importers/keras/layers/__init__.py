"""Readers of the layers of Keras."""

from . import activation, attention, convolution, images, merging  # noqa: F401  (register their readers)
from . import normalization, pooling, products, recurrent, shapes  # noqa: F401
