"""Readers of the operations of Keras 3, such as what `x + y` makes, and of those of TensorFlow in files of Keras 2."""

from . import elements, images, moves, reductions, tensorflow  # noqa: F401  (register their readers)
from .operation import operation

__all__ = ["operation"]
