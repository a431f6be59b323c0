"""The registry of model formats, and the functions that each importer offers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pelton.errors import InputError
from pelton.ir.imported import Examined, Imported
from pelton.ir.unread import Unread


@dataclass(frozen=True)
class Format:
    """A format of model files.

    `recognizes` tells cheaply whether a source (a path, bytes or an object) certainly has this format. The other
    functions take the arguments of their namesakes in `pelton.importers`.
    """

    name: str
    recognizes: Callable[[Any], bool]
    load: Callable[..., Imported]
    examine: Callable[..., Examined] | None = None  # reports on each node
    # for models with control flow or sizes that depend on data
    unread: Callable[..., Unread] | None = None


@dataclass(frozen=True, eq=False)
class Traceable:
    """A model that its format reads by tracing a run on example inputs: Python code, such as a module of PyTorch.

    `example_inputs`: the arguments of a call, in the types of the model's own framework: a tuple, a mapping by the
    names of parameters, or a single one. `dynamic_shapes`: which of their sizes are dynamic, as the framework says it.
    """

    model: Any
    example_inputs: Any = None
    dynamic_shapes: Any = None


FORMATS: list[Format] = []


def register(format: Format) -> None:
    """Appends a format to those that `format_of` tries in order."""
    FORMATS.append(format)


def format_of(source: Any) -> Format:
    """Returns the first format that recognizes a model, else the first of all, whose `load` says what it expected.

    InputError for a Traceable of what no format traces.
    """
    found = next((f for f in FORMATS if f.recognizes(source)), None)
    if found is None and isinstance(source, Traceable):
        raise InputError(
            "example_inputs and dynamic_shapes are for models that are read by tracing a run (modules of PyTorch,"
            f" TorchScript), given {source.model!r:.100}; leave them out, or give such a model"
        )
    return found or FORMATS[0]
