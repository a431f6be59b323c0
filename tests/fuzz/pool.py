"""Child processes that run cases, and the parent that records how each case ended, crashes included."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import re
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from pelton.errors import Error

# of CPU time that a case may take unless more is given; of the clock's, on a busy machine, LATEST
SECONDS = 10.0
LATEST = 120.0
ROOM = 192 << 20  # bytes that a case of models this small may take, its engine and the reference included
MORE = {
    "int8": 4,
    "caffe": 8,
    "darknet": 8,
    "gguf": 4,
}  # times as many for kinds that build several engines, or draw weights
ADDRESSES = 6 << 30  # bytes of address space of a child; further allocations fail
CASES = 300  # cases after which a child makes room for a new one
DEATH_OF_PARENT = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>
TICKS = os.sysconf("SC_CLK_TCK")
EXHAUSTED = re.compile(
    r"MemoryError|[Uu]nable to allocate|bad_alloc|larger than the maximum|maximum supported dimension|array is too big"
)

Case = Callable[[int], str]  # a seed → in a word how it ended well; raises a pelton.Error where it was refused


@dataclass(frozen=True)
class Ending:
    """How a case ended.

    `how` is a word of the case's own, "refused", or what went wrong: "wrong", "raised", "crash", "hang", "memory".
    """

    kind: str
    seed: int
    how: str
    detail: str = ""
    seconds: float = 0.0

    @property
    def bad(self) -> bool:
        return self.how in ("wrong", "raised", "crash", "hang", "memory")

    @property
    def cause(self) -> str:
        """The last lines of the detail, without numbers: equal for findings that are likely one."""
        return self.how + ": " + re.sub(r"\d+|'[^']*'", "·", self.detail.strip().rsplit("\n", 1)[-1])[:160]


def carry_out(kind: str, case: Case, seed: int) -> Ending:
    """A case in this process."""
    start = time.process_time()
    how, detail = "", ""
    gc.collect(0)
    before = _resident(reset=True)
    try:
        how = case(seed)
    except Error as e:
        how, detail = "refused", f"{type(e).__name__}: {e}"
        if EXHAUSTED.search(detail):  # it tried: with more memory it would have gone on
            how = "memory"
    except AssertionError as e:
        how, detail = "wrong", "".join(traceback.format_exception(e)[-6:])
    except (Exception, RecursionError) as e:  # the one place where everything is caught: to be reported
        how, detail = "raised", "".join(traceback.format_exception(e)[-8:])
    taken = _resident() - before
    if taken > ROOM * MORE.get(kind, 1) and how not in ("wrong", "raised"):
        how, detail = "memory", f"{how} with {taken >> 20} MiB\n{detail}"
    return Ending(kind, seed, how, detail, time.process_time() - start)


def _resident(reset: bool = False) -> int:
    """Bytes of memory: what this process has now, which counts as its most from now on, or the most since then."""
    if reset:
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")
    with open("/proc/self/status") as f:
        return int(re.search(r"VmHWM:\s+(\d+) kB", f.read())[1]) << 10


def _serve(pipe: Connection, cases: dict[str, Case]) -> None:
    """The loop of a child: runs cases until the parent sends None."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(DEATH_OF_PARENT, signal.SIGKILL)  # whatever ends the parent
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while (asked := pipe.recv()) is not None:
        kind, seed = asked
        pipe.send(carry_out(kind, cases[kind], seed))


class _Child:
    """A process and the case that it is busy with."""

    def __init__(self, cases: dict[str, Case]):
        # seeds and imports are shared with the parent, so that a child costs nothing
        context = multiprocessing.get_context("fork")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, cases), daemon=True)
        self.process.start()
        other.close()
        self.case: tuple[str, int] | None = None
        self.done = 0

    def give(self, kind: str, seed: int) -> None:
        self.case, self.began, self.used = (kind, seed), time.monotonic(), self.cpu()
        self.pipe.send(self.case)

    def cpu(self) -> float:
        """Seconds of CPU time so far, of compilers that it started and waited for not counted."""
        with open(f"/proc/{self.process.pid}/stat") as f:
            fields = f.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def late(self, seconds: float) -> bool:
        return time.monotonic() - self.began > LATEST / SECONDS * seconds or self.cpu() - self.used > seconds

    def end(self) -> int | None:
        self.process.kill()
        self.process.join()
        self.pipe.close()
        return self.process.exitcode


def run(
    cases: dict[str, Case], asked: Iterable[tuple[str, int]], children: int = 2, seconds: float = SECONDS
) -> Iterator[Ending]:
    """Runs (kind, seed) pairs, several at a time, and yields endings as they come. seconds: CPU time for each."""
    todo, free, busy = iter(asked), [], {}
    try:
        while True:
            while len(busy) < children and (case := next(todo, None)) is not None:
                child = free.pop() if free else _Child(cases)
                child.give(*case)
                busy[child.pipe] = child
            if not busy:
                return
            for pipe in wait(list(busy), timeout=0.25):
                child = busy.pop(pipe)
                try:
                    yield pipe.recv()
                except EOFError:
                    child.process.join()
                    yield Ending(*child.case, "crash", f"the process ended with {_said(child.process.exitcode)}")
                    child.end()
                    continue
                child.done += 1
                if child.done < CASES:
                    free.append(child)
                else:
                    child.end()
            for pipe, child in list(busy.items()):
                if not pipe.poll() and child.process.is_alive() and child.late(seconds):
                    del busy[pipe]
                    child.end()
                    yield Ending(*child.case, "hang", f"not done after {seconds:.0f} s", seconds)
    finally:
        for child in (*free, *busy.values()):
            child.end()


def _said(code: int | None) -> str:
    return signal.Signals(-code).name if code is not None and code < 0 else f"status {code}"
