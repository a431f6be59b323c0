"""Models of TensorFlow and PaddlePaddle, converted to ONNX by packages of theirs in a child process; functions of JAX,
converted in the user's own process; and retired formats."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pelton.errors import InputError, ModelError
from pelton.importers import onnx, signs
from pelton.importers.registry import About, Format, ModelFiles, Traceable, register

from . import retired  # noqa: F401  (registers formats)
from .conversion import convert

if TYPE_CHECKING:
    from pelton.importers.onnx.file import Source

SAVED_MODEL = "saved_model.pb"  # a file of every SavedModel folder
PIR = b'{"base_code":{"magic":"pir"'  # first bytes of programs of PaddlePaddle 3


def register_converted(
    name: str,
    recognizes: Callable[[Any], bool],
    converted: Callable[[Any, bool], Source],
    *,
    packages: tuple[str, ...],
    about: About,
    suffixes: tuple[str, ...] = (),
    two_files: bool = False,
) -> None:
    """Registers a format whose files become ONNX models: converted(source, accept_conversion). packages: Python
    packages whose objects are rejected, with advice to export them."""
    refuse = refusal(name, about)

    def via(read: Callable[..., Any]) -> Callable[..., Any]:
        def convert_and_read(source: Any, *args: Any, accept_conversion: bool = False, **named: Any) -> Any:
            if is_of(source, packages):
                refuse(source)
            return read(converted(source, accept_conversion), *args, **named)

        return convert_and_read

    load, examine, unread = map(via, (onnx.load_model, onnx.examine_model, onnx.unread_model))
    known = lambda source: recognizes(source) or is_of(source, packages)  # noqa: E731
    register(Format(name, known, load, examine, unread, two_files, True, suffixes, about))


def refusal(name: str, about: About) -> Callable[..., NoReturn]:
    """Returns the function in place of `load` for objects in memory."""

    def refuse(source: Any, *args: Any, **named: Any) -> NoReturn:
        kind = type(_untraced(source)).__name__
        raise InputError(f"{kind} is an object of {name} in memory; export it: {about.export}")

    return refuse


def is_of(source: Any, packages: tuple[str, ...]) -> bool:
    """True if a source is an object of a class of these packages, or of a derived class."""
    bases = type(_untraced(source)).__mro__
    return any(str(base.__module__).partition(".")[0] in packages for base in bases)


def _untraced(source: Any) -> Any:
    return source.model if isinstance(source, Traceable) else source


# --- TensorFlow


def is_tensorflow(source: Any) -> bool:
    """True if a source is a SavedModel (its folder, or the file in it), or a GraphDef, frozen or not."""
    return _saved_model(source) is not None or signs.is_graph_def(signs.head(source))


def from_tensorflow(source: Any, accept: bool) -> Source:
    folder, signature = _saved_model(source) or (source, "")
    return convert("tensorflow", "from_tensorflow.py", folder, options=[signature] if signature else [], accept=accept)


def _saved_model(source: Any) -> tuple[Path, str] | None:
    """Returns the folder of a SavedModel, and the signature that a path of the form folder#signature names."""
    if not isinstance(source, (str, os.PathLike)):
        return None
    text = os.fsdecode(source)
    named, _, signature = text.rpartition("#")
    for path, chosen in ((Path(text), ""), (Path(named), signature)):
        folder = path.parent if path.name == SAVED_MODEL else path
        if (folder / SAVED_MODEL).is_file():
            return folder, chosen
    return None


# --- PaddlePaddle


def is_paddle(source: Any) -> bool:
    """True if a source is the program of an inference model of PaddlePaddle, or a folder with one."""
    if isinstance(source, (str, os.PathLike)) and os.path.isdir(source):
        return bool(_programs(source))
    data = signs.head(source)
    return data.startswith(PIR) or signs.is_program_desc(data)


def from_paddle(source: Any, accept: bool) -> Source:
    """Converts a program (a path, a folder of it, or `ModelFiles`) with the .pdiparams beside it."""
    model, weights = (source.model, source.weights) if isinstance(source, ModelFiles) else (source, None)
    if not isinstance(model, (str, os.PathLike)):
        raise ModelError("a model of PaddlePaddle has two files; pass the path of the .pdmodel or .json")
    path = Path(os.fsdecode(model))
    if path.is_dir():
        programs = _programs(path)
        if len(programs) > 1:
            raise ModelError(f"{path} has several programs, pass one of them: {', '.join(p.name for p in programs)}")
        (path,) = programs
    beside = path.with_suffix(".pdiparams") if weights is None else Path(os.fspath(weights))
    if not beside.is_file():
        raise ModelError(
            f"{path}: its weights file {beside} does not exist; set weights=, or export both with paddle.jit.save"
            " or paddle.static.save_inference_model"
        )
    # the converter requires this suffix
    if path.suffix not in (".pdmodel", ".json"):
        raise ModelError(f"{path}: rename it, programs of PaddlePaddle are named .pdmodel or .json")
    return convert("paddle", "from_paddle.py", path, beside, accept=accept)


def _programs(folder: str | os.PathLike[str]) -> list[Path]:
    """Returns the programs of PaddlePaddle in a folder."""
    try:
        paths = sorted(p for p in Path(folder).iterdir() if p.suffix in (".pdmodel", ".json"))
    except OSError:
        return []
    return [p for p in paths if is_paddle(p)]


# --- JAX


def is_jax(source: Any) -> bool:
    """True if a source is a module of a library for JAX, or a function in a program that has loaded JAX."""
    if is_of(source, ("jax", "jaxlib", "flax", "equinox")):
        return True
    return "jax" in sys.modules and type(_untraced(source)).__name__ in ("function", "method", "partial")


JAX = About(
    files="functions and modules in Python",
    export="import jax2onnx; engine = pelton.build(jax2onnx.to_onnx(function, [('batch', 3, 224, 224)]))",
    extra="pip install jax2onnx (Python 3.11 or newer), or pelton import-env jax",
    covers="what jax2onnx converts",
    checked="JAX 0.10 on the CPU",
)
register_converted(
    "TensorFlow",
    is_tensorflow,
    from_tensorflow,
    packages=("tensorflow",),
    about=About(
        files="SavedModel folder, frozen .pb",
        export="model.export('folder') of Keras, tf.saved_model.save(module, 'folder')",
        extra="pelton import-env tensorflow",
        covers="SavedModels: the serving signature, or folder#signature; frozen graphs: placeholders and unread"
        " results; operators of tf2onnx",
        checked="TensorFlow 2.21 on the CPU",
    ),
)
refuse_jax = refusal("JAX", JAX)
register(Format("JAX", is_jax, refuse_jax, refuse_jax, refuse_jax, about=JAX))
register_converted(
    "PaddlePaddle",
    is_paddle,
    from_paddle,
    packages=("paddle",),
    suffixes=(".pdmodel",),
    two_files=True,
    about=About(
        files=".pdmodel or .json, with .pdiparams",
        export="paddle.jit.save(layer, 'model', input_spec=[...])",
        extra="pelton import-env paddle",
        covers="inference models of PaddlePaddle 2 and 3; operators of paddle2onnx",
        checked="PaddlePaddle 3.3 on the CPU",
    ),
)
