"""The interface of a GPU for the runtime, and its plain data: memory, functions, launches, graphs."""

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

ALIGN = 256  # bytes: alignment of pieces of device memory
# pointers after the parameters of every kernel: global scratch, and the profiler's
TRAILING = 2
MAP = 128  # bytes of a map as kernels receive it
# bytes of Triton's parameters after each map, which our kernels do not read: two sizes, two strides
BEHIND = (4, 4, 8, 8)


class KernelHangs(EngineError):
    """A launched kernel does not end. This process cannot use the GPU any more."""


@dataclass(eq=False)
class Memory:
    """A piece of memory, freed when unreferenced. `bytes`: the CPU's view of pinned memory."""

    address: int
    nbytes: int
    bytes: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Function:
    """A loaded kernel; `handle` is the device's own. `call`: of a library's function, which enqueues itself on a
    stream, given the words of a launch; its cubin has no image. `together`: the number of its programs that are on the
    GPU at once, if they may wait for each other."""

    handle: Any
    cubin: Cubin
    call: Callable[[np.ndarray, int], None] | None = None
    together: int = 0


def library_function(planned: Any, symbol: str, arch: int) -> Function:
    """Wraps a library's prepared computation as a function that steps launch."""
    return Function(planned, Cubin(symbol, arch, b"", 0, 1, scratch=planned.workspace, align=ALIGN), planned)


@dataclass(frozen=True, eq=False)
class Launch:
    """`programs` programs of a function on a one-dimensional grid. `words`: its parameters, 64 bits each, the trailing
    pointers included; after changes in place, call `change` for the graphs with the launch. `phases`: of a phased
    function, its first phase and the one past its last; with more than one, all programs must be on the GPU at once.
    `maps`: room for the function's maps, which the device computes from the words at each use or change."""

    function: Function
    programs: int
    words: np.ndarray
    phases: np.ndarray | None = None
    maps: np.ndarray | None = None

    @property
    def grid(self) -> int:
        """Total number of blocks."""
        return self.programs * self.function.cubin.clusters

    @property
    def block(self) -> int:
        """Number of threads."""
        return 32 * self.function.cubin.warps

    @cached_property
    def table(self) -> np.ndarray:
        """The place of each parameter for the driver: maps replace their operands' addresses, phases precede the
        trailing pointers."""
        places = [
            a.__array_interface__["data"][0] + np.arange(0, 8 * len(a), 8, dtype=np.uint64)
            for a in (self.words, self.phases)
            if a is not None
        ]
        table = np.concatenate([places[0][:-TRAILING], *places[1:], places[0][-TRAILING:]])
        if self.maps is None:
            return table
        words, of = table.tolist(), {m.operand: k for k, m in enumerate(self.function.cubin.maps)}
        room = self.maps.__array_interface__["data"][0]
        return np.array(
            [
                at
                for i, word in enumerate(words)
                for at in ((word,) if i not in of else (room + MAP * of[i],) * (1 + len(BEHIND)))
            ],
            np.uint64,
        )

    @property
    def cooperative(self) -> bool:
        """True if its programs may wait for each other."""
        return self.phases is not None and bool(self.phases[1] - self.phases[0] > 1)


def launches(function: Function, programs: int, phases: int, words: np.ndarray) -> tuple[Launch, ...]:
    """Returns the launches of a kernel of this many phases, in order: one if all its programs are on the GPU at once,
    or it takes no phases, else one for each phase."""
    if not function.cubin.phased:
        return (Launch(function, programs, words, maps=_room(len(function.cubin.maps))),)
    if programs <= function.together:
        return (Launch(function, programs, words, np.array([0, phases], np.int64)),)
    return tuple(Launch(function, programs, words, np.array([p, p + 1], np.int64)) for p in range(phases))


def _room(maps: int) -> np.ndarray | None:
    """Allocates room for maps, aligned to 128 bytes."""
    if not maps:
        return None
    room = np.zeros(MAP * (maps + 1), np.uint8)
    start = -room.__array_interface__["data"][0] % MAP
    return room[start : start + MAP * maps].reshape(maps, MAP)


