"""Asynchronous run queue: several contexts of an engine run the inputs of one queue."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from pelton.backends.arrays import borrow
from pelton.backends.cpu import default_threads
from pelton.errors import InputError
from pelton.system.forks import survives_fork
from pelton.targets import is_gpu

from .context import Context
from .in_process import InProcess

ON_GPU = 2  # jobs: one copies while the other computes
MOST = 256


class Runner(Protocol):
    """The interface of an engine that a queue needs."""

    @property
    def plain(self) -> Any: ...
    def context(self, threads: int | None = None) -> Context: ...
    def run_in(self, context: Context, inputs: Mapping[str, Any]) -> dict[str, Any]: ...


class AsyncRun(InProcess, Future[dict[str, Any]]):
    """A started run: a `concurrent.futures.Future` of the outputs by name, which asyncio can await, too (`await
    run`)."""

    def __await__(self) -> Generator[Any, None, dict[str, Any]]:
        return asyncio.wrap_future(self).__await__()


# called with a finished run and its user data
Callback = Callable[[AsyncRun, Any], object]


class AsyncQueue(InProcess):
    """Runs an engine on several inputs at once, each in a context of its own; waiting runs begin in the order of their
    start. For users of OpenVINO's AsyncInferQueue and for servers.

        with pelton.AsyncQueue(engine, jobs=2) as queue:
            queue.set_callback(lambda run, name: print(name, run.result()["y"].argmax()))
            for name, x in pictures:
                queue.start_async({"x": x}, name)
            queue.wait_all()

        y = (await queue.run_async({"x": x}))["y"]    # in a coroutine

    jobs: 1 to 256 runs at once, each on its own thread. Default: the best number measured for this many CPUs by a build
    with hint="throughput", else one for each CPU that the process may use, 2 on a GPU.
    threads: 1 to 256 per run, on CPUs. Default: the number measured with the jobs, else the CPUs divided among the
    jobs, at least one; for one job, as `Engine.context`.
    Closing waits for all runs, as the end of `with` does. A forked child may go on using a queue, whose earlier runs
    stay with its parent.

    Raises InputError for other numbers, EngineError if the engine does not run on this machine or there is not enough
    memory for so many contexts.
    """

    def __init__(self, engine: Runner, jobs: int | None = None, threads: int | None = None):
        on_gpu, cpus = is_gpu(engine.plain.target), default_threads()
        streams = engine.plain.meta.get("streams")
        if jobs is None and streams and streams["streams"] * streams["threads"] == cpus:
            jobs, threads = streams["streams"], streams["threads"] if threads is None else threads
        if jobs is None:
            jobs = ON_GPU if on_gpu else min(cpus, MOST)
        if isinstance(jobs, bool) or not isinstance(jobs, int) or not 1 <= jobs <= MOST:
            raise InputError(f"jobs is an integer from 1 to {MOST}, got {jobs!r}")
        if threads is None and jobs > 1 and not on_gpu:
            threads = max(1, cpus // jobs)
        self.engine, self.jobs = engine, jobs
        self._contexts = [engine.context(threads) for _ in range(jobs)]
        self._callback: Callback | None = None
        self._closed = False
        self._unlock()
        survives_fork(self)

    def _unlock(self) -> None:
        self._free: SimpleQueue[Context] = SimpleQueue()
        for context in self._contexts:
            self._free.put(context)
        self._pending = 0
        self._failed: BaseException | None = None
        self._changed = threading.Condition()
        self._pool = ThreadPoolExecutor(self.jobs, "pelton-queue")
        self._working = threading.local()  # `callback`: True while this thread is in one

    def __repr__(self) -> str:
        return f"<pelton.AsyncQueue of {self.engine!r}, {self.jobs} jobs>"

    def __len__(self) -> int:
        """Returns the number of jobs."""
        return self.jobs

    def set_callback(self, callback: Callback | None) -> None:
        """Sets `callback(run, userdata)`, which the thread of each later run calls when the run succeeded, failed or
        was cancelled; `run.result()` returns its outputs, or raises. `wait_all` raises the callback's exceptions. The
        callback may start runs by `run_async`; methods that wait for a job raise InputError in it."""
        if callback is not None and not callable(callback):
            raise InputError(f"a callback is a function of a run and its userdata, got {callback!r}")
        self._callback = callback

    def is_ready(self) -> bool:
        """Returns True if a job is free: `start_async` would not wait."""
        with self._changed:
            return self._pending < self.jobs

    def start_async(self, inputs: Mapping[str, Any], userdata: Any = None, *, share_inputs: bool = False) -> AsyncRun:
        """Waits until a job is free, and starts a run there.

        inputs: as for `Engine.run`; arrays in CPU memory are copied, those on a GPU must not change until the run is
            over.
        userdata: for the callback.
        share_inputs: copy none.

        Raises InputError if the queue is closed; the run and `wait_all` raise errors of the inputs.
        """
        self._refuse_waiting("start_async", "run_async does not")
        with self._changed:
            self._changed.wait_for(lambda: self._pending < self.jobs)
            return self._submit(inputs, userdata, share_inputs)

    def run_async(self, inputs: Mapping[str, Any], userdata: Any = None, *, share_inputs: bool = False) -> AsyncRun:
        """Starts a run without waiting for a job, for coroutines: the run begins when a job is free."""
        with self._changed:
            return self._submit(inputs, userdata, share_inputs)

    def _refuse_waiting(self, method: str, instead: str) -> None:
        """Raises InputError in a callback, whose own end it would wait for."""
        if getattr(self._working, "callback", False):
            raise InputError(f"a callback is part of a job of its queue, for which {method} would wait; {instead}")

    def _submit(self, inputs: Mapping[str, Any], userdata: Any, share_inputs: bool) -> AsyncRun:
        if self._closed:
            raise InputError("this queue is closed; make another one")
        if not share_inputs and isinstance(inputs, Mapping):
            inputs = {name: _copied(value) for name, value in inputs.items()}
        run = AsyncRun()
        self._pool.submit(self._work, run, inputs, userdata, self._callback)
        self._pending += 1
        return run

    def _work(self, run: AsyncRun, inputs: Mapping[str, Any], userdata: Any, callback: Callback | None) -> None:
        failed: BaseException | None = None
        try:
            if run.set_running_or_notify_cancel():
                context = self._free.get()
                try:
                    results = self.engine.run_in(context, inputs)
                except BaseException as e:  # no caller may wait forever
                    failed = e
                finally:
                    self._free.put(context)
                if failed is None:
                    run.set_result(results)
                else:
                    run.set_exception(failed)
            if callback is not None:
                self._working.callback = True
                callback(run, userdata)
        except Exception as e:
            failed = failed or e
        finally:
            self._working.callback = False
            with self._changed:
                self._pending, self._failed = self._pending - 1, self._failed or failed
                self._changed.notify_all()

    def wait_all(self) -> None:
        """Waits until all started runs are over. Raises the first exception of a run or callback since the last
        call."""
        self._refuse_waiting("wait_all", "call it where runs are started")
        with self._changed:
            self._changed.wait_for(lambda: not self._pending)
            failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def close(self) -> None:
        """Waits until all runs are over, and ends the threads. No run can start any more."""
        self._refuse_waiting("close", "call it where runs are started")
        with self._changed:
            self._closed = True
        self._pool.shutdown()

    def __enter__(self) -> AsyncQueue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if error is None:
            self.wait_all()


def _copied(value: Any) -> Any:
    """Copies an array in CPU memory, or a list of them; returns all else unchanged."""
    if isinstance(value, list):
        return [_copied(v) for v in value]
    try:
        array = value if isinstance(value, np.ndarray) else borrow(value, "an input")
    except InputError:  # the run raises it again
        return value
    return value if array is None else array.copy()
