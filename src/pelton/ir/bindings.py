"""What a name of a model stands for while the model is read: a tensor, a sequence, a map, an absent optional, or
nothing that could be read."""

from __future__ import annotations

from dataclasses import dataclass

from .graph import Value


@dataclass(frozen=True)
class ValueSequence:
    """A sequence: it exists while importing only, as a list of values. None stands for one whose size depends on the
    data: it counts, that is all."""

    values: tuple[Value | None, ...]


@dataclass(frozen=True)
class MapInput:
    """A map that is an input: its keys and its values, as many of each."""

    keys: Value
    values: Value


@dataclass(frozen=True)
class MapSequence:
    """A sequence of maps: one per row of a matrix, with a key per column. Only outputs are that."""

    matrix: Value
    keys: tuple[str, ...] | tuple[int, ...]


class Broken:
    """Stands for the outputs of a node that could not be read, so that one problem is reported once."""


BROKEN = Broken()
Binding = Value | ValueSequence | MapInput | MapSequence | None  # what a name stands for; None is an absent optional


def kind_of(thing: Binding) -> str:
    """What it is, for people."""
    return {Value: "a tensor", MapInput: "a map", type(None): "an absent optional"}.get(type(thing), "a sequence")
