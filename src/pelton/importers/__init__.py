"""Model files in, graphs out: one module per format, each with `load(source, shapes, outputs) -> Imported`."""
from .imported import Imported, Info

__all__ = ["Imported", "Info"]
