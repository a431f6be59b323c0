"""Batches, deadlines, priorities and bounds of asynchronous queues, on engines whose runs the test holds up."""

import contextlib
import threading
import time

import numpy as np
import pytest

import pelton
from pelton import AsyncQueue, Batching, DeadlineError, InputError, QueueFullError
from pelton.runtime.batching import RunEstimate

W = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)


def network(shape="f32[batch=1..4..16, 3]"):
    net = pelton.Network("rows")
    net.output(net.linear(net.input("x", shape), W), "y")
    return net


@pytest.fixture(scope="module")
def plain():
    return pelton.build(network(), level=0, threads=1)


class Held:
    """An engine whose runs wait for `go`, may take `seconds` more, and are recorded."""

    def __init__(self, engine):
        self.engine, self.plain = engine, engine.plain
        self.inputs, self.outputs, self.symbols = engine.inputs, engine.outputs, engine.symbols
        self.state_outputs, self.forms, self.ports = engine.state_outputs, engine.forms, engine.ports
        self.go, self.runs, self.refuse, self.seconds = threading.Event(), [], None, 0.0

    def context(self, threads=None):
        return self.engine.context(threads)

    def run_in(self, context, inputs):
        assert self.go.wait(60)
        self.runs.append(np.array(inputs["x"][:, 0]) if inputs["x"].ndim else inputs["x"])
        time.sleep(self.seconds)
        if self.refuse is not None and (inputs["x"] == self.refuse).any():
            raise InputError(f"no {self.refuse}")
        return self.engine.run_in(context, inputs)


@pytest.fixture
def held(plain):
    return Held(plain)


@contextlib.contextmanager
def queue_of(engine, jobs=1, **options):
    """A queue that does not raise what its runs raise."""
    queue = AsyncQueue(engine, jobs, 1, **options)
    try:
        yield queue
    finally:
        engine.go.set()
        queue.close()


def x(value, rows=1):
    return {"x": np.full((rows, 3), value, np.float32)}


def taken(queue):
    """Waits until all jobs have taken a run."""
    end = time.monotonic() + 30
    while queue.waiting:
        assert time.monotonic() < end
        time.sleep(0.001)


def right(run, value, rows=1):
    y = run.result(60)["y"]
    assert y.shape == (rows, 4)
    np.testing.assert_allclose(y, np.full((rows, 3), value, np.float32) @ W.T, rtol=1e-5, atol=1e-5)


def test_waiting_runs_are_joined_and_split(held):
    with queue_of(held, batching=Batching(8)) as queue:
        first = queue.run_async(x(1))
        taken(queue)
        runs = [queue.run_async(x(v, rows)) for v, rows in ((2, 1), (3, 3), (4, 2), (5, 4), (6, 1))]
        assert queue.waiting == 11
        held.go.set()
        right(first, 1)
        for run, (value, rows) in zip(runs, ((2, 1), (3, 3), (4, 2), (5, 4), (6, 1))):
            right(run, value, rows)
            assert run.rows == rows and run.queued_ns <= run.started_ns <= run.ended_ns
        assert [r.batch_rows for r in runs] == [6, 6, 6, 5, 5]  # 4 more rows would not fit into 8
        stats = queue.stats()
        assert (stats["runs"], stats["executions"], stats["rows"]) == (6, 3, 12)
        assert stats["histogram"] == {1: 1, 6: 1, 5: 1}


def test_lower_priorities_run_first_and_equal_ones_in_order(held):
    with queue_of(held) as queue:
        queue.run_async(x(0))
        taken(queue)
        for value, priority in ((1, 5), (2, 0), (3, 5), (4, -1), (5, 0)):
            queue.run_async(x(value), priority=priority)
        held.go.set()
    assert [int(r[0]) for r in held.runs] == [0, 4, 2, 5, 1, 3]


def test_a_full_queue_rejects_at_once(held):
    with queue_of(held, bound=2) as queue:
        queue.run_async(x(0))
        taken(queue)
        kept = [queue.run_async(x(1)), queue.run_async(x(2))]
        start = time.monotonic()
        with pytest.raises(QueueFullError, match="the queue is full: 2 rows wait, 2 may") as refusal:
            queue.run_async(x(3))
        assert time.monotonic() - start < 1 and refusal.value.retry_after > 0
        assert kept[0].cancel() and queue.waiting == 1  # its place is free at once
        last = queue.run_async(x(4))
        held.go.set()
        right(last, 4)
        assert queue.stats()["refused"] == 1 and queue.stats()["cancelled"] == 1


