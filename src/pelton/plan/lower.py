"""From placed tasks and chosen kernels to the plain-data engine: buffers, arguments, waves, packed constants."""
from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from pelton.engine import sizes
from pelton.engine.engine import Buffer, Engine, Number, Port, Slice, Step, Symbol, Tensor
from pelton.engine.memory import ALIGN, Lifetime, assign
from pelton.ir.dims import Dim, Size, maximum, tree
from pelton.ir.text import node_text
from pelton.ir.graph import Value, symbols
from pelton.ir.types import STRING, DType

from .layout import span
from .place import Placed, Task
from .region import Region


class Code(Protocol):
    """What lowering needs of a kernel: where its pointers come from and how its work is cut."""

    @property
    def symbol(self) -> str: ...
    @property
    def operands(self) -> tuple: ...
    @property
    def dims(self) -> tuple[Size, ...]: ...
    @property
    def tiles(self) -> Size: ...
    @property
    def grain(self) -> int: ...
    @property
    def scratch(self) -> Size: ...


@dataclass(frozen=True)
class Chosen:
    """A task with the kernel that runs it (None for a host step) and what is told about it."""

    task: Task
    kernel: Code | None
    wave: int
    info: Mapping[str, object]


class _Blob:
    """Constants one after another, each at a multiple of 64 bytes; what is asked for twice is stored once."""

    def __init__(self) -> None:
        self.fillers: list[Callable[[np.ndarray], None]] = []
        self.index: dict[object, int] = {}
        self.offsets: list[tuple[int, int]] = []
        self.kinds: list[str] = []
        self.size = 0

    def add(self, key: object, kind: str, dtype: np.dtype, shape: Sequence[int], fill: Callable[[np.ndarray], None]) -> int:
        """The number of a piece, which `fill` puts into an array of zeros of this type and shape when all are put down."""
        if key not in self.index:
            nbytes = math.prod(shape) * dtype.itemsize
            self.index[key] = len(self.fillers)
            self.fillers.append(lambda room: fill(room.view(dtype).reshape(shape)))
            self.offsets.append((self.size, nbytes))
            self.kinds.append(kind)
            self.size += -(-nbytes // ALIGN) * ALIGN
        return self.index[key]

    def bytes(self) -> np.ndarray:
        """All of it, at a multiple of 64 bytes in memory, so that the engine can use it as it lies. Made on all cores, the largest pieces first."""
        room = np.zeros(self.size + ALIGN, np.uint8)
        start = -room.ctypes.data % ALIGN
        out = room[start:start + self.size]

        def put(i: int) -> None:
            at, nbytes = self.offsets[i]
            self.fillers[i](out[at:at + nbytes])
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for _ in pool.map(put, sorted(range(len(self.fillers)), key=lambda i: -self.offsets[i][1])):
                pass
        return out


def _kind(dtype: DType) -> str:
    """What an engine calls constants of this type: integers may be addresses, which are verified at every load."""
    return "table" if dtype.numpy.kind in "iub" else "constant"


def _text(strings: np.ndarray) -> np.ndarray:
    """Strings as the bytes of a JSON list."""
    return np.frombuffer(json.dumps(strings.reshape(-1).tolist()).encode(), np.uint8)


def lower(placed: Placed, chosen: Sequence[Chosen], code: bytes, *, name: str, target: Mapping[str, object], meta: Mapping[str, object],
          output_names: Sequence[str]) -> Engine:
    """Assembles the engine. Buffers: inputs, outputs, strings, arena, then constants, in that order."""
    graph, places = placed.graph, placed.places
    trees: dict[str, object] = {}

    def number(x: Size) -> Any:
        if not isinstance(x, Dim):
            return int(x)
        trees[str(x)] = tree(x)
        return str(x)

    def told(info: Mapping[str, object]) -> dict[str, object]:
        return {k: number(v) if isinstance(v, Dim) else v for k, v in info.items()}

    def shape(xs: Sequence[Size]) -> tuple[Number, ...]:
        return tuple(map(number, xs))

    buffers: list[Buffer] = []
    number_of: dict[Value, int] = {}
    for i, v in enumerate(graph.inputs):
        number_of[v] = len(buffers)
        buffers.append(Buffer("input", i, number(v.type.bytes)))
    for i, v in enumerate(placed.outputs):
        number_of[v] = len(buffers)
        buffers.append(Buffer("output", i, number(v.type.bytes)))
    for v, values in placed.sizes.items():
        number_of[v] = len(buffers)
        buffers.append(Buffer("sizes" if values is not None else "iota", 0, number(v.type.bytes), shape(values or ()), v.type.dtype.value))
    lives: dict[Value, Lifetime] = {}
    for c in chosen:
        for v in (*c.task.reads, *c.task.writes):
            at = places[v]
            if at.root in number_of or at.root in placed.constants:
                continue
            if v.type.dtype is STRING:
                number_of[at.root] = len(buffers)
                buffers.append(Buffer("strings", 0, number(at.root.type.bytes)))
                continue
            extent = (at.offset + span(v.type.shape, at.strides)) * v.type.dtype.size
            old = lives.get(at.root)
            whole = maximum(extent, at.root.type.bytes, 1)
            lives[at.root] = Lifetime(maximum(old.size, whole), min(old.first, c.wave), max(old.last, c.wave)) if old else Lifetime(whole, c.wave, c.wave)
    varying = symbols(graph)
    offsets, arena = assign(lives) if not varying else (dict.fromkeys(lives, 0), 0)          # what varies is laid out when its sizes are known
    for v, life in lives.items():
        number_of[v] = len(buffers)
        buffers.append(Buffer("arena", offsets[v], number(life.size)))
    blob, base = _Blob(), len(buffers)
    sources: dict[int, list[str]] = {}

    def operand(x) -> Slice:
        if isinstance(x, Value):
            at = places[x]
            if at.root in number_of:
                return Slice(number_of[at.root], number(at.offset * x.type.dtype.size))
            array, kind = placed.constants[at.root], _kind(at.root.type.dtype)
            if x.type.dtype is STRING:
                array, kind = _text(array), "text"
            piece = blob.add(at.root, kind, array.dtype, array.shape, lambda out: np.copyto(out, array))
            sources.setdefault(piece, [at.root.name])
            return Slice(base + piece, number(at.offset * x.type.dtype.size))
        piece = blob.add((x.sources, x.form), _kind(x.dtype), x.dtype.numpy, x.shape, x.fill)
        sources.setdefault(piece, [v.name for v in x.sources] + [x.form])
        return Slice(base + piece, 0)

    def tensor(v: Value) -> Tensor:
        return Tensor(operand(v), v.type.dtype.value, shape(v.type.shape), shape(places[v].strides))

    steps = []
    for c in running(chosen):
        if c.kernel is not None:
            k = c.kernel
            steps.append(Step(name=str(c.info.get("name", "")), symbol=k.symbol, args=tuple(operand(x) for x in k.operands), dims=shape(k.dims),
                              tiles=number(k.tiles), grain=k.grain, wave=c.wave, scratch=number(k.scratch), host="", inputs=(), outputs=(), info=told(c.info)))
        else:
            node = c.task.node
            steps.append(Step(name=str(c.info.get("name", "")), symbol="", args=(), dims=(), tiles=0, grain=1, wave=c.wave, scratch=0, host=node_text(node),
                              inputs=tuple(map(tensor, node.inputs)), outputs=tuple(map(tensor, node.outputs)), info=told(c.info)))
    buffers += [Buffer(kind, at, size) for (at, size), kind in zip(blob.offsets, blob.kinds)]

    def port(v: Value, label: str) -> Port:
        return Port(label, v.type.dtype.value, shape(v.type.shape))

    meta = {**meta, "constants": [sources[i] for i in range(len(blob.fillers))]}
    ports = tuple(port(v, v.name) for v in graph.inputs), tuple(port(v, n) for v, n in zip(graph.outputs, output_names))
    engine = Engine(name=name, inputs=ports[0], outputs=ports[1], buffers=tuple(buffers), steps=tuple(steps), arena=arena, constants=blob.bytes(), code=code,
                    target=dict(target), meta=meta, symbols=tuple(Symbol(s.name, s.least, s.usual, s.most) for s in varying), sizes=trees)
    return replace(engine, arena=sizes.at(engine, sizes.usual(engine)).arena) if varying else engine


def running(chosen: Sequence[Chosen]) -> list[Chosen]:
    """Tasks in the order of the engine's steps."""
    return sorted(chosen, key=lambda c: c.wave)


def waves(placed: Placed) -> list[int]:
    """The wave of every task: as early as what it reads allows, so that independent branches run side by side; host steps stand alone."""
    level: list[int] = []
    written: dict[Value, int] = {}                                        # root → the last level in which part of it is written
    for task in placed.tasks:
        at = 1 + max((written.get(placed.places[v].root, -1) for v in task.reads), default=-1)
        level.append(at)
        for v in task.writes:
            root = placed.places[v].root
            written[root] = max(at, written.get(root, -1))
    order = sorted(range(len(level)), key=lambda i: (level[i], not isinstance(placed.tasks[i].what, Region), i))
    out, wave, last = [0] * len(level), -1, None
    for i in order:
        host = not isinstance(placed.tasks[i].what, Region)
        if host or last != (level[i], False):
            wave += 1
        last = (level[i], host)
        out[i] = wave
    return out
