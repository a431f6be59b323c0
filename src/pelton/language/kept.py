"""What earlier starts of language models left in the cache folder: engines, and the heads of files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from pelton.compat.session.engine_cache import EngineCache, key_of
from pelton.options import Options
from pelton.runtime import Engine
from pelton.system.cache import open_cache
from pelton.system.collector import paused


HEAD = "head of a language model"


class KeptSource(Protocol):
    """What an engine is made of. kind: of the door. files: all that the network depends on."""

    @property
    def kind(self) -> str: ...

    @property
    def files(self) -> tuple[Path, ...]: ...


def kept_engine(
    source: KeptSource,
    sizes: Mapping[str, int],
    options: Options,
    built: Callable[[], tuple[Engine, dict[str, Any]]],
) -> tuple[Engine, dict[str, Any]]:
    """Returns the engine of a model, and what else a second start needs to know, with the `digest` of both.

    Without one in the cache folder, `built` makes both, and they are put there.
    """
    cache = EngineCache(open_cache(options))
    digests = [*(cache.digest(f) for f in source.files), source.kind]
    key = key_of(digests, dict(sizes), options)
    with cache.lock(key):
        with paused():
            engine, record = cache.engine(key), cache.json(f"{key}.language")
        if engine is None or not isinstance(record, dict):
            engine, record = built()
            if cache.put(key, engine):
                engine = cache.engine(key) or engine  # with weights mapped from the file; those of the build are freed
            cache.put_json(f"{key}.language", record)
    return engine, {**record, "digest": key}


def kept_head(path: Path, options: Options) -> dict[str, Any] | None:
    """Returns what `keep_head` was passed for a file; None if there is none, or the file has changed since."""
    cache = EngineCache(open_cache(options))
    digest = cache.known_digest(path)
    head = None if digest is None else cache.json(_head_key(digest))
    return head if isinstance(head, dict) else None


def keep_head(path: Path, options: Options, head: dict[str, Any]) -> None:
    """Records what a later start needs of a file whose digest is known, so that it need not read it."""
    cache = EngineCache(open_cache(options))
    digest = cache.known_digest(path)
    if digest is not None:
        cache.put_json(_head_key(digest), head)


def _head_key(digest: str) -> str:
    return key_of([digest, HEAD], {}, Options())
