"""What one run of an engine at a time needs: working memory on its device, and the plan ready for the shapes met
last."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, cast

import numpy as np

from pelton.backends.arrays import named_inputs, check_names, check_shape, refuse_mapping
from pelton.backends.device import Ready, Stamped, Streamed, Streaming, Workspace
from pelton.engine import sizes
from pelton.engine.model import EnginePlan
from pelton.engine.model import Port, Step
from pelton.errors import InputError
from pelton.system.forks import survives_fork

REMEMBERED = 32  # shapes that a context keeps ready
ENTERED = (
    "this context is in the middle of a run of the same thread, which called it again (in a step of Python, a finalizer"
    " or a signal handler); take another context, or engine.run, which takes a free one"
)


class Owner(Protocol):
    """What a context asks of its engine, which has started."""

    plain: EnginePlan

    @property
    def inputs(self) -> tuple[Port, ...]: ...
    def shapes(self) -> dict[str, tuple[int, ...]]: ...
    def allocate(self, threads: int | None) -> Workspace: ...


class Context:
    """Runs an engine in memory of its own. Runs of one context wait for each other; contexts run side by side.

    With dynamic dimensions, memory and steps are laid out when a shape is first run, and kept for the most recently
    used shapes.
    """

    def __init__(self, engine: Owner, threads: int | None = None):
        plain = engine.plain
        self.engine: Any = engine
        self.workspace = engine.allocate(threads)
        self.threads = self.workspace.threads
        self.remembered = REMEMBERED
        self._import_inputs = self.workspace.import_inputs
        self._names = {p.name for p in plain.inputs}
        self._known: OrderedDict[tuple, Ready] = OrderedDict()
        self._latest: Ready | None = None  # most often the shapes are those of the run before
        self._only = None if plain.symbols else self._prepare({})
        self._latest = self._only
        self._unlock()
        survives_fork(self)

    def _unlock(self) -> None:
        """No run is in progress: those of other threads end with a fork, as far as the child is concerned."""
        self._lock, self._busy = threading.RLock(), False

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Waits until no other thread is at work here. InputError where this very thread is, as it would wait for
        ever."""
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
        """What it runs on, by its marketing name."""
        return self.workspace.machine

    @property
    def stream(self) -> int | None:
        """On a GPU the stream of its own, as other libraries know it by its number."""
        return self.workspace.stream

    def _prepare(self, values: Mapping[str, int]) -> Ready:
        """The engine for these values of its symbols."""
        return self.workspace.prepare(values, self._forget)

    def _forget(self) -> None:
        """Nothing is ready any more."""
        self._known.clear()
        self._latest = None

    def _for(self, inputs: Mapping[str, Any]) -> Ready:
        """What is ready for the shapes of these inputs, or is made so now."""
        if type(inputs) is not dict and not isinstance(inputs, Mapping):
            refuse_mapping(self.engine.inputs, inputs)
        if inputs.keys() != self._names:
            check_names("input", self.engine.inputs, inputs, all_of_them=True)
        if self._only is not None:
            return self._only
        shapes = {p.name: np.shape(inputs[p.name]) for p in self.engine.inputs}
        key = tuple(shapes.values())
        if key in self._known:
            found = self._known[key]
            self._known.move_to_end(key)
        else:
            fit = self.workspace.fit
            for port in self.engine.inputs:
                if len(shapes[port.name]) != len(port.shape):
                    fit(port, inputs[port.name])  # says what is wrong
            found = self._prepare(sizes.solve(self.engine.plain, shapes))
            for port in found.resolved.inputs:
                if port.shape != shapes[port.name]:
                    fit(port, inputs[port.name])
            if len(self._known) >= self.remembered:
                self._known.popitem(last=False)
            self._known[key] = found
        self._latest = found
        return found

    def run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Outputs by name, when they are there: in fresh numpy arrays, or in those that `out` gives for some or all of
        them.

        Arrays are numpy's, or another library's: what has `__dlpack__` is read and written where it lies, inputs may
        have `__array__` instead; engines for GPUs take arrays that lie on theirs, also by `__cuda_array_interface__`.
        With contiguous inputs and all outputs given, no memory is taken for arrays. Strided, unaligned and byte-swapped
        inputs are copied; whatever else does not fit, other types included, is an InputError.
        """
        with self._lock:  # as `_alone` does it, in half the time
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

    def run_async(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None, stream: int | None = None
    ) -> dict[str, Any]:
        """Puts a run on a stream of the GPU, the context's own unless another is given
        (`torch.cuda.current_stream().cuda_stream`; 0 is the default stream), and does not wait for it. InputError for
        engines that run on the CPU.

        Outputs by name: arrays of the GPU that `out` gives, or `DeviceArray`s in memory of the context, which its next
        run overwrites. Arrays of the GPU must stay as they are until the run is over. A context's runs come one after
        the other, also on different streams. Engines with steps of the CPU wait for these, and numpy inputs wait for
        the copies of the run before.
        """
        if self.stream is None:
            raise InputError(
                f"{self.machine} has no streams: a run is over when `run` returns; run_async is for engines that run on"
                " a GPU"
            )
        with self._alone():
            inputs = cast(Streaming, self.workspace).import_inputs(inputs, stream)
            return cast(Streamed, self._for(inputs)).run_async(inputs, out, stream)

    def synchronize(self) -> None:
        """Waits until all runs of this context are over."""
        with self._alone():
            self.workspace.synchronize()

    def __call__(self, /, *arrays: Any, **named: Any) -> Any:
        """Inputs in order, or by name; gives the output, or a tuple where there are several."""
        results = tuple(self.run(named_inputs(self.engine.inputs, arrays, named)).values())
        return results[0] if len(results) == 1 else results

    def prepare(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Lays out memory and steps for inputs of these shapes (by name), so that the next such run need not.

        InputError for names, ranks or sizes that the engine does not take."""
        check_names("input", self.engine.inputs, shapes, all_of_them=True)
        with self._alone():
            empty = {}
            for port in self.engine.inputs:
                try:
                    empty[port.name] = np.broadcast_to(np.zeros((), port.numpy_dtype), shapes[port.name])
                except (TypeError, ValueError) as e:
                    raise InputError(f"input {port.name!r} can have no shape {shapes[port.name]!r}: {e}") from None
            for port in self._for(empty).resolved.inputs:
                check_shape(port, empty[port.name].shape, f"input {port.name!r} needs {port}")

    def warmup(self) -> None:
        """Runs once on zeros of the optimum shapes, which touches memory and starts threads, so that the next run takes
        no longer than others."""
        shapes = self.engine.shapes()
        self.run(
            {
                p.name: np.full(shapes[p.name], "" if p.dtype == "string" else 0, p.numpy_dtype)
                for p in self.engine.inputs
            }
        )

    def profile(self, inputs: Mapping[str, Any]) -> list[tuple[Step, int]]:
        """Every step with the nanoseconds it took, in a run in which no two steps overlap."""
        with self._alone():
            inputs = self._import_inputs(inputs)
            return self._for(inputs).profile(inputs)

    def trace(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], list[Stamped]]:
        """Outputs by name, as `run` gives them, and every step with when it began and ended, in nanoseconds of
        `time.monotonic_ns`; no two steps overlap."""
        with self._alone():
            inputs = self._import_inputs(inputs)
            return self._for(inputs).trace(inputs, out)

    def watch(self, inputs: Mapping[str, Any], see: Callable[[int, Ready], None]) -> dict[str, Any]:
        """Outputs by name, from a run of one step after the other. Before each and after the last, `see` is called with
        the number of steps done and what knows the memory as it then is: a later step may overwrite it."""
        with self._alone():
            inputs = self._import_inputs(inputs)
            return self._for(inputs).watch(inputs, see)
