"""What has a lock, in forked children: the threads that held it stayed in the parent."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Locked(Protocol):
    def _unlock(self) -> None:
        """Takes a new lock, as if nobody were at work: the other threads are no more."""


_alive: weakref.WeakSet[Locked] = weakref.WeakSet()


def survives_fork(holder: Locked) -> None:
    """In every child that is forked from now on, `holder._unlock` is called."""
    _alive.add(holder)


def _after_fork() -> None:
    for holder in _alive:
        holder._unlock()


os.register_at_fork(after_in_child=_after_fork)
