"""Explores programs of a few threads on a weak memory: threads are generators that yield their accesses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import GeneratorType
from typing import Any, NamedTuple

from handmade import zig_cc

KINDS = "load store swap add and or until wait wake read write choose ended failed".split()
ORDERS = "relaxed acquire release acq_rel seq_cst".split()
VERDICTS = {-1: "wrong", -2: "race", -3: "stuck", -4: "too many states", -5: "too many messages", -6: "asleep"}
THREADS, PLACES, PLAINS, PATH = 4, 16, 16, 4096  # of memory_machine.c


class Access(NamedTuple):
    """What a thread does next; the generator receives its result. See memory_machine.c."""

    kind: str
    place: str = ""
    a: int = 0
    b: int = 0
    order: str = "relaxed"
    failure: str = "relaxed"
    site: str = ""


Thread = Generator[Access, int, None]


class CAccess(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in ("kind", "place", "order", "failure", "a", "b")]


ADVANCE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(CAccess))


@dataclass(frozen=True)
class Exploration:
    """The result: the number of states if all are sound, or the first violation and the accesses that lead to it."""

    states: int
    verdict: str
    path: tuple[str, ...]


@dataclass(frozen=True)
class LocalState:
    """A point in the life of a thread."""

    thread: int
    history: tuple[int, ...]
    access: Access


def _key(generator: Any) -> Hashable:
    """Where a generator stands: lines and variables, of those that it waits for, too."""
    frames = []
    while isinstance(generator, GeneratorType) and generator.gi_frame is not None:
        frame = generator.gi_frame
        frames.append((frame.f_code, frame.f_lasti, tuple(frame.f_locals.items())))
        generator = generator.gi_yieldfrom
    return tuple(frames)


def library() -> ctypes.CDLL:
    source = Path(__file__).with_name("memory_machine.c")
    loaded = ctypes.CDLL(str(zig_cc([str(source)], ["-std=gnu2x", "-O3", "-shared", "-fPIC", "-fvisibility=hidden"])))
    loaded.explore.restype = ctypes.c_int64
    return loaded


def explore(
    threads: Sequence[Callable[[], Thread]], places: dict[str, int], plains: Sequence[str], most: int = 10_000_000
) -> Exploration:
    """Runs every execution. `places`: atomic variables and their first values; on the first one, threads may sleep
    forever. `plains`: variables that are 0 at first."""
    assert len(threads) <= THREADS and len(places) <= PLACES and len(plains) <= PLAINS
    number = {name: i for i, name in enumerate(places)} | {name: i for i, name in enumerate(plains)}
    states: list[LocalState] = []
    known: dict[Hashable, int] = {}
    errors: list[BaseException] = []

    def enter(thread: int, history: tuple[int, ...]) -> int:
        generator = threads[thread]()
        try:
            access = next(generator)
            for result in history:
                access = generator.send(result)
            key: Hashable = (thread, _key(generator))
        except StopIteration:
            access, key = Access("ended"), (thread, "ended")
        except AssertionError as e:
            access, key = Access("failed", site=str(e)), (thread, str(e))
        if key not in known:
            known[key] = len(states)
            states.append(LocalState(thread, history, access))
        return known[key]

    def write(state: int, to: CAccess) -> None:
        access = states[state].access
        to.kind, to.place = KINDS.index(access.kind), number[access.place] if access.place else 0
        to.order, to.failure = ORDERS.index(access.order), ORDERS.index(access.failure)
        to.a, to.b = access.a, access.b

    def advance(state: int, result: int, to: Any) -> int:
        try:
            following = enter(states[state].thread, (*states[state].history, result))
            write(following, to.contents)
            return following
        except BaseException as e:  # ctypes would only print it
            errors.append(e)
            to.contents.kind = KINDS.index("failed")
            return state

    begins = [enter(i, ()) for i in range(len(threads))]
    accesses = (CAccess * len(threads))()
    for state, access in zip(begins, accesses):
        write(state, access)
    path, length = (ctypes.c_int32 * (2 * PATH))(), ctypes.c_int32()
    count = library().explore(
        len(threads),
        (ctypes.c_int32 * len(threads))(*begins),
        accesses,
        len(places),
        (ctypes.c_int32 * len(places))(*places.values()),
        len(plains),
        ADVANCE(advance),
        ctypes.c_int64(most),
        path,
        ctypes.byref(length),
    )
    if errors:
        raise errors[0]
    steps = [(path[2 * i], states[path[2 * i + 1]].access) for i in reversed(range(length.value))]
    return Exploration(
        max(count, 0),
        VERDICTS.get(count, ""),
        tuple(f"{thread}: {a.kind} {a.place} {a.a} {a.b} {a.order} {a.site}" for thread, a in steps),
    )
