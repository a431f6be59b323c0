"""Models of Keras (.keras, .h5): read directly, or converted by TensorFlow if they have unknown parts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pelton.logs import Logger
from pelton.errors import ModelError
from pelton.importers import onnx, signs
from pelton.importers.frameworks import is_of, refusal
from pelton.importers.frameworks.conversion import convert
from pelton.importers.imported import Shape
from pelton.importers.network import examined, imported
from pelton.importers.registry import About, Format, register
from pelton.network import Network
from pelton.system.environments import find

from .archive import allows_code, check_archive
from .config import LayerConfig, UnknownPart
from .files import saved
from .network import network_of
from .reading import READERS, KerasReading, reads
from .weights import snake_case

if TYPE_CHECKING:
    from pelton.importers.onnx.file import Source

__all__ = ["READERS", "LayerConfig", "KerasReading", "UnknownPart", "read", "reads", "snake_case"]

NAME, PACKAGES = "Keras", ("keras", "tf_keras")
log = Logger("pelton.importers")


def read(source: Any, shapes: Mapping[str, Shape] | None = None) -> Network:
    """Reads a model of Keras (a path or bytes of a `.keras` archive or an `.h5` file) as a network, without TensorFlow.

    Inputs and outputs keep their layouts, and their Keras names: those of the layers. shapes: sizes of inputs in place
    of those that the file leaves open. Raises ModelError for damaged files, its subclass UnknownPart, which names the
    layer, for unknown parts, and InputError for wrong shapes.
    """
    try:
        return network_of(saved(source), shapes or {})
    except RecursionError:
        raise ModelError(
            f"{_path(source) or 'the given model'} is damaged: its layers are described too deep"
        ) from None


def recognizes(source: Any) -> bool:
    """True if a source is an archive of Keras 3, or an HDF5 file of any Keras."""
    return signs.head(source).startswith(signs.HDF5) or {"config.json", "metadata.json"} <= signs.names_in_zip(source)


def _own(source: Any, shapes: Any) -> Network | None:
    """Returns the network of a model; None if TensorFlow has to convert it. ModelError if TensorFlow is missing."""
    if is_of(source, PACKAGES):
        _refuse(source)
    try:
        return read(source, shapes)
    except UnknownPart as e:
        name = os.fsdecode(source) if isinstance(source, (str, os.PathLike)) else "the given model"
        if find("tensorflow") is None:
            raise ModelError(
                f"{name}: {e}, which Pelton does not read by itself. `pelton import-env tensorflow` makes an"
                " environment whose packages convert the model; or a plugin reads the layer (pelton.Plugin, `keras`)"
            ) from None
        log.info("%s: %s; converting with TensorFlow", name, e)
        return None


def _converted(source: Any, accept: bool) -> Source:
    if not signs.head(source).startswith(signs.HDF5):
        check_archive(source)
    options = ["unsafe"] if allows_code() else []
    return convert("tensorflow", "from_keras.py", source, options=options, accept=accept)


def _load(
    source: Any,
    shapes: Any = None,
    outputs: Any = None,
    values: Any = None,
    optimum: Any = None,
    accept_conversion: bool = False,
) -> Any:
    net = _own(source, shapes)
    if net is None:
        return onnx.load_model(_converted(source, accept_conversion), shapes, outputs, values, optimum)
    return imported(net, shapes, outputs, values, optimum, path=_path(source), producer=NAME)


def _examine(
    source: Any,
    shapes: Any = None,
    outputs: Any = None,
    values: Any = None,
    optimum: Any = None,
    accept_conversion: bool = False,
) -> Any:
    net = _own(source, shapes)
    if net is None:
        return onnx.examine_model(_converted(source, accept_conversion), shapes, outputs, values, optimum)
    return examined(source, lambda: net, shapes, outputs, values, optimum)


def _unread(source: Any, *args: Any, accept_conversion: bool = False, **named: Any) -> Any:
    return onnx.unread_model(_converted(source, accept_conversion), *args, **named)


def _path(source: Any) -> str:
    return os.fsdecode(source) if isinstance(source, (str, os.PathLike)) else ""


ABOUT = About(
    files=".keras, .h5",
    export="model.save('model.keras')",
    extra="none; pelton import-env tensorflow for unsupported layers",
    covers="Sequential and Functional models of Keras 3's and Keras 2's own layers; others, and masks of recurrent"
    " layers and of attention, by TensorFlow; Lambda layers with code of their own if PELTON_UNSAFE_KERAS=1",
    checked="Keras 3 on TensorFlow 2.21",
)
_refuse: Callable[..., Any] = refusal(NAME, ABOUT)
register(
    Format(
        NAME,
        lambda source: recognizes(source) or is_of(source, PACKAGES),
        _load,
        _examine,
        _unread,
        converted=True,
        suffixes=(".keras",),
        about=ABOUT,
    )
)
