"""Runs on a GPU, synchronous or not, on arrays of the CPU or of the GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pelton.engine.plan import EnginePlan, Port, Step
from pelton.errors import InputError

from ..arrays import borrow, check_no_overlap, check_out, fit, out_array, refuse_out
from ..device import Stamped
from .arrays import ALIGN, LEGACY, DeviceArray, ForeignArray, import_array
from .device import Device, Memory
from .prepared import CudaPrepared

# bytes of an array per transfer to or from the GPU: enough for its full rate
PIECE = 4 << 20
# steps that a profile enqueues at a time: a stream holds some thousand before it blocks the caller
AT_ONCE = 300
# bytes copied on the GPU for each step of a profile: at 8 TB/s longer than a launch
IDLE = 64 << 20


@dataclass(frozen=True, eq=False)
class BoundRun:
    """A run ready to begin: its inputs are in place, or on their way on its stream. `targets`: the caller's arrays for
    outputs, by port."""

    prepared: CudaPrepared
    inputs: Mapping[str, Any]
    targets: Mapping[int, np.ndarray | ForeignArray]

    @property
    def outputs(self) -> list[tuple[int, Port]]:
        return list(enumerate(self.prepared.outputs, len(self.prepared.inputs)))


class ContextState:
    """State shared by all runs of a context: its stream, its memory on the GPU, pinned memory for copies. `done`,
    `uploaded`: events of the end of the last run, and of its copies out of the pinned memory. `held`: operands of the
    last run, until the next."""

    def __init__(self, device: Device, label: str):
        self.device, self.label, self.own = device, label, device.stream()
        self.done, self.uploaded = device.event(), device.event()
        self.memory: Memory | None = None
        self.staging: Memory | None = None
        self.held: BoundRun | None = None

    @property
    def stream(self) -> int:
        """The stream's number, for other libraries."""
        return self.own.handle

    def staged(self, prepared: CudaPrepared, k: int) -> np.ndarray:
        """Returns the place of a port in pinned memory, laid out as on the GPU."""
        if self.staging is None or self.staging.nbytes < prepared.room.staged:
            self.staging = self.device.pinned(prepared.room.staged, f"engine {self.label!r}, for a context,")
        start = prepared.room.ports[k] - prepared.room.ports[0]
        return self.staging.bytes[start : start + prepared.nbytes[k]]  # type: ignore[index]

    def is_own(self, address: int, nbytes: int) -> bool:
        """Returns True if part of it is this context's memory."""
        return (
            self.memory is not None
            and address < self.memory.address + self.memory.nbytes
            and self.memory.address < address + nbytes
        )

    def follow(self, given: ForeignArray, stream: int) -> None:
        """Makes later work on our stream wait for the work on theirs."""
        if given.stream is not None:
            filled = self.device.event()
            self.device.record(filled, given.stream)
            self.device.wait(stream, filled)


