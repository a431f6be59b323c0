"""An engine made ready for one set of sizes: its steps with every address in place."""
from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from pelton.backends.cpu import Program
from pelton.backends.cpu.ports import callable_of
from pelton.backends.cpu.memory import address
from pelton.engine import model as plain_engine
from pelton.engine import sizes
from pelton.engine.validate import validate
from pelton.engine.model import SIZES, Port, numpy_dtype
from pelton.engine.shape_plan import Filled

from .host import HostStep

if TYPE_CHECKING:
    from .engine import Engine

Look = tuple[Port, str, np.dtype, tuple[int, ...]]             # a port and what every run asks of it: name, dtype, shape


class Prepared:
    """The programs and host steps of an engine for one set of sizes, over memory that the maker keeps alive: an arena, and `scratch`, the address of pages
    for all threads. `available`: CPUs that this process may use."""

    def __init__(self, engine: Engine, values: Mapping[str, int], filled: Filled, arena: np.ndarray, scratch: int, threads: int, available: float):
        self.engine, self.values, self.filled, self.arena = engine, values, filled, arena
        self.scratch, self.threads, self.available = scratch, threads, available
        self.host = engine.host_steps(self.plain, values) if engine.host and values else engine.host
        self.made: dict[int, np.ndarray] = {**engine.texts, **engine.tables}      # buffers that lie elsewhere than arena, constants and ports
        for i in engine.made:
            b, size = engine.plain.buffers[i], int(filled.bytes[i])
            if b.kind == "strings":
                self.made[i] = np.full(size // SIZES["string"], "", object)
            elif b.kind == "sizes":
                self.made[i] = filled.values[i]
            else:
                self.made[i] = np.arange(size // SIZES[b.dtype]).astype(numpy_dtype(b.dtype))
        self.ports = (ctypes.c_void_p * (len(filled.inputs) + len(filled.outputs)))()
        self.bound: list[np.ndarray] = []                        # the arrays of the run in progress, inputs then outputs
        self.parts = list(self.cut())
        self.natives = [p.native for p in self.parts if isinstance(p, Program)] if not self.host else None
        self.inputs, self.outputs = map(looks, (filled.inputs, filled.outputs))
        asked = [look[1:] for look in self.inputs + self.outputs]
        # runs it on arrays that are what the ports take, where a native program is all there is to run
        self.call = callable_of(self.natives[0][1], self.ports, asked, len(self.inputs)) if self.natives and len(self.natives) == 1 else None
        self.sizes = [p.nbytes for p in filled.inputs + filled.outputs]

    @cached_property
    def plain(self) -> plain_engine.Engine:
        """The engine with numbers everywhere. Most runs never ask for it."""
        plain = sizes.at(self.engine.plain, self.values)
        if plain is not self.engine.plain:
            validate(plain)
        return plain

    def cut(self, apart: bool = False) -> Iterator[Program | HostStep]:
        """The steps as native programs, each as long as no host step comes between; `apart`: each step by itself."""
        engine, filled, sheet = self.engine, self.filled, self.engine.sheet
        starts = filled.starts + np.where(sheet.in_arena, address(self.arena), np.where(sheet.constant, address(engine.constants), 0))
        for i, array in self.made.items():
            if not array.dtype.hasobject:
                starts[i] = address(array)
        words = filled.words.copy()
        patches = np.stack([sheet.ported, sheet.ports, words[sheet.ported]], axis=1)
        words[sheet.pointers] += starts[sheet.operands]
        table = np.stack([engine.functions, sheet.first[:-1], filled.tiles, sheet.grain, sheet.wave, filled.scratch, filled.phases], axis=1)

        def program(begin: int, end: int) -> Program:
            first, last = sheet.first[begin], sheet.first[end]
            own = patches[(sheet.ported >= first) & (sheet.ported < last)]
            return Program.of(table[begin:end] - (0, first, 0, 0, 0, 0, 0), words[first:last], own - (first, 0, 0), self.threads, self.available, self.scratch)

        begin = 0
        for i in range(len(table)):
            if i in self.host:
                if begin < i:
                    yield program(begin, i)
                yield self.host[i]
                begin = i + 1
            elif apart:
                yield program(i, i + 1)
                begin = i + 1
        if begin < len(table):
            yield program(begin, len(table))

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


def looks(ports: Sequence[Port]) -> list[Look]:
    return [(p, p.name, p.numpy_dtype, p.shape) for p in ports]
