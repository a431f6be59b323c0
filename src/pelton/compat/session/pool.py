"""A session's engines in memory: one for all sizes if the model allows it, else the most recent ones."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from pelton.logs import Logger
from pelton.engine import sizes
from pelton.engine.constants import length
from pelton.system.forks import survives_fork
from pelton.runtime import Engine
from pelton.system import share

log = Logger("pelton.session")

Shapes = Mapping[str, tuple[int, ...]]
Key = tuple[tuple[str, tuple[int, ...]], ...]
# input → per axis its size, or [minimum, maximum, divisor]; None if any size may be accepted
AcceptedSizes = dict[str, list[Any]]

MAX_ENGINES = 32
MAX_MEMORY_FRACTION = 4  # constants of engines may use a fourth of the machine's memory


class EnginePool:
    """The engines of one session, bounded in number and in bytes of constants. Thread-safe."""

    def __init__(self) -> None:
        self.max_engines, self.max_bytes = MAX_ENGINES, share.memory() // MAX_MEMORY_FRACTION
        self._engines: OrderedDict[int, Engine] = OrderedDict()  # by id, least recently used first
        self._built_for: dict[Key, int] = {}
        self._unlock()
        survives_fork(self)

    def _unlock(self) -> None:
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._engines)

    def find(self, shapes: Shapes) -> Engine | None:
        """Returns the engine that accepts arrays of these shapes, or None."""
        with self._lock:
            match = self._engines.get(self._built_for.get(key_of_shapes(shapes), 0))
            match = match or next((e for e in reversed(self._engines.values()) if sizes.accepts(e.plain, shapes)), None)
            if match is not None:
                self._engines.move_to_end(id(match))
            return match

    def add(self, engine: Engine, shapes: Shapes | None) -> None:
        """Adds an engine that was built for `shapes`; drops the least recently used ones beyond the bounds. A run in
        progress keeps its engine alive."""
        with self._lock:
            self._engines[id(engine)] = engine
            if shapes is not None:
                self._built_for[key_of_shapes(shapes)] = id(engine)
            while len(self._engines) > 1 and (
                len(self._engines) > self.max_engines or sum(map(_bytes, self._engines.values())) > self.max_bytes
            ):
                number, dropped = self._engines.popitem(last=False)
                self._built_for = {k: n for k, n in self._built_for.items() if n != number}
                log.info(
                    "dropped the engine for %s: a session keeps the %d most recently used ones in memory,"
                    " at most %.1f GB",
                    format_shapes({p.name: p.shape for p in dropped.inputs}),
                    self.max_engines,
                    self.max_bytes / 1e9,
                )


def accepted_sizes(engine: Engine) -> AcceptedSizes:
    """Summarizes the sizes that an engine accepts; `may_accept` selects by them the engines worth loading."""
    symbols = {s.name: s for s in engine.symbols}

    def axis(d: Any) -> object:
        name, k = sizes.multiple_of(engine.plain, d)
        if not isinstance(d, str):
            return d
        return [k * symbols[name].minimum, k * symbols[name].maximum, k] if name in symbols else None

    return {p.name: [axis(d) for d in p.shape] for p in engine.inputs}


def may_accept(accepted: AcceptedSizes, shapes: Shapes) -> bool:
    """True if an engine with these accepted sizes may accept arrays of these shapes."""

    def fits(axis: object, size: int) -> bool:
        if isinstance(axis, list) and len(axis) == 3:
            return axis[0] <= size <= axis[1] and size % axis[2] == 0
        return axis is None or axis == size

    return accepted.keys() == shapes.keys() and all(
        len(accepted[n]) == len(s) and all(map(fits, accepted[n], s)) for n, s in shapes.items()
    )


def format_shapes(shapes: Mapping[str, tuple[int | str, ...]]) -> str:
    return ", ".join(f"{name} [{', '.join(map(str, shape))}]" for name, shape in shapes.items())


def key_of_shapes(shapes: Shapes) -> Key:
    return tuple(sorted(shapes.items()))


def _bytes(engine: Engine) -> int:
    return length(engine.plain.constants)
