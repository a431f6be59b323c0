"""Asynchronous run queue: `AsyncQueue` and `Engine.run_async`."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import CancelledError

import numpy as np
import pytest
from handmade import chain, expected

import pelton
from pelton.errors import InputError
from pelton.runtime.queue import AsyncQueue

N = 1000


@pytest.fixture(scope="module")
def engine() -> pelton.Engine:
    return pelton.Engine(chain(N))


def drawn(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng()
    return [rng.integers(-99, 99, N).astype(np.float32) for _ in range(count)]


def right(results, x: np.ndarray) -> bool:
    return results.keys() == {"y", "z"} and all(np.array_equal(results[name], w) for name, w in expected(x).items())


@pytest.mark.parametrize("jobs", [1, 3, None])
def test_each_run_gets_its_own_outputs(engine, jobs):
    seen: dict[int, bool] = {}
    arrays = drawn(50)
    with AsyncQueue(engine, jobs, threads=1) as queue:
        assert len(queue) == queue.jobs >= 1 and queue.is_ready()
        queue.set_callback(lambda run, i: seen.update({i: right(run.result(), arrays[i])}))
        runs = [queue.start_async({"x": x}, i) for i, x in enumerate(arrays)]
        queue.wait_all()
        assert queue.is_ready() and all(run.done() for run in runs)
    assert sorted(seen) == list(range(50)) and all(seen.values())


@pytest.mark.parametrize("form", ["array", "view", "another library's"])
def test_inputs_may_change_once_a_run_is_started(engine, form):
    """As in loops that fill one buffer again and again. Shared ones are read when the run begins."""
    seen: dict[int, bool] = {}
    arrays, whole = drawn(50), np.empty((N, 2), np.float32)
    buffer = whole[:, 0] if form == "view" else whole.reshape(-1)[:N]
    given = torch_like(buffer) if form == "another library's" else buffer
    with AsyncQueue(engine, 2, threads=1) as queue:
        queue.set_callback(lambda run, i: seen.update({i: right(run.result(), arrays[i])}))
        for i, x in enumerate(arrays):
            buffer[:] = x
            queue.start_async({"x": given}, i)
            buffer[:] = 0
    assert sorted(seen) == list(range(50)) and all(seen.values())
    buffer[:] = arrays[0]
    run = engine.run_async({"x": given})
    buffer[:] = 0
    assert right(run.result(), arrays[0])
    with AsyncQueue(engine, 1) as queue:
        held = threading.Event()
        queue.set_callback(lambda run, data: held.wait(60))
        queue.run_async({"x": given})
        late = queue.run_async({"x": given}, share_inputs=True)
        buffer[:] = arrays[1]
        held.set()
        assert right(late.result(), arrays[1])


def torch_like(array: np.ndarray) -> object:
    """An array that numpy knows by DLPack alone."""

    class Exported:
        __dlpack__, __dlpack_device__ = array.__dlpack__, array.__dlpack_device__

    return Exported()


def test_no_more_runs_begin_than_there_are_jobs(engine):
    held, most, running, lock = threading.Event(), 0, 0, threading.Lock()

    def hold(run, _) -> None:
        nonlocal most, running
        with lock:
            running += 1
            most = max(most, running)
        held.wait(60)
        with lock:
            running -= 1

    (x,) = drawn(1)
    with AsyncQueue(engine, 2, threads=1) as queue:
        queue.set_callback(hold)
        for _ in range(2):
            queue.start_async({"x": x})
        assert not queue.is_ready()
        later = queue.run_async({"x": x})  # does not wait
        waits = threading.Thread(target=queue.start_async, args=({"x": x},))
        waits.start()
        waits.join(0.2)
        assert waits.is_alive() and not later.done()
        held.set()
        waits.join(60)
        assert not waits.is_alive()
    assert most == 2 and right(later.result(), x)


def test_runs_come_in_the_order_in_which_they_were_started(engine):
    order: list[int] = []
    with AsyncQueue(engine, 1) as queue:
        queue.set_callback(lambda run, i: order.append(i))
        for i, x in enumerate(drawn(20)):
            queue.run_async({"x": x}, i)
    assert order == list(range(20))


def test_what_fails_is_said_by_the_run_and_once_by_wait_all(engine):
    (x,) = drawn(1)
    queue = AsyncQueue(engine, 2, threads=1)
    bad, good = queue.start_async({"x": x[:5]}), queue.start_async({"x": x})
    with pytest.raises(InputError, match="input 'x'"):
        queue.wait_all()
    queue.wait_all()
    with pytest.raises(InputError, match="input 'x'"):
        bad.result()
    assert right(good.result(), x)
    queue.set_callback(lambda run, _: {}["absent"])
    queue.start_async({"x": x})
    with pytest.raises(KeyError, match="absent"):
        queue.wait_all()
    queue.close()
    queue.close()
    for start in (queue.start_async, queue.run_async):
        with pytest.raises(InputError, match="closed"):
            start({"x": x})


def test_runs_that_wait_can_be_cancelled(engine):
    held, seen = threading.Event(), []
    (x,) = drawn(1)
    with AsyncQueue(engine, 1) as queue:
        queue.set_callback(lambda run, name: (held.wait(60), seen.append((name, run.cancelled()))))
        queue.start_async({"x": x}, "first")
        time.sleep(0.05)
        second = queue.run_async({"x": x}, "second")
        assert second.cancel()
        held.set()
    assert seen == [("first", False), ("second", True)]
    with pytest.raises(CancelledError):
        second.result()


def test_coroutines_wait_for_runs(engine):
    arrays = drawn(8)

    async def all_of_them(start):
        return await asyncio.gather(*(start({"x": x}) for x in arrays))

    with AsyncQueue(engine, 2, threads=1) as queue:
        for start in (queue.run_async, engine.run_async):
            assert all(right(results, x) for results, x in zip(asyncio.run(all_of_them(start)), arrays))


def test_a_child_of_a_fork_goes_on(engine):
    (x,) = drawn(1)
    with AsyncQueue(engine, 2, threads=1) as queue:
        assert right(queue.run_async({"x": x}).result(60), x) and right(engine.run_async({"x": x}).result(60), x)
        child = os.fork()
        if not child:
            done = [start({"x": x}).result(60) for start in (queue.run_async, engine.run_async)]
            os._exit(0 if all(right(results, x) for results in done) else 1)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("jobs", [0, 257, True, 1.5, "2"])
def test_numbers_of_jobs_are_checked(engine, jobs):
    with pytest.raises(InputError, match="jobs is an integer from 1 to 256"):
        AsyncQueue(engine, jobs)


def test_threads_and_callbacks_are_checked(engine):
    with pytest.raises(InputError, match="threads"):
        AsyncQueue(engine, 1, threads=0)
    with AsyncQueue(engine, 1) as queue, pytest.raises(InputError, match="a callback is a function"):
        queue.set_callback(3)


@pytest.mark.parametrize("method", ["start_async", "wait_all", "close"])
def test_a_callback_that_would_wait_for_itself_is_refused(engine, method):
    (x,) = drawn(1)
    queue = AsyncQueue(engine, 1, threads=1)
    queue.set_callback(lambda run, i: getattr(queue, method)(*([{"x": x}] if method == "start_async" else [])))
    run = queue.start_async({"x": x})
    waiting = threading.Thread(target=lambda: pytest.raises(InputError, queue.wait_all), daemon=True)
    waiting.start()
    waiting.join(20)
    assert not waiting.is_alive() and right(run.result(), x)
    queue.set_callback(None)
    assert right(queue.start_async({"x": x}).result(), x)


def test_a_callback_may_start_the_next_run(engine):
    (x,) = drawn(1)
    seen: list[int] = []

    def follow(run, left):
        seen.append(left)
        if left:
            queue.run_async({"x": x}, left - 1)

    with AsyncQueue(engine, 1, threads=1) as queue:
        queue.set_callback(follow)
        queue.start_async({"x": x}, 3)
        queue.wait_all()
    assert seen == [3, 2, 1, 0]


def test_runs_are_awaited_in_the_ways_of_the_page(engine):
    async def all_of_them(x) -> list:
        task = asyncio.ensure_future(engine.run_async({"x": x}))
        within = await asyncio.wait_for(engine.run_async({"x": x}), 60)
        return [within, await task, *await asyncio.gather(*(engine.run_async({"x": x}) for _ in range(3)))]

    (x,) = drawn(1)
    assert all(right(found, x) for found in asyncio.run(all_of_them(x)))
