"""Provenance records of engines: Pelton's version, the model's files, the options, the user's metadata.

All of it follows from the model and the options: no dates, no folders; equal builds have equal records.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from pelton.importers import ModelFiles, Traceable
from pelton.ir.imported import Info
from pelton.options import Options
from pelton.version import VERSION

ALWAYS = ("level", "precision", "strict", "target")  # recorded even where they are the defaults
# options without effect on the engine, or with a record elsewhere
LEFT_OUT = (
    "cache_dir",
    "cache_limit",
    "cc",
    "check",
    "labels",
    "load_tactics",
    "metadata",
    "progress",
    "save_calibration",
    "save_tactics",
    "threads",  # meta["threads"] has it, also if tactics or the machine decided
    "timing_cache",
)
NAMED = ("weights", "calibration", "metric")  # paths, data and functions
CHUNK = 1 << 20  # bytes read at once
LONGEST = 64  # elements of a recorded array


def describe(model: Any, info: Info, options: Options) -> dict[str, Any]:
    """Returns the record of a build as JSON data: {"pelton", "model", "options", "metadata"}.

    "model" lists "files", each with its base name, bytes and SHA-256 (for folders, of all files in them). A model in
    memory has the SHA-256 of its bytes or, without bytes, None and its kind ("source"). The model's own metadata is in
    "metadata".
    """
    return {
        "pelton": VERSION,
        "model": {**_model(model, info), "metadata": asdict(info.metadata)},
        "options": _options(options),
        "metadata": dict(sorted((options.metadata or {}).items())),
    }


def is_of_another(model: Any, info: Info, recorded: Any) -> bool:
    """True if the recorded "model" has other files than this one; False where a hash is not known."""
    ours, theirs = _hashes(_model(model, info)), _hashes(recorded)
    return None not in ours | theirs and ours != theirs


def _hashes(of: Any) -> set[Any]:
    """Returns the SHA-256 of everything the model was read from; {None} if nothing is known."""
    if not isinstance(of, dict):
        return {None}
    files = of.get("files", [])
    entries = [e for e in files if isinstance(e, dict)] if isinstance(files, list) else []
    hashes = {e.get("sha256") for e in entries} | ({of["sha256"]} if "sha256" in of else set())
    return hashes or {None}


def _model(model: Any, info: Info) -> dict[str, Any]:
    while isinstance(model, (ModelFiles, Traceable)):
        model = model.model
    if isinstance(model, (bytes, bytearray, memoryview)):
        of_weights = [entry for path in info.files for entry in _files(path)]
        data = memoryview(model)
        origin = {"source": "bytes", "bytes": data.nbytes, "sha256": hashlib.sha256(data).hexdigest()}
        return {**origin, "files": of_weights} if of_weights else origin
    if not isinstance(model, (str, os.PathLike)):
        kind = type(model)
        return {"source": f"{kind.__module__.partition('.')[0]} {kind.__qualname__} in memory", "sha256": None}
    paths = info.files or (info.path or os.fsdecode(model),)
    return {"source": "files", "files": [entry for path in paths for entry in _files(path)]}


def _files(path: str) -> Iterator[dict[str, Any]]:
    """Yields an entry for a file, or for each file of a folder, sorted by name."""
    name = os.path.basename(os.path.abspath(path))
    if not os.path.isdir(path):
        yield _entry(path, name)
        return
    for folder, inner, names in os.walk(path):
        inner.sort()
        for file in sorted(names):
            whole = os.path.join(folder, file)
            yield _entry(whole, os.path.join(name, os.path.relpath(whole, path)))


def _entry(path: str, name: str) -> dict[str, Any]:
    """Returns the record of a file; a pipe, or a file deleted since it was read, has no hash."""
    digest, count = hashlib.sha256(), 0
    try:
        if not os.path.isfile(path):
            raise FileNotFoundError(path)
        with open(path, "rb") as f:
            while chunk := f.read(CHUNK):
                digest.update(chunk)
                count += len(chunk)
    except OSError:
        return {"file": _text(name), "bytes": None, "sha256": None}
    return {"file": _text(name), "bytes": count, "sha256": digest.hexdigest()}


def _options(options: Options) -> dict[str, Any]:
    """Returns the options that differ from their defaults, and those of `ALWAYS`."""
    default = Options()

    def tells(name: str, value: Any) -> bool:
        usual = getattr(default, name)
        return value is not usual and not (isinstance(value, (bool, int, float, str)) and value == usual)

    values = {f.name: getattr(options, f.name) for f in fields(options) if f.name not in LEFT_OUT}
    return {
        name: _named(value) if name in NAMED else _plain(value)
        for name, value in sorted(values.items())
        if name in ALWAYS or tells(name, value)
    }


def _named(value: Any) -> Any:
    """Returns the base name of a path, or the form of other data, which may be large."""
    if isinstance(value, (str, os.PathLike)):
        return _text(os.path.basename(os.path.abspath(os.fsdecode(value))))
    if isinstance(value, Mapping):
        arrays = ((name, np.asarray(item)) for name, item in value.items())
        return {_text(str(name)): f"{a.dtype}{list(a.shape)}" for name, a in arrays}
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _plain(value: Any) -> Any:
    """Converts an option's value to JSON; large arrays become type and shape."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (np.ndarray, np.generic)):
        few = value.size <= LONGEST and value.dtype.kind in "biuf"
        return value.tolist() if few else f"{value.dtype}{list(value.shape)}"
    if isinstance(value, Mapping):
        return {_text(str(key)): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, Sequence) else str(type(value).__qualname__)


def _text(name: str) -> str:
    """Makes a name valid UTF-8."""
    return os.fsencode(name).decode(errors="replace")
