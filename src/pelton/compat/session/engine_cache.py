"""Engines of sessions on disk: found again by what they were made from, put there whole, made once though two processes
ask at the same time."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import mmap
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from pelton import __version__
from pelton.backends.cpu import default_threads, describe
from pelton.system.cache import Cache, used
from pelton.system import files
from pelton.engine.container import MAGIC
from pelton.errors import EngineError
from pelton.options import Options
from pelton.runtime import Engine, load

from .signature import Signature, from_json

log = logging.getLogger("pelton.session")

# options that change no engine, or stand elsewhere
ELSEWHERE = {"progress", "timing_cache", "save_tactics", "load_tactics", "cache_dir", "cache_limit"}
ELSEWHERE |= {"optimum", "shapes"}
LISTED = 64  # engines of one model, each for other sizes
# seconds in which a file may change again without its times showing it
FRESH = 2.0

# input → per axis the number that it has to be, or [least, most, what divides it]; null: it may be any
Takes = dict[str, list[Any]]


class Shelf:
    """The sessions' part of a cache; where it is not ours alone, nothing is kept."""

    def __init__(self, kept: Cache, device: int = 0):
        self.device = device  # the number of the GPU, for engines that run on one
        self._cache, self.folder = kept, _own(kept)

    def engine(self, key: str) -> Engine | None:
        """The engine of that key; one that is damaged, or of another version, counts as none."""
        path = self._path(key, ".pelton")
        if path is None or not path.exists():
            return None
        try:
            found = load(path, device=self.device)
        except EngineError as e:
            log.warning("the engine kept for this model cannot be used and is built again: %s", e)
            return None
        used(path)
        return found

    def keep(self, key: str, engine: Engine) -> None:
        path = self._path(key, ".pelton")
        if path is None:
            return
        try:
            engine.save(path)
            taken = path.stat().st_size
        except (EngineError, OSError) as e:
            self._cache.refused(e)
            return
        if taken > self._cache.limit:
            log.warning(
                "the engine is not kept for the next session: it takes %d bytes, the limit of the cache is %d"
                " (PELTON_CACHE_LIMIT)",
                taken,
                self._cache.limit,
            )
        self._cache.added(taken)
        self._cache.settle()

    def listed(self, key: str) -> list[tuple[str, Takes]]:
        """The engines that were kept for one model, the last one first: their keys, and what they take."""
        known = self.json(f"{key}.engines")
        found = known if isinstance(known, list) else []
        return [
            (e["key"], e["takes"])
            for e in found
            if isinstance(e, dict) and isinstance(e.get("key"), str) and isinstance(e.get("takes"), dict)
        ]

    def enlist(self, key: str, engine: str, takes: Takes) -> None:
        """Puts an engine in front of the list of a model, and drops what is at the end of a long one. The caller holds
        the model's key."""
        listed = [(engine, takes), *((k, t) for k, t in self.listed(key) if k != engine)]
        for k, _ in listed[LISTED:]:
            path = self._path(k, ".pelton")
            if path is not None:
                log.info("%d engines are kept for this model; the one that was made first goes", LISTED)
                path.unlink(missing_ok=True)
        self.keep_json(f"{key}.engines", [{"key": k, "takes": t} for k, t in listed[:LISTED]])

    def signature(self, key: str) -> Signature | None:
        try:
            return from_json(self.json(key))
        except ValueError:
            return None

    def describe(self, key: str, found: Signature) -> None:
        self.keep_json(key, found.json())

    def alone(self, key: str) -> contextlib.AbstractContextManager[None]:
        """Holds the key: another process that asks for it waits."""
        path = self._path(key, ".lock")
        if path is None:
            return contextlib.nullcontext()
        return files.alone(path, lambda: log.info("another process is building this engine; waiting for it"))

    def digest(self, path: Path) -> str:
        """SHA-256 of a file, remembered for as long as the file has the same size, place and times."""
        real = os.path.realpath(path)
        s = os.stat(real)
        stamp = [s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns]
        key = hashlib.sha256(os.fsencode(real)).hexdigest()
        known = self.json(key)
        if isinstance(known, dict) and known.get("stamp") == stamp and isinstance(known.get("digest"), str):
            return known["digest"]
        with open(real, "rb") as f:
            data: Any = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) if s.st_size else b""
            digest = hashlib.sha256(data).hexdigest()
        if time.time() - max(s.st_mtime, s.st_ctime) > FRESH:
            self.keep_json(key, {"stamp": stamp, "digest": digest})
        return digest

    def details(self, digest: str, find: Callable[[], list[str]]) -> list[str]:
        """What `find` finds in the file of that digest."""
        known = self.json(digest)
        if (
            not isinstance(known, dict)
            or not isinstance(known.get("details"), list)
            or not all(isinstance(d, str) for d in known["details"])
        ):
            known = {"details": find()}
            self.keep_json(digest, known)
        return known["details"]

    def _path(self, key: str, ending: str) -> Path | None:
        return self.folder / (key + ending) if self.folder is not None else None

    def json(self, key: str) -> Any:
        """What is kept under that key besides engines; None where there is nothing that can be read."""
        path = self._path(key, ".json")
        if path is None:
            return None
        try:
            found = json.loads(path.read_bytes())
        except (OSError, ValueError):
            return None
        used(path)
        return found

    def keep_json(self, key: str, data: Any) -> None:
        path = self._path(key, ".json")
        if path is not None:
            self._cache.write(path, json.dumps(data).encode())


