"""Readers of Keras 3 operations, such as `x + y` creates, and of TensorFlow operations in files of Keras 2."""

from . import elements, images, moves, reductions, tensorflow  # noqa: F401  (register their readers)
from .operation import operation

__all__ = ["operation"]
