"""Readers of TFLite operators, by family."""

from . import elements, images, mediapipe, picks, products, reduce, shapes, state  # noqa: F401
