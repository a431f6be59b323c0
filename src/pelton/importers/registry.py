"""The registry of model formats, and the functions that each importer offers."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from pelton.errors import FormatError, InputError, ModelAbsent
from pelton.ir.imported import Examined, Imported
from pelton.ir.unread import Unread

from . import signs


@dataclass(frozen=True)
class ModelFiles:
    """A model whose weights are in a second file."""

    model: Any
    weights: str | os.PathLike[str]


@dataclass(frozen=True)
class About:
    """Texts on a format for users, in `pelton formats` and docs/formats.md. For rejected formats, which cover nothing,
    `export` is the way around."""

    files: str = ""  # appearance of its models, such as ".onnx"
    export: str = ""  # how users obtain one
    extra: str = ""  # requirements beside pelton[build]
    covers: str = ""
    checked: str = ""  # source of expected results


UNTOLD = About()


@dataclass(frozen=True)
class Format:
    """A format of model files.

    `recognizes` decides cheaply, by content, if a source (a path, bytes or an object) certainly has this format;
    `suffixes`, in lower case, identify files without telling content, such as damaged ones. The other functions have
    the arguments of their namesakes in `pelton.importers`; those of formats that another package converts (`converted`)
    also have `accept_conversion`.
    """

    name: str
    recognizes: Callable[[Any], bool]
    load: Callable[..., Imported]
    examine: Callable[..., Examined] | None = None  # reports on each node
    # for models with control flow or sizes that depend on data
    unread: Callable[..., Unread] | None = None
    two_files: bool = False  # True if weights are in a separate file: sources may then be `ModelFiles`
    converted: bool = False  # True if another package may have to convert its models to ONNX
    suffixes: tuple[str, ...] = ()
    about: About = UNTOLD


@dataclass(frozen=True, eq=False)
class Traceable:
    """A model that its format reads by tracing a run on example inputs: Python code, such as a module of PyTorch.

    `example_inputs`: the arguments of a call, in the types of the model's own framework: a tuple, a mapping by the
    names of parameters, or a single one. `dynamic_shapes`: the dynamic sizes among them, in the framework's notation.
    """

    model: Any
    example_inputs: Any = None
    dynamic_shapes: Any = None


FORMATS: list[Format] = []


def register(format: Format) -> None:
    """Appends a format to those that `format_of` tries in order."""
    FORMATS.append(format)


def register_refused(
    name: str,
    files: str,
    recognizes: Callable[[Any], bool],
    what: str,
    way: str,
    command: str = "",
    suffixes: tuple[str, ...] = (),
) -> None:
    """Registers a format that is recognized and refused. what: its name in the error; way, command: the way around; the
    other arguments are as in `Format` and `About`."""
    around = f"{way}: {command}" if command else way

    def refuse(source: Any, *args: Any) -> NoReturn:
        model = source.model if isinstance(source, ModelFiles) else source
        path = os.fsdecode(model) if isinstance(model, (str, os.PathLike)) else "the given bytes"
        if isinstance(model, (str, os.PathLike)) and not os.path.exists(model):
            raise ModelAbsent(f"there is no file {path}", path)
        raise FormatError(f"{path}: this looks like {what}, an unsupported format; {around}")

    about = About(files=files, export=around)
    register(Format(name, recognizes, refuse, refuse, refuse, suffixes=suffixes, about=about))


def format_of(source: Any) -> Format:
    """Returns the first format that recognizes a model, else the one of its name; for missing files, bytes and objects
    else the first of all, whose `load` reports what it expected.

    Raises FormatError for an existing file or folder of no format, for empty files, engines and pointers of Git LFS;
    InputError for a Traceable that no format traces, and for weights of a format with a single file.
    """
    model = source.model if isinstance(source, ModelFiles) else source
    if model == "":
        raise ModelAbsent("the path of the model is empty; pass the path of a file", model)
    signs.refuse_others(model)
    if signs.is_empty(model):
        raise FormatError(f"{os.fsdecode(model)} is empty; copy it again, or export the model again")
    match = next((f for f in FORMATS if f.recognizes(model)), None) or _by_name(model)
    if match is None and isinstance(model, Traceable):
        raise InputError(
            "example_inputs and dynamic_shapes are for traced models (modules of PyTorch, TorchScript), got"
            f" {model.model!r:.100}; leave them out, or pass such a model"
        )
    if match is None and isinstance(model, (str, os.PathLike)):
        _refuse_unknown(os.fsdecode(model))
    match = match or FORMATS[0]
    if isinstance(source, ModelFiles) and not match.two_files:
        two = ", ".join(f.name for f in FORMATS if f.two_files)
        raise InputError(
            f"weights= names the second file of models that come in two ({two}); this one is of the format"
            f" {match.name}, leave it out"
        )
    return match


def _by_name(model: Any) -> Format | None:
    """Returns the format whose suffix a path has."""
    suffix = signs.suffix(model)
    return next((f for f in FORMATS if suffix in f.suffixes), None)


def _refuse_unknown(path: str) -> None:
    """Raises FormatError for an existing path, with the known formats."""
    if os.path.isdir(path):
        looks = "it is a folder without a SavedModel or a model of PaddlePaddle"
        if inside := signs.models_in(path):
            raise FormatError(f"{path} is a folder; pass the path of the model in it: {', '.join(inside)}")
    elif signs.is_packed(path):
        raise FormatError(f"{path} is an archive or a compressed file, not a model; unpack it, and pass the model")
    elif head := signs.head(path):
        looks = f"it begins with {head[:16]!r}, as no format of models does"
    else:
        return  # missing or unreadable
    known = ", ".join(f"{f.name} ({f.about.files})" for f in FORMATS if f.about.covers)
    raise FormatError(
        f"cannot read {path}: {looks}; it is damaged, or not {known}; `pelton formats` lists how to export each format"
    )