def test_runs_that_wait_too_long_fail(held):
    with queue_of(held) as queue:
        queue.run_async(x(0))
        taken(queue)
        late, patient = queue.run_async(x(1), timeout=0.05), queue.run_async(x(2))
        time.sleep(0.1)
        held.go.set()
        with pytest.raises(DeadlineError, match="waited .* ms in the queue"):
            late.result(60)
        right(patient, 2)
        assert [int(r[0]) for r in held.runs] == [0, 2] and queue.stats()["expired"] == 1


def test_runs_that_would_be_late_are_rejected_when_they_start(held):
    held.go.set()
    held.seconds = 0.05
    with queue_of(held) as queue:
        for _ in range(4):
            queue.run_async(x(0)).result(60)
        runs = [queue.run_async(x(0)) for _ in range(6)]
        with pytest.raises(QueueFullError, match="longer than its timeout"):
            queue.run_async(x(1), timeout=0.05)
        late_enough = queue.run_async(x(2), timeout=60)
        right(late_enough, 2)
        assert all(r.done() for r in runs)


def test_an_objective_bounds_latency_and_keeps_throughput(held):
    """Ten times what the engine is able to do: it stays busy, and no answer is late by more than a run."""
    held.go.set()
    held.seconds = 0.02
    latencies, refused = [], 0
    with queue_of(held, slo=0.2) as queue:
        right(queue.run_async(x(0)), 0)
        begin = time.monotonic()
        while (start := time.monotonic()) - begin < 1.5:
            try:
                run = queue.run_async(x(1))
            except QueueFullError:
                refused += 1
            else:
                run.add_done_callback(lambda r, s=start: latencies.append((time.monotonic() - s, r.exception())))
            time.sleep(0.002)
    good = [seconds for seconds, error in latencies if error is None]
    assert refused > 100 and len(good) > 20
    assert np.percentile(good, 90) < 0.4


def test_idle_jobs_share_what_waits(plain):
    engines = Held(plain)
    with queue_of(engines, jobs=2, batching=Batching(16)) as queue:
        first = [queue.run_async(x(v, 16)) for v in (0, 1)]
        taken(queue)
        assert len(first) == 2
        with queue._schedule.changed:  # both jobs are free before the first looks
            runs = [queue.run_async(x(v)) for v in range(2, 10)]
            engines.go.set()
            time.sleep(0.2)
        for value, run in enumerate(runs, 2):
            right(run, value)
    assert max(r.batch_rows for r in runs) <= 8


def test_other_shapes_are_other_batches():
    net = pelton.Network("wide")
    net.output(net.relu(net.input("x", "f32[batch=1..4..8, width=1..4..9]")), "y")
    held = Held(pelton.build(net, level=0, threads=1))
    with queue_of(held, batching=Batching(8)) as queue:
        queue.run_async({"x": np.zeros((1, 2), np.float32)})
        taken(queue)
        arrays = [np.full((1, width), width - 4.5, np.float32) for width in (2, 5, 2, 5, 9)]
        runs = [queue.run_async({"x": a}) for a in arrays]
        held.go.set()
        for run, array in zip(runs, arrays):
            np.testing.assert_array_equal(run.result(60)["y"], np.maximum(array, 0))
    assert [r.batch_rows for r in runs] == [2, 2, 2, 2, 1]


def test_bad_runs_do_not_fail_their_neighbours(held):
    held.refuse = 7
    with queue_of(held, batching=Batching(8)) as queue:
        queue.run_async(x(0))
        taken(queue)
        good, bad, other = queue.run_async(x(1)), queue.run_async(x(7)), queue.run_async(x(2))
        shapes = [{"x": np.zeros((1, 5), np.float32)}, {"x": np.zeros((1, 3), np.int32)}, {"z": W}, {}, None, x(1, 17)]
        wrong = [queue.run_async(inputs) for inputs in shapes]
        held.go.set()
        right(good, 1)
        right(other, 2)
        with pytest.raises(InputError, match="no 7"):
            bad.result(60)
        for run in wrong:
            assert isinstance(run.exception(60), Exception)
        assert queue.stats()["runs"] == 4 + len(wrong)


def test_batches_wait_for_more_rows(held):
    held.go.set()
    with queue_of(held, batching=Batching(4, delay=30.0, preferred=(3,))) as queue:
        start = time.monotonic()
        full = [queue.run_async(x(v)) for v in range(4)]
        for value, run in enumerate(full):
            right(run, value)
        assert {r.batch_rows for r in full} <= {3, 4, 1} and time.monotonic() - start < 20
    with queue_of(held, batching=Batching(4, delay=0.2)) as queue:
        run = queue.run_async(x(1))
        right(run, 1)
        assert run.started_ns - run.queued_ns > 0.15e9


