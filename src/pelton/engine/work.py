"""What a library computes instead of a kernel of the engine's own, in words that all libraries share: all numbers,
which are the dims of its step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Protocol

CHOICES = 3  # algorithms of a library's list that are timed
KINDS = ("f32", "f16", "bf16", "tf32")  # the last: f32 that may be multiplied as TF32
TYPES = ("f32", "f16", "bf16", "f32")  # of elements, by kind
ENDS = ("", "relu", "gelu_tanh")
ALIGNED = 16  # bytes: what operands that begin at a multiple of it are known to
COUNT = (1, (1 << 31) - 1)
STEP = (0, 1 << 40)
FLAG = (0, 1)
SAID = {"version": (0, 1 << 40), "choice": (0, CHOICES - 1), "kind": (0, len(KINDS) - 1), "bias": FLAG, "added": FLAG}


class Work(Protocol):
    """What one step asks of a library; a frozen record of whole numbers. `symbol`: the library's name, which is that of
    the step's kernel. `version`: of the library that it was timed with, 0 before that. `choice`: which of the
    algorithms that this version proposes. `kind`: of `KINDS`."""

    symbol: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def version(self) -> int: ...
    @property
    def choice(self) -> int: ...
    @property
    def kind(self) -> int: ...
    def dims(self) -> tuple[int, ...]:
        """The numbers, in order."""

    def operands(self) -> list[tuple[str, int]]:
        """Of each operand its element type, and the elements from its first to past its last."""

    def wrong(self) -> str | None:
        """What no such work says; None where all is well."""


def reach(counts: Sequence[int], steps: Sequence[int]) -> int:
    """Elements from the first to past the last of those that lie so far from each other."""
    return 1 + sum((n - 1) * step for n, step in zip(counts, steps))


def values(work: Any) -> tuple[int, ...]:
    """All of them in order; `astuple` would look for records inside of each."""
    return tuple(getattr(work, f.name) for f in fields(work))


def outside(work: Any, limits: Mapping[str, tuple[int, int]]) -> str | None:
    """What is not within limits."""
    for f, value in zip(fields(work), work.dims()):
        least, most = limits.get(f.name, STEP)
        if type(value) is not int or not least <= value <= most:
            return f"{f.name} is {value!r}, expected a whole number from {least} to {most}"
    return None
