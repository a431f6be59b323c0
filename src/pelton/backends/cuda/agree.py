"""Compares the results of a step's kernels on this GPU: a faulty GPU or library may produce different ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from pelton.engine.plan import Step, Tensor

from ..host import view
from . import clock
from .device import Device, Launch, Memory, KernelHangs
from .prepared import CudaPrepared

# Relative to the largest value: more than the effect of different orders of sums and intermediate roundings. The error
# of a wrong kernel is near one, however coarse the type.
TOLERANCE, STEPS = 1e-3, 8
# the type's precision at one; 2^-23 for all others
EPSILON = {"f16": 2.0**-10, "bf16": 2.0**-7, "f64": 2.0**-52}
# precision steps at one: smaller largest values are residues of sums that cancel out
MIN_STEPS = 16
PIECE = 4 << 20  # elements compared at the beginning and at the end


class Trial:
    """Runs kernels of the next step, in the memory of its context; restores their outputs at exit.

    Nothing else may run meanwhile. Raises KernelHangs if a kernel does not end.
    """

    def __init__(self, device: Device, ready: CudaPrepared, step: Step):
        self.device, self.ready, self.step, self.event = device, ready, step, device.event()
        written = Counter(t.slice.buffer for t in step.outputs)
        named = [Counter(a.buffer for a in k.args) for k in (step, *step.alternatives)]
        spans = {b: (int(ready.starts[b]), int(ready.resolved.bytes[b])) for b in set(written).union(*named)}
        read = [spans[b] for names in named for b, count in names.items() if count > written[b]]
        self.writes = [spans[b] for b in sorted(written)]
        # excludes memory that the step also reads
        self.poisoned = [
            (at, n) for at, n in self.writes if not any(at < other + m and other < at + n for other, m in read)
        ]
        self.kept: list[tuple[int, int, Memory]] = []

    def __enter__(self) -> Trial:
        zeros = self.ready.zeros
        for at, nbytes in (*self.writes, *([(zeros.address, zeros.nbytes)] if zeros is not None else [])):
            if nbytes:
                self.kept.append((at, nbytes, self.device.allocate(nbytes, "comparing kernels")))
                self.device.copy(self.kept[-1][2].address, at, nbytes, self.ready.stream)
        self.poison = np.full(max((n for _, n in self.poisoned), default=0), 0xFF, np.uint8)
        self.device.synchronize(self.ready.stream)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, KernelHangs):
            return
        self._put_back()
        self.device.synchronize(self.ready.stream)

    def _put_back(self) -> None:
        for at, nbytes, copy in self.kept:
            self.device.copy(at, copy.address, nbytes, self.ready.stream)

    def results(self, launches: Sequence[Launch]) -> list[np.ndarray]:
        """Returns the step's outputs after these launches; unwritten bytes are 255."""
        self._put_back()
        for at, nbytes in self.poisoned:
            self.device.upload(at, self.poison.__array_interface__["data"][0], nbytes, self.ready.stream)
        for launch in launches:
            self.device.launch(launch, self.ready.stream)
        self.device.record(self.event, self.ready.stream)
        self.device.finish(self.event, clock.PATIENCE)  # the next timing uses another stream
        return [_numbers(t, self.ready) for t in self.step.outputs]


def _numbers(t: Tensor, ready: CudaPrepared) -> np.ndarray:
    """Copies a tensor; bf16, which numpy lacks, becomes f32."""
    raw = np.array(view(replace(t, dtype="u16") if t.dtype == "bf16" else t, ready.memory(t.slice.buffer)))
    return (raw.astype(np.uint32) << 16).view(np.float32) if t.dtype == "bf16" else raw


def groups(results: Iterable[Sequence[np.ndarray]], types: Sequence[str]) -> list[list[int]]:
    """Groups the indices of results that agree with the first of their group; larger groups first, equally large ones
    by their first index."""
    groups: list[tuple[Sequence[np.ndarray], list[int]]] = []
    for i, result in enumerate(results):
        group = next(
            (g for first, g in groups if all(agree(a, b, dtype) for a, b, dtype in zip(first, result, types))), None
        )
        if group is None:
            groups.append((result, group := []))
        group.append(i)
    return sorted((group for _, group in groups), key=len, reverse=True)


def agree(a: np.ndarray, b: np.ndarray, dtype: str) -> bool:
    """Returns True if two results differ by no more than two correct kernels may; compares both ends of long ones."""
    a, b = a.reshape(-1), b.reshape(-1)
    if a.size > 2 * PIECE:
        a, b = (np.concatenate([x[:PIECE], x[-PIECE:]]) for x in (a, b))
    if a.dtype.kind not in "fc":
        # rounding may go either way
        return bool(np.count_nonzero(a != b) <= TOLERANCE * a.size)
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return False
    a, b = (x[finite].astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in (a, b))
    step = EPSILON.get(dtype, 2.0**-23)
    largest = max(np.abs(a).max(initial=0.0), MIN_STEPS * step)
    return bool(np.abs(a - b).max(initial=0.0) <= max(TOLERANCE, STEPS * step) * largest)
