"""The one family of exceptions: every message says what was expected, what was given, where, and what to do."""

import errno
import os
from collections.abc import Iterable


class Error(RuntimeError):
    """Anything Pelton refuses, of its own accord."""


class ModelError(Error):
    """The model file is damaged, inconsistent or uses something that cannot be imported.

    `values` names the inputs of the model whose values decide the program, where knowing those might be enough: give
    them with `values=`."""

    def __init__(self, text: str = "", values: "tuple[str, ...]" = ()):
        super().__init__(text)
        self.values = values


class FormatError(ModelError):
    """A file or bytes that are no ONNX model."""


class BuildError(Error):
    """A sound model could not be turned into an engine on this machine."""


class EngineError(Error):
    """The engine file is damaged, of another version, or does not run on this machine."""


class InputError(Error, ValueError):
    """An array, name, shape or option handed in by the caller does not fit."""


class Absent(FileNotFoundError):
    """What errors of a file that is not there are besides: the system's own, with its `errno` and the path as
    `filename`."""

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
    """The caller's progress function asked to stop."""


def near(name: str, known: Iterable[str]) -> str:
    """What a mistyped name might have been, for the end of a sentence: " (did you mean 'image'?)"; "" where nothing is
    like it."""
    from difflib import get_close_matches  # errors alone need it

    found = get_close_matches(name, dict.fromkeys(known), 1)
    return f" (did you mean {found[0]!r}?)" if found else ""


class Needs:
    """A block that imports what some installations of Pelton lack: where a package is missing, an error says what for,
    and how to get it."""

    def __init__(self, what: str, kind: type[Error] = BuildError):
        self.what, self.kind = what, kind

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, e: "BaseException | None", trace: object) -> None:
        if isinstance(e, ModuleNotFoundError) and (e.name or "").partition(".")[0] != "pelton":
            raise self.kind(f'{self.what} needs the package {e.name}: pip install "pelton[build]"') from e