def test_closing_runs_what_waits(held):
    queue = AsyncQueue(held, 1, 1, batching=Batching(4, delay=30.0))
    runs = [queue.run_async(x(v)) for v in range(3)]
    held.go.set()
    queue.close()
    for value, run in enumerate(runs):
        right(run, value)
    with pytest.raises(InputError, match="this queue is closed"):
        queue.run_async(x(0))


def test_batches_shrink_to_the_objective_and_grow_again(held):
    with queue_of(held, batching=Batching(16, slo=10.0)) as queue:
        schedule = queue._schedule
        schedule.expect({1: 0.1, 16: 1.6})
        assert queue.batch_limit == 16
        for _ in range(30):
            schedule.executed(queue.batch_limit, 8.0)
        assert queue.batch_limit < 4
        for _ in range(60):
            schedule.executed(queue.batch_limit, 0.001)
        assert queue.batch_limit == 16


def test_batches_that_would_not_get_faster_do_not_shrink(held):
    """A row alone takes longer than half the objective, and 16 rows hardly longer than one."""
    with queue_of(held, batching=Batching(16, slo=1.0)) as queue:
        schedule = queue._schedule
        schedule.expect({1: 0.8, 16: 0.9})
        assert queue.batch_limit == 16
        for _ in range(50):
            schedule.executed(16, 0.9)
        assert queue.batch_limit == 16
        schedule.expect({1: 0.8, 16: 12.8})  # here it takes as many times as long
        for _ in range(80):
            schedule.executed(queue.batch_limit, 0.8 * queue.batch_limit)
        assert queue.batch_limit == 1


def test_estimates_follow_runs():
    estimate = RunEstimate()
    assert estimate.high == 0
    for seconds in (1.0, 1.0, 1.0, 1.0):
        estimate.add(seconds)
    assert estimate.mean == 1.0 and 1.0 <= estimate.high < 1.2
    for _ in range(40):
        estimate.add(3.0)
    assert estimate.mean == pytest.approx(3.0, rel=0.01)


def test_many_threads_get_their_own_rows(plain):
    """Every answer is of its own question, and the counts add up."""
    wrong, refused = [], []
    with AsyncQueue(plain, 2, 1, batching=Batching(16), bound=64) as queue:

        def client(seed):
            rng = np.random.default_rng(seed)
            for _ in range(200):
                array = rng.standard_normal((rng.integers(1, 4), 3)).astype(np.float32)
                try:
                    y = queue.run_async({"x": array}, priority=int(rng.integers(3))).result(60)["y"]
                except QueueFullError:
                    refused.append(1)
                    continue
                if y.shape != (len(array), 4) or not np.allclose(y, array @ W.T, atol=1e-4):
                    wrong.append(array)

        threads = [threading.Thread(target=client, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stats = queue.stats()
    assert not wrong and stats["runs"] + len(refused) == 1600
    assert sum(rows * n for rows, n in stats["histogram"].items()) == stats["rows"]
    assert queue.waiting == 0


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda e: Batching(0), "max_batch is 1 to 65536, got 0"),
        (lambda e: Batching(True), "max_batch is an integer, got True"),
        (lambda e: Batching(4, delay=-1), "delay is a number of seconds, 0 or more, got -1"),
        (lambda e: Batching(4, slo=0), "slo is a number of seconds, above 0, got 0"),
        (lambda e: AsyncQueue(e, 1, batching=4), "batching is a pelton.Batching, got 4"),
        (lambda e: AsyncQueue(e, 1, bound=0), "bound is an integer of at least 1, got 0"),
        (lambda e: AsyncQueue(e, 1, slo=float("nan")), "slo is a number of seconds, above 0, got nan"),
        (lambda e: AsyncQueue(e, 1).run_async(x(1), priority=1.5), "priority is an integer, got 1.5"),
        (lambda e: AsyncQueue(e, 1).run_async(x(1), timeout=-1), "timeout is a number of seconds, 0 or more, got -1"),
    ],
)
def test_refusals(plain, make, message):
    with pytest.raises(InputError, match=message.replace(".", r"\.")):
        make(plain)


def test_engines_without_a_batch_axis_are_refused():
    for shape in ("f32[2, 3]", "f32[batch=1..4..16, 3]"):
        net = pelton.Network("fixed")
        y = net.linear(net.input("x", shape), W)
        net.output(y if shape == "f32[2, 3]" else net.reduce_sum(y, axes=(0,)), "y")
        with pytest.raises(InputError, match="batching needs one dynamic dimension that is the first of all"):
            AsyncQueue(pelton.build(net, level=0), 1, batching=Batching(4))