def _own(kept: Cache) -> Path | None:
    """The folder, made if it is missing, where no other user can write: engines hold code."""
    folder = kept.path("sessions")
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        s = folder.stat()
    except OSError as e:
        kept.refused(e)
        return None
    if hasattr(os, "geteuid") and (s.st_uid != os.geteuid() or s.st_mode & 0o022):
        log.warning(
            "engines of sessions are not kept: %s belongs to another user, or others can write to it; chmod 700 it, or"
            " give another with PELTON_CACHE_DIR",
            folder,
        )
        return None
    return folder


def engine_in(model: Path | bytes, device: int = 0) -> Engine | None:
    """The engine, where a file or bytes hold one instead of a model; OSError where the file cannot be read."""
    if isinstance(model, bytes):
        begin = model[: len(MAGIC)]
    else:
        with open(model, "rb") as f:
            begin = f.read(len(MAGIC))
    return load(model, device=device) if begin == MAGIC else None


def key_of(
    digests: list[str],
    sizes: Mapping[str, int],
    options: Options,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    device: int = 0,
) -> str:
    """What an engine depends on: the bytes of the model and of its constants, sizes, options, recorded tactics, this
    machine and this Pelton."""
    machine = describe()
    machine["threads"] = options.threads or default_threads()
    machine["given"] = [options.shapes, options.optimum]
    if not options.on_cpu:
        from pelton.backends.cuda.driver import device as gpu  # only engines for GPUs need it

        found = gpu(device)
        machine["gpu"] = [found.name, found.arch, found.multiprocessors, found.cuda]
    chosen = {f.name: getattr(options, f.name) for f in fields(options) if f.name not in ELSEWHERE}
    if options.load_tactics is not None:
        machine["tactics"] = _content(options.load_tactics)
    told = [
        digests,
        sorted(sizes.items()),
        chosen,
        machine,
        sorted(shapes.items()) if shapes is not None else None,
        _installed(),
    ]
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()


def _content(path: str | Path) -> str | None:
    """The digest of what a file holds; None where it cannot be read, which builds refuse."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return None


@functools.cache
def _installed() -> list[Any]:
    """The version, and which files: a working copy changes without changing its version."""
    found: list[Any] = []

    def look(folder: str) -> None:
        with os.scandir(folder) as entries:
            for e in entries:
                if e.name.endswith((".py", ".c", ".h", ".so")):
                    s = e.stat()
                    found.append([e.path[len(root) :], s.st_size, s.st_mtime_ns])
                elif e.is_dir() and e.name != "__pycache__":
                    look(e.path)

    root = str(Path(__file__).parents[2])
    look(root)
    return [__version__, sorted(found)]
