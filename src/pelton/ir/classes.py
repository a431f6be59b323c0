"""Disjoint classes of things, joined pair by pair (union-find)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Classes(Generic[T]):
    """Disjoint sets, each named by one of its members."""

    def __init__(self) -> None:
        self._parent: dict[T, T] = {}

    def find(self, member: T) -> T:
        """Returns the name of a member's set; the member itself if it was never joined."""
        while member in self._parent:
            member = self._parent[member]
        return member

    def join(self, a: T, b: T) -> None:
        """Merges the sets of both."""
        one, other = self.find(a), self.find(b)
        if one != other:
            self._parent[one] = other
