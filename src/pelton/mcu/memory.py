"""The memory of an engine that allocates nothing: one arena, in which ports and scratch lie, and constants."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pelton.bundle import tables
from pelton.engine.constants import bytes_of
from pelton.engine.memory import Lifetime, together
from pelton.engine.plan import SIZES, Buffer, EnginePlan, numpy_dtype
from pelton.record import record

ALIGN = 16  # bytes; the widest load of a kernel has 8
TRIES = 400  # orders of buffers that the search for a smaller arena tries


@record(frozen=True)
class StaticMemory:
    """All memory of an engine of known sizes. Offsets and sizes in bytes.

    arena: the size of the arena. at: its buffers → their offsets. ports: offsets in it of inputs, then of outputs.
    scratch: offset of each step's scratch. live: bytes in use at each step, in order. weights: constants that steps
    read, and other results of the build. constants: their buffers → their offsets.
    """

    arena: int
    at: dict[int, int]
    ports: Sequence[int]
    scratch: Sequence[int]
    live: Sequence[int]
    weights: bytes
    constants: dict[int, int]

    def listing(self, plan: EnginePlan) -> tables.Listing:
        """Returns the arguments of all kernels as lines of C, over arrays `arena` and `weights`."""
        bases = [
            ("arena", self.at[i]) if i in self.at else ("weights", self.constants.get(i, 0))
            for i in range(len(plan.buffers))
        ]
        return tables.listing(plan, tables.BundleMemory(self.weights, bases, self.arena, 0))


def static_memory(plan: EnginePlan) -> StaticMemory:
    """Lays out the memory of an engine of known sizes without host steps.

    A port shares memory with values of other times: an input is free after the last step that reads it, an output is
    taken from the first step that writes it until the end. A sum takes the place of an operand where its kernel allows.
    """
    lives = lifetimes(plan)
    held, to = _merged(lives, shared(plan, lives))
    offsets, arena = lay_out(list(held.values()))
    placed = dict(zip(held, offsets))
    at = {key: placed[to[key]] for key in lives}
    steps = range(len(plan.steps))
    live = [sum(x.size for x in held.values() if x.first <= i <= x.last) for i in steps]
    number = {(b.kind, b.offset): i for i, b in enumerate(plan.buffers) if b.kind in ("input", "output")}
    ports = [at[number["input", i]] for i in range(len(plan.inputs))]
    ports += [at[number["output", i]] for i in range(len(plan.outputs))]
    weights, constants = _constants(plan)
    buffers = {key: offset for key, offset in at.items() if key >= 0}
    return StaticMemory(arena, buffers, ports, [at.get(-1 - i, 0) for i in steps], live, weights, constants)


def lifetimes(plan: EnginePlan) -> dict[int, Lifetime]:
    """Returns what the arena holds, with the steps of its use: buffers by their numbers, the scratch of step i as
    -1 - i. Sizes are multiples of ALIGN."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for i, step in enumerate(plan.steps):
        for a in step.args:
            first.setdefault(a.buffer, i)
            last[a.buffer] = i
    lives = {}
    for n, b in enumerate(plan.buffers):
        if b.kind == "input":
            lives[n] = Lifetime(_aligned(b.size), -1, last.get(n, -1))
        elif b.kind == "output":
            lives[n] = Lifetime(_aligned(b.size), first.get(n, 0), len(plan.steps))
        elif b.kind == "arena" and n in first:
            lives[n] = Lifetime(_aligned(b.size), first[n], last[n])
    for i, step in enumerate(plan.steps):
        if step.scratch:
            lives[-1 - i] = Lifetime(_aligned(step.scratch), i, i)
    return lives


def total(plan: EnginePlan, lives: Mapping[int, Lifetime]) -> int:
    """Returns the size of an arena with buffers of these lifetimes."""
    return lay_out(list(_merged(lives, shared(plan, lives))[0].values()))[1]


