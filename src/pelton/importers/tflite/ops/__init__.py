"""Readers of TFLite operators, by family."""

from . import detection, elements, fourier, images, mediapipe, picks, products, reduce, shapes, state  # noqa: F401
