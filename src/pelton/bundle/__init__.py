"""Engines as C sources, for programs that link them: what `pelton export` writes."""

from .tables import identifier
from .write import at_shapes, write

__all__ = ["at_shapes", "identifier", "write"]
