"""A GPU substitute: records its requests and keeps real memory behind its addresses, to inspect plans and copies."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pelton.engine.cubin import Cubin
from pelton.engine.work import Work
from pelton.errors import EngineError
from pelton.targets import typical

from .device import ALIGN, TRAILING, Function, Launch, Memory, KernelHangs, library_function
from .libraries import VendorLibrary

# a kernel's function, of its programs and its parameters without the trailing pointers
Kernel = Callable[[int, np.ndarray], None]


@dataclass
class DeviceEvent:
    """A request to a device: `what`, on which stream, with these facts."""

    what: str
    stream: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class NullObject:
    """A stream, event, graph or node; `handle` numbers those of a device."""

    handle: int
    kind: str
    launch: Launch | None = None
    after: tuple[NullObject, ...] = ()
    nodes: list[NullObject] = field(default_factory=list)
    words: np.ndarray | None = None  # a node's parameters, as of its last change
    time: float = 0.0  # when an event happened
    number: int = 0  # of its last recording


class NullDevice:
    """See `device.Device`. `kernels`: Python functions in place of kernels, by symbol; others do nothing. `lasts`:
    nanoseconds of a launch; may raise. `libraries`: some that compute in CPU memory, by name. `together`: its
    concurrent programs; default: one on each multiprocessor. `happenings` records all requests in order; `free`: bytes
    of memory left. It does everything at once: streams never wait."""

    def __init__(
        self,
        arch: int = 90,
        kernels: Mapping[str, Kernel] | None = None,
        memory: int = 1 << 30,
        ordinal: int = 0,
        lasts: Callable[[Launch], float] = lambda launch: 1.0,
        libraries: Mapping[str, VendorLibrary] | None = None,
        together: int | None = None,
        endless: Collection[str] = (),
    ):
        self.ordinal, self.name, self.arch, self.memory = ordinal, "no GPU", arch, memory
        self.multiprocessors, self.l1, self.l2, self.cuda = (
            typical(arch).multiprocessors,
            typical(arch).l1,
            typical(arch).l2,
            "13.0",
        )
        self.together = self.multiprocessors if together is None else together
        self.free, self.kernels, self.lasts, self.now = memory, dict(kernels or {}), lasts, 0.0
        self.opened = dict(libraries or {})
        self.libraries = {symbol: library.version for symbol, library in self.opened.items()}
        self.happenings: list[DeviceEvent] = []
        self.endless, self.stuck = frozenset(endless), False
        self.inside = 0  # `with device:` blocks in progress
        self._spans: dict[int, int] = {}  # address → bytes of its memory
        self._things = self._recorded = self._waited = 0

    def __enter__(self) -> NullDevice:
        self.inside += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.inside -= 1

    def happened(self, what: str) -> list[DeviceEvent]:
        """Returns all requests of one kind."""
        return [h for h in self.happenings if h.what == what]

    def _note(self, what: str, stream: int | None = None, **facts: Any) -> None:
        if not self.inside:
            raise EngineError(f"{what} outside of the device's context")
        self.happenings.append(DeviceEvent(what, stream, facts))

    def _thing(self, kind: str, launch: Launch | None = None, after: Sequence[NullObject] = ()) -> NullObject:
        self._things += 1
        return NullObject(
            0x1000 + self._things, kind, launch, tuple(after), words=None if launch is None else launch.words.copy()
        )

    # ---- memory ----

    def allocate(self, nbytes: int, what: str) -> Memory:
        self._note("allocate", nbytes=nbytes, why=what)
        if nbytes > self.free:
            raise EngineError(
                f"{what} needs {nbytes} bytes of GPU memory, and {self.free} of {self.memory} are free on {self.name}"
            )
        room = np.full(nbytes + ALIGN, 0xCC, np.uint8)  # makes unwritten memory visible
        start = room.__array_interface__["data"][0]
        memory = Memory(start + -start % ALIGN, nbytes)
        self.free -= nbytes
        self._spans[memory.address] = nbytes

        def release(room: np.ndarray = room, address: int = memory.address) -> None:
            self.free += nbytes
            del self._spans[address]

        weakref.finalize(memory, release).atexit = False
        return memory

    def pinned(self, nbytes: int, what: str) -> Memory:
        self._note("pinned", nbytes=nbytes, why=what)
        room = np.zeros(max(nbytes, 1), np.uint8)
        return Memory(room.__array_interface__["data"][0], nbytes, room[:nbytes])

    def free_memory(self) -> int:
        return self.free

    def owner(self, address: int) -> int | None:
        return self.ordinal if self._within(address, 0) else None

    def _within(self, address: int, nbytes: int) -> bool:
        return any(start <= address and address + nbytes <= start + size for start, size in self._spans.items())

    def _move(self, what: str, to: int, source: int, nbytes: int, stream: int, *ours: int) -> None:
        self._note(what, stream, to=to, source=source, nbytes=nbytes)
        for address in ours:
            if not self._within(address, nbytes):
                raise EngineError(f"{what} of {nbytes} bytes at {address:#x}, which is no memory of this device")
        ctypes.memmove(to, source, nbytes)

    def upload(self, to: int, source: int, nbytes: int, stream: int) -> None:
        self._move("upload", to, source, nbytes, stream, to)

    def download(self, to: int, source: int, nbytes: int, stream: int) -> None:
        self._move("download", to, source, nbytes, stream, source)

    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None:
        self._move("copy", to, source, nbytes, stream, to, source)

    # ---- kernels ----

    def load(self, cubin: Cubin, parameters: int) -> Function:
        self._note("load", cubin=cubin, parameters=parameters)
        return Function(self._thing("function"), cubin, together=self.together if cubin.phased == 2 else 0)

    def by_library(self, work: Work, aligned: Sequence[int]) -> Function:
        self._note("by_library", work=work, aligned=tuple(aligned))
        if work.symbol not in self.opened:
            raise EngineError(f"{work.symbol} is not installed")
        return library_function(self.opened[work.symbol].plan(work, aligned), work.symbol, self.arch)

    def launch(self, launch: Launch, stream: int) -> None:
        self._run(launch, launch.words, stream)

    def _run(self, launch: Launch, words: np.ndarray, stream: int) -> None:
        cubin = launch.function.cubin
        phases = [] if launch.phases is None else launch.phases.tolist()
        self._note(
            "launch",
            stream,
            symbol=cubin.symbol,
            grid=launch.grid,
            block=launch.block,
            shared=cubin.shared,
            words=words.tolist(),
            phases=phases,
        )
        self.now += self.lasts(launch)
        self.stuck = self.stuck or cubin.symbol in self.endless
        if launch.function.call is not None:
            launch.function.call(words, stream)
        elif cubin.symbol in self.kernels:
            self.kernels[cubin.symbol](launch.programs, np.append(words[:-TRAILING], np.array(phases, np.int64)))

    # ---- streams and graphs ----

    def stream(self) -> NullObject:
        return self._thing("stream")

    def event(self, timed: bool = False) -> NullObject:
        return self._thing("event")

    def record(self, event: NullObject, stream: int) -> None:
        self._note("record", stream, event=event.handle)
        self._recorded += 1
        event.time, event.number = self.now, self._recorded

    def wait(self, stream: int, event: NullObject) -> None:
        self._note("wait", stream, event=event.handle)

    def finish(self, event: NullObject, patience: float | None = None) -> None:
        self._note("finish", event=event.handle)
        self._refuse_stuck(patience is not None)
        self._waited = max(self._waited, event.number)

    def synchronize(self, stream: int) -> None:
        self._note("synchronize", stream)
        self._refuse_stuck(False)
        self._waited = self._recorded

    def _refuse_stuck(self, patient: bool) -> None:
        if self.stuck:
            raise (
                KernelHangs("a kernel does not end on no GPU") if patient else AssertionError("somebody waits forever")
            )

    def elapsed(self, begin: NullObject, end: NullObject) -> float:
        if not 0 < max(begin.number, end.number) <= self._waited:
            raise EngineError("these events were never waited for")
        return end.time - begin.time

    def graph(self) -> NullObject:
        self._note("graph")
        return self._thing("graph")

    def add(self, graph: NullObject, launch: Launch, after: Sequence[NullObject]) -> NullObject:
        if not all(node in graph.nodes for node in after):
            raise EngineError("a node waits for one of another graph")
        node = self._thing("node", launch, after)
        graph.nodes.append(node)
        self._note("node", node=node.handle, symbol=launch.function.cubin.symbol, after=[n.handle for n in after])
        return node

    def instantiate(self, graph: NullObject, stream: int) -> NullObject:
        self._note("instantiate", stream, nodes=len(graph.nodes))
        return graph

    def change(self, ready: NullObject, node: NullObject, launch: Launch) -> None:
        self._note("change", node=node.handle, symbol=launch.function.cubin.symbol)
        node.words = launch.words.copy()

    def replay(self, ready: NullObject, stream: int) -> None:
        self._note("replay", stream, nodes=len(ready.nodes))
        for node in ready.nodes:
            if node.launch is not None and node.words is not None:
                self._run(node.launch, node.words, stream)


def seen(address: int, dtype: Any, *shape: int) -> np.ndarray:
    """Returns the memory behind an address of a null device, for functions in place of kernels, and for tests."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.ndarray(shape, dtype, (ctypes.c_uint8 * size).from_address(address))
