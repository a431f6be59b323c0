"""A CUDA engine's working memory on the GPU, and its runs: waited for or not, on arrays of the CPU or of the GPU."""
from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pelton.backends.cuda.device import Memory, zeros
from pelton.engine.model import Port, Step
from pelton.system.forks import survives_fork
from pelton.errors import InputError

from .arrays import borrowed, check_apart, check_out, fit, out_array, refuse_out
from .context import REMEMBERED, Context, Traced
from .cuda_prepared import CudaPrepared, room
from .device_arrays import ALIGN, LEGACY, DeviceArray, Foreign, taken

if TYPE_CHECKING:
    from .cuda import CudaEngine

PIECE = 4 << 20                                # bytes of an array that go to or from the GPU at a time: enough for its full rate
AT_ONCE = 300                                  # steps that a profile puts on a stream at a time: it holds some thousand things before it makes the caller wait
IDLE = 64 << 20                                # bytes that are copied on the GPU for each step of a profile: at 8 TB/s longer than it takes to launch one


@dataclass(frozen=True, eq=False)
class Bound:
    """A run that can begin: its inputs are in place, or on their way on its stream. `targets`: the caller's places for outputs, by port."""

    ready: CudaPrepared
    inputs: Mapping[str, Any]
    targets: Mapping[int, np.ndarray | Foreign]

    @property
    def outputs(self) -> list[tuple[int, Port]]:
        return list(enumerate(self.ready.outputs, len(self.ready.inputs)))


