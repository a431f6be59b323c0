"""Bounds the packed weights of an engine: trades speed for size where that costs the least time per byte saved."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

from pelton.ir.graph import Value
from pelton.codegen.template import Kernel, Packed, Tactic, Template

MAX_PACKED_RATIO = 2.0  # packed weights, of the model's own


@dataclass(frozen=True)
class PackedCandidate:
    """A candidate for a task: its time (a guess if it was not timed) and its bytes of packed weights."""

    template: Template
    tactic: Tactic
    ns: float
    bytes: int


@dataclass(frozen=True)
class Packing:
    """What a task's weights take in the model and packed, in bytes, and by how much its kernel beats the fastest timed
    one that would not make them larger than in the model, in nanoseconds (0 where there is none)."""

    own: int
    packed: int
    saved: float


def packing(candidates: list[PackedCandidate], chosen: int, own: int) -> Packing:
    candidate = candidates[chosen]
    lean = [w.ns for w in candidates if w.bytes <= own and w.ns]
    return Packing(own, candidate.bytes, min(lean) - candidate.ns if candidate.bytes > own and lean else 0.0)


def packed_bytes(kernel: Kernel, weights: Mapping[Value, int]) -> int:
    """What a kernel keeps of the weights, given with their bytes: packed, or as they are."""
    return sum(
        x.bytes if isinstance(x, Packed) else weights.get(x, 0)
        for x in set(kernel.operands)
        if isinstance(x, (Packed, Value))
    )


def limit_packed_weights(
    candidates: Mapping[str, list[PackedCandidate]], first: Mapping[str, int], shared: Mapping[str, int], limit: float
) -> dict[str, int]:
    """Task → index of its candidate, with all bytes together within the limit if possible.

    first: the candidates chosen for speed alone. shared: how many copies of a task's weights the engine holds.
    Greedy: takes the change to fewer bytes that costs the least time per byte saved, until the sum fits or no smaller
    candidate is left.
    """
    chosen = dict(first)
    total = sum(candidates[d][k].bytes * shared[d] for d, k in chosen.items())
    heap: list[tuple[float, str, int, int]] = []

    def offer(d: str) -> None:
        now = candidates[d][chosen[d]]
        rates = [
            ((w.ns - now.ns) * shared[d] / ((now.bytes - w.bytes) * shared[d]), k)
            for k, w in enumerate(candidates[d])
            if w.bytes < now.bytes
        ]
        if rates:
            rate, k = min(rates)
            heapq.heappush(heap, (rate, d, chosen[d], k))

    for d in sorted(chosen):
        offer(d)
    while total > limit and heap:
        _, d, before, k = heapq.heappop(heap)
        if chosen[d] != before:
            continue
        total -= (candidates[d][before].bytes - candidates[d][k].bytes) * shared[d]
        chosen[d] = k
        offer(d)
    return chosen
