"""Resolves an engine's numbers into arrays, for one set of sizes after another; contexts build step tables from them.

`sizes.at` defines the numbers; this does once what is the same for all shapes. The numbers of steps come in the order
of kernel arguments (the offsets of a step's operands, then its dims), so that a few additions of arrays give addresses
and a step table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pelton.errors import EngineError

from .validate import MAX_BYTES, MAX_TILES, validate
from .model import SIZES, EnginePlan, Port
from .memory import lay_out, together
from pelton.record import record
from .sizes import FUNCTIONS, at, lives


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


class Formulas:
    """The trees of `EnginePlan.sizes` as straight-line code: each common subexpression once, after its operands."""

    def __init__(self, symbols: Sequence[str], trees: Mapping[str, Any]):
        self.symbols = symbols
        self.numbers: list[int] = []
        self.lines: list[tuple[Callable[[list[int]], int], tuple[int, ...]]] = []
        found: dict[object, int] = {s: i for i, s in enumerate(symbols)}
        for n in sorted({n for t in trees.values() for n in _numbers(t)}):
            found[n] = len(symbols) + len(self.numbers)
            self.numbers.append(n)

        def place(tree: Any) -> int:
            if isinstance(tree, (int, str)):
                return found[tree]
            function, operands = tree[0], tuple(map(place, tree[1:]))
            if (function, operands) not in found:
                found[function, operands] = len(symbols) + len(self.numbers) + len(self.lines)
                self.lines.append((FUNCTIONS[function], operands))
            return found[function, operands]

        self.indices = {text: place(t) for text, t in trees.items()}  # text → the index of its number

    def __call__(self, sizes: Mapping[str, int]) -> list[int]:
        """The values of all subexpressions for these sizes."""
        known = [sizes[s] for s in self.symbols] + self.numbers
        for function, operands in self.lines:
            known.append(function([known[i] for i in operands]))
        return known


def _numbers(tree: Any) -> set[int]:
    if isinstance(tree, int):
        return {tree}
    if isinstance(tree, str):
        return set()
    return set().union(*map(_numbers, tree[1:]))


class PlanTemplate:
    """The numbers of a validated engine, with gaps for those that depend on sizes."""

    def __init__(self, engine: EnginePlan):
        self.engine = engine
        self.formulas = Formulas([s.name for s in engine.symbols], engine.sizes)
        cells: list[int] = []
        gaps: dict[int, str] = {}

        def lay(numbers: Sequence[Any]) -> slice:
            for n in numbers:
                if isinstance(n, str):
                    gaps[len(cells)] = n
                cells.append(0 if isinstance(n, str) else n)
            return slice(len(cells) - len(numbers), len(cells))

        steps, buffers = engine.steps, engine.buffers
        self._bytes = lay([b.size for b in buffers])
        self._tiles, self._scratch, self._phases = (
            lay([s.tiles for s in steps]),
            lay([s.scratch for s in steps]),
            lay([s.phases for s in steps]),
        )
        self._words = lay([n for s in steps for n in (*(a.offset for a in s.args), *s.dims)])
        self._values = {i: lay(b.values) for i, b in enumerate(buffers) if b.kind == "sizes"}
        self._cells, self._where = np.array(cells, np.int64), np.fromiter(gaps, np.intp)
        used = sorted({self.formulas.indices[text] for text in gaps.values()})
        self._used, self._which = (
            used,
            np.array([used.index(self.formulas.indices[text]) for text in gaps.values()], np.intp),
        )

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
        lying = lives(steps, buffers)
        self._lying, self._lives = np.array(list(lying), np.intp), list(lying.values())
        self._beside = together(self._lives)
        self._starts = np.array(
            [b.offset if b.kind in ("arena", "zeros", "constant", "table") else 0 for b in buffers], np.int64
        )
        self._ports = [
            (i, b.kind == "output", b.offset) for i, b in enumerate(buffers) if b.kind in ("input", "output")
        ]
        port = {i: k + (len(engine.inputs) if out else 0) for i, out, k in self._ports}
        reads = [(w, port[i]) for w, i in zip(self.pointers.tolist(), self.operands.tolist()) if i in port]
        # words that are offsets in arrays of the caller, and the ports of these arrays, inputs first
        self.ported, self.ports = np.array(reads, np.int64).reshape(-1, 2).T
        # bytes of all buffers of zeros
        self.zeros = max((b.offset + b.size for b in buffers if b.kind == "zeros"), default=0)
        self._made = {k for _, out, k in self._ports if out}
        self._counted = np.array([i for i, b in enumerate(buffers) if b.kind in ("sizes", "iota")], np.intp)
        self._element = np.array([SIZES[buffers[i].dtype] for i in self._counted], np.int64)

    def resolve(self, sizes: Mapping[str, int]) -> ResolvedPlan:
        """The numbers for these values of the symbols; EngineError if they are inconsistent for these values."""
        try:
            resolved = self._resolve(sizes)
        except ArithmeticError:
            # what takes more than 64 bits is beyond every bound, and so is a quotient by 0
            resolved = None
        if resolved is None:
            validate(at(self.engine, sizes))  # raises, saying what is wrong
            raise EngineError(f"engine {self.engine.label!r} cannot be laid out for {dict(sizes)}; build it again")
        return resolved

    def _resolve(self, sizes: Mapping[str, int]) -> ResolvedPlan | None:
        """None if `validate` would reject the numbers."""
        cells, known = self._cells.copy(), self.formulas(sizes)
        cells[self._where] = np.array([known[i] for i in self._used], np.int64)[self._which]
        nbytes, words, tiles, scratch, phases = (
            cells[of] for of in (self._bytes, self._words, self._tiles, self._scratch, self._phases)
        )

        def sized(port: Port) -> Port:
            return replace(
                port, shape=tuple(known[self.formulas.indices[d]] if isinstance(d, str) else d for d in port.shape)
            )

        starts, arena = self._starts, self.engine.arena
        if self.engine.symbols:
            offsets, arena = lay_out(nbytes[self._lying].tolist(), self._lives, self._beside)
            starts = starts.copy()
            starts[self._lying] = offsets
        inputs, outputs = (tuple(map(sized, ports)) for ports in (self.engine.inputs, self.engine.outputs))
        values = {i: cells[where] for i, where in self._values.items()}
        if not (
            _within(nbytes, MAX_BYTES)
            and _within(tiles, MAX_TILES + 1)
            and _within(scratch, MAX_BYTES)
            and arena < MAX_BYTES
            and _within(phases, MAX_TILES + 1)
            and bool(((phases >= 1) & (tiles * phases <= MAX_TILES)).all())
            and bool(((0 <= words[self.pointers]) & (words[self.pointers] <= nbytes[self.operands])).all())
            and not (nbytes[self._counted] % self._element).any()
            and all(v.nbytes == nbytes[i] for i, v in values.items())
            and all(0 <= d < MAX_BYTES for p in (*inputs, *outputs) for d in p.numbers)
            and all((outputs if out else inputs)[k].nbytes == nbytes[i] for i, out, k in self._ports)
            and all(p.nbytes == 0 for k, p in enumerate(outputs) if k not in self._made)
        ):
            return None
        return ResolvedPlan(inputs, outputs, nbytes, starts, words, tiles, scratch, phases, values, int(arena))


def _within(numbers: np.ndarray, limit: int) -> bool:
    return not numbers.size or bool(0 <= numbers.min() and numbers.max() < limit)