class CudaReady:
    """An engine for one set of sizes as one graph (several, with host steps between them), and its runs. See
    `device.Ready`.

    Inputs are arrays of any library in CPU memory, or arrays on the engine's GPU with DLPack or
    `__cuda_array_interface__`; the latter are read in place. Arrays of `out` are written in place, in numpy's memory or
    on the GPU.
    """

    call = None

    def __init__(self, shared: ContextState, prepared: CudaPrepared):
        self.shared, self.prepared, self.resolved, self.device = shared, prepared, prepared.resolved, shared.device
        self._ports = prepared.plan.plain.inputs, prepared.plan.plain.outputs
        self._output_names = {p.name for p in prepared.outputs}

    @property
    def plain(self) -> EnginePlan:
        return self.prepared.plain

    def memory(self, buffer: int) -> np.ndarray:
        return self.prepared.memory(buffer)

    # ---- runs ----

    def run(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None) -> dict[str, Any]:
        shared = self.shared
        with self.device as device:
            bound = self._bound(inputs, out, shared.stream)
            self.prepared.run(shared.stream)
            self._deliver(bound, shared.stream)
            device.record(shared.done, shared.stream)
            return self._fetched(bound, out)

    def run_async(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None, stream: int | None) -> dict[str, Any]:
        shared, prepared = self.shared, self.prepared
        with self.device as device:
            at = shared.stream if stream is None else int(stream) or LEGACY
            for name, value in (out or {}).items() if isinstance(out, Mapping) else ():
                if isinstance(value, np.ndarray) or borrow(value, f"out[{name!r}]") is not None:
                    raise InputError(
                        f"out[{name!r}] is in CPU memory; run_async needs arrays in GPU memory: pass such an"
                        " array, leave it out, or use run"
                    )
            bound = self._bound(inputs, out, at)
            prepared.run(at)
            self._deliver(bound, at)
            device.record(shared.done, at)
            shared.held = bound
            results = dict[str, Any]()
            for k, port in bound.outputs:
                if port.dtype == "string":
                    results[port.name] = prepared.strings[k]
                elif k in bound.targets:
                    results[port.name] = (out or {})[port.name]
                else:
                    results[port.name] = DeviceArray(port, prepared.places[k], (shared.memory, shared.own), device, at)
            return results

    def profile(self, inputs: Mapping[str, Any]) -> list[tuple[Step, int]]:
        """Returns the nanoseconds of each step on the GPU (for host steps: until their results are back). The GPU is
        kept busy until all steps are on its stream, and waits for none."""
        prepared, stream = self.prepared, self.shared.stream
        with self.device as device:
            self._bound(inputs, None, stream)
            idle = device.allocate(2 * IDLE, f"engine {self.shared.label!r}, for a profile,")
            marks = [device.event(timed=True) for _ in range(AT_ONCE + 1)]
            times: list[int] = []
            for first in range(0, len(prepared.launches), AT_ONCE):
                steps = range(first, min(first + AT_ONCE, len(prepared.launches)))
                for _ in range(sum(max(1, len(prepared.launches[i])) for i in steps)):
                    device.copy(idle.address, idle.address + IDLE, IDLE, stream)
                device.record(marks[0], stream)
                for i, mark in zip(steps, marks[1:]):
                    self._step(i)
                    device.record(mark, stream)
                device.synchronize(stream)
                times += [round(device.elapsed(begin, end)) for begin, end, _ in zip(marks, marks[1:], steps)]
            return list(zip(prepared.plain.steps, times))

    def trace(
        self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, Any], list[Stamped]]:
        """Runs once; reports its steps in sequence from its begin, with lengths from a second run without overlap."""
        begin = time.monotonic_ns()
        results, steps = self.run(inputs, out), list[Stamped]()
        for step, ns in self.profile(inputs):
            steps.append((step, begin, begin := begin + ns))
        return results, steps

    def watch(self, inputs: Mapping[str, Any], see: Callable[[int, Any], None]) -> dict[str, Any]:
        with self.device:
            bound = self._bound(inputs, None, self.shared.stream)
            see(0, self.prepared)
            for i in range(len(self.prepared.launches)):
                self._step(i)
                see(i + 1, self.prepared)
            return self._fetched(bound, None)

    def _step(self, i: int) -> None:
        prepared, stream = self.prepared, self.shared.stream
        if i in prepared.host:
            prepared.run_host(prepared.host[i], stream)
        for launch in prepared.launches[i]:
            self.device.launch(launch, stream)

    # ---- arrays ----

    def _bound(self, inputs: Mapping[str, Any], out: Mapping[str, Any] | None, stream: int) -> BoundRun:
        """Enqueues the preparation of a run's steps on the stream, after the run before."""
        device, shared, prepared = self.device, self.shared, self.prepared
        engine_inputs, engine_outputs = self._ports
        if out is not None and (not isinstance(out, Mapping) or not out.keys() <= self._output_names):
            check_out(engine_outputs, out)
        prepared.strings.clear()
        targets, pointers = dict[int, np.ndarray | ForeignArray](), list(prepared.places)
        for k, port in enumerate(prepared.outputs, len(prepared.inputs)):
            if port.dtype == "string":
                prepared.strings[k] = np.full(port.numbers, "", object)
            if out and port.name in out:
                targets[k] = target = self._target(port, out[port.name], prepared.places[k], stream)
                if isinstance(target, ForeignArray) and target.address % ALIGN == 0 and port.nbytes:
                    pointers[k] = target.address
        arrays, kept = {}, dict(inputs)
        device.wait(stream, shared.done)
        for k, port in enumerate(prepared.inputs):
            value = inputs[port.name]
            if isinstance(value, ForeignArray):
                value.check(port, f"input {port.name!r}", device)
                pointers[k], kept[port.name] = self._borrowed(value, port, k, stream)
            elif port.dtype == "string":
                prepared.strings[k] = fit(port, value)
            else:
                arrays[k] = fit(port, value)
        check_no_overlap(
            engine_inputs,
            engine_outputs,
            [(at, at + nbytes) for at, nbytes in zip(pointers, prepared.nbytes)],
            out or (),
        )
        self._send({k: array for k, array in arrays.items() if array.nbytes}, stream)
        prepared.point(pointers)
        return BoundRun(prepared, kept, targets)

    def _send(self, arrays: Mapping[int, np.ndarray], stream: int) -> None:
        """Copies inputs to the GPU through pinned memory, one piece in transfer while the next is copied there. The
        inputs of the run before must have left it."""
        device, shared, prepared = self.device, self.shared, self.prepared
        if arrays:
            device.finish(shared.uploaded)
            for k, array in arrays.items():
                place, data = shared.staged(prepared, k), array.reshape(-1).view(np.uint8)
                address = place.__array_interface__["data"][0]
                for at in range(0, array.nbytes, PIECE):
                    piece = data[at : at + PIECE]
                    place[at : at + PIECE] = piece
                    device.upload(prepared.places[k] + at, address + at, piece.nbytes, stream)
            device.record(shared.uploaded, stream)

    def _borrowed(self, given: ForeignArray, port: Port, k: int, stream: int) -> tuple[int, ForeignArray]:
        """Returns the address of an array on the GPU, and the memory to keep until the run is over. A copy replaces
        misaligned arrays, and those in memory that this run writes, such as results of the one before."""
        device, prepared, place = self.device, self.prepared, self.prepared.places[k]
        self.shared.follow(given, stream)
        if not port.nbytes:
            return place, given
        own = self.shared.is_own(given.address, port.nbytes)
        # it was laid out for other sizes and may overlap our place
        if own and given.address not in prepared.places[len(prepared.inputs) :]:
            copy = device.allocate(port.nbytes, f"a copy of input {port.name!r}")
            device.copy(copy.address, given.address, port.nbytes, stream)
            return copy.address, replace(given, keeper=copy)
        if own or given.address % ALIGN:
            device.copy(place, given.address, port.nbytes, stream)
            return place, given
        return given.address, given

    def _target(self, port: Port, given: Any, place: int, stream: int) -> np.ndarray | ForeignArray:
        """Returns the place in `out` for an output; raises InputError if results cannot be written there."""
        target = import_array(given, f"out[{port.name!r}]", stream)
        if not isinstance(target, ForeignArray):
            array = out_array(port, given)
            if not (array.flags.writeable and array.flags.c_contiguous and array.flags.aligned):
                refuse_out(port, array)
            return array
        target.check(port, f"out[{port.name!r}]", self.device)
        if not target.writable:
            raise InputError(f"out[{port.name!r}] needs a writable {port}, got a read-only one")
        if target.address != place and self.shared.is_own(target.address, port.nbytes):
            raise InputError(f"out[{port.name!r}] needs the caller's own memory, got another result of this context")
        self.shared.follow(target, stream)
        return target

    def _deliver(self, bound: BoundRun, stream: int) -> None:
        """Copies the outputs to the caller's GPU arrays that kernels could not write to."""
        for k, target in bound.targets.items():
            if (
                isinstance(target, ForeignArray)
                and bound.prepared.pointers[k] != target.address
                and 0 not in target.shape
            ):
                self.device.copy(target.address, bound.prepared.places[k], bound.prepared.nbytes[k], stream)

    def _fetched(self, bound: BoundRun, out: Mapping[str, Any] | None) -> dict[str, Any]:
        """Returns the outputs by name, numpy's copied from the GPU through pinned memory, one piece in transfer while
        the last is copied out; waits until all are there."""
        device, shared, prepared = self.device, self.shared, self.prepared
        results, pieces = dict[str, Any](), list[tuple[np.ndarray, np.ndarray, int]]()
        for k, port in bound.outputs:
            into = bound.targets.get(k)
            if isinstance(into, ForeignArray):
                results[port.name] = (out or {})[port.name]
                continue
            if port.dtype == "string":
                results[port.name] = prepared.strings[k]
                if into is not None:
                    into[...] = prepared.strings[k]
                    results[port.name] = (out or {})[port.name]
                continue
            array = np.empty(port.numbers, port.numpy_dtype) if into is None else into
            results[port.name] = array if into is None else (out or {})[port.name]
            for at in range(0, array.nbytes, PIECE):
                pieces.append(
                    (
                        array.reshape(-1).view(np.uint8)[at : at + PIECE],
                        shared.staged(prepared, k)[at : at + PIECE],
                        prepared.places[k] + at,
                    )
                )
        large, there = sum(place.nbytes for _, place, _ in pieces) > PIECE, list[Any]()
        for _, place, source in pieces:
            device.download(place.__array_interface__["data"][0], source, place.nbytes, shared.stream)
            if large:
                there.append(device.event())
                device.record(there[-1], shared.stream)
        if not there:
            device.synchronize(shared.stream)
        for i, (data, place, _) in enumerate(pieces):
            if there:
                device.finish(there[i])
            data[:] = place
        shared.held = None
        return results
