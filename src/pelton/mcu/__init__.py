"""Engines for micro-controllers as folders of C sources and a library: `pelton export --target cortex-m4`."""

from .budget import Budget, budget
from .footprint import Footprint
from .memory import StaticMemory, static_memory
from .targets import CORES
from .write import ExportedFolder, refuse, write

__all__ = [
    "CORES",
    "Budget",
    "ExportedFolder",
    "Footprint",
    "StaticMemory",
    "budget",
    "refuse",
    "static_memory",
    "write",
]
