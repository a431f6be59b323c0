"""Asynchronous run queue: several contexts of an engine run the inputs of one queue."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, cast

import numpy as np

from pelton.backends.arrays import borrow
from pelton.backends.cpu import default_threads
from pelton.errors import InputError
from pelton.system.forks import survives_fork
from pelton.targets import is_gpu

from .async_run import AsyncRun, Callback
from .batching import Batching, Joint, Schedule, check_seconds, likeness, limited, measured
from .context import Context
from .in_process import InProcess

ON_GPU = 2  # jobs: one copies while the other computes
MOST = 256
MOST_SHAPES = 256  # that a context keeps ready for batches


class Runner(Protocol):
    """The interface of an engine that a queue needs; batching also reads its ports, dimensions and states."""

    @property
    def plain(self) -> Any: ...
    def context(self, threads: int | None = None) -> Context: ...
    def run_in(self, context: Context, inputs: Mapping[str, Any]) -> dict[str, Any]: ...


class AsyncQueue(InProcess):
    """Runs an engine on several inputs at once, each in a context of its own; waiting runs begin in the order of their
    start. For users of OpenVINO's AsyncInferQueue and for servers.

        with pelton.AsyncQueue(engine, jobs=2) as queue:
            queue.set_callback(lambda run, name: print(name, run.result()["y"].argmax()))
            for name, x in pictures:
                queue.start_async({"x": x}, name)
            queue.wait_all()

        y = (await queue.run_async({"x": x}))["y"]    # in a coroutine

    engine: an engine, or several with equal ports, such as one for each GPU; `jobs` is then a number for each, and one
        that is named twice has twice as many.
    jobs: 1 to 256 runs at once, each on its own thread. Default: the best number measured for this many CPUs by a build
    with hint="throughput", else one for each CPU that the process may use, 2 on a GPU.
    threads: 1 to 256 per run, on CPUs. Default: the number measured with the jobs, else the CPUs divided among the
    jobs, at least one; for one job, as `Engine.context`.
    batching: joins waiting runs to batches, see `Batching`; outputs are then views of those of a batch.
    bound: most waiting runs, or rows of these with batching; default: any number.
    slo: seconds from the start of a run to its result; default: that of `batching`. The queue times a few runs first.
    Runs that cannot be over in time are rejected when they are started, or fail with DeadlineError.
    Closing waits for all runs, as the end of `with` does. A forked child may go on using a queue, whose earlier runs
    stay with its parent.

    Raises InputError for other numbers, for engines of different ports, and for batching of an engine whose runs cannot
    be joined, EngineError if the engine does not run on this machine or there is not enough memory for so many
    contexts.
    """

    def __init__(
        self,
        engine: Runner | Sequence[Runner],
        jobs: int | None = None,
        threads: int | None = None,
        *,
        batching: Batching | None = None,
        bound: int | None = None,
        slo: float | None = None,
    ):
        engines = _alike(engine)
        first = self.engine = engines[0]
        on_gpu, cpus = is_gpu(first.plain.target), max(1, default_threads() // len(engines))
        streams = first.plain.meta.get("streams")
        if jobs is None and streams and streams["streams"] * streams["threads"] == cpus:
            jobs, threads = streams["streams"], streams["threads"] if threads is None else threads
        if jobs is None:
            jobs = ON_GPU if on_gpu else min(cpus, MOST)
        if isinstance(jobs, bool) or not isinstance(jobs, int) or not 1 <= jobs <= MOST // len(engines):
            raise InputError(f"jobs is an integer from 1 to {MOST // len(engines)}, got {jobs!r}")
        if threads is None and jobs * len(engines) > 1 and not on_gpu:
            threads = max(1, cpus // jobs)
        if bound is not None and (isinstance(bound, bool) or not isinstance(bound, int) or bound < 1):
            raise InputError(f"bound is an integer of at least 1, got {bound!r}")
        if slo is not None:
            check_seconds(slo, "slo")
        self.engines = [one for one in engines for _ in range(jobs)]  # of each job
        self.jobs, self.bound = len(self.engines), bound
        self.batching = limited(first, batching)
        self.slo = slo if slo is not None or batching is None else batching.slo
        self._contexts = [one.context(threads) for one in self.engines]
        if self.batching is not None:
            for context in self._contexts:  # every number of rows is a shape
                context.remembered = max(context.remembered, min(self.batching.max_batch, MOST_SHAPES))
        self._types = {} if self.batching is None else {p.name: p.numpy_dtype for p in cast(Any, first).inputs}
        self._expected = {} if self.slo is None else measured(first, self._contexts[0], self.batching)
        self._callback: Callback | None = None
        self._closed = False
        self._unlock()
        survives_fork(self)

    def _unlock(self) -> None:
        self._schedule = Schedule(self.jobs, self.batching, self.bound, self.slo)
        if self.slo is not None:
            self._schedule.expect(self._expected)
        weakref.finalize(self, self._schedule.close).atexit = False
        self._pending = 0
        self._failed: BaseException | None = None
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._working = threading.local()  # `callback`: True while this thread is in one
        _queues.add(self)

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

    def run_async(
        self,
        inputs: Mapping[str, Any],
        userdata: Any = None,
        *,
        share_inputs: bool = False,
        priority: int = 0,
        timeout: float | None = None,
    ) -> AsyncRun:
        """Starts a run without waiting for a job, for coroutines and servers: the run begins when a job is free.

        priority: runs of a lower number begin first, those of one number in the order of their start.
        timeout: seconds within which the run must begin; it fails with DeadlineError otherwise.
        Other parameters as for `start_async`. Raises QueueFullError if the queue has no place for the run, or the run
        would be late behind those that wait; InputError if the queue is closed.
        """
        if type(priority) is not int:
            raise InputError(f"priority is an integer, got {priority!r}")
        if timeout is not None:
            check_seconds(timeout, "timeout", minimum=0.0)
        return self._submit(inputs, userdata, share_inputs, priority, timeout)

    def _refuse_waiting(self, method: str, instead: str) -> None:
        """Raises InputError in a callback, whose own end it would wait for."""
        if getattr(self._working, "callback", False):
            raise InputError(f"a callback is part of a job of its queue, for which {method} would wait; {instead}")

    def _submit(
        self,
        inputs: Mapping[str, Any],
        userdata: Any,
        share_inputs: bool,
        priority: int = 0,
        timeout: float | None = None,
    ) -> AsyncRun:
        if not share_inputs and isinstance(inputs, Mapping):
            inputs = {name: _copied(value) for name, value in inputs.items()}
        run = AsyncRun(self, inputs, userdata, self._callback)
        run.priority, run.timeout = priority, timeout
        if self.batching is not None:
            run.key, run.rows = likeness(inputs, self._types, self.batching.max_batch)
        run.queued_ns = time.monotonic_ns()
        with self._changed:
            self._pending += 1
            closed = self._closed
        try:
            if closed:
                raise InputError("this queue is closed; make another one")
            if not self._threads:
                self._start_threads()
            with self._schedule.changed:
                self._schedule.add(run)
        except BaseException:
            self._over(None)
            raise
        return run

    def _start_threads(self) -> None:
        with self._changed:
            if self._threads:  # another thread was first
                return
            own, schedule = weakref.ref(self), self._schedule
            for job in range(self.jobs):
                joint = None if self.batching is None else Joint(self.engine, self.batching.max_batch)
                arguments = own, schedule, job, joint
                self._threads.append(
                    threading.Thread(target=_work, args=arguments, name=f"pelton-queue_{job}", daemon=True)
                )
            for thread in self._threads:
                thread.start()

    def _execute(self, batch: list[AsyncRun], job: int, joint: Joint | None) -> None:
        """Executes runs that were taken together."""
        engine, context = self.engines[job], self._contexts[job]
        rows = sum(run.rows for run in batch)
        results: list[dict[str, Any]] | None = None
        failed: BaseException | None = None
        started = time.monotonic_ns()
        try:
            if len(batch) == 1 or joint is None:
                results = [engine.run_in(context, batch[0].inputs)]
            else:
                results = joint.split(batch, engine.run_in(context, joint.join(batch)))
        except BaseException as e:  # no caller may wait forever
            failed = e
        ended = time.monotonic_ns()
        if failed is not None and len(batch) > 1:  # the data of one run must not fail its neighbours
            for run in batch:
                self._execute([run], job, joint)
            return
        self._schedule.executed(rows, (ended - started) / 1e9)
        for at, run in enumerate(batch):
            run.started_ns, run.ended_ns, run.batch_rows = started, ended, rows
            self._settle(run, None if results is None else results[at], failed)

    def _settle(self, run: AsyncRun, results: dict[str, Any] | None, failed: BaseException | None) -> None:
        """Gives a run its outputs or its exception."""
        run.queue = run.inputs = None
        if failed is None:
            assert results is not None
            run.set_result(results)
        else:
            run.set_exception(failed)
        self._finish(run, failed)

    def _finish_over(self) -> None:
        """Fails the runs that waited for too long, and finishes the cancelled ones."""
        with self._schedule.changed:
            over, self._schedule.over = self._schedule.over, []
        for run, error in over:
            if error is None:
                run.queue = run.inputs = None
                self._finish(run)
            elif run.set_running_or_notify_cancel():
                self._settle(run, None, error)

    def _finish(self, run: AsyncRun, failed: BaseException | None = None) -> None:
        """Calls the callback of a run that is over, and counts it."""
        try:
            if run.callback is not None:
                self._working.callback = True
                run.callback(run, run.userdata)
        except Exception as e:
            failed = failed or e
        finally:
            self._working.callback = False
            self._over(failed)

    def _over(self, failed: BaseException | None) -> None:
        with self._changed:
            self._pending, self._failed = self._pending - 1, self._failed or failed
            self._changed.notify_all()

    @property
    def waiting(self) -> int:
        """The number of waiting runs; of their rows with batching."""
        return self._schedule.rows

    @property
    def batch_limit(self) -> int:
        """The most rows of a batch at present; 1 without batching."""
        return max(1, int(self._schedule.limit))

    def stats(self) -> dict[str, Any]:
        """Returns counts since the start: "runs", "executions", "rows", "refused", "expired", "cancelled", and
        "histogram": rows of an execution → executions."""
        with self._schedule.changed:
            return {**self._schedule.counts, "histogram": dict(self._schedule.histogram)}

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
        self._schedule.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def __enter__(self) -> AsyncQueue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if error is None:
            self.wait_all()


# what is still to be done when the program ends is done, as by concurrent.futures
_queues: weakref.WeakSet[AsyncQueue] = weakref.WeakSet()


@atexit.register
def _finish_all() -> None:
    for queue in list(_queues):
        queue.close()


def _work(own: weakref.ref[AsyncQueue], schedule: Schedule, job: int, joint: Joint | None) -> None:
    """Executes runs until the queue is closed, or nothing refers to it any more: a waiting run does."""
    while (batch := schedule.take()) is not None:
        queue = batch[0].queue if batch else own()
        if queue is not None:
            queue._finish_over()
            batch = [run for run in batch if run.set_running_or_notify_cancel()]
            if batch:
                queue._execute(batch, job, joint)
        del queue, batch


def _alike(engine: Runner | Sequence[Runner]) -> list[Runner]:
    """Returns the engines of a queue. Raises InputError if their ports differ, or there are too many."""
    engines = list(engine) if isinstance(engine, Sequence) else [engine]
    if not 1 <= len(engines) <= MOST:
        raise InputError(f"a queue is of 1 to {MOST} engines, got {len(engines)}")
    plain = engines[0].plain
    for other in (one.plain for one in engines[1:]):
        if (other.inputs, other.outputs, other.symbols) != (plain.inputs, plain.outputs, plain.symbols):
            raise InputError(f"the engines of a queue have equal ports, but those of {other.label!r} differ")
    return engines


def _copied(value: Any) -> Any:
    """Copies an array in CPU memory, or a list of them; returns all else unchanged."""
    if isinstance(value, list):
        return [_copied(v) for v in value]
    try:
        array = value if isinstance(value, np.ndarray) else borrow(value, "an input")
    except InputError:  # the run raises it again
        return value
    return value if array is None else array.copy()
