"""The origin of constants in refittable builds: the weights of a model from which each is computed.

While `following` one, importers report the constants that they name, read and compute, and passes those that they
derive in numpy. Passes may ask if such a value is constant, but not decide by its numbers: other weights must give the
same program. Arrays are identified by identity. Outside of `following`, all of this does nothing.
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
    """An array computed by a node of constants: its output of this number, from these arrays."""

    array: np.ndarray
    node: Node
    given: tuple[np.ndarray, ...]
    output: int


@dataclass(eq=False)
class Lineage:
    """The known origins of a program's constants, by the identity of their arrays, which it keeps alive.

    names: the model's names of its weights. read: constants whose numbers an importer read. made: constants that nodes
    computed. weights: constants that depend on weights, with these.
    """

    names: dict[int, tuple[np.ndarray, str]] = field(default_factory=dict)
    read: dict[int, np.ndarray] = field(default_factory=dict)
    made: dict[int, Made] = field(default_factory=dict)
    weights: dict[int, tuple[np.ndarray, frozenset[str]]] = field(default_factory=dict)

    def is_read(self, array: np.ndarray) -> bool:
        return id(array) in self.read

    def weights_of(self, array: np.ndarray) -> frozenset[str]:
        entry = self.weights.get(id(array))
        return NONE if entry is None else entry[1]

    def depends(self, array: np.ndarray, weights: frozenset[str]) -> None:
        if weights:
            self.weights[id(array)] = array, weights | self.weights_of(array)


_current: ContextVar[Lineage | None] = ContextVar("lineage", default=None)


@contextmanager
def following(lineage: Lineage | None) -> Iterator[Lineage | None]:
    """Makes this the current lineage for everything below; None: no lineage."""
    token = _current.set(lineage)
    try:
        yield lineage
    finally:
        _current.reset(token)


def current() -> Lineage | None:
    return _current.get()


def name(array: np.ndarray, called: str) -> None:
    """Records the model's name of a weight."""
    if (lineage := _current.get()) is not None:
        lineage.names[id(array)] = array, called


def read(array: np.ndarray | None) -> None:
    """Records that an importer read the numbers of a constant."""
    if (lineage := _current.get()) is not None and array is not None:
        lineage.read[id(array)] = array


def computed(node: Node, given: tuple[np.ndarray, ...], found: Sequence[np.ndarray]) -> None:
    """Records that a node of constants was computed."""
    if (lineage := _current.get()) is not None:
        lineage.made.update((id(a), Made(a, node, given, i)) for i, a in enumerate(found))
        derived(found, given)


def derived(made: Iterable[np.ndarray], given: Iterable[np.ndarray]) -> None:
    """Records constants that were computed in numpy, each from all of the given ones."""
    if (lineage := _current.get()) is not None:
        weights = NONE.union(*map(lineage.weights_of, given))
        for array in made:
            lineage.depends(array, weights)


def added(constants: Mapping[Any, np.ndarray], before: int, given: Iterable[np.ndarray]) -> None:
    """Records all constants but the first `before`, like `derived`."""
    if _current.get() is not None:
        derived(islice(constants.values(), before, None), given)


def is_weight(array: np.ndarray | None) -> bool:
    """True if a constant depends on weights: then no decision may depend on its numbers."""
    lineage = _current.get()
    return lineage is not None and array is not None and bool(lineage.weights_of(array))
