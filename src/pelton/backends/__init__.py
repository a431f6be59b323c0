"""Backends, one per kind of device, and their table."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from .device import Backend

FOLDERS = {"cuda": "cuda", "reference": "reference"}  # arch of a target → folder; all others are CPUs


def backend(target: Mapping[str, Any]) -> Backend:
    """Returns the backend for engines of this target."""
    backend: Backend = import_module(f"pelton.backends.{FOLDERS.get(target.get('arch', ''), 'cpu')}.backend").BACKEND
    return backend
