"""Readers of TFLite operators, by family."""

from . import detection, elements, fourier, images, mediapipe, picks, products  # noqa: F401
from . import recurrent, reduce, shapes, state  # noqa: F401
