"""Classes of things that belong together, joined pair by pair (union-find)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Classes(Generic[T]):
    """Disjoint sets; each has one of its members as its name."""

    def __init__(self) -> None:
        self._parent: dict[T, T] = {}

    def find(self, member: T) -> T:
        """The name of the set of a member; itself if it was never joined."""
        while member in self._parent:
            member = self._parent[member]
        return member

    def join(self, a: T, b: T) -> None:
        """Makes the sets of both one."""
        one, other = self.find(a), self.find(b)
        if one != other:
            self._parent[one] = other
