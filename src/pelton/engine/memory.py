"""Where buffers lie in the arena: lifetimes over waves, largest first into the lowest gap."""
from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
ALIGN = 64                                     # bytes: a cache line


@dataclass(frozen=True)
class Lifetime:
    """Bytes wanted from the first wave that writes to the last that reads, both included."""

    size: int
    first: int
    last: int


def assign(lifetimes: Mapping[K, Lifetime]) -> tuple[dict[K, int], int]:
    """An offset for every buffer such that no two that live at once overlap: (offsets, size of the arena)."""
    placed: list[tuple[int, int, Lifetime]] = []
    offsets: dict[K, int] = {}
    names = sorted(lifetimes, key=lambda k: (-lifetimes[k].size, lifetimes[k].first))
    total = 0
    for name in names:
        want = lifetimes[name]
        size = -(-max(want.size, 1) // ALIGN) * ALIGN
        at, best, gap = 0, None, None
        for start, end in sorted((s, e) for s, e, other in placed if other.first <= want.last and want.first <= other.last):
            if start - at >= size and (gap is None or start - at < gap):
                best, gap = at, start - at                           # the tightest gap that holds it
            at = max(at, end)
        offset = best if best is not None else at
        placed.append((offset, offset + size, want))
        offsets[name] = offset
        total = max(total, offset + size)
    return offsets, total
