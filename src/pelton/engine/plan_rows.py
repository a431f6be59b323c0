"""The plan of an engine, from the tables in its file: opened natively, and decoded on demand."""

from __future__ import annotations

import ctypes
import weakref
from functools import cached_property
from typing import Any

import numpy as np

from pelton import native

from .plan import KINDS, Buffer, DynamicDimension, IndexRange, Number, Port, Slice, Step, Tensor
from .plan_tables import DTYPES, FUNCTIONS, HEAD, NAMED, TABLES

LARGEST_TREE = 1 << 16  # operands of the expression of a size


class PlanRows:
    """The tables of a plan, as arrays of their rows, and `handle`, the native plan over them. Raises ValueError, with
    the reason, if they are inconsistent for the optimum sizes; the ranges of numbers are then checked, too.

    constants: their size in bytes, which the tables refer to.
    """

    def __init__(self, tables: bytes, constants: int):
        self.bytes = tables  # the native plan points into it
        library, why = native.library(), ctypes.create_string_buffer(native.REASON)
        self.handle = library.pelton_plan_new(tables, len(tables), constants, why)
        if not self.handle:
            raise ValueError(why.value.decode(errors="replace"))
        weakref.finalize(self, library.pelton_plan_free, self.handle).atexit = False
        self.head = dict(zip(HEAD.names or (), np.frombuffer(tables, HEAD, 1)[0].tolist()))
        self.rows: dict[str, np.ndarray] = {}
        counts = {
            **self.head,
            "ports": self.head["inputs"] + self.head["outputs"],
            "steps": self.head["steps"] + self.head["alternatives"],
            "text": self.head["text_bytes"],
        }
        at = HEAD.itemsize
        for name, row in TABLES.items():
            self.rows[name] = np.frombuffer(tables, row, counts[name], at)
            at += -(-self.rows[name].nbytes // 8) * 8

    @property
    def hash_of_tables(self) -> bytes:
        """SHA-256 of the constants that kernels use for addressing."""
        return self.head["hash"]

    def text(self, at: int) -> str:
        """Returns the text at a place."""
        return self._text[at : self._text.index(b"\0", at)].decode()

    @cached_property
    def _text(self) -> bytes:
        return self.rows["text"].tobytes()

    @property
    def name(self) -> str:
        return self.text(self.head["name"])

    @property
    def target(self) -> dict[str, Any]:
        """The fields of its target."""
        named = {key: self.text(self.head[key]) for key in NAMED}
        features = [self.text(at) for at in self.rows["features"].tolist()]
        return {**{key: text for key, text in named.items() if text}, **({"features": features} if features else {})}

    @property
    def has_kernels(self) -> bool:
        """True if it has kernels."""
        return bool(self.rows["text"][self.rows["steps"]["symbol"]].any())

    @property
    def is_hosted(self) -> bool:
        """True if it has host steps."""
        return bool(self.rows["text"][self.rows["steps"]["host"]].any())

    def places(self, kind: str) -> dict[int, tuple[int, int]]:
        """Returns the offset and size in bytes of each buffer of constants of this kind."""
        buffers = self.rows["buffers"]
        chosen = np.flatnonzero(buffers["kind"] == KINDS.index(kind))
        places = zip(buffers["offset"][chosen].tolist(), self.rows["cells"][chosen].tolist())
        return dict(zip(chosen.tolist(), places))

    # ---- decoding ----

    @cached_property
    def _numbers(self) -> list[Number]:
        """All cells; a text where a formula computes the number."""
        numbers: list[Any] = self.rows["cells"].tolist()
        texts = [self.text(at) for at in self.rows["formulas"]["text"].tolist()]
        for cell, formula in self.rows["gaps"].tolist():
            numbers[cell] = texts[formula]
        return numbers

    def _some(self, first: int, count: int) -> tuple[Number, ...]:
        return tuple(self._numbers[first : first + count])

    def symbols(self) -> tuple[DynamicDimension, ...]:
        return tuple(
            DynamicDimension(self.text(name), minimum, optimum, maximum)
            for minimum, optimum, maximum, name, _ in self.rows["symbols"].tolist()
        )

    def ports(self, dims: list[tuple[str | None, ...]]) -> tuple[Port, ...]:
        """Returns inputs, then outputs. dims: the model's names of their dimensions."""
        rows = self.rows["ports"].tolist()
        return tuple(
            Port(
                self.text(name),
                DTYPES[dtype],
                self._some(shape, rank),
                names,
                IndexRange(low, high, self.text(layer)) if layer >= 0 else None,
                self.text(rows[shares - 1][0]) if 0 < shares <= self.head["inputs"] else None,
            )
            for (name, dtype, rank, shape, low, high, layer, shares), names in zip(rows, dims, strict=True)
        )

    def sizes(self) -> dict[str, Any]:
        """Returns text → expression. Raises ValueError if one is too large to be written out."""
        values: list[Any] = [
            *(self.text(at) for at in self.rows["symbols"]["name"].tolist()),
            *self.rows["numbers"].tolist(),
        ]
        leaves = [1] * len(values)
        terms = self.rows["terms"].tolist()
        for function, first, count, _ in self.rows["lines"].tolist():
            of = terms[first : first + count]
            leaves.append(1 + sum(leaves[t] for t in of))
            if leaves[-1] > LARGEST_TREE:
                raise ValueError(f"the expression of a size has {leaves[-1]} operands")
            values.append([FUNCTIONS[function], *(values[t] for t in of)])
        return {self.text(text): values[value] for value, text in self.rows["formulas"].tolist()}

    def buffers(self) -> tuple[Buffer, ...]:
        sizes = self._numbers
        return tuple(
            Buffer(KINDS[kind], offset, size, self._some(values, count), DTYPES[dtype])
            for (kind, dtype, values, count, offset), size in zip(self.rows["buffers"].tolist(), sizes)
        )

    def steps(self, infos: list[dict[str, Any]]) -> tuple[Step, ...]:
        """Returns its steps. infos: `info` of each, then those of their alternatives."""
        count = len(self.rows["steps"])
        tiles, scratch, phases = (self._some(len(self.rows["buffers"]) + k * count, count) for k in range(3))
        operands, tensors = self.rows["operands"].tolist(), list(map(self._tensor, self.rows["tensors"].tolist()))
        rows = self.rows["steps"].tolist()

        def step(i: int) -> Step:
            (
                name,
                symbol,
                host,
                wave,
                grain,
                words,
                args,
                dims,
                first,
                inputs,
                reads,
                outputs,
                writes,
                spare,
                spares,
                _,
            ) = rows[i]
            return Step(
                name=self.text(name),
                symbol=self.text(symbol),
                args=tuple(map(Slice, operands[first : first + args], self._some(words, args))),
                dims=self._some(words + args, dims),
                tiles=tiles[i],
                grain=grain,
                wave=wave,
                scratch=scratch[i],
                phases=phases[i],
                host=self.text(host),
                inputs=tuple(tensors[inputs : inputs + reads]),
                outputs=tuple(tensors[outputs : outputs + writes]),
                info=infos[i],
                alternatives=tuple(map(step, range(spare, spare + spares))),
            )

        return tuple(map(step, range(self.head["steps"])))

    def _tensor(self, row: tuple[int, ...]) -> Tensor:
        buffer, dtype, rank, offset, shape, strides = row
        return Tensor(
            Slice(buffer, self._numbers[offset]), DTYPES[dtype], self._some(shape, rank), self._some(strides, rank)
        )