class CudaContext(Context):
    """Runs an engine in GPU memory of its own, as one graph for each shape (several, where steps of the CPU come between).

    Inputs are arrays of any library that `Context` takes, or arrays that lie on the engine's GPU and can be had by DLPack or `__cuda_array_interface__`; these
    are read where they lie. What `out` gives is written where it lies, be it numpy's or on the GPU.
    """

    def __init__(self, engine: CudaEngine):
        self.engine: CudaEngine = engine
        self.threads, self.remembered = 1, REMEMBERED
        self._names, self._output_names = ({p.name for p in ports} for ports in (engine.inputs, engine.outputs))
        self._known: OrderedDict[tuple, CudaPrepared] = OrderedDict()        # type: ignore[assignment]
        self._latest = None
        self._memory: Memory | None = None
        self._staging: Memory | None = None
        self._held: Bound | None = None                          # what the last run reads and writes, until the next
        self._unlock()
        with engine.device as device:
            self._own = device.stream()
            self._done, self._uploaded = device.event(), device.event()      # the last run; its copies out of the staging memory
            needed = engine.sheet.zeros
            self._zeros = zeros(device, needed, f"engine {engine.called!r}, for a context,", self.stream) if needed else None
            self._only: CudaPrepared | None = None if engine.symbols else self._prepare({})     # type: ignore[assignment]
        survives_fork(self)

    @property
    def machine(self) -> str:
        return self.engine.device.name

    @property
    def stream(self) -> int:
        """The stream of its own, as other libraries know it by its number."""
        return self._own.handle

    @staticmethod
    def _fit(port: Port, given: Any) -> Any:
        if isinstance(given, Foreign):
            raise InputError(f"input {port.name!r} needs {port}, given shape {list(given.shape)}")
        return fit(port, given)

    def _prepare(self, values: Mapping[str, int]) -> CudaPrepared:           # type: ignore[override]
        engine, device = self.engine, self.engine.device
        filled = engine.sheet.fill(values)
        needed = room(engine, filled)
        if self._memory is None or needed.nbytes > self._memory.nbytes:
            had, self._memory = (self._memory.nbytes if self._memory else 0), None
            self._forget()                                       # they point into the old one
            grown = min(2 * had, device.free_memory() // 2)      # what grows step by step should not come here at each
            self._memory = device.allocate(max(needed.nbytes, grown), f"engine {engine.called!r}, for a context,")
        return CudaPrepared(engine, values, filled, needed, self._memory, self._zeros, self.stream)

    # ---- runs ----

    def run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Outputs by name, when they are there: fresh numpy arrays, or those that `out` gives for some or all of them, of the CPU or the GPU."""
        with self._alone(), self.engine.device as device:
            bound = self._bound(inputs, out, self.stream)
            bound.ready.run(self.stream)
            self._deliver(bound, self.stream)
            device.record(self._done, self.stream)
            return self._fetched(bound, out)

    def run_async(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None, stream: int | None = None) -> dict[str, Any]:
        """Puts a run on a stream, the context's own unless another is given (`torch.cuda.current_stream().cuda_stream`; 0 is the default stream), and does not
        wait for it.

        Outputs by name: arrays of the GPU that `out` gives, or `DeviceArray`s in memory of the context, which its next run overwrites. Arrays of the GPU
        must stay as they are until the run is over. A context's runs come one after the other, also on different streams. Engines with steps of the CPU wait
        for these, and numpy inputs wait for the copies of the run before.
        """
        with self._alone(), self.engine.device as device:
            at = self.stream if stream is None else int(stream) or LEGACY
            for name, given in (out or {}).items() if isinstance(out, Mapping) else ():
                if isinstance(given, np.ndarray) or borrowed(given, f"out[{name!r}]") is not None:
                    raise InputError(f"out[{name!r}] lies in the memory of the CPU, which only `run` fills; run_async takes arrays of the GPU, or leave it out")
            bound = self._bound(inputs, out, at)
            bound.ready.run(at)
            self._deliver(bound, at)
            device.record(self._done, at)
            self._held = bound
            ready, results = bound.ready, dict[str, Any]()
            for k, port in bound.outputs:
                if port.dtype == "string":
                    results[port.name] = ready.strings[k]
                elif k in bound.targets:
                    results[port.name] = (out or {})[port.name]
                else:
                    results[port.name] = DeviceArray(port, ready.places[k], (self._memory, self._own), device, at)
            return results

    def prepare(self, shapes: Mapping[str, Sequence[int]]) -> None:
        with self.engine.device:
            super().prepare(shapes)

    def synchronize(self) -> None:
        """Waits until all runs of this context are over."""
        with self._alone(), self.engine.device as device:
            device.finish(self._done)
            self._held = None

    def profile(self, inputs: Mapping[str, Any]) -> list[tuple[Step, int]]:
        """Every step with the nanoseconds it took on the GPU (of the CPU's: until what it wrote was back), in a run in which no two steps overlap. The GPU is
        kept busy until all steps are on its stream, so that it waits for none."""
        with self._alone(), self.engine.device as device:
            ready = self._bound(inputs, None, self.stream).ready
            idle = device.allocate(2 * IDLE, f"engine {self.engine.called!r}, for a profile,")
            marks = [device.event(timed=True) for _ in range(AT_ONCE + 1)]
            times: list[int] = []
            for first in range(0, len(ready.launches), AT_ONCE):
                steps = range(first, min(first + AT_ONCE, len(ready.launches)))
                for _ in range(sum(max(1, len(ready.launches[i])) for i in steps)):
                    device.copy(idle.address, idle.address + IDLE, IDLE, self.stream)
                device.record(marks[0], self.stream)
                for i, mark in zip(steps, marks[1:]):
                    self._step(ready, i)
                    device.record(mark, self.stream)
                device.synchronize(self.stream)
                times += [round(device.elapsed(begin, end)) for begin, end, _ in zip(marks, marks[1:], steps)]
            return list(zip(ready.plain.steps, times))

    def trace(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], list[Traced]]:
        """Outputs by name, and every step with when it began and ended, as if one came after the other from when the run began: how long each takes says a
        second run, which has no two at once."""
        begin = time.monotonic_ns()
        results, steps = self.run(inputs, out), list[Traced]()
        for step, ns in self.profile(inputs):
            steps.append((step, begin, begin := begin + ns))
        return results, steps

    def watch(self, inputs: Mapping[str, Any], see: Callable[[int, Any], None]) -> dict[str, Any]:
        with self._alone(), self.engine.device:
            bound = self._bound(inputs, None, self.stream)
            ready = bound.ready
            see(0, ready)
            for i in range(len(ready.launches)):
                self._step(ready, i)
                see(i + 1, ready)
            return self._fetched(bound, None)

    def _step(self, ready: CudaPrepared, i: int) -> None:
        if i in ready.host:
            ready.run_host(ready.host[i], self.stream)
        for launch in ready.launches[i]:
            self.engine.device.launch(launch, self.stream)

    # ---- arrays ----

    def _bound(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None, stream: int) -> Bound:
        """Puts all that comes before the steps of a run on the stream, behind the run before."""
        device = self.engine.device
        if out is not None and (not isinstance(out, Mapping) or not out.keys() <= self._output_names):
            check_out(self.engine.outputs, out)
        if isinstance(inputs, Mapping):
            inputs = {name: taken(value, f"input {name!r}", stream) for name, value in inputs.items()}
        ready: CudaPrepared = self._for(inputs)                  # type: ignore[assignment]
        ready.strings.clear()
        targets, pointers = dict[int, np.ndarray | Foreign](), list(ready.places)
        for k, port in enumerate(ready.outputs, len(ready.inputs)):
            if port.dtype == "string":
                ready.strings[k] = np.full(port.shape, "", object)
            if out and port.name in out:
                targets[k] = target = self._target(port, out[port.name], ready.places[k], stream)
                if isinstance(target, Foreign) and target.address % ALIGN == 0 and port.nbytes:
                    pointers[k] = target.address
        arrays = {}
        device.wait(stream, self._done)
        for k, port in enumerate(ready.inputs):
            given = inputs[port.name]
            if isinstance(given, Foreign):
                given.check(port, f"input {port.name!r}", device)
                pointers[k], inputs[port.name] = self._borrowed(given, port, k, ready, stream)
            elif port.dtype == "string":
                ready.strings[k] = fit(port, given)
            else:
                arrays[k] = fit(port, given)
        check_apart(self.engine.inputs, self.engine.outputs, [(at, at + nbytes) for at, nbytes in zip(pointers, ready.nbytes)], out or ())
        self._send(ready, {k: array for k, array in arrays.items() if array.nbytes}, stream)
        ready.point(pointers)
        return Bound(ready, inputs, targets)

    def _send(self, ready: CudaPrepared, arrays: Mapping[int, np.ndarray], stream: int) -> None:
        """Copies inputs to the GPU by way of pinned memory, a piece on its way while the next is put there. Those of the run before must have left it."""
        device = self.engine.device
        if arrays:
            device.finish(self._uploaded)
            for k, array in arrays.items():
                place, data = self._staged(ready, k), array.reshape(-1).view(np.uint8)
                address = place.__array_interface__["data"][0]
                for at in range(0, array.nbytes, PIECE):
                    piece = data[at:at + PIECE]
                    place[at:at + PIECE] = piece
                    device.upload(ready.places[k] + at, address + at, piece.nbytes, stream)
            device.record(self._uploaded, stream)

    def _staged(self, ready: CudaPrepared, k: int) -> np.ndarray:
        """The place of a port in pinned memory, whose pieces lie as in the GPU's."""
        if self._staging is None or self._staging.nbytes < ready.room.staged:
            self._staging = self.engine.device.pinned(ready.room.staged, f"engine {self.engine.called!r}, for a context,")
        start = ready.room.ports[k] - ready.room.ports[0]
        return self._staging.bytes[start:start + ready.nbytes[k]]        # type: ignore[index]

    def _borrowed(self, given: Foreign, port: Port, k: int, ready: CudaPrepared, stream: int) -> tuple[int, Foreign]:
        """Where an array of the GPU is read, and what has to stay until the run is over: where it lies, or a copy where kernels could not load from there, or
        where this run writes, as it does to results of the one before."""
        device, place = self.engine.device, ready.places[k]
        self._follow(given, stream)
        if not port.nbytes:
            return place, given
        own = self._is_own(given.address, port.nbytes)
        if own and given.address not in ready.places[len(ready.inputs):]:            # it was laid out for other sizes: our place may be in the midst of it
            copy = device.allocate(port.nbytes, f"a copy of input {port.name!r}")
            device.copy(copy.address, given.address, port.nbytes, stream)
            return copy.address, replace(given, keeper=copy)
        if own or given.address % ALIGN:
            device.copy(place, given.address, port.nbytes, stream)
            return place, given
        return given.address, given

    def _is_own(self, address: int, nbytes: int) -> bool:
        """Whether part of it is this context's memory."""
        return self._memory is not None and address < self._memory.address + self._memory.nbytes and self._memory.address < address + nbytes

    def _follow(self, given: Foreign, stream: int) -> None:
        """What comes on our stream waits for what is on theirs."""
        if given.stream is not None:
            filled = self.engine.device.event()
            self.engine.device.record(filled, given.stream)
            self.engine.device.wait(stream, filled)

    def _target(self, port: Port, given: Any, place: int, stream: int) -> np.ndarray | Foreign:
        """An array that `out` gives for an output; InputError where results cannot be written there."""
        found = taken(given, f"out[{port.name!r}]", stream)
        if not isinstance(found, Foreign):
            array = out_array(port, given)
            if not (array.flags.writeable and array.flags.c_contiguous and array.flags.aligned):
                refuse_out(port, array)
            return array
        found.check(port, f"out[{port.name!r}]", self.engine.device)
        if not found.writable:
            raise InputError(f"out[{port.name!r}] needs {port} that can be written, given one that is not")
        if found.address != place and self._is_own(found.address, port.nbytes):
            raise InputError(f"out[{port.name!r}] needs memory of the caller's, given another result of this context")
        self._follow(found, stream)
        return found

    def _deliver(self, bound: Bound, stream: int) -> None:
        """Copies the outputs for which the caller gave places on the GPU that kernels could not write to."""
        for k, target in bound.targets.items():
            if isinstance(target, Foreign) and bound.ready.pointers[k] != target.address and 0 not in target.shape:
                self.engine.device.copy(target.address, bound.ready.places[k], bound.ready.nbytes[k], stream)

    def _fetched(self, bound: Bound, out: Mapping[str, Any] | None) -> dict[str, Any]:
        """The outputs by name, those that are numpy's copied from the GPU by way of pinned memory, a piece taken from there while the next is on its way;
        waits until all is there."""
        device, ready = self.engine.device, bound.ready
        results, pieces = dict[str, Any](), list[tuple[np.ndarray, np.ndarray, int]]()
        for k, port in bound.outputs:
            into = bound.targets.get(k)
            if isinstance(into, Foreign):
                results[port.name] = (out or {})[port.name]
                continue
            if port.dtype == "string":
                results[port.name] = ready.strings[k]
                if into is not None:
                    into[...] = ready.strings[k]
                    results[port.name] = (out or {})[port.name]
                continue
            array = np.empty(port.shape, port.numpy_dtype) if into is None else into
            results[port.name] = array if into is None else (out or {})[port.name]
            for at in range(0, array.nbytes, PIECE):
                pieces.append((array.reshape(-1).view(np.uint8)[at:at + PIECE], self._staged(ready, k)[at:at + PIECE], ready.places[k] + at))
        large, there = sum(place.nbytes for _, place, _ in pieces) > PIECE, list[Any]()
        for _, place, source in pieces:
            device.download(place.__array_interface__["data"][0], source, place.nbytes, self.stream)
            if large:
                there.append(device.event())
                device.record(there[-1], self.stream)
        if not there:
            device.synchronize(self.stream)
        for i, (data, place, _) in enumerate(pieces):
            if there:
                device.finish(there[i])
            data[:] = place
        self._held = None
        return results
