"""Compression: weights of trained models in few bits, with zeros, or with few values, within an accuracy bound."""

from __future__ import annotations

from .compress import Compressed, compress

__all__ = ["Compressed", "compress"]
