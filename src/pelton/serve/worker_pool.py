"""The threads of the gRPC server: few, as long as none waits for a run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

log = logging.getLogger("pelton.serve")


class WorkerPool:
    """Runs calls in threads, in the place of a ThreadPoolExecutor for grpc.server, without its futures: they cost 20 µs
    a call. `least` threads run calls; one that waits for a run in `waiting` is replaced meanwhile, up to `most`.
    """

    def __init__(self, least: int, most: int):
        self.most = most
        self._calls: SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._waiting = 0
        self.least = least
        for _ in range(least):
            self._start()

    def _start(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, name=f"pelton-grpc_{self._threads}", daemon=True).start()

    def submit(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Has a thread run a call. Its result is dropped."""
        self._calls.put((call, arguments))

    def backlog(self) -> int:
        """Returns the number of calls that no thread runs yet."""
        return self._calls.qsize()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Context manager for a thread of the pool that waits: another one runs calls meanwhile."""
        with self._lock:
            self._waiting += 1
            if self._threads - self._waiting < self.least and self._threads < self.most:
                self._start()
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1

    def _work(self) -> None:
        while (task := self._calls.get()) is not None:
            call, arguments = task
            try:
                call(*arguments)
            except Exception:
                log.exception("a gRPC call failed in the server")
            del task, call, arguments

    def shutdown(self, wait: bool = True) -> None:
        """Ends the threads once they have run all calls."""
        for _ in range(self._threads):
            self._calls.put(None)
