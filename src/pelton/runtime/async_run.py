"""A run of an asynchronous queue, as its caller sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Hashable
from concurrent.futures import Future
from typing import Any

from .in_process import InProcess


class AsyncRun(InProcess, Future[dict[str, Any]]):
    """A started run: a `concurrent.futures.Future` of the outputs by name, which asyncio can await, too (`await
    run`).

    rows: its size along the batch axis, 1 without batching. Once it is over, batch_rows: the rows of the execution that
    it was part of; queued_ns, started_ns, ended_ns: `time.monotonic_ns` at its start, and at the begin and end of the
    execution.
    """

    rows = batch_rows = 1
    queued_ns = started_ns = ended_ns = 0

    def __init__(self, queue: Any, inputs: Any, userdata: Any, callback: Callback | None):
        super().__init__()
        self.queue = queue  # its AsyncQueue, until it is over
        self.inputs, self.userdata, self.callback = inputs, userdata, callback
        self.priority = 0
        self.timeout: float | None = None
        self.key: Hashable = None
        self.taken = False

    def __await__(self) -> Generator[Any, None, dict[str, Any]]:
        return asyncio.wrap_future(self).__await__()

    def cancel(self) -> bool:
        """Cancels a run that has not begun, and frees its place in the queue. Returns False for any other."""
        queue = self.queue
        cancelled = super().cancel()
        if cancelled and queue is not None:
            queue._schedule.cancel(self)
        return cancelled


# called with a finished run and its user data
Callback = Callable[[AsyncRun, Any], object]
