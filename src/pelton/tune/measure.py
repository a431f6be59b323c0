"""Times kernels as a network would run them: weights cold, activations warm, all threads at work, candidates taking turns."""
from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from pelton.backends.cpu import Code, Program
from pelton.ir.graph import Value
from pelton.kernels.template import Kernel, Packed
from pelton.plan.layout import span
from pelton.plan.place import Task

LINE = 64


def _room(nbytes: int) -> np.ndarray:
    """Bytes that start on a cache line."""
    raw = np.empty(nbytes + LINE, np.uint8)
    at = -raw.ctypes.data % LINE
    return raw[at:at + nbytes]


def first_element(task: Task, v: Value) -> int:
    """Bytes from the lowest address of an operand to its first element: more than none where a stride is negative."""
    return sum((d - 1) * -s for d, s in zip(v.type.shape, task.layouts[v]) if s < 0) * v.type.dtype.size


class Stopwatch:
    """Runs candidate kernels of one task at a time. `l3` bytes of other weights pass through the cache between two uses of the same ones."""

    def __init__(self, threads: int, l3: int):
        self.threads = threads
        self._pool = _room(max(96 << 20, 2 * l3))
        rng = np.random.default_rng(0)
        self._pool[:] = np.resize(rng.uniform(.5, 1.5, 1 << 20).astype(np.float32).view(np.uint8), self._pool.size)
        self._cursor = 0

    def _weights(self, nbytes: int) -> int:
        """The address of weights that have not been used for long."""
        if nbytes > self._pool.size:
            self._pool = np.resize(self._pool, nbytes + LINE)
        if self._cursor + nbytes > self._pool.size:
            self._cursor = 0
        at = self._cursor
        self._cursor += -(-nbytes // LINE) * LINE
        return self._pool.ctypes.data + at

    def time(self, task: Task, kernels: Sequence[Kernel], loaded: Code, rounds: int, deadline: float | None = None) -> list[int]:
        """Nanoseconds per run of each kernel: the least of several, the slow ones dropped after the first rounds."""
        arrays, constants = dict[Value, np.ndarray](), task.region.body.constants
        rng = np.random.default_rng(0)
        for v in {x for k in kernels for x in k.operands if isinstance(x, Value)}:
            size = span(v.type.shape, tuple(map(abs, task.layouts[v]))) * v.type.dtype.size
            room = _room(max(size, 1))
            if v in constants:
                data = np.ascontiguousarray(constants[v])
                room[:data.nbytes] = data.reshape(-1).view(np.uint8)
            elif v.type.dtype.is_float and v.type.dtype.size >= 4:
                room[:] = np.resize(rng.standard_normal(min(size, 1 << 18) // v.type.dtype.size + 1).astype(v.type.dtype.numpy).view(np.uint8), room.size)
            else:
                room[:] = 0
            arrays[v] = room
        best = [1 << 62] * len(kernels)
        alive = list(range(len(kernels)))
        for turn in range(rounds):
            for i in alive:
                k = kernels[i]
                words = [self._weights(x.bytes) if isinstance(x, Packed) else arrays[x].ctypes.data + first_element(task, x) for x in k.operands]
                program = Program([(loaded.symbol(k.symbol), [*words, *k.dims], len(words), k.tiles, k.grain, 0, k.scratch)], self.threads)
                if turn == 0:
                    program.run()                                         # pages, code and activations come in
                best[i] = min(best[i], *program.time(1))
            if turn in (0, 2):
                limit = min(best) * (2.0 if turn == 0 else 1.25)
                alive = [i for i in alive if best[i] <= limit]
            if deadline is not None and time.monotonic() > deadline:
                break
        return best
