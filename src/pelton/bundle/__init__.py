"""Engines as C sources for linking into programs: the output of `pelton export`."""

from .tables import identifier
from .write import at_shapes, write

__all__ = ["at_shapes", "identifier", "write"]
