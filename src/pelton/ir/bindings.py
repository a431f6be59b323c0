"""Meanings of names while a model is read: a tensor, a sequence, a map, an absent optional, or an unreadable value."""

from __future__ import annotations

from dataclasses import dataclass

from .graph import Value


@dataclass(frozen=True)
class ValueSequence:
    """A sequence, which exists only while importing, as a list of values; None instead of the list means that its size
    depends on the data."""

    values: tuple[Value | None, ...]


@dataclass(frozen=True)
class MapInput:
    """A map as an input: its keys and its values, equal in number."""

    keys: Value
    values: Value


@dataclass(frozen=True)
class MapSequence:
    """A sequence of maps, only as an output: one per row of a matrix, with a key per column."""

    matrix: Value
    keys: tuple[str, ...] | tuple[int, ...]


class Broken:
    """Stands for the outputs of an unreadable node, so that one problem is reported once."""


BROKEN = Broken()
Binding = Value | ValueSequence | MapInput | MapSequence | None  # the meaning of a name; None is an absent optional


def kind_of(thing: Binding) -> str:
    """Returns the kind of a binding, for messages."""
    return {Value: "a tensor", MapInput: "a map", type(None): "an absent optional"}.get(type(thing), "a sequence")
