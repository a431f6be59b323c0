"""Python's collector of cycles."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Pauses the collector: it looks through all objects again and again while many are made, and finds no cycle.

    Several threads may pause it; it goes on when the first of them is done.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
