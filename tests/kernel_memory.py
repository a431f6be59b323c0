"""Runs a kernel in a child process, on strided operands with poison and guard pages around them."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence

import emulator
import numpy as np
from kernel_cases import Case

from pelton.codegen.template import Kernel, Packed, Template
from pelton.ir.graph import Value
from pelton.plan.layout import Layouts, Order, Strides, dense, row_major, span
from pelton.plan.region import Region
from pelton.plan.workspace import KernelWorkspace

PAGE = mmap.PAGESIZE
POISON = {"f": np.nan, "i": -77, "u": 77, "b": True, "V": 0}


def gapped(shape: tuple[int, ...], order: Order, gap: int) -> Strides:
    """Strides with `gap` more elements behind every row of every axis; the innermost axis keeps unit stride."""
    strides, step, inner = [0] * len(shape), 1, True
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis]
        if shape[axis] != 1 or not inner:
            step += gap
            inner = False
    return tuple(strides)


def laid(template: Template, region: Region, case: Case, gap: int) -> Layouts:
    """The strides of all operands: the case's where they fit, else the template's. Like place.py, but with gaps."""
    lay = Layouts({v: dense(v.type.shape) for v in region.body.constants})
    for v in region.body.inputs:
        strides = gapped(v.type.shape, case.orders.get(v.name, row_major(v.type.rank)), gap)
        lay = lay.moved({v: tuple(-s for s in strides) if v.name in case.backwards else strides})
    for v in region.body.outputs:
        lay = lay.moved({v: dense(v.type.shape, template.output_order(region, v, lay))})
    for v in (*region.body.inputs, *region.body.constants):
        if not template.fits(region, v, lay):
            lay = lay.moved({v: dense(v.type.shape, template.copy_order(region, v, lay))})
            assert template.fits(region, v, lay), f"{template.name} does not take %{v.name} in its own copy_order"
    for v in region.body.outputs:
        wide = lay.moved({v: gapped(v.type.shape, template.output_order(region, v, lay), gap)})
        lay = wide if template.fits(region, v, wide) else lay
    assert all(template.fits(region, v, lay) for v in lay), f"{template.name} takes operands one by one, but not all"
    return lay


class Buffer:
    """Shared memory for an array with strides: poison around, and a guard page right behind (or before) it."""

    def __init__(self, array: np.ndarray, strides: Strides, filled: bool, behind: bool = True):
        size = span(array.shape, tuple(map(abs, strides))) * array.itemsize if array.size else 0
        room = -(-max(size, 1) // PAGE) * PAGE
        self.map = mmap.mmap(-1, room + 2 * PAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        start = room + PAGE - size if behind else PAGE
        low = np.frombuffer(self.map, array.dtype, size // array.itemsize, start)
        low[:] = np.array(POISON[array.dtype.kind]).astype(array.dtype)
        shift = sum((d - 1) * -s for d, s in zip(array.shape, strides) if s < 0) if array.size else 0
        self.view = np.ndarray(
            array.shape, array.dtype, self.map, start + shift * array.itemsize, [s * array.itemsize for s in strides]
        )
        if filled:
            self.view[...] = array
        self.address = base + start + shift * array.itemsize
        self.before, self.array, self.low = low.copy(), array, low
        self.guards = (base, base + room + PAGE)

    def protect(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        for page in self.guards:
            if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), 0):
                raise OSError(ctypes.get_errno(), "mprotect")

    def untouched(self, written: bool) -> bool:
        """Whether nothing but elements was written, and nothing at all of an operand that is only read."""
        now, was = self.low.copy(), self.before.copy()
        if written:
            where = np.zeros(self.low.size, bool)
            shift = (self.address - self.low.ctypes.data) // self.array.itemsize
            np.lib.stride_tricks.as_strided(
                where[shift:], self.array.shape, [s // self.array.itemsize for s in self.view.strides]
            )[...] = True
            now, was = now[~where], was[~where]
        return now.tobytes() == was.tobytes()


def _run_here(
    symbol: str, code: bytes, held: Sequence[Buffer], words: Sequence[Buffer | int], calls: Sequence[tuple[int, int]]
) -> int:
    """The status of a child process that ran a kernel, negative where a signal ended it. The last of the buffers is the
    kernel's scratch memory."""
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(code)
        file.flush()
        child = os.fork()
        if not child:
            status = 1
            faulthandler.disable()  # a crash is a finding, not an accident
            try:
                for b in held:
                    b.protect()
                args = (ctypes.c_int64 * len(words))(*(w.address if isinstance(w, Buffer) else w for w in words))
                run = getattr(ctypes.CDLL(file.name), symbol)
                run.argtypes, run.restype = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p], None
                for begin, end in calls:
                    run(args, begin, end, held[-1].address)
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _run_emulated(
    symbol: str, code: bytes, held: Sequence[Buffer], words: Sequence[Buffer | int], calls: Sequence[tuple[int, int]]
) -> int:
    """The same under an emulator."""
    places = {id(b): (i, b.address - b.guards[0] - PAGE) for i, b in enumerate(held)}
    rooms = [memoryview(b.map)[PAGE : len(b.map) - PAGE] for b in held]
    numbers = [places[id(w)] if isinstance(w, Buffer) else (-1, int(w)) for w in words]
    return emulator.run(emulator.LEVEL, code, symbol, rooms, numbers, places[id(held[-1])], calls)


def run_kernel(
    region: Region,
    kernel: Kernel,
    code: bytes,
    lay: Mapping[Value, Strides],
    inputs: Mapping[str, np.ndarray],
    about: str,
    *,
    behind: bool,
    tiles: str,
) -> dict[Value, np.ndarray]:
    """The outputs of one run of a kernel in a process of its own. behind: guard pages are right behind operands, not
    before them. tiles: "whole", all in one call, or "single", one by one from the last."""
    body = region.body
    buffers: dict[Value, Buffer] = {}
    packed: list[Buffer] = []
    words: list[Buffer | int] = []
    for x in kernel.operands:
        if isinstance(x, Packed):
            a = np.zeros(x.shape, x.dtype.numpy)
            x.fill(a)
            packed.append(Buffer(a.reshape(-1), (1,), True, behind))
            words.append(packed[-1])
        elif isinstance(x, KernelWorkspace):
            packed.append(Buffer(np.full(x.bytes, 255, np.uint8), (1,), False, behind))
            words.append(packed[-1])
        else:
            if x not in buffers:
                written = x in body.outputs
                if written:
                    a = np.zeros(x.type.shape, x.type.dtype.numpy)
                else:
                    a = inputs[x.name] if x in body.inputs else body.constants[x]
                buffers[x] = Buffer(np.asarray(a), lay[x], not written, behind)
            words.append(buffers[x])
    words += kernel.dims
    scratch = Buffer(np.full(kernel.scratch, 255, np.uint8), (1,), True, behind)
    held = [*buffers.values(), *packed, scratch]
    count = kernel.tiles
    spans = [(0, count)] if tiles == "whole" else [(i, i + 1) for i in reversed(range(count))]
    calls = [(at * count + begin, at * count + end) for at in range(kernel.phases) for begin, end in spans]
    status = (_run_emulated if emulator.LEVEL else _run_here)(kernel.symbol, code, held, words, calls)
    failure = "touched memory that is not its own" if status < 0 else "could not be run"
    assert status == 0, f"{about}: the kernel {failure} (status {status})"
    for v, b in buffers.items():
        assert b.untouched(v in body.outputs), f"{about}: memory around %{v.name} was written"
    return {v: buffers[v].view.copy() for v in body.outputs}
