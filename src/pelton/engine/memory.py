"""Placement of buffers in the arena: lifetimes over waves, largest first into the lowest gap."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TypeVar

from pelton.record import record

K = TypeVar("K", bound=Hashable)
ALIGN = 64  # bytes: a cache line


@record(frozen=True)
class Lifetime:
    """Bytes in use from the first wave that writes to the last that reads, both included."""

    size: int
    first: int
    last: int


def assign(lifetimes: Mapping[K, Lifetime]) -> tuple[dict[K, int], int]:
    """Assigns offsets without overlap between buffers that live at once: (offsets, size of the arena)."""
    lives = [(life.first, life.last) for life in lifetimes.values()]
    offsets, total = lay_out([life.size for life in lifetimes.values()], lives, together(lives))
    return dict(zip(lifetimes, offsets)), total


def together(lives: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Returns, for each (first, last), the others that are alive at some time with it."""
    overlaps: list[list[int]] = [[] for _ in lives]
    alive: list[int] = []
    for i in sorted(range(len(lives)), key=lambda i: lives[i][0]):
        alive = [k for k in alive if lives[k][1] >= lives[i][0]]
        for k in alive:
            overlaps[i].append(k)
            overlaps[k].append(i)
        alive.append(i)
    return overlaps


def lay_out(
    sizes: Sequence[int], lives: Sequence[tuple[int, int]], beside: Sequence[Sequence[int]]
) -> tuple[list[int], int]:
    """Returns offsets in bytes and the size of the arena, for buffers of these sizes; `beside` is the result of
    `together` for their lives. Contexts call this for every new shape, with the same lives."""
    starts = [-1] * len(sizes)
    ends = [0] * len(sizes)
    total = 0
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], lives[i][0])):
        size = -(-max(sizes[i], 1) // ALIGN) * ALIGN
        at, best, gap = 0, -1, 0
        for start, end in sorted([(starts[k], ends[k]) for k in beside[i] if starts[k] >= 0]):
            if start - at >= size and (best < 0 or start - at < gap):
                best, gap = at, start - at  # the smallest gap that holds it
            if end > at:
                at = end
        starts[i] = at if best < 0 else best
        ends[i] = starts[i] + size
        total = max(total, ends[i])
    return starts, total
