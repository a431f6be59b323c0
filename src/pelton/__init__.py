"""Pelton: an open deep-learning inference optimizer and runtime."""
from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .errors import BuildError, Cancelled, EngineError, Error, InputError, ModelError, Needs

if TYPE_CHECKING:
    from .build import build
    from .options import Options
    from .runtime import Context, Engine, load
    from .runtime.cuda_tune import tune
    from .session import InferenceSession, IOBinding, OrtValue, RunOptions, SessionOptions

__version__ = "0.1.0"
__all__ = ["BuildError", "Cancelled", "Context", "Engine", "EngineError", "Error", "IOBinding", "InferenceSession", "InputError", "ModelError", "Options",
           "OrtValue", "RunOptions", "SessionOptions", "build", "load", "tune"]

# Loaded when first asked for: a program that runs engines never imports the compiler.
_HOMES = {"build": "build", "Options": "options", "Engine": "runtime", "Context": "runtime", "load": "runtime", "tune": "runtime.cuda_tune"}
# What scripts touch that were written for onnxruntime.
_HOMES.update(dict.fromkeys((
    "ExecutionMode", "GraphOptimizationLevel", "IOBinding", "InferenceSession", "ModelMetadata", "NodeArg", "OrtValue", "RunOptions", "SessionOptions",
    "disable_telemetry_events", "enable_telemetry_events", "get_all_providers", "get_available_providers", "get_device", "set_default_logger_severity",
    "set_default_logger_verbosity", "set_seed"), "session"))


class _Package(ModuleType):
    """A package in which `build` and `tune` are always the functions, also after the modules of these names have been imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in ("build", "tune") or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pelton' has no attribute {name!r}")
    from importlib import import_module
    home = f"pelton.{_HOMES[name]}"
    if name == "build":
        with Needs("building engines"):
            import_module(home)
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
