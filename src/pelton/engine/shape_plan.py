"""Resolves an engine's numbers into arrays, for one set of sizes after another; contexts build step tables from them.

`sizes.at` defines the numbers, the native library computes them. The numbers of steps come in the order of kernel
arguments (the offsets of a step's operands, then its dims): a few additions of arrays give addresses and a step table.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import NoReturn

import numpy as np

from pelton import native
from pelton.errors import EngineError
from pelton.record import record
from pelton.system.memory import address

from .plan import KINDS, EnginePlan, Port
from .sizes import at
from .stored import plan_rows
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
    """The numbers of a validated engine, with gaps for those that depend on sizes.

    pointers: the words that are operands, and `operands` their buffers. ported: the words that are offsets in arrays of
    the caller, and `ports` the ports of these, inputs first. zeros: bytes of all buffers of zeros.
    """

    def __init__(self, engine: EnginePlan):
        self.engine, self.rows = engine, plan_rows(engine)
        rows, head = self.rows.rows, self.rows.head
        buffers, steps = rows["buffers"], rows["steps"][: head["steps"]]
        self._symbols = [s.name for s in engine.symbols]
        self._shapes = list(zip((*engine.inputs, *engine.outputs), rows["ports"]["shape"].tolist()))
        words, args = steps["args"].astype(np.int64) + steps["dims"], steps["args"]
        # the first word of each step; at the end, their number
        self.first = np.concatenate([[0], np.cumsum(words)])
        self._words = _ranges(steps["words"], words)
        self.grain, self.wave = steps["grain"].astype(np.int64), steps["wave"].astype(np.int64)
        self.pointers = _ranges(self.first[:-1], args)
        self.operands = rows["operands"][_ranges(steps["operands"], args)].astype(np.intp)
        kinds = buffers["kind"]
        self.in_arena, self.in_zeros, self.constant = (
            np.isin(kinds, list(map(KINDS.index, of))) for of in (("arena",), ("zeros",), ("constant", "table"))
        )
        used = kinds[self.operands]
        is_input, is_output = (used == KINDS.index(kind) for kind in ("input", "output"))
        self.ported = self.pointers[is_input | is_output]
        ports = buffers["offset"][self.operands] + np.where(is_output, head["inputs"], 0)
        self.ports = ports[is_input | is_output].astype(np.int64)
        sizes = rows["cells"][: len(buffers)]
        self.zeros = int((buffers["offset"] + sizes)[self.in_zeros].max(initial=0))

    def of_kind(self, *kinds: str) -> list[int]:
        """Returns the numbers of the buffers of these kinds."""
        return np.flatnonzero(np.isin(self.rows.rows["buffers"]["kind"], list(map(KINDS.index, kinds)))).tolist()

    def resolve(self, sizes: Mapping[str, int]) -> ResolvedPlan:
        """Resolves the numbers for these values of the symbols; raises EngineError if they are inconsistent."""
        rows, head = self.rows.rows, self.rows.head
        symbols = np.array([sizes[name] for name in self._symbols], np.int64)
        count, steps = len(rows["buffers"]), len(rows["steps"])
        cells, starts, arena = np.empty(len(rows["cells"]), np.int64), np.empty(count, np.int64), ctypes.c_int64()
        why = ctypes.create_string_buffer(native.REASON)
        if not native.library().pelton_plan_resolve(
            self.rows.handle, address(symbols), address(cells), address(starts), ctypes.byref(arena), why
        ):
            refuse_sizes(self.engine, sizes, why.value.decode(errors="replace"))
        shapes = [tuple(cells[first : first + len(p.shape)].tolist()) for p, first in self._shapes]
        ports = tuple(p.with_shape(shape) for (p, _), shape in zip(self._shapes, shapes))
        tiles, scratch, phases = (cells[count + k * steps :][: head["steps"]] for k in range(3))
        contents = {i: rows["buffers"][i] for i in self.of_kind("sizes")}
        values = {i: cells[b["values"] : b["values"] + b["count"]] for i, b in contents.items()}
        return ResolvedPlan(
            ports[: head["inputs"]],
            ports[head["inputs"] :],
            cells[:count],
            starts,
            cells[self._words],
            tiles,
            scratch,
            phases,
            values,
            arena.value,
        )


def refuse_sizes(engine: EnginePlan, sizes: Mapping[str, int], why: str) -> NoReturn:
    """Raises EngineError for an engine that cannot be laid out for these values of its symbols: that of `validate`,
    else one with the given reason."""
    try:
        validate(at(engine, sizes))
    except ArithmeticError:  # a size divided by 0
        pass
    raise EngineError(f"engine {engine.label!r} cannot be laid out for {dict(sizes)}: {why}; build it again")


def _ranges(first: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Returns the numbers from each of `first` on, `counts` of each, one range after the other."""
    before = np.cumsum(counts, dtype=np.int64) - counts
    return np.repeat(first - before, counts) + np.arange(counts.sum())
