"""The engine cache: engines of sessions on disk, keyed by a hash of all they depend on, safe for several processes."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import mmap
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from pelton.logs import Logger
from pelton import __version__
from pelton.backends.cpu import default_threads, describe
from pelton.system.cache import Cache, mark_used
from pelton.system import files, heads
from pelton.errors import EngineError
from pelton.options import Options
from pelton.runtime import Engine, load

from .pool import AcceptedSizes
from .signature import Signature, from_json

log = Logger("pelton.session")

# options that change no engine, or that the key holds elsewhere
NOT_IN_KEY = {"progress", "timing_cache", "save_tactics", "load_tactics", "cache_dir", "cache_limit"}
NOT_IN_KEY |= {"optimum", "shapes", "save_calibration"}
MAX_ENGINES = 64  # of one model, each for other sizes
# seconds in which a file may change again with the same timestamps
FRESH = 2.0


class EngineCache:
    """The sessions' part of the cache directory; disabled if other users can write to it."""

    def __init__(self, cache: Cache, device: int = 0):
        self.device = device  # the GPU's number, for GPU engines
        self._cache, self.folder = cache, _own_folder(cache)

    @property
    def keeps(self) -> bool:
        """True if the cache can store engines."""
        return self.folder is not None and self._cache.problem() is None

    def engine(self, key: str) -> Engine | None:
        """Returns the engine of a key; None if it is missing, damaged, of another version, or of plugins that have
        changed since."""
        path = self._path(key, ".pelton")
        if path is None or not path.exists():
            return None
        try:
            engine = load(path, device=self.device)
        except EngineError as e:
            log.warning("the cached engine of this model cannot be used and is built again: %s", e)
            return None
        if name := _changed_plugin(engine.meta.get("plugins")):
            log.info("the plugin %s has changed since the cached engine of this model was built", name)
            return None
        mark_used(path)
        return engine

    def put(self, key: str, engine: Engine) -> bool:
        """Writes an engine; deletes the least recently used files if the cache exceeds its limit. Returns False if it
        could not be written."""
        path = self._path(key, ".pelton")
        if path is None:
            return False
        try:
            engine.save(path)
            nbytes = path.stat().st_size
        except (EngineError, OSError) as e:
            self._cache.refused(e)
            return False
        if nbytes > self._cache.limit:
            log.warning(
                "the engine is not kept for the next session: it has %d bytes, the limit of the cache is %d"
                " (PELTON_CACHE_LIMIT)",
                nbytes,
                self._cache.limit,
            )
        self._cache.added(nbytes)
        self._cache.settle()
        return True

    def engines_of(self, key: str) -> list[tuple[str, AcceptedSizes]]:
        """Returns the keys of a model's engines, latest first, each with the sizes that it accepts."""
        known = self.json(f"{key}.engines")
        entries = known if isinstance(known, list) else []
        return [
            (e["key"], e["takes"])
            for e in entries
            if isinstance(e, dict) and isinstance(e.get("key"), str) and isinstance(e.get("takes"), dict)
        ]

    def register(self, key: str, engine: str, accepted: AcceptedSizes) -> None:
        """Prepends an engine's key to the list of its model; deletes the oldest engine of a full list. The caller holds
        the lock of `key`."""
        listed = [(engine, accepted), *((k, t) for k, t in self.engines_of(key) if k != engine)]
        for k, _ in listed[MAX_ENGINES:]:
            path = self._path(k, ".pelton")
            if path is not None:
                log.info("there are %d cached engines of this model; the oldest is deleted", MAX_ENGINES)
                path.unlink(missing_ok=True)
        self.put_json(f"{key}.engines", [{"key": k, "takes": t} for k, t in listed[:MAX_ENGINES]])

    def signature(self, key: str) -> Signature | None:
        """Returns the signature of a key; None if it is missing, damaged, or of plugins that have changed since."""
        try:
            signature = from_json(self.json(key))
        except ValueError:
            return None
        return None if _changed_plugin(signature.plugins) else signature

    def put_signature(self, key: str, found: Signature) -> None:
        self.put_json(key, found.json())

    def lock(self, key: str) -> contextlib.AbstractContextManager[None]:
        """Locks a key against other processes, which wait."""
        path = self._path(key, ".lock")
        if path is None:
            return contextlib.nullcontext()
        return files.alone(path, lambda: log.info("another process is building this engine; waiting for it"))

    def digest(self, path: Path) -> str:
        """Returns the SHA-256 of a file, cached while its size, inode and times stay the same."""
        real = os.path.realpath(path)
        s = os.stat(real)
        if (known := self._recorded_digest(real, s)) is not None:
            return known
        with open(real, "rb") as f:
            data: Any = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) if s.st_size else b""
            digest = hashlib.sha256(data).hexdigest()
        if time.time() - max(s.st_mtime, s.st_ctime) > FRESH:
            self.put_json(_path_key(real), {"stamp": _stamp(s), "digest": digest})
        return digest

    def known_digest(self, path: Path) -> str | None:
        """Returns the digest of a file if that takes no reading of it, else None."""
        real = os.path.realpath(path)
        try:
            return self._recorded_digest(real, os.stat(real))
        except OSError:
            return None

    def _recorded_digest(self, real: str, s: os.stat_result) -> str | None:
        known = self.json(_path_key(real))
        if isinstance(known, dict) and known.get("stamp") == _stamp(s) and isinstance(known.get("digest"), str):
            return known["digest"]
        return None

    def details(self, digest: str, find: Callable[[], list[str]]) -> list[str]:
        """Returns the result of `find()`, cached under the digest of the file that it reads."""
        known = self.json(digest)
        if (
            not isinstance(known, dict)
            or not isinstance(known.get("details"), list)
            or not all(isinstance(d, str) for d in known["details"])
        ):
            known = {"details": find()}
            self.put_json(digest, known)
        return known["details"]

    def _path(self, key: str, ending: str) -> Path | None:
        return self.folder / (key + ending) if self.folder is not None else None

    def json(self, key: str) -> Any:
        """Returns the JSON data of a key; None if missing or unreadable."""
        path = self._path(key, ".json")
        if path is None:
            return None
        try:
            data = json.loads(path.read_bytes())
        except (OSError, ValueError):
            return None
        mark_used(path)
        return data

    def put_json(self, key: str, data: Any) -> None:
        path = self._path(key, ".json")
        if path is not None:
            self._cache.write(path, json.dumps(data).encode())


