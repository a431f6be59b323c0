"""Loads a version of a model: maps an engine, or builds one from a model file and keeps it in the cache."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import pelton
from pelton.backends import cpu
from pelton.errors import EngineError, InputError, Needs
from pelton.system import files
from pelton.system.cache import directory
from pelton.version import VERSION

from . import repository
from .model import ServedModel
from .replicas import place
from .settings import ModelSettings

if TYPE_CHECKING:
    from pelton.runtime.engine import Engine

    from .options import ServeOptions

log = logging.getLogger("pelton.serve")
CHUNK = 1 << 20


def load(name: str, version: str, path: Path, settings: ModelSettings, options: ServeOptions) -> ServedModel:
    """Loads a version and warms it up. Raises Error of the file, the build, or the configuration."""
    source = repository.model_file(path, settings.config.default_model_filename)
    if repository.is_language_model(source):
        return _language_model(name, version, source, settings, options)
    if source.suffix == repository.ENGINE:
        engine = pelton.load(source, device=None, trust=list(options.trust) or None)
    elif options.trust:
        raise EngineError(f"{source} is no engine, and only signed engines are trusted")
    else:
        engine = _built(source, int(settings.parameters.get("level", 2)))
    replicas = place(engine, name, settings.config)
    if not replicas:
        engine.start()
    return ServedModel(name, version, engine, settings, options, replicas)


def _language_model(
    name: str, version: str, source: Path, settings: ModelSettings, options: ServeOptions
) -> ServedModel:
    if options.trust:
        raise EngineError(f"{source} is no engine, and only signed engines are trusted")
    with Needs("language models", InputError, "language"):
        from .text_model import TextModel
    return TextModel(name, version, source, settings, options)


def _built(source: Path, level: int) -> Engine:
    """Builds an engine, or maps the one that an earlier build of the same files left in the cache."""
    home = directory()
    kept = None if home is None else home / "sessions" / f"served-{_digest(source, level)}{repository.ENGINE}"
    if kept is not None and kept.is_file():
        try:
            return pelton.load(kept, device=None)
        except EngineError as e:
            log.warning("the cached engine of %s is built again: %s", source, e)
    log.info("building %s at level %d", source, level)
    with Needs("building models"):
        engine: Engine = pelton.build(str(source), level=level)
    if kept is None:
        return engine
    kept.parent.mkdir(parents=True, exist_ok=True)
    files.write(kept, [engine.tobytes()])
    return pelton.load(kept, device=None)


def _digest(source: Path, level: int) -> str:
    """Hashes a model's files with everything else that decides its engine."""
    digest = hashlib.sha256(repr((VERSION, level, sorted(cpu.describe().items(), key=str))).encode())
    parts = sorted(p for p in source.rglob("*") if p.is_file()) if source.is_dir() else sorted(source.parent.iterdir())
    for part in parts:
        if part.is_file():
            digest.update(f"\0{part.name}\0{part.stat().st_size}\0".encode())
            with open(part, "rb") as file:
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
    return digest.hexdigest()
