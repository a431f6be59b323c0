"""Files of Keras: `.keras` archives, and HDF5 files with a whole model."""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any

from pelton.errors import ModelAbsent, ModelError
from pelton.importers import signs

from .archive import CONFIG, check_archive
from .config import LayerConfig, UnknownPart
from .hdf5 import Hdf5
from .model import ModelConfig, model_of
from .weights import ListedVariables, StoredVariables, Variables

WEIGHTS = "model.weights.h5"


@dataclass
class Saved:
    """A model and its variables. name: of the file in messages."""

    name: str
    model: ModelConfig
    weights: Variables


def saved(source: Any) -> Saved:
    """Reads the model of a file (a path or bytes).

    Raises ModelError for damaged and untrustworthy files, UnknownPart for unknown parts.
    """
    name = os.fsdecode(source) if isinstance(source, (str, os.PathLike)) else "the given model"
    if signs.head(source).startswith(signs.HDF5):
        return _of_hdf5(Hdf5(_contents(source, name), name), name)
    if isinstance(source, (str, os.PathLike)) and not os.path.exists(source):
        raise ModelAbsent(f"there is no file {name}", name)
    check_archive(source)
    try:
        with signs.open_zip(source) as archive:
            config, metadata = archive.read("config.json"), archive.read("metadata.json")
            if WEIGHTS not in archive.namelist():
                raise UnknownPart(f"{name} has no {WEIGHTS}")
            weights = archive.read(WEIGHTS)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as e:
        raise ModelError(f"{name} is a damaged archive of Keras: {e}; save the model again") from None
    version = _version(_parsed(metadata, name).get("keras_version"))
    model = model_of(LayerConfig.of(_without_training(_parsed(config, name)), version, name))
    if not weights.startswith(signs.HDF5):
        raise ModelError(f"{name} is damaged: its {WEIGHTS} is no HDF5 file")
    return Saved(name, model, StoredVariables(Hdf5(weights, name)))


def _contents(source: Any, name: str) -> bytes:
    if not isinstance(source, (str, os.PathLike)):
        return bytes(source)
    try:
        with open(source, "rb") as file:
            return file.read()
    except OSError as e:
        raise ModelError(f"{name} cannot be read: {e.strerror or e}") from None


def _of_hdf5(file: Hdf5, name: str) -> Saved:
    text = file.attribute(file.root, "model_config")
    if text is None:
        raise ModelError(
            f"{name}: it holds weights without a model, as model.save_weights writes them; load them into the model and"
            " use model.save('model.keras')"
        )
    version = _version(file.attribute(file.root, "keras_version"))
    model = model_of(LayerConfig.of(_parsed(str(text).encode(), name), version, name))
    return Saved(name, model, ListedVariables(file, model))


def _without_training(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "compile_config"}


def _parsed(text: bytes, name: str) -> dict[str, Any]:
    if len(text) > CONFIG:
        raise ModelError(f"{name} describes its layers in {len(text)} bytes; at most {CONFIG} are read")
    try:
        description = json.load(io.BytesIO(text))
    except (ValueError, RecursionError) as e:
        raise ModelError(f"{name} is damaged: its description is no JSON: {e}") from None
    if not isinstance(description, dict):
        raise UnknownPart(f"{name} is described in an unknown way: {description!r:.60}")
    return description


def _version(text: Any) -> int:
    """Returns the major version of the Keras that wrote a file; 2 if the file has none."""
    first = str(text or "2").partition(".")[0]
    if first not in ("2", "3"):
        raise UnknownPart(f"the file was written by Keras {text!r:.40}, and versions 2 and 3 are known")
    return int(first)
