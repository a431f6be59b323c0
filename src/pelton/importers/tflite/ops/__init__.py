"""Readers of TFLite operators, by family."""

from . import detection, elements, images, mediapipe, picks, products, reduce, shapes, state  # noqa: F401
