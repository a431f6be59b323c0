"""Resets locks in forked children, where the threads that held them do not exist."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Locked(Protocol):
    def _unlock(self) -> None:
        """Replaces the lock by a new one: the other threads no longer exist."""


_alive: weakref.WeakSet[Locked] = weakref.WeakSet()


def survives_fork(holder: Locked) -> None:
    """Registers an object whose `_unlock` is called in every child forked from now on."""
    _alive.add(holder)


def _after_fork() -> None:
    for holder in _alive:
        holder._unlock()


os.register_at_fork(after_in_child=_after_fork)
