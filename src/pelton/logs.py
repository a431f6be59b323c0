"""Loggers whose level a session may set for what it does, and for nothing else in the process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_level: ContextVar[int | None] = ContextVar("level", default=None)


class Logger(logging.Logger):
    """Passes what it logs to the logger of that name in `logging`, which has level, filters and handlers; inside of
    `at_level`, that level counts instead."""

    def __init__(self, name: str):
        super().__init__(name)
        self._target = logging.getLogger(name)

    def isEnabledFor(self, level: int) -> bool:
        own = _level.get()
        return self._target.isEnabledFor(level) if own is None else level >= own

    def handle(self, record: logging.LogRecord) -> None:
        self._target.handle(record)


@contextmanager
def at_level(level: int | None) -> Iterator[None]:
    """What this thread logs inside is logged from this level on; None: as everywhere else."""
    before = _level.set(level)
    try:
        yield
    finally:
        _level.reset(before)
