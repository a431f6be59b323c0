"""What the runtime asks of a GPU, and the plain data between: memory, functions, launches, graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from pelton.engine.cubin import Cubin
from pelton.engine.work import Work
from pelton.errors import EngineError

ALIGN = 256  # bytes, of every piece of device memory that we cut ourselves
# pointers behind the parameters of every kernel: global scratch, and the profiler's
TRAILING = 2
MAP = 128  # bytes of a map as kernels take it
# bytes of the parameters that Triton puts behind each map, and no kernel of ours reads: two sizes, two strides
BEHIND = (4, 4, 8, 8)


class KernelHangs(EngineError):
    """A launched kernel does not end. This process cannot use the GPU any more."""


@dataclass(eq=False)
class Memory:
    """A piece of memory, given back when nobody holds it any more. `bytes`: what the CPU sees of it, for pinned
    memory."""

    address: int
    nbytes: int
    bytes: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Function:
    """A kernel that has been loaded; `handle` is the device's own. `call`: of a library's, which puts itself on a
    stream, given the words of a launch; its cubin has no image. `together`: so many of its programs, where they may
    wait for each other, are on the GPU at once."""

    handle: Any
    cubin: Cubin
    call: Callable[[np.ndarray, int], None] | None = None
    together: int = 0


def library_function(planned: Any, symbol: str, arch: int) -> Function:
    """What a library does, ready to be done, as what steps launch."""
    return Function(planned, Cubin(symbol, arch, b"", 0, 1, scratch=planned.workspace, align=ALIGN), planned)


@dataclass(frozen=True, eq=False)
class Launch:
    """`programs` programs of a function on a grid of one dimension. `words`: its parameters, 64 bits each, the trailing
    pointers included; whoever changes them in place tells the graphs that have the launch (`change`). `phases`: of a
    phased function, the one it begins with and the one it ends before; with more than one, all programs have to be on
    the GPU at once. `maps`: room for the function's maps, which the device makes of the words whenever it is told of
    them.
    """

    function: Function
    programs: int
    words: np.ndarray
    phases: np.ndarray | None = None
    maps: np.ndarray | None = None

    @property
    def grid(self) -> int:
        """Blocks in all."""
        return self.programs * self.function.cubin.clusters

    @property
    def block(self) -> int:
        """Threads."""
        return 32 * self.function.cubin.warps

    @cached_property
    def table(self) -> np.ndarray:
        """Where each parameter lies, as the driver wants them: maps in place of their operands' addresses, phases
        before the trailing pointers."""
        places = [
            a.__array_interface__["data"][0] + np.arange(0, 8 * len(a), 8, dtype=np.uint64)
            for a in (self.words, self.phases)
            if a is not None
        ]
        table = np.concatenate([places[0][:-TRAILING], *places[1:], places[0][-TRAILING:]])
        if self.maps is None:
            return table
        found, of = table.tolist(), {m.operand: k for k, m in enumerate(self.function.cubin.maps)}
        room = self.maps.__array_interface__["data"][0]
        return np.array(
            [
                at
                for i, word in enumerate(found)
                for at in ((word,) if i not in of else (room + MAP * of[i],) * (1 + len(BEHIND)))
            ],
            np.uint64,
        )

    @property
    def cooperative(self) -> bool:
        """Whether its programs may wait for each other."""
        return self.phases is not None and bool(self.phases[1] - self.phases[0] > 1)


def launches(function: Function, programs: int, phases: int, words: np.ndarray) -> tuple[Launch, ...]:
    """What a kernel of so many phases is launched as, one after the other: once where all its programs are on the GPU
    at once, or it has no phases to tell it, else once for each phase."""
    if not function.cubin.phased:
        return (Launch(function, programs, words, maps=_room(len(function.cubin.maps))),)
    if programs <= function.together:
        return (Launch(function, programs, words, np.array([0, phases], np.int64)),)
    return tuple(Launch(function, programs, words, np.array([p, p + 1], np.int64)) for p in range(phases))


def _room(maps: int) -> np.ndarray | None:
    """Room for so many maps, from a multiple of 128 bytes on."""
    if not maps:
        return None
    room = np.zeros(MAP * (maps + 1), np.uint8)
    start = -room.__array_interface__["data"][0] % MAP
    return room[start : start + MAP * maps].reshape(maps, MAP)


def parameters(cubin: Cubin, words: int) -> tuple[tuple[int, int], ...]:
    """(place, bytes) of each parameter of a kernel whose launches have so many words: what `Launch.table` leads to."""
    sizes, at, found = list[int](), 0, list[tuple[int, int]]()
    for i in range(words + (2 if cubin.phased else 0)):
        sizes += (MAP, *BEHIND) if any(m.operand == i for m in cubin.maps) else (8,)
    for size in sizes:
        at += -at % min(size, 64)
        found.append((at, size))
        at += size
    return tuple(found)


class Device(Protocol):
    """A GPU. What it does, it does inside of `with device:`, on a stream, one thing after the other; nothing waits for
    the GPU but `finish`, `synchronize`, and giving memory back. Streams may also be another library's, as the number
    that the driver knows them by. Whatever fails is one EngineError."""

    ordinal: int
    name: str
    arch: int  # 90 for sm_90
    memory: int  # bytes
    multiprocessors: int
    l1: int  # bytes of each multiprocessor that blocks may share
    l2: int  # bytes
    cuda: str  # the newest CUDA that the driver knows, as 13.0

    @property
    def libraries(self) -> Mapping[str, int]:
        """The versions of the libraries here that compute steps, as 130100, by name."""

    def __enter__(self) -> Device: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def allocate(self, nbytes: int, what: str) -> Memory:
        """Memory of the GPU, from a multiple of 256 on; `what` wants it, for the message where there is none."""

    def pinned(self, nbytes: int, what: str) -> Memory:
        """Memory of the CPU that the GPU copies from and to by itself."""

    def free_memory(self) -> int: ...
    def owner(self, address: int) -> int | None:
        """The ordinal of the GPU whose memory that is; None for no GPU's."""

    def load(self, cubin: Cubin, parameters: int) -> Function:
        """A kernel that takes so many parameters of 64 bits, the trailing pointers included, besides its phases."""

    def by_library(self, work: Work, aligned: Sequence[int]) -> Function:
        """What a library does, whose operands begin at multiples of these. EngineError where it is not here, of another
        version, or cannot compute that."""

    def launch(self, launch: Launch, stream: Any) -> None: ...

    def stream(self) -> Any:
        """A new stream; its `handle` is the number that stands for it."""

    def event(self, timed: bool = False) -> Any: ...
    def record(self, event: Any, stream: int) -> None: ...
    def wait(self, stream: int, event: Any) -> None:
        """What comes later on the stream waits for the event, the caller does not."""

    def finish(self, event: Any, patience: float | None = None) -> None:
        """patience: seconds after which it raises KernelHangs; without it, waits for ever."""

    def synchronize(self, stream: int) -> None: ...
    def elapsed(self, begin: Any, end: Any) -> float:
        """Nanoseconds between two timed events that have happened."""

    def upload(self, to: int, source: int, nbytes: int, stream: int) -> None: ...
    def download(self, to: int, source: int, nbytes: int, stream: int) -> None: ...
    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None: ...

    def graph(self) -> Any: ...
    def add(self, graph: Any, launch: Launch, after: Sequence[Any]) -> Any:
        """A node that starts when those of `after` have ended."""

    def instantiate(self, graph: Any, stream: int) -> Any:
        """The graph, ready to be replayed."""

    def change(self, ready: Any, node: Any, launch: Launch) -> None:
        """The node's parameters are the launch's from now on, in replays that begin later."""

    def replay(self, ready: Any, stream: int) -> None: ...


def zeros(device: Device, nbytes: int, what: str, stream: int) -> Memory:
    """Memory that is zero for all streams."""
    memory, array = device.allocate(nbytes, what), np.zeros(nbytes, np.uint8)
    device.upload(memory.address, array.__array_interface__["data"][0], nbytes, stream)
    device.synchronize(stream)  # the array need not stay
    return memory
