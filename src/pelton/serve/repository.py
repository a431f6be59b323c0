"""Model repositories: folders of models with versions, as on disk.

models/NAME/VERSION/model.pelton      VERSION is a number; model.onnx, … are built first
models/NAME/config.pbtxt              optional
models/NAME.pelton                    a model of one version, 1
models/NAME.gguf, models/NAME/config.json (genai_config.json)     a language model of one version
models/NAME/VERSION/…                 a version may be a language model, too: a GGUF file, or such a folder's files
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pelton.errors import InputAbsent, InputError

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+\- ]{0,199}")
VERSION = re.compile(r"[0-9]{1,18}")
ENGINE, GGUF = ".pelton", ".gguf"
LANGUAGE = ("genai_config.json", "config.json")  # either makes a folder a language model
FILES = ("config.pbtxt", "pipeline.yaml")  # beside the versions; either makes a folder a model


@dataclass(frozen=True)
class Place:
    """A model on disk. folder: with its configuration, None for a single file. versions: version → its folder or file.
    stamp: changes when any of its files does."""

    name: str
    folder: Path | None
    versions: dict[str, Path]
    stamp: tuple[tuple[str, int, int, int], ...]


def scan(roots: Iterable[Path]) -> dict[str, Place]:
    """Returns the models in engine files, model files and repositories, by name.

    Raises InputAbsent for a path that does not exist, InputError for two models of one name. Files and folders of a
    repository whose names are no models' (hidden, temporary) are skipped.
    """
    places: dict[str, Place] = {}
    for root in roots:
        if not root.exists():
            raise InputAbsent(f"{root} does not exist; name an engine, a model, or a folder of models", root)
        for place in _places(root):
            if place.name in places:
                raise InputError(f"two models have the name {place.name!r}: the second is in {root}; rename one")
            places[place.name] = place
    # pipelines, which need the models, last
    return dict(sorted(places.items(), key=lambda item: not item[1].versions))


def _places(root: Path) -> Iterable[Place]:
    if root.is_file() or is_language_model(root):
        yield _single(root)
    elif _versions(root):
        yield _folder(root)
    else:
        for entry in sorted(root.iterdir()):
            if not NAME.fullmatch(entry.name):
                continue
            if entry.is_dir() and is_language_model(entry):
                yield _single(entry)
            elif entry.is_dir() and (_versions(entry) or any((entry / f).is_file() for f in FILES)):
                yield _folder(entry)
            elif entry.is_file() and entry.suffix in (ENGINE, GGUF):
                yield _single(entry)


def _single(path: Path) -> Place:
    folder = path.is_dir()
    name = path.resolve().name if folder else path.stem
    if not NAME.fullmatch(name):
        raise InputError(f"a model's name has letters, digits and _ . + -, got {name!r}; rename {path}")
    return Place(name, None, {"1": path}, _stamp([path, *(path.iterdir() if folder else ())]))


def is_language_model(path: Path) -> bool:
    """Returns True for a GGUF file, and for a folder of onnxruntime-genai or of transformers."""
    return path.suffix == GGUF if path.is_file() else any((path / name).is_file() for name in LANGUAGE)


def _folder(path: Path) -> Place:
    versions = _versions(path)
    files = [p for v in versions.values() for p in v.iterdir()]
    files += [*(path / name for name in FILES), *path.glob("*.py")]
    return Place(path.name, path, versions, _stamp([*versions.values(), *files]))


def _versions(folder: Path) -> dict[str, Path]:
    """Returns the folders whose names are numbers, and which hold something."""
    with os.scandir(folder) as entries:
        found = [Path(e.path) for e in entries if VERSION.fullmatch(e.name) and e.is_dir()]
    return {str(int(p.name)): p for p in found if any(p.iterdir())}


def _stamp(paths: Iterable[Path]) -> tuple[tuple[str, int, int, int], ...]:
    stamps = []
    for path in sorted(paths):
        try:
            status = path.stat()
        except OSError:  # removed meanwhile
            continue
        stamps.append((str(path), status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(stamps)


def model_file(version: Path, preferred: str = "") -> Path:
    """Returns the model in a version's folder: the file named in the configuration, an engine, or the only model.

    Raises InputError if there is none, or if there are several.
    """
    if version.is_file() or is_language_model(version):
        return version
    if preferred:
        if Path(preferred).name != preferred or not (version / preferred).exists():
            raise InputError(f"default_model_filename names {preferred!r}, which is not in {version}")
        return version / preferred
    files = sorted(p for p in version.iterdir() if NAME.fullmatch(p.name))
    for choice in (
        [p for p in files if p.suffix == ENGINE],
        [p for p in files if p.name.startswith("model.")],
        files,
    ):
        if len(choice) == 1:
            return choice[0]
    raise InputError(
        f"{version} has {len(files)} files and no single model: name one model.pelton or model.onnx, or set"
        " default_model_filename in config.pbtxt"
    )
