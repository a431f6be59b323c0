"""Exceptions of Pelton; every message says what was expected, what was given, where, and what to do."""

import errno
import os
from collections.abc import Iterable


class Error(RuntimeError):
    """Base class of all errors that Pelton raises on purpose."""


class ModelError(Error):
    """The model file is damaged, inconsistent or uses something that cannot be imported.

    `values` names inputs that decide the program, if the model might be read once they are given by the option
    `values`. `requirements`: what an importer learnt that all runs need of the sizes of inputs."""

    requirements: "tuple[object, ...]" = ()

    def __init__(self, text: str = "", values: "tuple[str, ...]" = ()):
        super().__init__(text)
        self.values = values


class FormatError(ModelError):
    """The file or the bytes are damaged, cannot be read, or are no model of the format that they should be of."""


class BuildError(Error):
    """No engine could be built from a valid model on this machine."""


class EngineError(Error):
    """The engine file is damaged, of another version, or made for another machine."""


class InputError(Error, ValueError):
    """An array, name, shape or option from the caller is not valid."""


class Absent(FileNotFoundError):
    """Base class of errors of missing files: a FileNotFoundError with `errno`, and the path as `filename`."""

    def __init__(self, text: str = "", path: "str | os.PathLike[str] | None" = None):
        super().__init__(text)
        self.errno, self.filename = errno.ENOENT, path

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self):
        return type(self), (*self.args, self.filename)


class ModelAbsent(Absent, ModelError):
    """There is no file at the path of a model."""

    values = ()


class EngineAbsent(Absent, EngineError):
    """There is no file at the path of an engine."""


class InputAbsent(Absent, InputError):
    """There is no file at a path that an option or an input names."""


class Cancelled(BuildError):
    """The `progress` callback of the build returned False."""


def near(name: str, known: Iterable[str]) -> str:
    """A suggestion for a mistyped name, to end a sentence with: " (did you mean 'image'?)", or "" without one."""
    from difflib import get_close_matches  # imported only for errors

    found = get_close_matches(name, dict.fromkeys(known), 1)
    return f" (did you mean {found[0]!r}?)" if found else ""


class Needs:
    """Context manager for imports of optional packages: its error says what a missing one is for, and how to get it.

    extra: the extra of Pelton that installs it."""

    def __init__(self, what: str, kind: type[Error] = BuildError, extra: str = "build"):
        self.what, self.kind, self.extra = what, kind, extra

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, e: "BaseException | None", trace: object) -> None:
        if isinstance(e, ModuleNotFoundError) and (e.name or "").partition(".")[0] != "pelton":
            raise self.kind(f'{self.what} needs the package {e.name}: pip install "pelton[{self.extra}]"') from e
