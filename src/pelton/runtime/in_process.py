"""Objects that cannot leave the process that made them."""

from __future__ import annotations

from typing import NoReturn


class InProcess:
    """Objects with memory and threads of this process; pickling or copying raises TypeError, unless their class has its
    own `__getstate__`."""

    __slots__ = ()

    def __getstate__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} objects cannot be pickled or copied: they have memory and threads of this process;"
            " send the worker the engine, or the path or the bytes of its file, and make one there"
        )
