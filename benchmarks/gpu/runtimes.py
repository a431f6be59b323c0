"""The runtimes: Pelton, torch with a CUDA graph, torch.compile and JAX, each in its own process with the same
interface.

Every runtime cycles through many inputs on the GPU. The time of a run is that of a train of runs, started back to back
without waiting, divided by their number: by CUDA events, where the runtime has them, and by the host's clock.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pelton.importers.onnx import load as importer
from pelton.ir.graph import Graph
from pelton.passes import pipeline

from . import suite

Feeds = list[dict[str, np.ndarray]]
PRODUCTS = ("convolution", "matmul", "lstm")
LEAST = 5  # runs in a train
WARM = 0.2  # seconds that a train begins with, untimed


class Runtime:
    """What all have in common. A subclass makes itself ready in `prepare` and starts the run number i in `start`."""

    def __init__(self, path: str, seed: int):
        self.path, self.seed = path, seed
        self.graph: Graph = importer.load(path).graph
        self.ports = suite.ports(self.graph)
        self.count = suite.sets(self.ports)
        self.estimate = 0.0  # seconds of a run, as far as that is known

    def feeds(self) -> Feeds:
        return [suite.drawn(self.ports, self.seed + i) for i in range(self.count)]

    def prepare(self) -> dict[str, Any]:
        """Makes everything ready, runs once; what is worth telling of that."""
        raise NotImplementedError

    def start(self, i: int) -> Any:
        raise NotImplementedError

    def wait(self) -> None:
        raise NotImplementedError

    def mark(self) -> Any:
        """An event on the GPU; None where there are none to be had."""
        return None

    def between(self, begin: Any, end: Any) -> float:
        """Milliseconds between two events that have happened."""
        raise NotImplementedError

    def first(self) -> list[np.ndarray]:
        """The outputs for the first of the inputs, in the order of the model's."""
        raise NotImplementedError

    def save(self, file: str) -> None:
        arrays: Any = {v.name: a for v, a in zip(self.graph.outputs, self.first())}
        np.savez(file, **arrays)

    def time(self, seconds: float) -> dict[str, float]:
        """Milliseconds of a run, in a train that takes about that long."""
        if not self.estimate:
            self._train(1)
        self._train(max(1, round(WARM / self.estimate)))
        return self._train(max(LEAST, round(seconds / self.estimate)))

    def _train(self, runs: int) -> dict[str, float]:
        self.wait()
        begun, begin = time.perf_counter(), self.mark()
        for i in range(runs):
            self.start(i % self.count)
        end = self.mark()
        self.wait()
        host = time.perf_counter() - begun
        self.estimate = host / runs
        return {
            "ms": self.between(begin, end) / runs if begin is not None else 1e3 * host / runs,
            "host_ms": 1e3 * host / runs,
            "runs": runs,
        }

    def alone(self, runs: int) -> float:
        """Milliseconds from the start of a run until its end is known, with nothing else to do: the median."""
        times = []
        for i in range(runs):
            self.wait()
            begun = time.perf_counter()
            self.start(i % self.count)
            self.wait()
            times.append(time.perf_counter() - begun)
        return 1e3 * statistics.median(times)


class Pelton(Runtime):
    """An engine built with an empty cache, unless one is given, saved and loaded; its inputs and outputs are arrays on
    the GPU that it reads and writes where they lie."""

    def __init__(
        self, path: str, seed: int, folder: str, precision: str, level: int, budget: float, cache: str | None = None
    ):
        super().__init__(path, seed)
        self.folder, self.precision, self.level, self.budget = Path(folder), precision, level, budget
        self.cache = cache

    def prepare(self) -> dict[str, Any]:
        import pelton
        from pelton.backends.cuda.driver import device as gpu

        from .on_gpu import Placed

        engine_path = self.folder / f"{Path(self.path).stem}.{self.precision}.pelton"
        begun = time.perf_counter()
        built = pelton.build(
            self.path,
            target="cuda",
            precision=self.precision,
            level=self.level,
            budget=self.budget,
            cache_dir=self.cache or self.folder / f"cache-{os.getpid()}",
        )
        built.save(engine_path)
        build_s = time.perf_counter() - begun
        del built
        with gpu(0) as device:  # the context, which all programs on a GPU need
            device.synchronize(device.stream().handle)
        begun = time.perf_counter()
        engine: Any = pelton.load(engine_path)
        self.context = engine.context()
        start_s = time.perf_counter() - begun
        self.device = engine.device
        with self.device as device:
            stream = self.context.stream
            self.sets = [{name: Placed(device, a, stream) for name, a in one.items()} for one in self.feeds()]
            self.out = {p.name: Placed.poisoned(device, p.shape, p.numpy_dtype, stream) for p in engine.outputs}
        self.start(0)
        self.wait()
        weights = sum(a.size for a in self.graph.constants.values()) * (4 if self.precision == "fp32" else 2)
        return {
            **({} if self.cache else {"build_s": build_s}),
            "start_s": start_s,
            "engine_bytes": engine_path.stat().st_size,
            "weight_bytes": weights,
            "steps": len(engine.steps),
            "host_steps": list(engine.meta["host_steps"]),
            "chains": list(engine.meta["chains"]),
        }

    def start(self, i: int) -> None:
        self.context.run_async(self.sets[i], self.out)

    def wait(self) -> None:
        self.context.synchronize()

    def mark(self) -> Any:
        with self.device as device:
            event = device.event(timed=True)
            device.record(event, self.context.stream)
            return event

    def between(self, begin: Any, end: Any) -> float:
        with self.device as device:
            device.finish(end)  # `wait` waits for the runs, not for what was recorded after them
            return device.elapsed(begin, end) / 1e6

    def first(self) -> list[np.ndarray]:
        self.start(0)
        self.wait()
        with self.device:
            return [self.out[v.name].fetched(self.context.stream) for v in self.graph.outputs]


