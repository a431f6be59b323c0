"""The plan of an engine as tables that the native library reads: `native/plan.h` says what is in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .model import KINDS, Buffer, EnginePlan, Number, Port, Tensor

DTYPES = (
    "f64 f32 f16 bf16 i64 i32 i16 i8 u64 u32 u16 u8 bool other c64 c128 string f8e4m3fn f8e4m3fnuz f8e5m2 f8e5m2fnuz"
    " f8e8m0fnu f6e2m3fn f6e3m2fn f4e2m1fn i4 u4 i2 u2"
).split()  # the position is the code
FUNCTIONS = ("+", "*", "max", "min", "//", "%")


class Tables:
    """The numbers of a plan in cells, with gaps where a formula gives them."""

    def __init__(self, engine: EnginePlan):
        self.engine = engine
        self._texts: dict[str, int] = {}
        self._text = bytearray()
        self.cells: list[int] = []
        self.gaps: list[tuple[int, int]] = []  # (cell, formula)
        self.values: dict[Any, int] = {s.name: i for i, s in enumerate(engine.symbols)}
        self.numbers = sorted({n for tree in engine.sizes.values() for n in _numbers(tree)})
        self.values |= {n: len(self.values) + i for i, n in enumerate(self.numbers)}
        self.lines: list[tuple[int, tuple[int, ...]]] = []
        self.formulas = {text: i for i, text in enumerate(engine.sizes)}
        self._formula_values = [self._line(tree) for tree in engine.sizes.values()]

        main = engine.steps
        spares = [k for s in main for k in s.alternatives]
        self.steps = (*main, *spares)
        self.put([b.size for b in engine.buffers])
        for numbers in (
            [s.tiles for s in self.steps],
            [s.scratch for s in self.steps],
            [s.phases for s in self.steps],
        ):
            self.put(numbers)
        self.words = len(self.cells)
        self._words = [self.put([*(a.offset for a in s.args), *s.dims]) for s in self.steps]
        self.contents = [self.put(b.values) for b in engine.buffers]
        self.shapes = [self.put(p.shape) for p in (*engine.inputs, *engine.outputs)]

    def put(self, numbers: Sequence[Number | str]) -> int:
        """The first cell of these numbers."""
        first = len(self.cells)
        for n in numbers:
            if isinstance(n, str):
                self.gaps.append((len(self.cells), self.formulas[n]))
            self.cells.append(0 if isinstance(n, str) else n)
        return first

    def text(self, text: str) -> int:
        """The place of a text."""
        if text not in self._texts:
            self._texts[text] = len(self._text)
            self._text += text.encode() + b"\0"
        return self._texts[text]

    def _line(self, tree: Any) -> int:
        """The value of a tree: each common subexpression once, after its operands."""
        if isinstance(tree, (int, str)):
            return self.values[tree]
        key = (FUNCTIONS.index(tree[0]), tuple(map(self._line, tree[1:])))
        if key not in self.values:
            self.values[key] = len(self.values)
            self.lines.append(key)
        return self.values[key]

    def encode(self, hash_of_tables: bytes = bytes(32)) -> bytes:
        """All tables, one after the other. hash_of_tables: SHA-256 of the constants that kernels use for addressing."""
        e = self.engine
        tensors: list[tuple[int, ...]] = []
        operands: list[int] = []

        def place(found: Iterable[Tensor]) -> tuple[int, int]:
            first = len(tensors)
            for t in found:
                cells = self.put([t.slice.offset]), self.put(t.shape), self.put(t.strides)
                tensors.append((t.slice.buffer, DTYPES.index(t.dtype), len(t.shape), *cells))
            return first, len(tensors) - first

        rows, spare = [], len(e.steps)
        for s, words in zip(self.steps, self._words):
            at = len(operands)
            operands += [a.buffer for a in s.args]
            names = self.text(s.name), self.text(s.symbol), self.text(s.host)
            given = (words, len(s.args), len(s.dims), at, *place(s.inputs), *place(s.outputs))
            rows.append((*names, s.wave, s.grain, *given, spare, len(s.alternatives), 0))
            spare += len(s.alternatives)
        symbols = [(s.minimum, s.optimum, s.maximum, self.text(s.name)) for s in e.symbols]
        terms = [t for _, of in self.lines for t in of]
        ends = np.cumsum([len(of) for _, of in self.lines], dtype=np.int64).tolist()
        lines = [(f, end - len(of), len(of), 0) for (f, of), end in zip(self.lines, ends)]
        formulas = [(v, self.text(t)) for v, t in zip(self._formula_values, e.sizes)]
        ports = [self._port(p, shape) for p, shape in zip((*e.inputs, *e.outputs), self.shapes)]
        buffers = [self._buffer(b, at) for b, at in zip(e.buffers, self.contents)]
        features = [self.text(f) for f in e.target.get("features", ())]
        needs = [self.text(e.name), *(self.text(str(e.target.get(k, ""))) for k in ("os", "arch", "isa", "cpu"))]
        text = bytes(self._text)
        counts = (symbols, self.numbers, lines, terms, formulas, self.cells, self.gaps, e.inputs, e.outputs, buffers)
        counts += (e.steps, rows[len(e.steps) :], operands, tensors, features, text)
        threads = e.meta.get("threads")
        heads = [*map(len, counts), *needs, threads if type(threads) is int and 0 <= threads < 1 << 31 else 0, 0, 0]
        return b"".join(
            _padded(part)
            for part in (
                np.array([e.arena], "<i8").tobytes() + np.array(heads, "<i4").tobytes() + hash_of_tables,
                _rows(symbols, "<i8,<i8,<i8,<i4,<i4", 0),
                np.array(self.numbers, "<i8").tobytes(),
                np.array(lines, "<i4").tobytes(),
                np.array(terms, "<i4").tobytes(),
                np.array(formulas, "<i4").tobytes(),
                np.array(self.cells, "<i8").tobytes(),
                np.array(self.gaps, "<i4").tobytes(),
                _rows(ports, "<i4,<i4,<i4,<i4,<i8,<i8,<i4,<i4", 0),
                _rows(buffers, "<i4,<i4,<i4,<i4,<i8"),
                np.array(rows, "<i4").tobytes(),
                np.array(operands, "<i4").tobytes(),
                np.array(tensors, "<i4").tobytes(),
                np.array(features, "<i4").tobytes(),
                text,
            )
        )

    def _port(self, p: Port, shape: int) -> tuple[int, ...]:
        bounds = (0, 0, -1) if p.indices is None else (p.indices.low, p.indices.high, self.text(p.indices.layer))
        return self.text(p.name), DTYPES.index(p.dtype), len(p.shape), shape, *bounds

    def _buffer(self, b: Buffer, contents: int) -> tuple[int, ...]:
        offset = b.offset if isinstance(b.offset, int) else 0
        return KINDS.index(b.kind), DTYPES.index(b.dtype), contents, len(b.values), offset


def _rows(rows: Sequence[tuple[int, ...]], types: str, *more: int) -> bytes:
    return np.array([(*row, *more) for row in rows], np.dtype(types)).tobytes()


def _padded(part: bytes) -> bytes:
    return part + bytes(-len(part) % 8)


def _numbers(tree: Any) -> set[int]:
    if isinstance(tree, int):
        return {tree}
    return set() if isinstance(tree, str) else set().union(*map(_numbers, tree[1:]))
