"""Running engines: load, engine, context."""
from .context import Context
from .engine import Engine, load
from .script import ScriptEngine

__all__ = ["Context", "Engine", "ScriptEngine", "load"]
