"""Dependences of steps: branches run in parallel, and every permitted order has the same result."""

from __future__ import annotations

import numpy as np
import pytest

from pelton.engine.plan import Slice, Step, Tensor
from pelton.engine.memory import Lifetime, assign
from pelton.engine.order import waits


def step(wave: int, reads: list[int], writes: list[int], said: bool = True) -> Step:
    """A kernel that reads and writes buffers."""
    outputs = tuple(Tensor(Slice(b, 0), "f32", (1,), (1,)) for b in writes)
    return Step("s", "k", tuple(Slice(b, 0) for b in (*reads, *writes)), wave=wave, outputs=outputs if said else ())


NONE = [(0, 0)] * 9


def test_branches_wait_for_what_they_read_alone():
    steps = [step(0, [0], [1]), step(0, [0], [2]), step(1, [1], [3]), step(2, [3], [4]), step(3, [4, 2], [5])]
    apart = {b: (b * 64, b * 64 + 64) for b in range(6)}
    assert waits(steps, apart, NONE) == [[], [], [0], [2], [1, 3]]


def test_memory_that_is_used_again_is_waited_for():
    steps = [step(0, [0], [1]), step(0, [0], [2]), step(1, [1], [3]), step(2, [3], [4])]
    spans = {1: (0, 64), 2: (64, 128), 3: (128, 192), 4: (32, 100)}  # 4 takes the place of 1 and 2
    assert waits(steps, spans, NONE) == [[], [], [0], [1, 2]]


def test_parts_of_a_joined_buffer_are_written_at_once():
    steps = [step(0, [0], [1]), step(1, [1], [2]), step(0, [0], [2])]
    steps = [steps[0], steps[2], steps[1], step(2, [2], [3])]
    apart = {b: (b * 64, b * 64 + 64) for b in range(4)}
    assert waits(steps, apart, NONE) == [[], [], [0], [1, 2]]
    # one part read, another written
    assert waits([step(0, [0], [1]), step(1, [1], [1]), step(2, [1], [2])], apart, NONE) == [[], [0], [1]]


def test_who_does_not_say_what_it_writes_waits_for_more_but_not_for_its_wave():
    steps = [
        step(0, [0], [1], False),
        step(0, [0], [2], False),
        step(1, [1, 2], [3], False),
        step(1, [1], [4], False),
        step(2, [3, 4], [5], False),
    ]
    apart = {b: (b * 64, b * 64 + 64) for b in range(1, 6)}
    assert waits(steps, apart, NONE) == [[], [], [0, 1], [0], [2, 3]]


def test_scratch_is_nobody_elses():
    steps = [step(0, [0], [1]), step(1, [2], [3])]
    apart = {b: (b * 64, b * 64 + 64) for b in range(4)}
    assert waits(steps, apart, [(1000, 1100), (1100, 1200)]) == [[], []] and waits(
        steps, apart, [(1000, 1100), (1050, 1200)]
    ) == [[], [0]]


@pytest.mark.parametrize("seed", range(30))
def test_every_order_that_is_left_gives_the_same(seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(4, 40))
    # step → values; it makes the one after its number
    reads = [[0]]
    reads += [
        sorted(rng.choice(np.arange(max(0, i - 6), i + 1), int(rng.integers(1, 4))).tolist()) for i in range(1, count)
    ]
    level: list[int] = []
    for i in range(count):
        level.append(1 + max((level[v - 1] for v in reads[i] if v), default=-1))
    order = sorted(range(count), key=lambda i: level[i])
    last = {i + 1: max([level[i], *(level[j] for j in range(count) if i + 1 in reads[j])]) for i in range(count)}
    sizes = {v: 64 * int(rng.integers(1, 5)) for v in last}
    offsets, total = assign({v: Lifetime(sizes[v], level[v - 1], last[v]) for v in last})
    assert total < sum(sizes.values()) or count < 8
    steps = [step(level[i], reads[i], [i + 1]) for i in order]
    after = waits(steps, {v: (offsets[v], offsets[v] + sizes[v]) for v in offsets}, [(0, 0)] * count)

    def run(sequence: list[int]) -> list[float]:
        memory, kept = np.full(total, np.nan), list[float]()
        got = {}
        for k in sequence:
            i = order[k]
            inputs = [1.0 if v == 0 else memory[offsets[v] : offsets[v] + sizes[v]].sum() for v in reads[i]]
            memory[offsets[i + 1] : offsets[i + 1] + sizes[i + 1]] = np.sin(i + sum(inputs))
            got[i] = np.sin(i + sum(inputs))
        kept += [got[i] for i in range(count)]
        return kept

    wanted = run(list(range(count)))
    assert np.isfinite(wanted).all()
    for _ in range(5):
        left, done = set(range(count)), list[int]()
        while left:
            free = [k for k in left if not left & set(after[k])]
            done.append(int(rng.choice(free)))
            left.remove(done[-1])
        assert run(done) == wanted
    direct = sum(map(len, after))
    assert direct <= sum(len(a) for a in ([j for j in range(k) if steps[j].wave < steps[k].wave] for k in range(count)))
