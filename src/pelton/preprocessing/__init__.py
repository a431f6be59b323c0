"""Turns pictures into inputs, by a description of one line or a file of Hugging Face."""

from __future__ import annotations

from .description import EXAMPLES, SUFFIXES, describe, is_picture, parse, read_labels
from .pictures import Preprocessing, open_picture

__all__ = ["EXAMPLES", "SUFFIXES", "Preprocessing", "describe", "is_picture", "open_picture", "parse", "read_labels"]
