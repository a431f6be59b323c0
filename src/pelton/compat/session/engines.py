"""The engines that a session has in memory: one for all sizes where the model allows it, else those used last, within
bounds."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from pelton.engine import sizes
from pelton.engine.constants import length
from pelton.system.forks import survives_fork
from pelton.runtime import Engine
from pelton.system import memory

from .settings import log
from .engine_cache import Takes

Shapes = Mapping[str, tuple[int, ...]]
Key = tuple[tuple[str, tuple[int, ...]], ...]

MOST = 32  # engines
PART = 4  # of the machine's memory, a fourth is what their constants may take


class Kept:
    """Engines by what they take. From any thread."""

    def __init__(self) -> None:
        self.most, self.room = MOST, memory.installed() // PART
        self._engines: OrderedDict[int, Engine] = OrderedDict()  # by id, the one used last at the end
        self._built_for: dict[Key, int] = {}
        self._unlock()
        survives_fork(self)

    def _unlock(self) -> None:
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._engines)

    def find(self, shapes: Shapes) -> Engine | None:
        """One that takes arrays of these shapes."""
        with self._lock:
            found = self._engines.get(self._built_for.get(_key(shapes), 0))
            found = found or next((e for e in reversed(self._engines.values()) if sizes.takes(e.plain, shapes)), None)
            if found is not None:
                self._engines.move_to_end(id(found))
            return found

    def keep(self, engine: Engine, shapes: Shapes | None) -> None:
        """Adds an engine; those that were not used for longest go where they are too many or too large. A run in
        progress keeps its own alive."""
        with self._lock:
            self._engines[id(engine)] = engine
            if shapes is not None:
                self._built_for[_key(shapes)] = id(engine)
            while len(self._engines) > 1 and (
                len(self._engines) > self.most or sum(map(_bytes, self._engines.values())) > self.room
            ):
                number, dropped = self._engines.popitem(last=False)
                self._built_for = {k: n for k, n in self._built_for.items() if n != number}
                log.info(
                    "an engine is dropped: the session keeps the %d used last, of at most %.1f GB; the dropped one"
                    " took %s",
                    self.most,
                    self.room / 1e9,
                    spelled({p.name: p.shape for p in dropped.inputs}),
                )


def taken(engine: Engine) -> Takes:
    """What an engine takes, in short: `may_take` says of shapes whether it is worth looking at."""
    symbols = {s.name: s for s in engine.symbols}

    def axis(d: Any) -> object:
        name, k = sizes.multiple_of(engine.plain, d)
        return (
            d
            if not isinstance(d, str)
            else [k * symbols[name].minimum, k * symbols[name].maximum, k]
            if name in symbols
            else None
        )

    return {p.name: [axis(d) for d in p.shape] for p in engine.inputs}


def may_take(found: Takes, shapes: Shapes) -> bool:
    """Whether an engine that takes this may be one for arrays of these shapes."""

    def fits(axis: object, size: int) -> bool:
        return (
            axis is None
            or axis == size
            or isinstance(axis, list)
            and len(axis) == 3
            and axis[0] <= size <= axis[1]
            and size % axis[2] == 0
        )

    return found.keys() == shapes.keys() and all(
        len(found[n]) == len(s) and all(map(fits, found[n], s)) for n, s in shapes.items()
    )


def spelled(shapes: Mapping[str, tuple[int | str, ...]]) -> str:
    return ", ".join(f"{name} [{', '.join(map(str, shape))}]" for name, shape in shapes.items())


def _key(shapes: Shapes) -> Key:
    return tuple(sorted(shapes.items()))


def _bytes(engine: Engine) -> int:
    return length(engine.plain.constants)