def parameters(cubin: Cubin, words: int) -> tuple[tuple[int, int], ...]:
    """Returns (place, bytes) of each parameter of a kernel with this many words in a launch, as in `Launch.table`."""
    sizes, at, parameters = list[int](), 0, list[tuple[int, int]]()
    for i in range(words + (2 if cubin.phased else 0)):
        sizes += (MAP, *BEHIND) if any(m.operand == i for m in cubin.maps) else (8,)
    for size in sizes:
        at += -at % min(size, 64)
        parameters.append((at, size))
        at += size
    return tuple(parameters)


class Device(Protocol):
    """A GPU. Inside `with device:`, its work runs in order on a stream; only `finish`, `synchronize` and freeing memory
    wait for the GPU. Streams may also be another library's, by the driver's number. Every failure is one
    EngineError."""

    ordinal: int
    name: str
    arch: int  # 90 for sm_90
    memory: int  # bytes
    multiprocessors: int
    l1: int  # bytes of each multiprocessor that blocks may share
    l2: int  # bytes
    cuda: str  # the newest CUDA that the driver supports, as 13.0

    @property
    def libraries(self) -> Mapping[str, int]:
        """Versions of the libraries here that compute steps, as 130100, by name."""

    def __enter__(self) -> Device: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def allocate(self, nbytes: int, what: str) -> Memory:
        """Allocates memory of the GPU, aligned to 256 bytes; `what` names its purpose in the error message."""

    def pinned(self, nbytes: int, what: str) -> Memory:
        """Allocates memory of the CPU that the GPU copies from and to by itself."""

    def free_memory(self) -> int: ...
    def owner(self, address: int) -> int | None:
        """Returns the ordinal of the GPU that owns the address; None if no GPU does."""

    def load(self, cubin: Cubin, parameters: int) -> Function:
        """Loads a kernel with this many parameters of 64 bits, the trailing pointers included, besides its phases."""

    def by_library(self, work: Work, aligned: Sequence[int]) -> Function:
        """Prepares a library's computation, for operands of these alignments. Raises EngineError if the library is
        missing, of another version, or cannot compute it."""

    def launch(self, launch: Launch, stream: Any) -> None: ...

    def stream(self) -> Any:
        """Creates a stream; its `handle` is its number."""

    def event(self, timed: bool = False) -> Any: ...
    def record(self, event: Any, stream: int) -> None: ...
    def wait(self, stream: int, event: Any) -> None:
        """Makes later work on the stream wait for the event; the caller does not wait."""

    def finish(self, event: Any, patience: float | None = None) -> None:
        """Waits for the event; after `patience` seconds it raises KernelHangs; without it, waits forever."""

    def synchronize(self, stream: int) -> None: ...
    def elapsed(self, begin: Any, end: Any) -> float:
        """Returns the nanoseconds between two timed events that have happened."""

    def upload(self, to: int, source: int, nbytes: int, stream: int) -> None: ...
    def download(self, to: int, source: int, nbytes: int, stream: int) -> None: ...
    def copy(self, to: int, source: int, nbytes: int, stream: int) -> None: ...

    def graph(self) -> Any: ...
    def add(self, graph: Any, launch: Launch, after: Sequence[Any]) -> Any:
        """Adds a node that starts after those of `after` end."""

    def instantiate(self, graph: Any, stream: int) -> Any:
        """Makes the graph ready for replays."""

    def change(self, ready: Any, node: Any, launch: Launch) -> None:
        """Sets the node's parameters to the launch's, in replays that begin later."""

    def replay(self, ready: Any, stream: int) -> None: ...


def zeros(device: Device, nbytes: int, what: str, stream: int) -> Memory:
    """Allocates memory that is zero for all streams."""
    memory, array = device.allocate(nbytes, what), np.zeros(nbytes, np.uint8)
    device.upload(memory.address, array.__array_interface__["data"][0], nbytes, stream)
    device.synchronize(stream)  # the array need not stay
    return memory
