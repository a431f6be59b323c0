"""Running engines: load, engine, context."""
from .context import Context
from .engine import Engine, load

__all__ = ["Context", "Engine", "load"]
