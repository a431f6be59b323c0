"""Model files in, graphs out: a folder for each format, and `load`, which finds the format of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pelton.errors import ModelError
from pelton.ir.imported import Examined, Imported
from pelton.ir.unread import Unread

from . import onnx  # noqa: F401  (registers its format)
from .imported import Shape
from .registry import format_of


def load(
    source: Any,
    shapes: Mapping[str, Shape] | None = None,
    outputs: Iterable[str] | None = None,
    values: Mapping[str, Any] | None = None,
    optimum: Mapping[str, Sequence[int]] | None = None,
) -> Imported:
    """A model (a path, bytes, or an object of its format's package) as a program. `shapes` maps names of inputs to
    sizes, `outputs` names the values to compute, `values` makes constants of inputs, `optimum` gives the sizes that axes
    of any size are tuned for. ModelError lists what is wrong with the model, OnData, one of these, where the data
    decides what runs; InputError is about the arguments."""
    return format_of(source).load(source, shapes, outputs, values, optimum)


def examine(
    source: Any,
    shapes: Mapping[str, Shape] | None = None,
    outputs: Iterable[str] | None = None,
    values: Mapping[str, Any] | None = None,
    optimum: Mapping[str, Sequence[int]] | None = None,
) -> Examined:
    """What became of each node of a model, and the program, or why there is none. ModelError where not even the
    interface of the model can be read."""
    format = format_of(source)
    if format.examine is None:
        raise ModelError(f"models of the format {format.name} can be built, but not examined node by node")
    return format.examine(source, shapes, outputs, values, optimum)


def unread(
    source: Any,
    shapes: Mapping[str, Shape] | None = None,
    outputs: Iterable[str] | None = None,
    values: Mapping[str, Any] | None = None,
    optimum: Mapping[str, Sequence[int]] | None = None,
) -> Unread:
    """A model of which the data decides what runs, for `pelton.partition`, which reads it part by part. Arguments and
    errors are those of `load`."""
    format = format_of(source)
    if format.unread is None:
        raise ModelError(
            f"models of the format {format.name} have to be one straight line of steps, whose sizes follow from those"
            " of the inputs"
        )
    return format.unread(source, shapes, outputs, values, optimum)
