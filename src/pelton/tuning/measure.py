"""Times CPU kernels as in a network: weights cold, activations in their producers' caches, all threads, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from pelton.backends.cpu import LoadedCode, NativeProgram, load_code
from pelton.backends.cpu.program import StepRow
from pelton.codegen.c.toolchain import ClangCompiler
from pelton.codegen.template import Kernel, source
from pelton.plan.placed import Task

from .canaries import Guard
from .operands import LINE, Operand, TimedOperands, aligned_bytes, is_weights
from .tasks import is_of_plugin

START = 2  # tiles for each thread before the clock starts
# bytes of packed weights that stay in the caches near a core until the next run
MAX_RESIDENT = 4 << 20
TOUCH = "pelton_touch"  # a kernel that writes activations, in place of earlier steps
PARTS = 8  # tiles per thread of that kernel
# Rounds → multiple of the best time above which candidates drop out. Not after one round: packed-weight limits may need
# slower ones, and one noisy round measured an F(2×2) of 15 ms as 30: YOLOv2 became 17 % slower.
DROPS = {2: 2.0, 4: 1.25}
# Candidates this close after all rounds run for so many more ns per round, as shared cores are seldom undisturbed, but
# at most for so many turns: a kernel of 1 µs has a turn of 300, and 15 small layers took up to 55 s.
CLOSE, FINAL_NS, FINAL_TURNS = 1.1, 4_000_000, 25


def weight_traffic(weights: int, l3: int) -> int:
    """Returns the bytes of weights that pass through the caches between two uses of the same ones, in such a network.

    Twice as many (kernels pack them) if these stay in the caches, else enough to evict all. ResNet-20 (1.1 MB), minimum
    of two builds each: 287 and 313 µs tuned with weights from memory, 261 and 296 with this. SqueezeNet and ShuffleNet
    (5 MB), MobileNetV2 and GoogLeNet took as long either way.
    """
    near = 1 << max(2 * weights - 1, 1 << 16).bit_length()
    return near if near <= MAX_RESIDENT else max(96 << 20, 2 * l3)


class Stopwatch:
    """Times candidate kernels of one or several tasks in turn.

    `weight_traffic`: bytes of weights that pass through the caches between two uses of the same weights.
    """

    def __init__(self, threads: int, weight_traffic: int):
        self.threads = threads
        self._pool = aligned_bytes(weight_traffic)
        rng = np.random.default_rng(0)
        block = rng.uniform(0.5, 1.5, 1 << 20).astype(np.float32).view(np.uint8)
        for at in range(0, self._pool.size, block.size):
            part = self._pool[at : at + block.size]
            part[:] = block[: part.size]
        self._cursor = 0

    def _weights(self, nbytes: int) -> int:
        """Returns the address of the least recently used bytes in the pool."""
        if nbytes > self._pool.size:
            self._pool = np.resize(self._pool, nbytes + LINE)
        if self._cursor + nbytes > self._pool.size:
            self._cursor = 0
        at = self._cursor
        self._cursor += -(-nbytes // LINE) * LINE
        return self._pool.ctypes.data + at

    def race(
        self,
        tasks: Sequence[Task],
        programs: Sequence[Sequence[Kernel]],
        loaded: LoadedCode,
        rounds: int,
        deadline: float | None = None,
    ) -> list[int]:
        """Times programs (sequences of kernels for these tasks) in ns: the minimum over several runs of each.

        Slow programs drop out after the first rounds; close ones run longer.
        """
        operands = TimedOperands(tasks, programs)
        best = [1 << 62] * len(programs)
        alive = list(range(len(programs)))
        turn = round_ns = final_ns = 0
        most = rounds * (1 + FINAL_TURNS)
        while turn < rounds or (len(alive) > 1 and turn < most and final_ns < max(rounds * FINAL_NS, 2 * round_ns)):
            round_ns = 0
            for i in alive:
                ns = self._run(programs[i], operands, loaded, is_first=turn == 0)
                best[i] = min(best[i], ns)
                round_ns += ns
            turn += 1
            final_ns += round_ns if turn > rounds else 0
            if turn in DROPS or turn >= rounds:
                limit = min(best) * DROPS.get(turn, CLOSE)
                alive = [i for i in alive if best[i] <= limit]
            if deadline is not None and time.monotonic() > deadline:
                break
        return best

    def _run(self, program: Sequence[Kernel], operands: TimedOperands, loaded: LoadedCode, is_first: bool) -> int:
        """Times one run of a program in ns.

        A few tiles first (in the first run, all, to touch pages): loads the code and wakes the threads. Then the
        operands are written, and the program is timed.
        """
        steps = [(k, k.tiles, k.phases) for k in program]
        before = steps if is_first else [(k, min(k.tiles, START * self.threads * k.grain), 1) for k in program[:1]]
        written = [operands.arrays[operands.number(x)] for x in operands.inputs_of(program[0])]
        touch, parts = loaded.symbol(TOUCH), PARTS * self.threads
        rows = [
            *(self._row(loaded, operands, *step, wave) for wave, step in enumerate(before)),
            *(StepRow(touch, [x.ctypes.data, x.size, parts], 3, parts, 1, len(before), 0, 1) for x in written),
            *(self._row(loaded, operands, *step, len(before) + 1 + wave) for wave, step in enumerate(steps)),
        ]
        return sum(NativeProgram(rows, self.threads).profile()[len(before) + len(written) :])

    def _row(
        self, loaded: LoadedCode, operands: TimedOperands, k: Kernel, tiles: int, phases: int, wave: int
    ) -> StepRow:
        addresses = [*(self._address(operands, x) for x in k.operands), *k.dims]
        return StepRow(loaded.symbol(k.symbol), addresses, len(k.operands), tiles, k.grain, wave, k.scratch, phases)

    def _address(self, operands: TimedOperands, x: Operand) -> int:
        if is_weights(x):
            return self._weights(x.bytes)
        return operands.arrays[operands.number(x)].ctypes.data + operands.first_byte(x)


class CpuBench:
    """See `search.Bench`: kernels in C, timed by a `Stopwatch`."""

    def __init__(self, compiler: ClangCompiler, threads: int, weight_traffic: int, guard: Guard):
        self.compiler, self.threads, self.weight_traffic, self.guard = compiler, threads, weight_traffic, guard
        self._watch: Stopwatch | None = None

    @contextmanager
    def ready(self, sources: Mapping[str, str], progress: Callable[[int], None]) -> Iterator[LoadedCode]:
        objects = {
            **self.compiler.objects(sources, progress),
            **self.compiler.objects({TOUCH: source("touch.c").replace("KERNEL", TOUCH)}),
        }
        with load_code(self.compiler.link(objects)) as loaded:
            yield loaded

    def race(
        self,
        tasks: Sequence[Task],
        programs: Sequence[Sequence[Kernel]],
        loaded: LoadedCode,
        rounds: int,
        deadline: float | None = None,
    ) -> list[int]:
        """See `search.Bench.race`. A plugin kernel first runs between canaries: it may do anything."""
        if len(tasks) == 1 and is_of_plugin(tasks[0]):
            for (kernel,) in programs:
                self.guard.check(loaded, kernel, tasks[0])
        self._watch = self._watch or Stopwatch(self.threads, self.weight_traffic)
        return self._watch.race(tasks, programs, loaded, rounds, deadline)
