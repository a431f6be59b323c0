"""Names that ONNX Runtime has and Pelton has not: they can be imported, inherited from and looked up, and say so when
they are used."""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any, NoReturn

from . import exceptions


class _Missing(type):
    """The type of classes that cannot be made: to call one, or one that inherits from it, raises NotImplemented with
    its name. Their attributes are alike."""

    path: str

    def __call__(cls, *args: Any, **named: Any) -> NoReturn:
        raise exceptions.NotImplemented(
            f"Pelton, which stands in for ONNX Runtime here, has no {cls.path}; run what needs it with ONNX Runtime"
            " itself"
        )

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):  # what Python asks of any class
            raise AttributeError(f"type object {cls.path!r} has no attribute {name!r}")
        return missing(f"{cls.path}.{name}")

    def __repr__(cls) -> str:
        return f"<{cls.path}, which Pelton does not have>"


def missing(path: str) -> type:
    """What stands for a class, function or value of that dotted name."""
    module, _, name = path.rpartition(".")
    return _Missing(name, (), {"path": path, "__module__": module})


def named(module: str, names: Collection[str] | None = None) -> Callable[[str], Any]:
    """The `__getattr__` of a module: these names, or all but special ones, are there and missing."""

    def look(name: str) -> Any:
        if name.startswith("__") or names is not None and name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return missing(f"{module}.{name}")

    return look


class MissingModule(ModuleType):
    """A module of ONNX Runtime's tools that is not here: every name can be imported from it, and every module below
    it."""

    def __getattr__(self, name: str) -> Any:
        return named(self.__name__)(name)
