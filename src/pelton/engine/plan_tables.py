"""The plan of an engine as tables for the native library: `native/plan.h` defines them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .plan import KINDS, Buffer, EnginePlan, Number, Port, Tensor

DTYPES = (
    "f64 f32 f16 bf16 i64 i32 i16 i8 u64 u32 u16 u8 bool other c64 c128 string f8e4m3fn f8e4m3fnuz f8e5m2 f8e5m2fnuz"
    " f8e8m0fnu f6e2m3fn f6e3m2fn f4e2m1fn i4 u4 i2 u2"
).split()  # the position is the code
FUNCTIONS = ("+", "*", "max", "min", "//", "%")
NAMED = ("os", "arch", "isa", "cpu")  # keys of a target that are texts
HASH = 32  # bytes of SHA-256


def _row(fields: str, dtype: str = "<i4", **others: str) -> np.dtype:
    return np.dtype([(name, others.get(name, dtype)) for name in fields.split()])


COUNTS = (
    "symbols numbers lines terms formulas cells gaps inputs outputs buffers steps alternatives operands tensors"
    " features text"
)
HEAD = _row(
    f"arena {COUNTS.replace(' text', ' text_bytes')} name os arch isa cpu threads unused0 unused1 hash",
    arena="<i8",
    hash=f"V{HASH}",
)
# the tables after the head, in this order
TABLES = {
    "symbols": _row("minimum optimum maximum name unused", minimum="<i8", optimum="<i8", maximum="<i8"),
    "numbers": np.dtype("<i8"),
    "lines": _row("function first count unused"),
    "terms": np.dtype("<i4"),
    "formulas": _row("value text"),
    "cells": np.dtype("<i8"),
    "gaps": _row("cell formula"),
    "ports": _row("name dtype rank shape low high layer shares", low="<i8", high="<i8"),
    "buffers": _row("kind dtype values count offset", offset="<i8"),
    "steps": _row(
        "name symbol host wave grain words args dims operands inputs reads outputs writes alternatives spares unused"
    ),
    "operands": np.dtype("<i4"),
    "tensors": _row("buffer dtype rank offset shape strides"),
    "features": np.dtype("<i4"),
    "text": np.dtype("u1"),
}


class Tables:
    """The numbers of a plan in cells, with gaps for those that a formula computes."""

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
        self.formulas = {text: i for i, text in enumerate(sorted(engine.sizes))}
        self._formula_values = [self._line(engine.sizes[text]) for text in self.formulas]

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
        self._words = [self.put([*(a.offset for a in s.args), *s.dims]) for s in self.steps]
        self._contents = [self.put(b.values) for b in engine.buffers]
        self._shapes = [self.put(p.shape) for p in (*engine.inputs, *engine.outputs)]

    def put(self, numbers: Sequence[Number | str]) -> int:
        """Adds numbers; returns the first of their cells."""
        first = len(self.cells)
        for n in numbers:
            if isinstance(n, str):
                self.gaps.append((len(self.cells), self.formulas[n]))
            self.cells.append(0 if isinstance(n, str) else n)
        return first

    def text(self, text: str) -> int:
        """Adds a text; returns its place."""
        if text not in self._texts:
            self._texts[text] = len(self._text)
            self._text += text.encode() + b"\0"
        return self._texts[text]

    def _line(self, tree: Any) -> int:
        """Adds a tree; returns its value: each common subexpression once, after its operands."""
        if isinstance(tree, (int, str)):
            return self.values[tree]
        key = (FUNCTIONS.index(tree[0]), tuple(map(self._line, tree[1:])))
        if key not in self.values:
            self.values[key] = len(self.values)
            self.lines.append(key)
        return self.values[key]

    def encode(self) -> bytes:
        """Encodes all tables, one after the other; the hash is left open (see `with_hash`)."""
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
            columns = (words, len(s.args), len(s.dims), at, *place(s.inputs), *place(s.outputs))
            rows.append((*names, s.wave, s.grain, *columns, spare, len(s.alternatives), 0))
            spare += len(s.alternatives)
        ends = np.cumsum([len(of) for _, of in self.lines], dtype=np.int64).tolist()
        contents: dict[str, list[Any]] = {
            "symbols": [(s.minimum, s.optimum, s.maximum, self.text(s.name), 0) for s in e.symbols],
            "numbers": self.numbers,
            "lines": [(f, end - len(of), len(of), 0) for (f, of), end in zip(self.lines, ends)],
            "terms": [t for _, of in self.lines for t in of],
            "formulas": [(v, self.text(t)) for v, t in zip(self._formula_values, self.formulas)],
            "cells": self.cells,
            "gaps": self.gaps,
            "ports": [self._port(p, shape) for p, shape in zip((*e.inputs, *e.outputs), self._shapes)],
            "buffers": [self._buffer(b, at) for b, at in zip(e.buffers, self._contents)],
            "steps": rows,
            "operands": operands,
            "tensors": tensors,
            "features": [self.text(f) for f in e.target.get("features", ())],
        }
        threads = e.meta.get("threads")
        fields = [
            *(self.text(t) for t in (e.name, *(e.target.get(k, "") for k in NAMED))),
            threads if type(threads) is int and 0 <= threads < 1 << 31 else 0,
        ]
        counts = {
            **{name: len(rows) for name, rows in contents.items()},
            "inputs": len(e.inputs),
            "outputs": len(e.outputs),
            "steps": len(e.steps),
            "alternatives": len(rows) - len(e.steps),
            "text": len(self._text),
        }
        head = np.array((e.arena, *(counts[name] for name in COUNTS.split()), *fields, 0, 0, bytes(HASH)), HEAD)
        parts = [np.array(rows, TABLES[name]).tobytes() for name, rows in contents.items()]
        return b"".join(part + bytes(-len(part) % 8) for part in (head.tobytes(), *parts, bytes(self._text)))

    def _port(self, p: Port, shape: int) -> tuple[int, ...]:
        bounds = (0, 0, -1) if p.indices is None else (p.indices.low, p.indices.high, self.text(p.indices.layer))
        names = [port.name for port in self.engine.inputs]
        shares = 0 if p.shares is None else 1 + names.index(p.shares)
        return self.text(p.name), DTYPES.index(p.dtype), len(p.shape), shape, *bounds, shares

    def _buffer(self, b: Buffer, contents: int) -> tuple[int, ...]:
        offset = b.offset if isinstance(b.offset, int) else 0
        return KINDS.index(b.kind), DTYPES.index(b.dtype), contents, len(b.values), offset


def with_hash(tables: bytes, digest: bytes) -> bytes:
    """Returns the tables with the SHA-256 of the constants that kernels use for addressing."""
    at = HEAD.fields["hash"][1]  # type: ignore[index]
    return tables[:at] + digest + tables[at + HASH :]


def _numbers(tree: Any) -> set[int]:
    if isinstance(tree, int):
        return {tree}
    return set() if isinstance(tree, str) else set().union(*map(_numbers, tree[1:]))
