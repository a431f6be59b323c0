"""Processes that compile side by side. They are commands of their own, so they never run the user's main module again,
as those of multiprocessing do."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import import_module
from queue import SimpleQueue
from threading import Event
from typing import Any

from pelton.errors import BuildError


@contextmanager
def pool(count: int, work: Callable[..., Any]) -> Iterator[Callable[..., Future]]:
    """Yields a function that passes arguments to the next free one of so many processes, each of which does `work`, a
    function of a module. They end with the block."""
    started: list[subprocess.Popen] = []
    free: SimpleQueue[subprocess.Popen] = SimpleQueue()
    paths = os.pathsep.join(p for p in sys.path if p)
    over = Event()
    command = [sys.executable, "-m", "pelton.codegen.triton.workers", work.__module__, work.__name__]

    def start() -> subprocess.Popen:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": paths}
        )
        started.append(process)
        return process

    def ask(*arguments: Any) -> Any:
        process = free.get()
        try:
            pickle.dump(arguments, process.stdin)
            process.stdin.flush()
            answer = pickle.load(process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            status = process.wait()
            if not over.is_set():
                process = start()  # for the remaining work
            raise BuildError(
                f"a process that compiles kernels ended (status {status}) while it had {arguments[0]}"
            ) from None
        finally:
            free.put(process)
        if isinstance(answer, BuildError):
            raise answer
        return answer

    threads = ThreadPoolExecutor(count)
    try:
        for _ in range(count):
            free.put(start())
        yield lambda *arguments: threads.submit(ask, *arguments)
    finally:
        over.set()
        for process in tuple(started):
            process.kill()
        threads.shutdown(cancel_futures=True)
        for process in started:
            with suppress(OSError), process:  # unread data cannot be written any more
                pass


def serve(work: Callable[..., Any]) -> None:
    """Answers all incoming arguments with the results of `work`, whose prints go to stderr."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = work(*arguments)
        except BuildError as e:
            answer = e
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    serve(getattr(import_module(sys.argv[1]), sys.argv[2]))
