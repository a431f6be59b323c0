"""An engine made ready for one set of sizes: its steps with every address in place."""
from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pelton.backends.cpu import Program
from pelton.backends.cpu.memory import address
from pelton.backends.cpu.program import Row
from pelton.engine import engine as plain_engine
from pelton.engine.engine import SIZES, Port, numpy_dtype

from .host import HostStep

if TYPE_CHECKING:
    from .engine import Engine

Look = tuple[Port, str, np.dtype, tuple[int, ...]]             # a port and what every run asks of it: name, dtype, shape


class Prepared:
    """The programs and host steps of an engine for one set of sizes, over an arena that the maker keeps alive. `plain` has numbers everywhere."""

    def __init__(self, engine: Engine, plain: plain_engine.Engine, arena: np.ndarray, threads: int, host: dict[int, HostStep]):
        self.engine, self.plain, self.arena, self.threads, self.host = engine, plain, arena, threads, host
        self.made: dict[int, np.ndarray] = {}                    # buffers that are no part of the arena, the constants or the ports
        for i, b in enumerate(plain.buffers):
            if b.kind == "strings":
                self.made[i] = np.full(b.size // SIZES["string"], "", object)
            elif b.kind == "sizes":
                self.made[i] = np.array(b.values, np.int64)
            elif b.kind == "iota":
                self.made[i] = np.arange(b.size // SIZES[b.dtype]).astype(numpy_dtype(b.dtype))
            elif b.kind == "text":
                self.made[i] = engine.texts[i]
        self.ports = (ctypes.c_void_p * (len(plain.inputs) + len(plain.outputs)))()
        self.bound: list[np.ndarray] = []                        # the arrays of the run in progress, inputs then outputs
        self.parts = list(self.cut())
        self.natives = [p.native for p in self.parts if isinstance(p, Program)] if not host else None
        self.inputs, self.outputs = map(_looks, (plain.inputs, plain.outputs))
        self.sizes = [p.nbytes for p in plain.inputs + plain.outputs]

    def cut(self, apart: bool = False) -> Iterator[Program | HostStep]:
        """The steps as native programs, each as long as no host step comes between; `apart`: each step by itself."""
        plain = self.plain
        rows: list[Row] = []
        patches: list[tuple[int, int, int, int]] = []
        bases = {"arena": address(self.arena), "constant": address(self.engine.constants), "table": address(self.engine.constants)}
        starts = [address(self.made[i]) if b.kind in ("sizes", "iota") else bases.get(b.kind, 0) + b.offset for i, b in enumerate(plain.buffers)]
        first_port = {"input": 0, "output": len(plain.inputs)}

        def finished() -> Iterator[Program]:
            if rows:
                yield Program(rows, self.threads, patches)
                rows.clear()
                patches.clear()

        for i, step in enumerate(plain.steps):
            if step.host:
                yield from finished()
                yield self.host[i]
                continue
            words: list[int] = []
            for s in step.args:
                b = plain.buffers[s.buffer]
                if b.kind in first_port:
                    patches.append((len(rows), len(words), first_port[b.kind] + b.offset, s.offset))
                    words.append(0)
                else:
                    words.append(starts[s.buffer] + s.offset)
            rows.append((self.engine.addresses[step.symbol], [*words, *step.dims], len(words), step.tiles, step.grain, step.wave, step.scratch))
            if apart:
                yield from finished()
        yield from finished()

    def run(self) -> None:
        """All steps, on the arrays that are bound."""
        if self.natives is not None:
            for function, program in self.natives:
                function(program, self.ports)
        else:
            for part in self.parts:
                self.run_part(part)

    def run_part(self, part: Program | HostStep) -> None:
        if isinstance(part, Program):
            part.run(self.ports)
        else:
            part.run(self.memory)

    def memory(self, buffer: int) -> np.ndarray:
        """A buffer's bytes, or strings, during a run."""
        b, plain = self.plain.buffers[buffer], self.plain
        if b.kind in ("input", "output"):
            flat = self.bound[b.offset + (len(plain.inputs) if b.kind == "output" else 0)].reshape(-1)
            return flat if flat.dtype.hasobject else flat.view(np.uint8)
        if buffer in self.made:
            return self.made[buffer] if self.made[buffer].dtype.hasobject else self.made[buffer].view(np.uint8)
        return (self.arena if b.kind == "arena" else self.engine.constants)[b.offset:b.offset + b.size]


def _looks(ports: Sequence[Port]) -> list[Look]:
    return [(p, p.name, p.numpy_dtype, p.shape) for p in ports]
