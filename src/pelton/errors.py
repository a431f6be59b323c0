"""Exceptions of Pelton; every message names the fault, its place, the expected value and the remedy."""

import errno
import os
from collections.abc import Iterable


class Error(RuntimeError):
    """Base class of all errors that Pelton raises on purpose."""


class ModelError(Error):
    """The model file is damaged, inconsistent or uses something that cannot be imported.

    `values` names inputs that decide the program; with the option `values` the model might import. `requirements`:
    constraints on input sizes that hold for all runs, as learned by an importer."""

    requirements: "tuple[object, ...]" = ()

    def __init__(self, text: str = "", values: "tuple[str, ...]" = ()):
        super().__init__(text)
        self.values = values


class FormatError(ModelError):
    """The file or the bytes are damaged, cannot be read, or are not of the expected format."""


class BuildError(Error):
    """No engine could be built from a valid model on this machine."""


class EngineError(Error):
    """The engine file is damaged, of another version, or made for another machine."""


class InputError(Error, ValueError):
    """An array, name, shape or option from the caller is not valid."""


class QueueFullError(Error):
    """A queue has no place for a run that would be over in time. retry_after: seconds until trying again may help."""

    def __init__(self, text: str = "", retry_after: float = 1.0):
        super().__init__(text)
        self.retry_after = retry_after

    def __reduce__(self):
        return type(self), (*self.args, self.retry_after)


class DeadlineError(Error):
    """A run waited in a queue for so long that it cannot be over in time."""


class Absent(FileNotFoundError):
    """Base class for missing files: a FileNotFoundError with `errno`, and the path as `filename`."""

    def __init__(self, text: str = "", path: "str | os.PathLike[str] | None" = None):
        super().__init__(text)
        self.errno, self.filename = errno.ENOENT, path

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self):
        return type(self), (*self.args, self.filename)


class ModelAbsent(Absent, ModelError):
    """The model file does not exist."""

    values = ()


class EngineAbsent(Absent, EngineError):
    """The engine file does not exist."""


class InputAbsent(Absent, InputError):
    """A file named by an option or an input does not exist."""


class Cancelled(BuildError):
    """The `progress` callback of the build returned False."""


def near(name: str, known: Iterable[str]) -> str:
    """Suggests a known name for a mistyped one, to end a sentence: " (did you mean 'image'?)"; "" if none is close."""
    from difflib import get_close_matches  # imported only for errors

    matches = get_close_matches(name, dict.fromkeys(known), 1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


class Needs:
    """Context manager for imports of optional packages; its error names the feature and the install command.

    extra: the extra of Pelton that installs the package."""

    def __init__(self, what: str, kind: type[Error] = BuildError, extra: str = "build"):
        self.what, self.kind, self.extra = what, kind, extra

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, e: "BaseException | None", trace: object) -> None:
        if isinstance(e, ModuleNotFoundError) and (e.name or "").partition(".")[0] != "pelton":
            raise self.kind(f'{self.what} needs the package {e.name}: pip install "pelton[{self.extra}]"') from e
