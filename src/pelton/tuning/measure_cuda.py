"""Times kernels on a GPU as in a network: weights cold, activations warm, candidates in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np

from pelton.logs import Logger
from pelton.backends.cuda.clock import Clock, TimedCandidate
from pelton.backends.cuda.device import ALIGN, TRAILING, Device, Function, Launch, Memory, launches, zeros
from pelton.engine.cubin import Cubin
from pelton.engine.library import LIBRARIES, work
from pelton.engine.work import ALIGNED
from pelton.errors import BuildError, EngineError
from pelton.ir.graph import Value
from pelton.codegen.template import Kernel, Packed
from pelton.codegen.triton.toolchain import TritonCompiler
from pelton.plan.layout import Strides, first_element, span
from pelton.plan.placed import Task
from pelton.plan.workspace import KernelWorkspace
from pelton.targets import fitting


log = Logger("pelton.build")

POOL = 128 << 20  # minimum bytes of weights
PIECE = 4 << 20  # bytes of numbers that the pool repeats


class GpuBench:
    """See `search.Bench`: kernels in Triton. Each turn reads float weights from another part of a pool; possible
    indices keep their values."""

    def __init__(self, compiler: TritonCompiler, device: Device):
        self.compiler, self.device, self.clock = compiler, device, Clock(device)
        arch = fitting(compiler.archs, device.arch)
        if arch is None:
            raise AssertionError(f"no kernels for sm_{device.arch}")
        self.arch = arch
        self._pool: Memory | None = None
        self._functions: dict[str, Function] = {}

    @contextmanager
    def ready(self, sources: Mapping[str, str], progress: Callable[[int], None]) -> Iterator[dict[str, Cubin]]:
        failed: dict[str, BuildError] = {}
        result = self.compiler.cubins(
            {symbol: source for symbol, source in sources.items() if symbol not in LIBRARIES},
            progress,
            failed,
            (self.arch,),
        )
        for symbol, why in failed.items():
            log.warning("%s is not timed: %s", symbol, why)
        yield {symbol: m.cubin for (symbol, _), m in result.items()}
        self._functions.clear()

    def race(
        self,
        tasks: Sequence[Task],
        programs: Sequence[Sequence[Kernel]],
        loaded: Mapping[str, Cubin],
        rounds: int,
        deadline: float | None = None,
    ) -> list[int | None]:
        layouts = {v: strides for t in tasks for v, strides in t.layouts.items()}
        constants = {v: a for t in tasks for v, a in t.region.body.constants.items()}
        whole = [
            i for i, kernels in enumerate(programs) if all(k.symbol in loaded or k.symbol in LIBRARIES for k in kernels)
        ]
        with self.device:
            operands = _Operands(self, layouts, constants, [programs[i] for i in whole])
            candidates, at = list[TimedCandidate](), list[int]()
            for i in whole:
                try:
                    functions = [self._function(k, loaded) for k in programs[i]]
                except EngineError as e:
                    log.warning("%s is not timed: %s", programs[i][0].symbol, e)
                    continue
                candidates.append(operands.candidate(programs[i], functions))
                at.append(i)
            times = dict(zip(at, self.clock.race(candidates, rounds, deadline)))
        return [times.get(i) for i in range(len(programs))]

    def _function(self, kernel: Kernel, loaded: Mapping[str, Cubin]) -> Function:
        if kernel.symbol in LIBRARIES:
            return self.device.by_library(work(kernel.symbol, kernel.dims), [ALIGNED] * len(kernel.operands))
        if kernel.symbol not in self._functions:
            self._functions[kernel.symbol] = self.device.load(
                loaded[kernel.symbol], len(kernel.operands) + len(kernel.dims) + TRAILING
            )
        return self._functions[kernel.symbol]

    def weights(self, min_bytes: int) -> Memory:
        """Returns numbers around one, in memory for several times the L2 cache."""
        nbytes = max(POOL, 4 * self.device.l2, min_bytes)
        if self._pool is None or self._pool.nbytes < nbytes:
            self._pool = None  # free the old one first
            pool = self._pool = self.device.allocate(nbytes, "timing kernels")
            numbers = np.random.default_rng(0).uniform(0.5, 1.5, PIECE // 2).astype(np.float16)
            stream = self.clock.stream.handle
            for at in range(0, nbytes, PIECE):
                self.device.upload(
                    pool.address + at, numbers.__array_interface__["data"][0], min(PIECE, nbytes - at), stream
                )
            self.device.synchronize(stream)  # the array may be freed afterwards
        return self._pool


class _Operands:
    """The operands of racing kernels, in GPU memory."""

    def __init__(
        self,
        bench: GpuBench,
        layouts: Mapping[Value, Strides],
        constants: Mapping[Value, np.ndarray],
        programs: Sequence[Sequence[Kernel]],
    ):
        self.bench, self.layouts, self.constants = bench, layouts, constants
        self.rng = np.random.default_rng(0)
        self.memory: dict[Value | KernelWorkspace, Memory] = {}
        self.scratch: dict[Kernel, Memory] = {}
        for x in dict.fromkeys(x for kernels in programs for k in kernels for x in k.operands):
            if isinstance(x, KernelWorkspace):
                self.memory[x] = zeros(bench.device, x.bytes, "timing kernels", bench.clock.stream.handle)
            elif isinstance(x, Value) and not self.rotates(x):
                self.memory[x] = self._filled(x)
        self.pool = bench.weights(max((self.rotating(*kernels) for kernels in programs), default=0))

    def rotates(self, x: Value | Packed | KernelWorkspace) -> bool:
        """True if each turn reads it from another address."""
        return isinstance(x, Packed) or isinstance(x, Value) and x in self.constants and x.type.dtype.is_float

    def rotating(self, *kernels: Kernel) -> int:
        """Returns the bytes of all rotating operands, each aligned to 256."""
        return sum(-(-self.size(x) // ALIGN) * ALIGN for k in kernels for x in k.operands if self.rotates(x))

    def size(self, x: Value | Packed | KernelWorkspace) -> int:
        if not isinstance(x, Value):
            return x.bytes
        return int(span(x.type.shape, tuple(map(abs, self.layouts[x])))) * x.type.dtype.size

    def candidate(self, kernels: Sequence[Kernel], functions: Sequence[Function]) -> TimedCandidate:
        for kernel, function in zip(kernels, functions):
            cubin = function.cubin
            if cubin.scratch and kernel not in self.scratch:
                self.scratch[kernel] = self.bench.device.allocate(
                    cubin.scratch * cubin.clusters * int(kernel.tiles), "timing kernels"
                )
        each = self.rotating(*kernels)
        return TimedCandidate(
            " and ".join(k.source.splitlines()[0].strip('"') for k in kernels),
            partial(self._launches, kernels, functions, each),
            self.pool.nbytes // each if each else 1 << 30,
        )

    def _launches(self, kernels: Sequence[Kernel], functions: Sequence[Function], each: int, turn: int) -> list[Launch]:
        at, result = self.pool.address + turn * each, list[Launch]()
        for kernel, function in zip(kernels, functions):
            words = []
            for x in kernel.operands:
                if self.rotates(x):
                    words.append(at)
                    at += -(-self.size(x) // ALIGN) * ALIGN
                elif not isinstance(x, Packed):
                    first = (
                        first_element(x.type.shape, self.layouts[x]) * x.type.dtype.size if isinstance(x, Value) else 0
                    )
                    words.append(self.memory[x].address + first)
            scratch = self.scratch[kernel].address if kernel in self.scratch else 0
            result += launches(
                function, int(kernel.tiles), int(kernel.phases), np.array([*words, *kernel.dims, scratch, 0], np.int64)
            )
        return result

    def _filled(self, v: Value) -> Memory:
        """Allocates a value: a constant's numbers, random ones for floats, else zeros, which are valid indices."""
        nbytes, device, dtype = max(self.size(v), 1), self.bench.device, v.type.dtype
        if v in self.constants:
            data = np.append(np.ascontiguousarray(self.constants[v]).reshape(-1).view(np.uint8), np.uint8(0))
        elif dtype.is_float:
            data = (
                self.rng.standard_normal(min(nbytes, PIECE) // dtype.size + 1)
                .astype(np.float32)
                .astype(dtype.numpy)
                .view(np.uint8)
            )
        else:
            data = np.zeros(min(nbytes, PIECE), np.uint8)
        memory = device.allocate(nbytes, "timing kernels")
        for at in range(0, nbytes, data.nbytes):  # whole constants; a repeated part of others
            device.upload(
                memory.address + at,
                data.__array_interface__["data"][0],
                min(data.nbytes, nbytes - at),
                self.bench.clock.stream.handle,
            )
        device.synchronize(self.bench.clock.stream.handle)  # the array may be freed afterwards
        return memory
