"""A session's knowledge of impossible shapes, which it rejects without planning the model."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pelton.engine import sizes
from pelton.engine.plan import DynamicDimension, Port
from pelton.errors import InputError
from pelton.system.forks import survives_fork

from .pool import Key, Shapes, format_shapes, key_of_shapes

MAX_REMEMBERED = 1024  # shapes that failed
MAX_REQUIREMENTS = 256  # each costs some microseconds of a request
MAX_REASON = 400  # characters kept of a reason
EVIDENCE = 2  # failed shapes with the same empty axes, after which all others count as failed


@dataclass(frozen=True)
class Ranges:
    """Inputs whose sizes are numbers or expressions of symbols, as in an engine."""

    inputs: tuple[Port, ...]
    symbols: tuple[DynamicDimension, ...]
    sizes: Mapping[str, Any]

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Ranges:
        """Parses ranges; raises ValueError for any format other than that of `builder.sessions`."""
        ports = tuple(Port(str(name), "f32", tuple(shape)) for name, shape in data["shapes"].items())
        symbols = tuple(DynamicDimension(str(name), *map(int, bounds)) for name, bounds in data["symbols"].items())
        names, trees = {s.name for s in symbols}, dict(data["sizes"])
        dims = [d for p in ports for d in p.shape]
        if not all(type(d) is int or isinstance(d, str) and d in trees for d in dims) or not all(
            sizes.is_well_formed(tree, names) for tree in trees.values()
        ):
            raise ValueError("not the ranges of inputs")
        return cls(ports, symbols, trees)


@dataclass(frozen=True)
class Requirement:
    """Requirements on inputs within some ranges: sizes that are 0 ("=") or not below 0 (">=")."""

    inputs: Ranges
    needed: tuple[Any, ...]
    relation: str
    why: str

    @classmethod
    def of_json(cls, data: Mapping[str, Any]) -> Requirement:
        """Parses a requirement; raises ValueError for any format other than that of `builder.sessions`."""
        inputs = Ranges.of_json(data["inputs"])
        names = {s.name for s in inputs.symbols}
        needed = tuple(data["needed"])
        if not all(sizes.is_well_formed(tree, names) for tree in needed) or data["relation"] not in ("=", ">="):
            raise ValueError("not a requirement of inputs")
        return cls(inputs, needed, data["relation"], str(data["why"]))

    def refuses(self, shapes: Shapes) -> bool:
        """True if inputs of these shapes are within the ranges and violate the requirement."""
        if not sizes.accepts(self.inputs, shapes):
            return False
        symbols = sizes.solve(self.inputs, shapes)
        values = [sizes.evaluate(tree, symbols) for tree in self.needed]
        return any(values) if self.relation == "=" else min(values) < 0


class Limits:
    """The impossible shapes of a model, by its nodes' requirements and by failed attempts. Thread-safe.

    `known`: result of an import, as JSON (`builder.sessions.infer_outputs`); None without one.
    """

    def __init__(self, known: Mapping[str, Any] | None):
        # True if the model can be imported for some sizes: an error is then the request's
        self.readable = known is not None and known["readable"] is True
        self._inputs = None if known is None else Ranges.of_json(known["inputs"])
        self._requirements: tuple[Requirement, ...] = ()
        self._tried: OrderedDict[Key, str] = OrderedDict()  # shapes → the reason, least recently used first
        self._empty: dict[frozenset[tuple[str, int]], int] = {}  # empty axes → number of failed shapes
        self._unlock()
        survives_fork(self)
        if known is not None:
            self.extend(known["requirements"])

    def _unlock(self) -> None:
        self._lock = threading.Lock()

    def extend(self, found: Sequence[Mapping[str, Any]]) -> None:
        """Adds the requirements that a further import found."""
        with self._lock:
            new = [r for r in map(Requirement.of_json, found) if r not in self._requirements]
            self._requirements += tuple(new[: MAX_REQUIREMENTS - len(self._requirements)])

    def check(self, shapes: Shapes) -> None:
        """Raises InputError for shapes known to be impossible."""
        reason = next((r.why for r in self._requirements if r.refuses(shapes)), None) or self._remembered(shapes)
        if reason is not None:
            raise InputError(self._text(shapes, reason))

    def learn(self, shapes: Shapes, error: Exception) -> InputError:
        """Records that these shapes are impossible; returns the error to raise."""
        reason = " ".join(str(error).split())
        empty = _empty_axes(shapes)
        with self._lock:
            self._tried[key_of_shapes(shapes)] = reason[:MAX_REASON]
            if len(self._tried) > MAX_REMEMBERED:
                self._tried.popitem(last=False)
            if empty and len(self._empty) < MAX_REMEMBERED:
                self._empty[empty] = self._empty.get(empty, 0) + 1
        return InputError(self._text(shapes, reason))

    def _remembered(self, shapes: Shapes) -> str | None:
        key, empty = key_of_shapes(shapes), _empty_axes(shapes)
        with self._lock:
            reason = self._tried.get(key)
            if reason is not None:
                self._tried.move_to_end(key)
            elif empty and self._empty.get(empty, 0) >= EVIDENCE:
                places = " and ".join(f"axis {axis} of input {name!r}" for name, axis in sorted(empty))
                reason = f"the model was tried in vain with other sizes where {places} is 0"
        return reason

    def _text(self, shapes: Shapes, reason: str) -> str:
        place = "" if self._inputs is None else sizes.misfit(self._inputs, shapes)
        return f"{place or f'the model cannot have inputs of {format_shapes(shapes)}'}: {reason}"


def _empty_axes(shapes: Shapes) -> frozenset[tuple[str, int]]:
    return frozenset((name, axis) for name, shape in shapes.items() for axis, size in enumerate(shape) if size == 0)
