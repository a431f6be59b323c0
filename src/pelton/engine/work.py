"""The common parts of descriptors of library calls: their limits, element types and checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Protocol

CHOICES = 3  # number of a library's proposed algorithms that are timed
KINDS = ("f32", "f16", "bf16", "tf32")  # the last: f32 that may be multiplied as TF32
TYPES = ("f32", "f16", "bf16", "f32")  # of elements, by kind
ENDS = ("", "relu", "gelu_tanh")
ALIGNED = 16  # bytes: the alignment known of operands that begin at a multiple of it
COUNT = (1, (1 << 31) - 1)
STEP = (0, 1 << 40)
FLAG = (0, 1)
SAID = {"version": (0, 1 << 40), "choice": (0, CHOICES - 1), "kind": (0, len(KINDS) - 1), "bias": FLAG, "added": FLAG}


class Work(Protocol):
    """One step's call of a library; a frozen record of whole numbers. `symbol`: the library's name, which is that of
    the step's kernel. `version`: of the library that it was timed with, 0 before that. `choice`: index among the
    algorithms that this version proposes, instead of the library's own bytes: a file then holds nothing that the
    library trusts, and another GPU of the architecture gets its own proposals. `kind`: of `KINDS`."""

    symbol: ClassVar[str]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def version(self) -> int: ...
    @property
    def choice(self) -> int: ...
    @property
    def kind(self) -> int: ...
    def dims(self) -> tuple[int, ...]:
        """Returns the numbers, in order."""

    def operands(self) -> list[tuple[str, int]]:
        """Returns, per operand, its element type, and elements from its first to one past its last."""

    def rejection(self) -> str | None:
        """Returns the reason why no library could compute this; None if one may."""


def reach(counts: Sequence[int], steps: Sequence[int]) -> int:
    """Returns the elements from the first to one past the last, for these counts and strides."""
    return 1 + sum((n - 1) * step for n, step in zip(counts, steps))


def values(work: Any) -> tuple[int, ...]:
    """Returns all fields in order; `astuple` would recurse into each."""
    return tuple(getattr(work, f.name) for f in fields(work))


def outside(work: Any, limits: Mapping[str, tuple[int, int]]) -> str | None:
    """Describes the first field outside its limits, in a sentence; None if there is none."""
    for f, value in zip(fields(work), work.dims()):
        low, high = limits.get(f.name, STEP)
        if type(value) is not int or not low <= value <= high:
            return f"{f.name} is {value!r}, expected an integer from {low} to {high}"
    return None
