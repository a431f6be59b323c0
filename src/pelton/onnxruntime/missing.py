"""Stand-ins for names of ONNX Runtime that Pelton lacks: importing them works, using them raises."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any, NoReturn

from . import exceptions


class _Missing(type):
    """The type of classes that cannot be instantiated: calling one, or a subclass, raises NotImplemented with its name.
    Their attributes are such classes too."""

    path: str

    def __call__(cls, *args: Any, **named: Any) -> NoReturn:
        raise exceptions.NotImplemented(
            f"Pelton, which replaces ONNX Runtime in this process, has no {cls.path}; use ONNX Runtime for it"
        )

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):  # which Python looks up on any class
            raise AttributeError(f"type object {cls.path!r} has no attribute {name!r}")
        return missing(f"{cls.path}.{name}")

    def __repr__(cls) -> str:
        return f"<{cls.path}, not in Pelton>"


def missing(path: str) -> type:
    """Returns the stand-in for a class, function or value of that dotted name."""
    module, _, name = path.rpartition(".")
    return _Missing(name, (), {"path": path, "__module__": module})


def missing_names(module: str, names: Collection[str] | None = None) -> Callable[[str], Any]:
    """Returns a module's `__getattr__` in which these names (default: all but special ones) are stand-ins."""

    def look(name: str) -> Any:
        if name.startswith("__") or names is not None and name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return missing(f"{module}.{name}")

    return look


class MissingModule(ModuleType):
    """A missing module of ONNX Runtime's tools: every name and submodule can be imported from it."""

    def __getattr__(self, name: str) -> Any:
        return missing_names(self.__name__)(name)
