"""The timing cache: measured times, by region and tactic, in a readable file that can be merged."""

from __future__ import annotations

import hashlib
import json
import sys
from functools import cache
from pathlib import Path

from pelton import codegen
from pelton.codegen.template import templates
from pelton.system import files
from pelton.errors import BuildError

VERSION = 1


class TimingCache:
    """machine key → task key → tactic name → nanoseconds. Reads and records the times of one machine key only.

    OSError for a file that cannot be read, BuildError for one that is no timing cache.
    """

    def __init__(self, machine: str, path: str | Path | None = None):
        self.machine, self.path = machine, Path(path) if path is not None else None
        self._all: dict[str, dict[str, dict[str, int]]] = {}
        if self.path is not None:
            self._all = _read(self.path)
        self.times = self._all.setdefault(machine, {})
        self.fresh = False

    def get(self, task: str) -> dict[str, int]:
        return self.times.get(task, {})

    def put(self, task: str, times: dict[str, int]) -> None:
        self.times[task] = {**self.times.get(task, {}), **times}
        self.fresh = True

    def save(self) -> None:
        """Writes the whole file, merged with what others wrote meanwhile; OSError if that fails."""
        if self.path is None or not self.fresh:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with files.alone(self.path):
            merged = _read(self.path)
            for machine, tasks in self._all.items():
                for task, times in tasks.items():
                    merged.setdefault(machine, {}).setdefault(task, {}).update(times)
            files.write(
                self.path, [json.dumps({"version": VERSION, "times": merged}, indent=1, sort_keys=True).encode()]
            )


def _read(path: Path) -> dict:
    """Reads a file; no times if it is missing. OSError for one that cannot be read, BuildError for one with other
    content."""
    try:
        text = path.read_bytes()
        if not text:  # its creator is about to fill it
            return {}
        data = json.loads(text)
        times = data["times"]
        if data["version"] != VERSION or not all(
            isinstance(ns, int) for tasks in times.values() for t in tasks.values() for ns in t.values()
        ):
            raise ValueError("unknown version or content")
        return times
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BuildError(f"{path} is no timing cache of version {VERSION}") from None


def template_hash(isa: str) -> str:
    """Returns a hash of the templates of a kind of target, their kernel files and code generation, for cache keys."""
    modules = {type(t).__module__ for t in templates(isa).values()}
    return _hash(frozenset({Path(codegen.__path__[0]), *(Path(sys.modules[m].__file__ or "").parent for m in modules)}))


@cache
def _hash(folders: frozenset[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(
        {path for folder in folders for path in folder.rglob("*.*") if path.suffix in (".py", ".c", ".h")}
    ):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
