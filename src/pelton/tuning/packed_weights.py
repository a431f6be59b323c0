"""Limits the packed weights of an engine: trades speed for size at the least time per saved byte."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass

from pelton.ir.graph import Value
from pelton.codegen.template import Kernel, Packed, Tactic, Template


@dataclass(frozen=True)
class PackedCandidate:
    """A candidate for a task: its time (a guess if untimed) and its bytes of packed weights."""

    template: Template
    tactic: Tactic
    ns: float
    bytes: int


@dataclass(frozen=True)
class Packing:
    """Bytes of a task's weights in the model and packed, and the nanoseconds saved over the fastest timed kernel whose
    weights are no larger than in the model (0 without one)."""

    own: int
    packed: int
    saved: float


def packing(candidates: list[PackedCandidate], chosen: int, own: int) -> Packing:
    candidate = candidates[chosen]
    lean = [w.ns for w in candidates if w.bytes <= own and w.ns]
    return Packing(own, candidate.bytes, min(lean) - candidate.ns if candidate.bytes > own and lean else 0.0)


def packed_bytes(kernel: Kernel, weights: Mapping[Value, int]) -> int:
    """Returns the bytes of the weights that a kernel keeps: packed or unchanged; `weights` has the model's bytes."""
    return sum(
        x.bytes if isinstance(x, Packed) else weights.get(x, 0)
        for x in set(kernel.operands)
        if isinstance(x, (Packed, Value))
    )


def limit_packed_weights(
    candidates: Mapping[str, list[PackedCandidate]], first: Mapping[str, int], shared: Mapping[str, int], limit: float
) -> dict[str, int]:
    """Returns task → index of its candidate, with all bytes together within the limit if possible.

    first: the candidates chosen for speed alone. shared: the number of copies of a task's weights in the engine.
    Greedy: makes the size reduction with the least time per saved byte, until the sum fits or no smaller candidate is
    left.
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
