"""The instruction set levels of CPUs that kernels are compiled for."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Isa:
    """march: the level as clang spells it. lanes: of f32 in a vector. registers: of vectors."""

    march: str
    lanes: int
    registers: int


# Names as in backends.cpu.LEVELS, which says what each needs of a CPU; the best last.
ISAS: Mapping[str, Isa] = MappingProxyType({"x86_64_v3": Isa("x86-64-v3", 8, 16), "x86_64_v4": Isa("x86-64-v4", 16, 32)})
