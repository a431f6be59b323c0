"""What cannot leave the process that made it."""

from __future__ import annotations

from typing import NoReturn


class InProcess:
    """Objects with memory and threads of this process; TypeError where they are pickled or copied, unless their class
    has a `__getstate__` of its own."""

    __slots__ = ()

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} objects cannot be pickled or copied: they have memory and threads of this process;"
            " send the worker the engine, or the path or the bytes of its file, and make one there"
        )