def shared(plan: EnginePlan, lives: Mapping[int, Lifetime]) -> list[tuple[int, int]]:
    """Returns pairs of buffers for one memory: a kernel reads the last time from the first, and writes the second at
    the same places (`Step.info["in_place"]`)."""
    pairs = []
    for i, step in enumerate(plan.steps):
        for read, written in step.info.get("in_place") or ():
            before, after = step.args[read], step.args[written]
            if before.offset or after.offset or before.buffer == after.buffer or before.buffer not in lives:
                continue
            others = [a.buffer for k, a in enumerate(step.args) if k != read]
            old, new = lives[before.buffer], lives[after.buffer]
            if old.last == i == new.first and old.size == new.size and before.buffer not in others:
                pairs.append((before.buffer, after.buffer))
                break
    return pairs


def _merged(
    lives: Mapping[int, Lifetime], pairs: Sequence[tuple[int, int]]
) -> tuple[dict[int, Lifetime], dict[int, int]]:
    """Returns the memories, by a buffer of each, and the memory of every buffer. Pairs are in order of their steps."""
    to = {key: key for key in lives}
    held = dict(lives)
    for before, after in pairs:
        first = to[before]
        to[after] = first
        held[first] = replace(held[first], last=held.pop(after).last)
    return held, to


def lay_out(lives: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Returns offsets without overlap of what lives at once, and the size of the arena; searches for a small one.

    Buffers go, one after the other, into the lowest gap that holds them. The search changes their order, until the
    arena is no larger than what lives at once.
    """
    least = max((sum(x.size for x in lives if x.first <= t <= x.last) for t in {x.first for x in lives}), default=0)
    beside = together([(x.first, x.last) for x in lives])
    orders = [
        sorted(range(len(lives)), key=lambda i: (-lives[i].size, lives[i].first)),
        sorted(range(len(lives)), key=lambda i: (lives[i].first, -lives[i].size)),
        sorted(range(len(lives)), key=lambda i: (lives[i].first - lives[i].last, -lives[i].size)),
    ]
    best = min((_place(lives, beside, order) for order in orders), key=lambda placed: placed[1])
    order, draw = orders[0], random.Random(0)
    for _ in range(TRIES):
        if best[1] <= least or len(order) < 2:
            break
        i, k = draw.sample(range(len(order)), 2)
        other = order.copy()
        other[i], other[k] = other[k], other[i]
        placed = _place(lives, beside, other)
        if placed[1] <= best[1]:
            best, order = placed, other
    return best


def _place(lives: Sequence[Lifetime], beside: Sequence[Sequence[int]], order: Sequence[int]) -> tuple[list[int], int]:
    starts = [-1] * len(lives)
    for i in order:
        at = 0
        for start, end in sorted((starts[k], starts[k] + lives[k].size) for k in beside[i] if starts[k] >= 0):
            if start - at >= lives[i].size:
                break
            at = max(at, end)
        starts[i] = at
    return starts, max((at + x.size for at, x in zip(starts, lives)), default=0)


def _constants(plan: EnginePlan) -> tuple[bytes, dict[int, int]]:
    """Returns the constants that steps read, equal ones once, and the offset of each buffer."""
    held = bytes_of(plan.constants)
    data, at = bytearray(), dict[int, int]()
    known: dict[bytes, int] = {}
    for n in sorted({a.buffer for s in plan.steps for a in s.args}):
        b = plan.buffers[n]
        if b.kind in ("arena", "input", "output"):
            continue
        piece = _piece(b, held)
        if piece not in known:
            data += bytes(-len(data) % ALIGN)
            known[piece] = len(data)
            data += piece
        at[n] = known[piece]
    return bytes(data), at


def _piece(b: Buffer, held: memoryview) -> bytes:
    if b.kind in ("constant", "table"):
        return bytes(held[b.offset : b.offset + b.size])
    made = np.array(b.values, np.int64) if b.kind == "sizes" else np.arange(b.size // SIZES[b.dtype])
    return made.astype(numpy_dtype(b.dtype)).tobytes()


def _aligned(size: int) -> int:
    return -(-max(size, 1) // ALIGN) * ALIGN