def _path_key(real: str) -> str:
    return hashlib.sha256(os.fsencode(real)).hexdigest()


def _stamp(s: os.stat_result) -> list[int]:
    return [s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns]


def _own_folder(cache: Cache) -> Path | None:
    """Returns the folder of engines, created if missing; None if another user can write to it, as engines hold code."""
    folder = cache.path("sessions")
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        s = folder.stat()
    except OSError as e:
        cache.refused(e)
        return None
    if hasattr(os, "geteuid") and (s.st_uid != os.geteuid() or s.st_mode & 0o022):
        log.warning(
            "engines of sessions are not cached: %s belongs to another user, or others can write to it; chmod 700 it,"
            " or name another directory with PELTON_CACHE_DIR",
            folder,
        )
        return None
    return folder


def _changed_plugin(recorded: Any) -> str | None:
    """Returns a recorded plugin that may differ from its fingerprint. Plugins that are not installed here count as
    unchanged: engines run without them."""
    if not isinstance(recorded, dict) or not recorded:
        return None
    from pelton.plugins import fingerprint, registered  # which import all packages of plugins

    for name in recorded.keys() & registered().keys():
        if recorded[name] is None or recorded[name] != fingerprint(name):
            return name
    return None


def engine_in(model: Path | bytes, device: int = 0) -> Engine | None:
    """Returns the engine in a file or bytes; None for a model. Raises OSError for an unreadable file."""
    if isinstance(model, bytes):
        begin = model[: len(heads.ENGINE)]
    else:
        with open(model, "rb") as f:
            begin = f.read(len(heads.ENGINE))
    return load(model, device=device) if begin == heads.ENGINE else None


def key_of(
    digests: list[str],
    sizes: Mapping[str, int],
    options: Options,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    device: int = 0,
) -> str:
    """Hashes all that an engine depends on: the bytes of the model and of its constants, sizes, options, recorded
    tactics, this machine and this version of Pelton."""
    machine = describe()
    machine["threads"] = options.threads or default_threads()
    machine["given"] = [options.shapes, options.optimum]
    if not options.on_cpu:
        from pelton.backends.cuda.driver import device as gpu  # needed by GPU engines only

        info = gpu(device)
        machine["gpu"] = [info.name, info.arch, info.multiprocessors, info.cuda]
    relevant = {f.name: getattr(options, f.name) for f in fields(options) if f.name not in NOT_IN_KEY}
    if options.load_tactics is not None:
        machine["tactics"] = _content(options.load_tactics)
    if options.calibration is not None:
        machine["calibration"] = _content(options.calibration)
    parts = [
        digests,
        sorted(sizes.items()),
        relevant,
        machine,
        sorted(shapes.items()) if shapes is not None else None,
        _installed(),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _content(path: str | Path) -> str | None:
    """Returns the SHA-256 of a file, or of all files in a folder; None if one is unreadable, an error that the build
    reports."""
    hasher, path = hashlib.sha256(), Path(path)
    try:
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            hasher.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
        return hasher.hexdigest()
    except OSError:
        return None


@functools.cache
def _installed() -> list[Any]:
    """Returns the version, and the sizes and times of source files: a working copy changes under one version."""
    sources: list[Any] = []

    def collect(folder: str) -> None:
        with os.scandir(folder) as entries:
            for e in entries:
                if e.name.endswith((".py", ".c", ".h", ".so")):
                    s = e.stat()
                    sources.append([e.path[len(root) :], s.st_size, s.st_mtime_ns])
                elif e.is_dir() and e.name != "__pycache__":
                    collect(e.path)

    root = str(Path(__file__).parents[2])
    collect(root)
    return [__version__, sorted(sources)]
