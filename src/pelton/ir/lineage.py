"""Where constants come from, in builds that can be refitted: which of a model's weights each is computed from.

While one is under way (`following`), importers say what they name, read and compute, and passes say what they derive in
numpy. Passes may know that such a constant is one, but do not decide by its numbers: other weights are to give the same
program. Arrays are known by their identity. Outside of `following`, all of this does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .graph import Node

NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class Made:
    """An array that a node of constants gave: its output of this number, from these arrays."""

    array: np.ndarray
    node: Node
    given: tuple[np.ndarray, ...]
    output: int


@dataclass(eq=False)
class Lineage:
    """All that is known of the constants of a program, by the identity of their arrays, which it keeps alive.

    names: what the model calls its weights. read: those whose numbers an importer asked for. made: those that nodes
    gave. weights: those that depend on weights, and on which.
    """

    names: dict[int, tuple[np.ndarray, str]] = field(default_factory=dict)
    read: dict[int, np.ndarray] = field(default_factory=dict)
    made: dict[int, Made] = field(default_factory=dict)
    weights: dict[int, tuple[np.ndarray, frozenset[str]]] = field(default_factory=dict)

    def is_read(self, array: np.ndarray) -> bool:
        return id(array) in self.read

    def weights_of(self, array: np.ndarray) -> frozenset[str]:
        found = self.weights.get(id(array))
        return NONE if found is None else found[1]

    def depends(self, array: np.ndarray, weights: frozenset[str]) -> None:
        if weights:
            self.weights[id(array)] = array, weights | self.weights_of(array)


_current: ContextVar[Lineage | None] = ContextVar("lineage", default=None)


@contextmanager
def following(lineage: Lineage | None) -> Iterator[Lineage | None]:
    """Makes this the lineage that everything below tells and asks; None: nothing does."""
    token = _current.set(lineage)
    try:
        yield lineage
    finally:
        _current.reset(token)


def current() -> Lineage | None:
    return _current.get()


def name(array: np.ndarray, called: str) -> None:
    """A weight of the model, and what the model calls it."""
    if (lineage := _current.get()) is not None:
        lineage.names[id(array)] = array, called


def read(array: np.ndarray | None) -> None:
    """An importer asked for the numbers of a constant."""
    if (lineage := _current.get()) is not None and array is not None:
        lineage.read[id(array)] = array


def computed(node: Node, given: tuple[np.ndarray, ...], found: Sequence[np.ndarray]) -> None:
    """A node of constants was computed."""
    if (lineage := _current.get()) is not None:
        lineage.made.update((id(a), Made(a, node, given, i)) for i, a in enumerate(found))
        derived(found, given)


def derived(made: Iterable[np.ndarray], given: Iterable[np.ndarray]) -> None:
    """Constants were computed in numpy, each from all of the given ones."""
    if (lineage := _current.get()) is not None:
        weights = NONE.union(*map(lineage.weights_of, given))
        for array in made:
            lineage.depends(array, weights)


def added(constants: Mapping[Any, np.ndarray], before: int, given: Iterable[np.ndarray]) -> None:
    """As `derived`, for all constants but the first `before` of them."""
    if _current.get() is not None:
        derived(islice(constants.values(), before, None), given)


def is_weight(array: np.ndarray | None) -> bool:
    """Whether a constant depends on weights, so that nothing may be decided by its numbers."""
    lineage = _current.get()
    return lineage is not None and array is not None and bool(lineage.weights_of(array))
