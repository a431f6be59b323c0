"""Contexts: working memory for one run of an engine at a time, and the prepared plans of recent shapes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, cast

import numpy as np

from pelton.backends.arrays import named_inputs, check_names, check_shape, check_shapes, refuse_mapping
from pelton.backends.device import Ready, Stamped, Streamed, Streaming, Workspace
from pelton.engine import sizes
from pelton.engine.plan import EnginePlan
from pelton.engine.plan import Port, Step
from pelton.errors import InputError
from pelton.system.forks import survives_fork

from .in_process import InProcess

REMEMBERED = 32  # number of shapes that a context keeps ready
ENTERED = (
    "this context is already running in this thread, which called it again (from a Python step, a finalizer or a"
    " signal handler); use another context, or engine.run, which uses a free one"
)


def zeros(ports: Sequence[Port]) -> dict[str, np.ndarray]:
    """Returns zeros, and empty strings, by name for ports of static shapes."""
    return {p.name: np.full(p.numbers, "" if p.dtype == "string" else 0, p.numpy_dtype) for p in ports}


class Owner(Protocol):
    """The interface of a started engine that a context needs."""

    plain: EnginePlan

    @property
    def inputs(self) -> tuple[Port, ...]: ...
    def ports(self) -> tuple[Port, ...]: ...
    def allocate(self, threads: int | None) -> Workspace: ...


class Context(InProcess):
    """Runs an engine in memory of its own. Runs of one context wait for each other; contexts run concurrently.

    With dynamic dimensions, memory and steps are laid out when a shape first runs, and kept for the 32 most recent
    shapes. threads: as for `Engine.context`, which creates contexts.
    """

    def __init__(self, engine: Owner, threads: int | None = None):
        plain = engine.plain
        self.engine: Any = engine
        self.workspace = engine.allocate(threads)
        self.threads = self.workspace.threads
        self.remembered = REMEMBERED
        self._import_inputs = self.workspace.import_inputs
        self._names = {p.name for p in plain.inputs}
        self._places = sizes.places(plain)
        self._known: OrderedDict[tuple, Ready] = OrderedDict()
        self._latest: Ready | None = None  # most runs have the shapes of the run before
        self._only = None if plain.symbols else self._prepare({})
        self._latest = self._only
        self._unlock()
        survives_fork(self)

    def __repr__(self) -> str:
        threads = f", {self.threads} thread{'s' * (self.threads != 1)}" if self.threads else ""
        return f"<pelton.Context of {self.engine!r}{threads}>"

    def _unlock(self) -> None:
        """Forgets runs in progress: in the child of a fork, those of other threads have ended."""
        self._lock, self._busy = threading.RLock(), False

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Context manager: waits for other threads' use of this context. Raises InputError in a run of this thread."""
        with self._lock:
            if self._busy:
                raise InputError(ENTERED)
            self._busy = True
            try:
                yield
            finally:
                self._busy = False

    @property
    def machine(self) -> str:
        """The marketing name of the device that the context runs on."""
        return self.workspace.machine

    @property
    def stream(self) -> int | None:
        """The context's own CUDA stream, as a number that other libraries accept; None on a CPU."""
        return self.workspace.stream

    def _prepare(self, values: Mapping[str, int]) -> Ready:
        """Prepares the plan for these values of its symbols."""
        return self.workspace.prepare(values, self._forget)

    def _forget(self) -> None:
        """Drops all prepared plans."""
        self._known.clear()
        self._latest = None

    def _of(self, shapes: tuple[tuple[int, ...], ...]) -> Ready:
        """Returns the plan for inputs of these shapes, in their order. Raises InputError if they do not fit."""
        if self._only is not None:
            return self._only
        if shapes in self._known:
            self._known.move_to_end(shapes)
            return self._known[shapes]
        return self._for(
            {
                p.name: np.broadcast_to(np.zeros((), p.numpy_dtype), shape)
                for p, shape in zip(self.engine.inputs, shapes)
            }
        )

    def _for(self, inputs: Mapping[str, Any]) -> Ready:
        """Returns the plan for the shapes of these inputs; prepares it if necessary."""
        if type(inputs) is not dict and not isinstance(inputs, Mapping):
            refuse_mapping(self.engine.inputs, inputs)
        if inputs.keys() != self._names:
            check_names("input", self.engine.inputs, inputs, all_of_them=True)
        if self._only is not None:
            return self._only
        shapes = {p.name: np.shape(inputs[p.name]) for p in self.engine.inputs}
        key = tuple(shapes.values())
        if key in self._known:
            ready = self._known[key]
            self._known.move_to_end(key)
        else:
            fit = self.workspace.fit
            for port in self.engine.inputs:
                if len(shapes[port.name]) != len(port.shape):
                    fit(port, inputs[port.name])  # raises InputError with the reason
            ready = self._prepare(sizes.solve(self.engine.plain, shapes, self._places))
            for port in ready.resolved.inputs:
                if port.shape != shapes[port.name]:
                    fit(port, inputs[port.name])
            if len(self._known) >= self.remembered:
                self._known.popitem(last=False)
            self._known[key] = ready
        self._latest = ready
        return ready

    def run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Runs the engine, waits for its end and returns its outputs by name.

        inputs: one array for each input, of its element type and shape, from numpy or another library: arrays with
        `__dlpack__` are used in place, others need `__array__`. Engines for GPUs also accept arrays on their GPU, by
        DLPack or `__cuda_array_interface__`. Strided, unaligned and byte-swapped inputs are copied.
        out: arrays that some or all outputs are written into; other outputs are new numpy arrays. With contiguous
        inputs and all outputs in `out`, no memory is allocated for arrays. An output that `shares` an input, a cache
        that the run extends, may be the array of this input: only new elements are written then.
        Raises InputError for names, types, shapes and sizes that do not fit, for outputs that are not writable,
        contiguous and aligned or share memory with other arrays, and if the same thread is already in a run of this
        context; EngineError if there is not enough memory for the shapes, or a step fails.
        """
        with self._lock:  # as in `_alone`, in half the time
            if self._busy:
                raise InputError(ENTERED)
            self._busy = True
            try:
                ready = self._latest
                if out is None and ready is not None and ready.call is not None and type(inputs) is dict:
                    results = ready.call(inputs)
                    if results is not None:
                        return results
                inputs = self._import_inputs(inputs)
                return self._for(inputs).run(inputs, out)
            finally:
                self._busy = False

    def output_shapes(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of all outputs for inputs of these shapes, both by name. Raises as `prepare` does."""
        return {port.name: port.numbers for port in self._prepared(shapes).resolved.outputs}

    def run_at(self, shapes: tuple[tuple[int, ...], ...], addresses: Sequence[int]) -> bool:
        """Runs on memory at these addresses, without checks, for callers to whom microseconds matter. They must ensure
        dense arrays of the ports' types, inputs and then outputs, that overlap no output.

        shapes: those of the inputs, ignored by an engine of static shapes.
        Returns False, without a run, for engines with host steps and on GPUs. Raises as `run` does.
        """
        with self._lock:
            if self._busy:
                raise InputError(ENTERED)
            self._busy = True
            try:
                run = getattr(self._of(shapes), "run_at", None)
                return run is not None and run(addresses)
            finally:
                self._busy = False

    def run_async(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None, stream: int | None = None
    ) -> dict[str, Any]:
        """Enqueues a run on a stream of the GPU and returns without waiting for it.

        inputs: as for `run`; numpy arrays wait for the copies of the run before. out: arrays on the GPU.
        stream: a number such as `torch.cuda.current_stream().cuda_stream`, 0 for the default stream; default: the
        context's own stream.
        Returns outputs by name: the arrays of `out`, or `DeviceArray`s in memory of the context, which its next run
        overwrites. Arrays on the GPU must not change until the run is over. Runs of one context execute in order, also
        on different streams; engines with host steps wait for these.
        Raises InputError for engines that run on the CPU, and as `run` does.
        """
        if self.stream is None:
            raise InputError(
                f"{self.machine} has no streams: a run is over when `run` returns; this run_async is for engines that"
                " run on a GPU, that of the engine and pelton.AsyncQueue start runs in threads"
            )
        with self._alone():
            inputs = cast(Streaming, self.workspace).import_inputs(inputs, stream)
            return cast(Streamed, self._for(inputs)).run_async(inputs, out, stream)

    def synchronize(self) -> None:
        """Waits until all runs of this context are over."""
        with self._alone():
            self.workspace.synchronize()

    def __call__(self, /, *arrays: Any, **named: Any) -> Any:
        """Accepts inputs in order or by name; returns the output, or a tuple of several. Raises as `run` does."""
        results = tuple(self.run(named_inputs(self.engine.inputs, arrays, named)).values())
        return results[0] if len(results) == 1 else results

    def prepare(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Lays out memory and steps for inputs of these shapes (by name), ahead of the first such run.

        Raises InputError for names, ranks or sizes that do not fit, EngineError if memory is short.
        """
        self._prepared(shapes)

    def _prepared(self, shapes: Mapping[str, Sequence[int]]) -> Ready:
        """Returns the plan for inputs of these shapes, by name."""
        check_shapes(self.engine.inputs, shapes)
        with self._alone():
            empty = {}
            for port in self.engine.inputs:
                try:
                    empty[port.name] = np.broadcast_to(np.zeros((), port.numpy_dtype), shapes[port.name])
                except (TypeError, ValueError) as e:
                    raise InputError(f"input {port.name!r} can have no shape {shapes[port.name]!r}: {e}") from None
            ready = self._for(empty)
            for port in ready.resolved.inputs:
                check_shape(port, empty[port.name].shape, f"input {port.name!r} needs {port}")
            return ready

    def warmup(self) -> None:
        """Runs once on zeros of the optimum shapes.

        This touches all memory and starts the threads: the next run is then as fast as later ones.
        """
        self.run(zeros(self.engine.ports()))

    def profile(self, inputs: Mapping[str, Any]) -> list[tuple[Step, int]]:
        """Runs once, one step at a time; returns each step and its nanoseconds. Raises as `run` does."""
        with self._alone():
            inputs = self._import_inputs(inputs)
            return self._for(inputs).profile(inputs)

    def trace(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], list[Stamped]]:
        """Runs like `run` and returns the outputs by name, and each step with its begin and end.

        Times are nanoseconds of `time.monotonic_ns`. No two steps overlap. Raises as `run` does.
        """
        with self._alone():
            inputs = self._import_inputs(inputs)
            return self._for(inputs).trace(inputs, out)

    def trace_engines(self, inputs: Mapping[str, Any]) -> list[tuple[Any, Sequence[Stamped]]]:
        """Runs once as `trace` does; returns the finished parts in order: each run of an engine with its steps, and
        each step of a script between its engines, with None for the engine."""
        return [(self.engine, self.trace(inputs)[1])]

    def watch(self, inputs: Mapping[str, Any], see: Callable[[int, Ready], None]) -> dict[str, Any]:
        """Runs one step after the other and returns the outputs by name.

        see: called before each step and after the last, with the number of finished steps and the `Ready` whose
        `memory` holds the buffers at that time; later steps may overwrite them. Raises as `run` does.
        """
        with self._alone():
            inputs = self._import_inputs(inputs)
            return self._for(inputs).watch(inputs, see)
