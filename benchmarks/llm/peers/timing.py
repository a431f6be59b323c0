"""Timing of decoders, the same for all of them: prompts that no earlier run had, and greedy tokens behind them.

Prefill is the better of two prompts of 128 or 512: some runtimes compile for a length when they first meet it. A run
decodes 40 tokens after 16, and 16 after 512; its figure is the best mean of 8 in a row. "first token" and "load" are
seconds: of the first run of a process, a prompt of 16, and of loading before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

Result = dict[str, float]
Step = Callable[[np.ndarray], int]
CAPACITY = 1024  # positions of a cache


def unseen(count: int, seed: list[int]) -> np.ndarray:
    """Returns the tokens of a prompt that no earlier run had."""
    return np.random.default_rng(seed).integers(300, 20000, count)


def best(times: list[float]) -> float:
    """Returns tokens a second: the best mean of 8 in a row."""
    return 1 / min(float(np.mean(times[i : i + 8])) for i in range(len(times) - 7))


def timed(step: Step, prompt: np.ndarray, count: int) -> tuple[float, list[float]]:
    """Returns the seconds of a prompt, and those of each of `count` tokens after it. step: appends tokens, and returns
    the most probable next one."""
    start = time.perf_counter()
    token = step(prompt)
    first, times = time.perf_counter() - start, []
    for _ in range(count):
        start = time.perf_counter()
        token = step(np.array([token]))
        times.append(time.perf_counter() - start)
    return first, times


def measure(sequence: Callable[[int], Step], turn: int) -> Result:
    """Returns tokens a second of prompts and of decoding, and the seconds of the first prompt.

    sequence: begins a sequence of at most this many tokens, and returns its steps.
    """

    def run(length: int, count: int, seed: int) -> tuple[float, list[float]]:
        return timed(sequence(length + count + 1), unseen(length, [turn, length, seed]), count)

    result, (first, _) = {}, run(16, 0, seed=0)
    for length in (128, 512):
        result[f"prefill {length}"] = length / min(run(length, 0, seed)[0] for seed in (1, 2))
    for length, count in ((16, 40), (512, 16)):
        result[f"decode after {length}"] = best(run(length, count, seed=3)[1])
    return {**result, "first token": first}


def most_memory() -> float:
    """Returns the megabytes that this process had at most. `getrusage` counts those of the process before `exec`."""
    with open("/proc/self/status") as status:
        return int(status.read().split("VmHWM:")[1].split()[0]) / 1024
