"""Importers of model files, one folder per format, and functions that choose the importer of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pelton.errors import ModelError
from pelton.ir.imported import Examined, Imported
from pelton.ir.unread import Unread

from . import onnx, network, caffe, darknet, frameworks, keras, tflite, torch, foreign  # noqa: F401  (register theirs)
from .cache_types import store_caches
from .detections import select_detections
from .imported import Shape
from .registry import Format, ModelFiles, Traceable, format_of

__all__ = ["ModelFiles", "Traceable", "examine", "load", "select_detections", "store_caches", "unread"]


def load(
    source: Any,
    shapes: Mapping[str, Shape] | None = None,
    outputs: Iterable[str] | None = None,
    values: Mapping[str, Any] | None = None,
    optimum: Mapping[str, Sequence[int]] | None = None,
    accept_conversion: bool = False,
) -> Imported:
    """Imports a model (a path, bytes, an object of its format's package, or a Traceable) as a graph.

    `shapes` maps names of inputs to sizes, `outputs` names the values to compute, `values` makes inputs constants,
    `optimum` gives the sizes that unspecified dimensions are tuned for. `accept_conversion`: accept another package's
    conversion although its results differ from its own framework's. Raises ModelError, which lists the problems of the
    model (its subclass OnData if control flow depends on data), and InputError for wrong arguments.
    """
    format = format_of(source)
    return format.load(source, shapes, outputs, values, optimum, **_acceptance(format, accept_conversion))


def examine(
    source: Any,
    shapes: Mapping[str, Shape] | None = None,
    outputs: Iterable[str] | None = None,
    values: Mapping[str, Any] | None = None,
    optimum: Mapping[str, Sequence[int]] | None = None,
    accept_conversion: bool = False,
) -> Examined:
    """Reports the import of each node of a model, and the graph or the error.

    Raises ModelError if not even the interface of the model can be read.
    """
    format = format_of(source)
    if format.examine is None:
        raise ModelError(f"models of the format {format.name} can be built, but not examined node by node")
    return format.examine(source, shapes, outputs, values, optimum, **_acceptance(format, accept_conversion))


def read_weights(source: Any) -> None:
    """Imports a model for its weights only, which `ir.lineage` follows, without messages about the rest.

    Raises ModelError if the import fails."""
    format = format_of(source)
    if format.examine is None:
        format.load(source, None, None, None, None)
        return
    options = _acceptance(format, True)  # the build has already compared the program
    if isinstance(error := format.examine(source, None, None, None, None, **options).found, ModelError):
        raise error


def unread(
    source: Any,
    shapes: Mapping[str, Shape] | None = None,
    outputs: Iterable[str] | None = None,
    values: Mapping[str, Any] | None = None,
    optimum: Mapping[str, Sequence[int]] | None = None,
    accept_conversion: bool = False,
) -> Unread:
    """Opens a model with data-dependent control flow or sizes, whose nodes `pelton.partition` reads.

    Arguments and errors are those of `load`.
    """
    format = format_of(source)
    if format.unread is None:
        raise ModelError(f"models of the format {format.name} cannot have control flow or sizes that depend on data")
    return format.unread(source, shapes, outputs, values, optimum, **_acceptance(format, accept_conversion))


def _acceptance(format: Format, accept: bool) -> dict[str, bool]:
    """Returns the argument that only functions of converted formats have."""
    return {"accept_conversion": accept} if format.converted else {}
