"""The instruction set levels of CPUs that kernels are compiled for."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pelton.backends.cpu import BUILT, fits


@dataclass(frozen=True)
class Isa:
    """march: the level as clang spells it. lanes: of f32 in a vector. registers: of vectors."""

    march: str
    lanes: int
    registers: int


# The best last.
ISAS: Mapping[str, Isa] = MappingProxyType(dict(zip(BUILT, (Isa("x86-64-v3", 8, 16), Isa("x86-64-v4", 16, 32)), strict=True)))


def best(features: Iterable[str]) -> str:
    """The best level for a CPU with these features; the first where it has none."""
    *_, found = (next(iter(ISAS)), *(isa for isa in ISAS if fits(isa, features)))
    return found
