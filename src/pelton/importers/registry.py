"""The formats of model files that there are, and what each importer offers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pelton.ir.imported import Examined, Imported
from pelton.ir.unread import Unread


@dataclass(frozen=True)
class Format:
    """A format of model files. `recognizes` says, cheaply, whether a source (a path, bytes or an object) is certainly
    of it; The functions take what those of `pelton.importers` do."""

    name: str
    recognizes: Callable[[Any], bool]
    load: Callable[..., Imported]
    examine: Callable[..., Examined] | None = None  # for those who want to know what becomes of each node
    # for models of which the data decides what runs, where the format has such
    unread: Callable[..., Unread] | None = None


FORMATS: list[Format] = []


def register(format: Format) -> None:
    """Adds a format to those that `format_of` asks, after those that are there."""
    FORMATS.append(format)


def format_of(source: Any) -> Format:
    """The format of a model: the first that recognizes it, else the first of all, whose `load` says what it
    expected."""
    return next((f for f in FORMATS if f.recognizes(source)), FORMATS[0])
