"""A CUDA engine prepared for one set of sizes: its memory on the GPU, its launches, and the graphs that replay them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from pelton.engine import plan as plain_engine
from pelton.engine import sizes
from pelton.engine.order import Span, waits
from pelton.engine.shape_plan import ResolvedPlan
from pelton.engine.validate import validate
from pelton.errors import EngineError

from ..host import HostStep
from .device import ALIGN, TRAILING, Launch, Memory, launches
from .loaded import CudaLoaded

MAX_BLOCKS = (1 << 31) - 1  # along the first axis of a grid


def up(nbytes: int, to: int = ALIGN) -> int:
    return -(-nbytes // to) * to


@dataclass(frozen=True)
class MemoryPlan:
    """Offsets in one piece of memory: the arena, then each port's array (none for strings), then each kernel's scratch
    memory; kernels of the same wave may run at once and do not share it."""

    ports: tuple[int, ...]
    staged: int  # bytes of all ports
    scratch: tuple[int, ...]
    nbytes: int


def plan_memory(loaded: CudaLoaded, resolved: ResolvedPlan) -> MemoryPlan:
    """Plans the memory of a context for one set of sizes; raises EngineError if a grid would have too many blocks."""
    ports, at = [], up(resolved.arena)
    for port in (*resolved.inputs, *resolved.outputs):
        ports.append(at)
        at += up(port.nbytes) if port.dtype != "string" else 0
    scratch, nbytes = [0] * len(resolved.tiles), at
    for _, steps in groupby(range(len(resolved.tiles)), key=lambda i: loaded.plan.plain.steps[i].wave):
        end = at
        for i in steps:
            function = loaded.functions[i]
            blocks = int(resolved.tiles[i]) * (function.cubin.clusters if function else 0)
            if blocks > MAX_BLOCKS:
                raise EngineError(
                    f"step {loaded.plan.plain.steps[i].name!r} would run {blocks} blocks, a grid has {MAX_BLOCKS} at"
                    " most; use smaller inputs"
                )
            if function and function.cubin.scratch:
                scratch[i] = up(end, max(ALIGN, function.cubin.align))
                end = scratch[i] + blocks * function.cubin.scratch
        nbytes = max(nbytes, end)
    return MemoryPlan(tuple(ports), at - up(resolved.arena), tuple(scratch), up(nbytes))


@dataclass(frozen=True, eq=False)
class GraphSegment:
    """Steps between host steps, as one graph: its nodes, and their launches, by step."""

    ready: Any
    nodes: Mapping[int, Sequence[Any]]
    launches: Mapping[int, Sequence[Launch]]


class CudaPrepared:
    """The graphs and host steps of an engine for one set of sizes, over `memory` (see `plan_memory`) and the context's
    `zeros`. Inputs and outputs are at the addresses last passed to `point`, at first in `memory`."""

    def __init__(
        self,
        loaded: CudaLoaded,
        values: Mapping[str, int],
        resolved: ResolvedPlan,
        room: MemoryPlan,
        memory: Memory,
        zeros: Memory | None,
        stream: int,
    ):
        self.loaded, self.plan, self.device = loaded, loaded.plan, loaded.device
        self.values, self.resolved, self.room, self.held, self.zeros = values, resolved, room, memory, zeros
        self.inputs, self.outputs, self.stream = resolved.inputs, resolved.outputs, stream
        if values and any(f is not None and f.call is not None for f in loaded.functions):
            # validated here: libraries then stay within buffers of these sizes
            _ = self.plain
        plan = self.plan
        hosted = plan.host_steps(self.plain, values) if plan.host and values else plan.host
        self.host = {i: step.own() for i, step in hosted.items()}
        # buffers of the CPU; sizes and counts are on the GPU, too
        self.made: dict[int, np.ndarray] = {**plan.texts}
        self.strings: dict[int, np.ndarray] = {}  # port → the caller's strings, during a run
        self.nbytes = [p.nbytes if p.dtype != "string" else 0 for p in (*resolved.inputs, *resolved.outputs)]
        self.places = [memory.address + at for at in room.ports]
        self.pointers = list(self.places)
        template = plan.template
        self.starts = resolved.starts + np.where(
            template.in_arena, memory.address, np.where(template.constant, loaded.weights.address, 0)
        )
        if zeros is not None:
            self.starts[template.in_zeros] += zeros.address
        self._tables = self._make_tables()
        self._buffers_of: list[list[int]] = [[] for _ in self.places]  # by port
        for i, b in enumerate(plan.plain.buffers):
            if b.kind in ("input", "output"):
                self.starts[i] = self.pointers[self.port(b)]
                self._buffers_of[self.port(b)].append(i)
        self._lay_words()
        self.launches = [self._launched(i) for i in range(len(plan.plain.steps))]
        self.parts: list[GraphSegment | HostStep] = list(self._cut())

    @cached_property
    def plain(self) -> plain_engine.EnginePlan:
        """The engine with all sizes filled in."""
        plain = sizes.at(self.plan.plain, self.values)
        if plain is not self.plan.plain:
            validate(plain)
        return plain

    def port(self, buffer: plain_engine.Buffer) -> int:
        """Returns the index of a buffer among all ports, inputs first."""
        return int(buffer.offset) + (len(self.inputs) if buffer.kind == "output" else 0)

    def _make_tables(self) -> Memory | None:
        """Uploads sizes and counts, which belong to this set of sizes; keeps strings for host steps."""
        at, places = 0, {}
        for i, array in self.plan.computed_buffers(self.resolved).items():
            self.made[i] = array
            if not array.dtype.hasobject:
                places[i], at = at, at + up(int(self.resolved.bytes[i]))
        if not at:
            return None
        memory = self.device.allocate(at, f"engine {self.plan.label!r}, for its sizes,")
        for i, place in places.items():
            array = np.ascontiguousarray(self.made[i])
            self.starts[i] = memory.address + place
            self.device.upload(memory.address + place, array.__array_interface__["data"][0], array.nbytes, self.stream)
        self.device.synchronize(self.stream)  # the arrays need not stay
        return memory

    def _lay_words(self) -> None:
        """Lays out the parameters of all kernels one after the other, with the trailing pointers of each."""
        template, resolved = self.plan.template, self.resolved
        counts = np.diff(template.first)
        self._first = template.first[:-1] + TRAILING * np.arange(len(counts))
        positions = np.arange(len(resolved.words)) + TRAILING * np.repeat(np.arange(len(counts)), counts)
        self._words = np.zeros(len(resolved.words) + TRAILING * len(counts), np.int64)
        self._words[positions] = resolved.words
        self._words[positions[template.pointers]] += self.starts[template.operands]
        self._words[self._first + counts] = [self.held.address + at if at else 0 for at in self.room.scratch]
        self._ported, self._ports, self._offsets = (
            positions[template.ported],
            template.ports,
            resolved.words[template.ported],
        )
        self._step_of = np.searchsorted(self._first, self._ported, "right") - 1
        order = np.argsort(self._ports, kind="stable")
        # by port
        self._words_of = np.split(order, np.searchsorted(self._ports[order], np.arange(1, len(self.places))))

    def _launched(self, i: int) -> Sequence[Launch]:
        """Returns the launches of a step, in order."""
        function, programs = self.loaded.functions[i], int(self.resolved.tiles[i])
        if function is None or not programs:
            return ()
        if function.cubin.phased == 2 and programs > function.together and self.resolved.phases[i] > 1:
            self.loaded.warn(
                f"step {self.plan.plain.steps[i].name!r} has {programs} programs that would wait for each other,"
                f" {self.device.name} has room for {function.together} at once: it is launched once for each of its"
                f" {int(self.resolved.phases[i])} phases instead"
            )
        end = self._first[i + 1] if i + 1 < len(self._first) else len(self._words)
        return launches(function, programs, int(self.resolved.phases[i]), self._words[self._first[i] : end])

    def _cut(self) -> Iterator[GraphSegment | HostStep]:
        for hosted, steps in groupby(range(len(self.launches)), key=lambda i: i in self.host):
            if hosted:
                yield from (self.host[i] for i in steps)
            else:
                segment = {i: self.launches[i] for i in steps if self.launches[i]}
                if segment:
                    yield self._segment(segment)

    def _segment(self, launches: Mapping[int, Sequence[Launch]]) -> GraphSegment:
        """Builds a graph in which each step waits only for its dependencies: independent branches run in parallel."""
        device, numbers = self.device, list(launches)
        steps = [self.plan.plain.steps[i] for i in numbers]
        arena = self.plan.template.in_arena
        spans = {
            b: (int(self.starts[b]), int(self.starts[b] + self.resolved.bytes[b]))
            for b in {a.buffer for s in steps for a in s.args}
            if arena[b]
        }
        graph, nodes = device.graph(), dict[int, list[Any]]()
        for i, after in zip(numbers, waits(steps, spans, [self._scratch(i) for i in numbers])):
            nodes[i] = []
            for launch in launches[i]:
                nodes[i].append(device.add(graph, launch, nodes[i][-1:] or [nodes[numbers[k]][-1] for k in after]))
        return GraphSegment(device.instantiate(graph, self.stream), nodes, launches)

    def _scratch(self, i: int) -> Span:
        """Returns the scratch memory of a step's kernel, as offsets (begin, end); (0, 0) if it has none."""
        function, at = self.loaded.functions[i], self.room.scratch[i]
        if not function or not at:
            return 0, 0
        return at, at + int(self.resolved.tiles[i]) * function.cubin.clusters * function.cubin.scratch

    def point(self, pointers: Sequence[int]) -> None:
        """Sets the addresses of inputs and outputs, in the graphs, too."""
        changed = [k for k, (old, new) in enumerate(zip(self.pointers, pointers)) if old != new]
        if not changed:
            return
        self.pointers = list(pointers)
        concerned = set[int]()
        for k in changed:
            which = self._words_of[k]
            self.starts[self._buffers_of[k]] = pointers[k]
            self._words[self._ported[which]] = pointers[k] + self._offsets[which]
            concerned.update(self._step_of[which].tolist())
        for part in self.parts:
            if isinstance(part, GraphSegment):
                for i in concerned & part.nodes.keys():
                    for node, launch in zip(part.nodes[i], part.launches[i]):
                        self.device.change(part.ready, node, launch)

    def run(self, stream: int) -> None:
        """Runs all steps on this stream; waits for the GPU only at host steps."""
        for part in self.parts:
            if isinstance(part, GraphSegment):
                self.device.replay(part.ready, stream)
            else:
                self.run_host(part, stream)

    def run_host(self, step: HostStep, stream: int) -> None:
        """Runs a host step: downloads its operands, and uploads its results."""
        known: dict[int, np.ndarray] = {}

        def memory(buffer: int) -> np.ndarray:
            if buffer not in known:
                known[buffer] = self.memory(buffer, stream)
            return known[buffer]

        step.run(memory)
        device = self.device
        for buffer in {t.slice.buffer for t in step.step.outputs}:
            array = memory(buffer)
            if not array.dtype.hasobject and array.nbytes:
                device.upload(int(self.starts[buffer]), array.__array_interface__["data"][0], array.nbytes, stream)
        device.synchronize(stream)  # the arrays need not stay

    def memory(self, buffer: int, stream: int | None = None) -> np.ndarray:
        """Returns a buffer's bytes, or strings, after all work on the stream."""
        b = self.plan.plain.buffers[buffer]
        if b.kind in ("input", "output") and self.port(b) in self.strings:
            return self.strings[self.port(b)].reshape(-1)
        if buffer in self.made:
            return self.made[buffer] if self.made[buffer].dtype.hasobject else self.made[buffer].view(np.uint8)
        nbytes = int(self.resolved.bytes[buffer])
        if b.kind in ("constant", "table"):
            return self.plan.constants[int(b.offset) : int(b.offset) + nbytes]
        array, stream = np.empty(nbytes, np.uint8), self.stream if stream is None else stream
        if nbytes:
            self.device.download(array.__array_interface__["data"][0], int(self.starts[buffer]), nbytes, stream)
        self.device.synchronize(stream)
        return array