class Torch(Runtime):
    """torch's own functions one after the other, in half precision and channels last, replayed as one CUDA graph."""

    def __init__(self, path: str, seed: int, device: str = "cuda", dtype: str = "float16"):
        super().__init__(path, seed)
        import torch

        from . import torch_network

        self.torch, self.device, self.dtype = torch, device, getattr(torch, dtype)
        torch.set_grad_enabled(False)
        torch.backends.cudnn.benchmark = True
        self.network: Callable[..., Sequence[Any]] = torch_network.network(
            torch_network.optimized(self.graph), self.dtype
        ).to(device)
        self.sets = [self.placed(one) for one in self.feeds()]

    def placed(self, feeds: dict[str, np.ndarray]) -> list[Any]:
        torch, found = self.torch, []
        for array in feeds.values():
            tensor = torch.from_numpy(array).to(self.device)
            tensor = tensor.to(self.dtype) if tensor.is_floating_point() else tensor
            found.append(tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor)
        return found

    def prepare(self) -> dict[str, Any]:
        torch, begun = self.torch, time.perf_counter()
        self.given = [x.clone() for x in self.sets[0]]
        side = torch.cuda.Stream()
        torch.cuda.synchronize()
        # libraries choose their kernels and take their memory
        with torch.cuda.stream(side):
            for _ in range(3):
                self.network(*self.given)
        torch.cuda.synchronize()
        self.captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.captured):
            self.results = self.network(*self.given)
        self.start(0)
        self.wait()
        return {"build_s": time.perf_counter() - begun, "version": torch.__version__}

    def start(self, i: int) -> None:
        for place, x in zip(self.given, self.sets[i]):
            place.copy_(x)
        self.captured.replay()

    def wait(self) -> None:
        self.torch.cuda.synchronize()

    def mark(self) -> Any:
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, begin: Any, end: Any) -> float:
        return begin.elapsed_time(end)

    def first(self) -> list[np.ndarray]:
        self.start(0)
        self.wait()
        return [y.float().cpu().numpy() for y in self.results]


class Compiled(Torch):
    """torch.compile(mode="max-autotune"), which replays CUDA graphs of its own."""

    def prepare(self) -> dict[str, Any]:
        torch, begun = self.torch, time.perf_counter()
        self.run = torch.compile(self.network, mode="max-autotune", dynamic=False)
        for _ in range(3):  # compiles, warms up, captures
            self.start(0)
            self.wait()
        return {"build_s": time.perf_counter() - begun, "version": torch.__version__}

    def start(self, i: int) -> None:
        self.torch.compiler.cudagraph_mark_step_begin()
        self.results = self.run(*self.sets[i])


class Jax(Runtime):
    """A network written in JAX, compiled by XLA, in bf16. It gives no events: the clock of the host counts."""

    def __init__(self, path: str, seed: int, model: str, dtype: str = "bfloat16"):
        super().__init__(path, seed)
        import jax
        import jax.numpy as jnp

        from .jax_networks import NETWORKS

        self.jax, dtype = jax, jnp.dtype(dtype)
        run, self.weights = NETWORKS[model](pipeline.run(self.graph)[0], dtype)
        self.run = jax.jit(run)
        self.sets = [
            [jnp.asarray(a, dtype if a.dtype.kind == "f" else None) for a in one.values()] for one in self.feeds()
        ]

    def prepare(self) -> dict[str, Any]:
        begun = time.perf_counter()
        self.start(0)
        self.wait()
        return {"build_s": time.perf_counter() - begun, "version": self.jax.__version__}

    def start(self, i: int) -> None:
        self.result = self.run(self.weights, *self.sets[i])

    def wait(self) -> None:
        self.jax.block_until_ready(getattr(self, "result", None))

    def first(self) -> list[np.ndarray]:
        self.start(0)
        return [np.asarray(self.result).astype(np.float32)]


class Reference(Runtime):
    """ONNX Runtime on the CPU, in f32: what the others' outputs are compared with."""

    def first(self) -> list[np.ndarray]:
        import onnxruntime

        session = onnxruntime.InferenceSession(self.path, providers=["CPUExecutionProvider"])
        return session.run([v.name for v in self.graph.outputs], suite.drawn(self.ports, self.seed))

    def flops(self) -> int:
        """Operations of all products of a run; what comes between them is little beside, and no work for the units that
        the ceiling is measured of."""
        return sum(
            n.op.operations(tuple(v.type for v in n.inputs), tuple(v.type for v in n.outputs), n.attrs)
            for n in self.graph.nodes
            if n.op.name in PRODUCTS
        )
