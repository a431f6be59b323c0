"""Lowers scheduled tasks to the plain data of an engine: buffers, arguments, waves, packed constants."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np

from pelton.engine import sizes
from pelton.engine.constants import ALIGN, DeferredConstants
from pelton.engine.plan import Buffer, EnginePlan, Number, Port, Slice, Step, DynamicDimension, Tensor
from pelton.engine.memory import Lifetime, assign
from pelton.ir import lineage
from pelton.ir.dims import Dim, Size, is_known, maximum
from pelton.ir.dims_text import tree
from pelton.ir.text import node_text, to_text
from pelton.ir.graph import Graph, Node, Value, symbols
from pelton.ir.types import STRING, DType

from .layout import span
from .placed import Placed, Task
from .region import Region
from .workspace import KernelWorkspace


class KernelInterface(Protocol):
    """The facts about a kernel for lowering: its operands, its sizes, and the division of its work into tiles."""

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
    @property
    def phases(self) -> Size: ...


@dataclass(frozen=True)
class ScheduledTask:
    """A task with its kernel (None for a host step) and its wave.

    `info`: the record of it in the engine, for people. `alternatives`: names of other tactics, with their kernels.
    """

    task: Task
    kernel: KernelInterface | None
    wave: int
    info: Mapping[str, object]
    alternatives: Sequence[tuple[str, KernelInterface]] = ()


class Blob:
    """Concatenated constants, each aligned to 64 bytes; equal keys are stored once."""

    def __init__(self) -> None:
        self.fillers: list[Callable[[np.ndarray], None]] = []
        self.index: dict[object, int] = {}
        self.offsets: list[tuple[int, int]] = []
        self.kinds: list[str] = []
        self.size = 0

    def add(
        self, key: object, kind: str, dtype: np.dtype, shape: Sequence[int], fill: Callable[[np.ndarray], None]
    ) -> int:
        """Adds a piece and returns its number; `fill` will write it into a zeroed array of this type and shape."""
        if key not in self.index:
            nbytes = math.prod(shape) * dtype.itemsize
            self.index[key] = len(self.fillers)
            self.fillers.append(lambda room: fill(room.view(dtype).reshape(shape)))
            self.offsets.append((self.size, nbytes))
            self.kinds.append(kind)
            self.size += -(-nbytes // ALIGN) * ALIGN
        return self.index[key]

    def constants(self) -> DeferredConstants:
        """Returns all pieces."""
        return DeferredConstants(self.size, self._fill, self.fillers)

    def _fill(self, out: np.ndarray) -> Iterator[int]:
        """Writes all pieces, on all cores; yields the end of each, in order."""

        def put(i: int) -> int:
            at, nbytes = self.offsets[i]
            self.fillers[i](out[at : at + nbytes])
            return at + -(-nbytes // ALIGN) * ALIGN

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            yield from pool.map(put, range(len(self.fillers)))


def _kind(dtype: DType) -> str:
    """Returns the kind of buffer for constants of this type. Integers of 32 and 64 bits may be addresses, which every
    load verifies; smaller ones never are, and there may be a hundred megabytes of such weights."""
    return "table" if dtype.numpy.kind in "iu" and dtype.size >= 4 else "constant"


def strings(array: np.ndarray) -> np.ndarray:
    """Encodes strings as the bytes of a JSON list."""
    return np.frombuffer(json.dumps(array.reshape(-1).tolist()).encode(), np.uint8)


def lower(
    placed: Placed,
    chosen: Sequence[ScheduledTask],
    code: bytes,
    *,
    name: str,
    target: Mapping[str, object],
    meta: Mapping[str, object],
    output_names: Sequence[str],
    file: str = "",
) -> EnginePlan:
    """Assembles the engine. Buffers: inputs, outputs, strings, zeros, arena, then constants, in that order."""
    graph, assembly = placed.graph, _Assembly(placed)
    arena = assembly.allocate(chosen)
    steps = tuple(assembly.step(c) for c in in_step_order(chosen))
    pieces = range(len(assembly.blob.fillers))
    meta = {**meta, "constants": [assembly.sources[i] for i in pieces]}
    if (known := lineage.current()) is not None:
        meta["weights_of"] = [sorted(lineage.NONE.union(*map(known.weights_of, assembly.arrays[i]))) for i in pieces]
    engine = EnginePlan(
        name=name,
        inputs=tuple(assembly.port(v, v.name) for v in graph.inputs),
        outputs=tuple(assembly.port(v, n) for v, n in zip(graph.outputs, output_names)),
        buffers=(
            *assembly.buffers,
            *(Buffer(kind, at, size) for (at, size), kind in zip(assembly.blob.offsets, assembly.blob.kinds)),
        ),
        steps=steps,
        arena=arena,
        constants=assembly.blob.constants(),
        code=code,
        target=dict(target),
        meta=meta,
        symbols=tuple(DynamicDimension(s.name, s.minimum, s.optimum, s.maximum) for s in symbols(graph)),
        sizes=assembly.trees,
        file=file,
    )
    return replace(engine, arena=sizes.at(engine, sizes.optimum_sizes(engine)).arena) if engine.symbols else engine


class _Assembly:
    """The state of an engine while it is assembled: buffers, constants, and dynamic sizes."""

    def __init__(self, placed: Placed):
        self.placed, self.places = placed, placed.places
        self.trees: dict[str, object] = {}
        self.buffers: list[Buffer] = []
        self.number_of: dict[Value | KernelWorkspace, int] = {}
        self.blob = Blob()
        self.sources: dict[int, list[str]] = {}
        self.arrays: dict[int, list[np.ndarray]] = {}  # the arrays that each piece of the constants is made of
        self.held: Mapping[Value, np.ndarray] = {}  # the constants of the current region
        for kind, values in (("input", placed.graph.inputs), ("output", placed.outputs)):
            for i, v in enumerate(values):
                self._buffer(v, Buffer(kind, i, self.number(v.type.bytes)))
        for v, numbers in placed.sizes.items():
            self._buffer(
                v,
                Buffer(
                    "sizes" if numbers is not None else "iota",
                    0,
                    self.number(v.type.bytes),
                    self.shape(numbers or ()),
                    v.type.dtype.value,
                ),
            )

    def allocate(self, chosen: Sequence[ScheduledTask]) -> int:
        """Creates buffers for all values between steps; returns the size of the arena, 0 if it is dynamic."""
        lives: dict[Value | KernelWorkspace, Lifetime] = {}
        for c in chosen:
            for v in (*c.task.reads, *c.task.writes):
                at = self.places[v]
                if at.root in self.number_of or at.root in self.placed.constants:
                    continue
                if v.type.dtype is STRING:
                    self._buffer(at.root, Buffer("strings", 0, self.number(at.root.type.bytes)))
                    continue
                extent = (at.offset + span(v.type.shape, at.strides)) * v.type.dtype.size
                if self.places[at.root].zero_padded:
                    continue
                old = lives.get(at.root)
                whole = maximum(extent, at.root.type.bytes, 1)
                lives[at.root] = (
                    Lifetime(maximum(old.size, whole), min(old.first, c.wave), max(old.last, c.wave))
                    if old
                    else Lifetime(whole, c.wave, c.wave)
                )
        shared = self._workspaces(chosen, lives)
        # with dynamic sizes, the runtime lays out memory when it knows them
        varies = symbols(self.placed.graph)
        offsets, arena = (dict.fromkeys(lives, 0), 0) if varies else assign(lives)
        for what, life in lives.items():
            self._buffer(what, Buffer("arena", offsets[what], self.number(life.size)))
        self.number_of.update({x: self.number_of[largest] for x, largest in shared.items()})
        return arena

    def _workspaces(
        self, chosen: Sequence[ScheduledTask], lives: dict[Value | KernelWorkspace, Lifetime]
    ) -> dict[KernelWorkspace, KernelWorkspace]:
        """Allocates private memory for each step's kernel: permanent zeros, and arena space while the step runs. Its
        alternatives share it; returns each one's workspace → the largest."""
        largest, zeros = dict[KernelWorkspace, KernelWorkspace](), self._zero_padded()
        for c in chosen:
            for zero in (False, True):
                each = [
                    [x for x in k.operands if isinstance(x, KernelWorkspace) and x.zero == zero]
                    for k in (c.kernel, *(k for _, k in c.alternatives))
                    if k is not None
                ]
                for same in zip_longest(*each):
                    alike = [x for x in same if x is not None]
                    most = max(alike, key=lambda x: x.bytes)
                    largest.update(dict.fromkeys(alike, most))
                    if zero:
                        self._buffer(most, Buffer("zeros", zeros, most.bytes))
                        zeros += -(-most.bytes // ALIGN) * ALIGN
                    else:
                        lives[most] = Lifetime(most.bytes, c.wave, c.wave)
        return largest

    def _zero_padded(self) -> int:
        """Creates zero-filled buffers for zero-padded values; returns their bytes."""
        end = 0
        for v, at in [(v, at) for v, at in self.places.items() if at.zero_padded]:
            nbytes = self.number(span(v.type.shape, at.strides) * v.type.dtype.size)
            self._buffer(v, Buffer("zeros", end, nbytes))
            end += -(-nbytes // ALIGN) * ALIGN
        return end

    def step(self, c: ScheduledTask) -> Step:
        name, info = str(c.info.get("name", "")), {**c.info, "writes": [v.name for v in c.task.writes]}
        self.held = c.task.what.body.constants if isinstance(c.task.what, Region) else {}
        if c.kernel is None:
            text, inputs, outputs = self.by_reference(c.task.what)
            return Step(
                name=name,
                symbol="",
                args=(),
                dims=(),
                tiles=0,
                grain=1,
                wave=c.wave,
                scratch=0,
                host=text,
                inputs=inputs,
                outputs=outputs,
                info=self.format_info(info),
            )
        step = self.kernel(c.kernel, name, c.wave, info)
        return replace(
            step,
            outputs=tuple(map(self.tensor, c.task.writes)),
            alternatives=tuple(self.kernel(k, name, c.wave, {"tactic": t}) for t, k in c.alternatives),
        )

    def by_reference(self, what: Region | Node) -> tuple[str, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Returns a node, or the body of a region, as the text of a host step, and the tensors of its inputs (constants
        after the others) and outputs."""
        if isinstance(what, Node):
            return node_text(what), tuple(map(self.tensor, what.inputs)), tuple(map(self.tensor, what.outputs))
        body = what.body
        text = to_text(Graph((*body.inputs, *body.constants), {}, body.nodes, body.outputs, body.name))
        constants = (self.constant(v, a) for v, a in body.constants.items())
        return text, (*map(self.tensor, body.inputs), *constants), tuple(map(self.tensor, body.outputs))

    def constant(self, v: Value, array: np.ndarray) -> Tensor:
        """Adds a constant of a region, contiguous."""
        piece = self.blob.add(v, _kind(v.type.dtype), array.dtype, array.shape, lambda out: np.copyto(out, array))
        strides = [math.prod(array.shape[i + 1 :]) for i in range(array.ndim)]
        return Tensor(self._constant(piece, [v.name], 0, [array]), v.type.dtype.value, array.shape, tuple(strides))

    def kernel(self, k: KernelInterface, name: str, wave: int, info: Mapping[str, object]) -> Step:
        return Step(
            name=name,
            symbol=k.symbol,
            args=tuple(map(self.operand, k.operands)),
            dims=self.shape(k.dims),
            tiles=self.number(k.tiles),
            grain=k.grain,
            wave=wave,
            scratch=self.number(k.scratch),
            phases=self.number(k.phases),
            info=self.format_info(info),
        )

    def port(self, v: Value, label: str) -> Port:
        return Port(label, v.type.dtype.value, self.shape(v.type.shape))

    def tensor(self, v: Value) -> Tensor:
        return Tensor(self.operand(v), v.type.dtype.value, self.shape(v.type.shape), self.shape(self.places[v].strides))

    def operand(self, x) -> Slice:
        """Returns the slice of a value or a packed constant. All other buffers must exist before the first constant is
        requested."""
        if isinstance(x, KernelWorkspace):
            return Slice(self.number_of[x], 0)
        if not isinstance(x, Value):
            kind = "table" if x.has_indices else "constant"
            piece = self.blob.add((x.sources, x.form), kind, x.dtype.numpy, x.shape, x.fill)
            arrays = [self.held[v] for v in x.sources if v in self.held]
            return self._constant(piece, [v.name for v in x.sources] + [x.form], 0, arrays)
        at = self.places[x]
        offset = self.number(at.offset * x.type.dtype.size)
        if at.root in self.number_of:
            return Slice(self.number_of[at.root], offset)
        held = array = self.placed.constants[at.root]
        kind = _kind(at.root.type.dtype)
        if x.type.dtype is STRING:
            array, kind = strings(array), "text"
        piece = self.blob.add(at.root, kind, array.dtype, array.shape, lambda out: np.copyto(out, array))
        return self._constant(piece, [at.root.name], offset, [held])

    def number(self, x: Size) -> Any:
        if not isinstance(x, Dim):
            return int(x)
        self.trees[str(x)] = tree(x)
        return str(x)

    def format_info(self, info: Mapping[str, object]) -> dict[str, object]:
        return {k: self.number(v) if isinstance(v, Dim) else v for k, v in info.items()}

    def shape(self, xs: Sequence[Size]) -> tuple[Number, ...]:
        return tuple(map(self.number, xs))

    def _buffer(self, v: Value | KernelWorkspace, buffer: Buffer) -> None:
        self.number_of[v] = len(self.buffers)
        self.buffers.append(buffer)

    def _constant(self, piece: int, sources: list[str], offset: Number, arrays: list[np.ndarray]) -> Slice:
        self.sources.setdefault(piece, sources)
        self.arrays.setdefault(piece, []).extend(arrays)
        return Slice(len(self.buffers) + piece, offset)


def in_step_order(chosen: Sequence[ScheduledTask]) -> list[ScheduledTask]:
    """Sorts tasks in the order of the engine's steps."""
    return sorted(chosen, key=lambda c: c.wave)


def waves(placed: Placed) -> list[int]:
    """Returns the wave of every task: the earliest that its operands allow, to run branches in parallel.

    A host step has a wave of its own.
    """
    level: list[int] = []
    for earlier in dependences(placed):
        level.append(1 + max((level[k] for k in earlier), default=-1))
    order = sorted(range(len(level)), key=lambda i: (level[i], not isinstance(placed.tasks[i].what, Region), i))
    out, wave, last = [0] * len(level), -1, None
    for i in order:
        host = not isinstance(placed.tasks[i].what, Region)
        if host or last != (level[i], False):
            wave += 1
        last = (level[i], host)
        out[i] = wave
    return out


def dependences(placed: Placed) -> list[set[int]]:
    """Returns, per task, the numbers of the tasks that write its operands."""
    writers: list[set[int]] = []
    # root → the ranges written so far, each with its task
    written: dict[Value, list[tuple[tuple[int, int] | None, int]]] = {}
    for i, task in enumerate(placed.tasks):
        reads = [(placed.places[v].root, _extent(placed, v)) for v in task.reads]
        writers.append({k for root, part in reads for what, k in written.get(root, ()) if _meet(what, part)})
        for v in task.writes:
            written.setdefault(placed.places[v].root, []).append((_extent(placed, v), i))
    return writers


def _extent(placed: Placed, v: Value) -> tuple[int, int] | None:
    """Returns the range of elements (first, end) that a value occupies in its root's buffer; None if it is dynamic."""
    at = placed.places[v]
    if not is_known(at.offset, *v.type.shape, *at.strides) or v.type.size == 0:
        return None
    reach = [(d - 1) * s for d, s in zip(v.type.shape, at.strides)]
    return at.offset + sum(r for r in reach if r < 0), at.offset + sum(r for r in reach if r > 0) + 1


def _meet(a: tuple[int, int] | None, b: tuple[int, int] | None) -> bool:
    return a is None or b is None or a[0] < b[1] and b[0] < a[1]
