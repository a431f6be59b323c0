"""Resolves an engine's numbers into arrays, for one set of sizes after another; contexts build step tables from them.

`sizes.at` defines the numbers, the native library computes them. The numbers of steps come in the order
of kernel arguments (the offsets of a step's operands, then its dims), so that a few additions of arrays give addresses
and a step table.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from pelton import native
from pelton.errors import EngineError
from pelton.record import record
from pelton.system.memory import address

from .constants import length
from .model import EnginePlan, Port
from .plan_tables import Tables
from .sizes import at
from .validate import validate


@record(frozen=True)
class ResolvedPlan:
    """The numbers for one set of sizes, in arrays of i64. Per buffer: `bytes`, and `starts`, its offset in the arena or
    the constants. `words`: the arguments of all kernels one after the other, operands as offsets in their buffers. Per
    step: `tiles`, `scratch` (bytes) and `phases`. `values`: contents of the buffers that hold sizes. `arena`: bytes."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    bytes: np.ndarray
    starts: np.ndarray
    words: np.ndarray
    tiles: np.ndarray
    scratch: np.ndarray
    phases: np.ndarray
    values: dict[int, np.ndarray]
    arena: int

    @property
    def max_scratch(self) -> int:
        return int(self.scratch.max(initial=0))


class PlanTemplate:
    """The numbers of a validated engine, with gaps for those that depend on sizes."""

    def __init__(self, engine: EnginePlan):
        self.engine = engine
        tables = Tables(engine)
        self._tables = tables.encode()  # the native plan points into it
        library, why = native.library(), ctypes.create_string_buffer(native.REASON)
        self._plan = library.pelton_plan_new(self._tables, len(self._tables), length(engine.constants), why)
        if not self._plan:
            validate(engine)  # raises, with more to say
            raise EngineError(f"engine {engine.label!r} is damaged: {why.value.decode()}; build it again")
        weakref.finalize(self, library.pelton_plan_free, self._plan).atexit = False

        steps, buffers = engine.steps, engine.buffers
        self._symbols = [s.name for s in engine.symbols]
        self._cells, self._steps, self._buffers = len(tables.cells), len(steps), len(buffers)
        self._all, self._first_word, self._contents = len(tables.steps), tables.words, tables.contents
        self._shapes = list(zip((*engine.inputs, *engine.outputs), tables.shapes))
        # of each step, its first word; behind the last, their number
        self.first = np.cumsum([0, *(len(s.args) + len(s.dims) for s in steps)])
        self.grain, self.wave = (
            np.array([s.grain for s in steps], np.int64),
            np.array([s.wave for s in steps], np.int64),
        )
        # words that are operands
        self.pointers = np.array(
            [at + k for at, s in zip(self.first.tolist(), steps) for k in range(len(s.args))], np.intp
        )
        self.operands = np.array([a.buffer for s in steps for a in s.args], np.intp)  # their buffers
        self.in_arena = np.array([b.kind == "arena" for b in buffers], bool)
        self.in_zeros = np.array([b.kind == "zeros" for b in buffers], bool)
        self.constant = np.array([b.kind in ("constant", "table") for b in buffers], bool)
        port = {i: b.offset for i, b in enumerate(buffers) if b.kind == "input"}
        port |= {i: b.offset + len(engine.inputs) for i, b in enumerate(buffers) if b.kind == "output"}
        reads = [(w, port[i]) for w, i in zip(self.pointers.tolist(), self.operands.tolist()) if i in port]
        # words that are offsets in arrays of the caller, and the ports of these arrays, inputs first
        self.ported, self.ports = np.array(reads, np.int64).reshape(-1, 2).T
        # bytes of all buffers of zeros
        self.zeros = max((b.offset + b.size for b in buffers if b.kind == "zeros"), default=0)

    def resolve(self, sizes: Mapping[str, int]) -> ResolvedPlan:
        """The numbers for these values of the symbols; EngineError if they are inconsistent for these values."""
        symbols = np.array([sizes[name] for name in self._symbols], np.int64)
        cells, starts, arena = np.empty(self._cells, np.int64), np.empty(self._buffers, np.int64), ctypes.c_int64()
        why = ctypes.create_string_buffer(native.REASON)
        if not native.library().pelton_plan_resolve(
            self._plan, address(symbols), address(cells), address(starts), ctypes.byref(arena), why
        ):
            try:
                validate(at(self.engine, sizes))  # raises, with more to say
            except ArithmeticError:  # a size divided by 0
                pass
            raise EngineError(
                f"engine {self.engine.label!r} cannot be laid out for {dict(sizes)}: {why.value.decode()}; build it"
                " again"
            )
        shapes = [tuple(cells[first : first + len(p.shape)].tolist()) for p, first in self._shapes]
        ports = tuple(replace(p, shape=shape) for (p, _), shape in zip(self._shapes, shapes))
        inputs = len(self.engine.inputs)
        tiles, scratch, phases = (cells[self._buffers + k * self._all :][: self._steps] for k in range(3))
        values = {
            i: cells[first : first + len(b.values)]
            for i, (b, first) in enumerate(zip(self.engine.buffers, self._contents))
            if b.kind == "sizes"
        }
        words = cells[self._first_word :][: self.first[-1]]
        return ResolvedPlan(
            ports[:inputs],
            ports[inputs:],
            cells[: self._buffers],
            starts,
            words,
            tiles,
            scratch,
            phases,
            values,
            arena.value,
        )
