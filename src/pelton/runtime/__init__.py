"""Running engines: load, engine, context."""

from .context import Context
from .engine import Engine
from .loading import load

__all__ = ["Context", "Engine", "load"]
