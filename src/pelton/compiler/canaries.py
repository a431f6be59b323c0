"""Runs kernels of plugins between canaries: in a child process, on operands with known bytes around them."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import signal
from collections.abc import Sequence

import numpy as np

from pelton.backends.cpu import LoadedCode, load_code
from pelton.codegen.c.templates.plugin import operand_names
from pelton.codegen.template import Kernel
from pelton.errors import BuildError
from pelton.ir.graph import Value
from pelton.plan.layout import span
from pelton.plan.lower import ScheduledTask
from pelton.plan.placed import Task
from pelton.plan.region import Region
from pelton.tune.measure import first_element

CANARY = mmap.PAGESIZE  # bytes on each side of an operand
MARK = 0xA5
FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


class Guarded:
    """An operand in memory that the child shares, between canaries."""

    def __init__(self, v: Value, strides: tuple[int, ...], array: np.ndarray | None):
        self.size = span(v.type.shape, tuple(map(abs, strides))) * v.type.dtype.size
        first = CANARY + first_element(v, strides)  # of the array, which is not the lowest where strides are negative
        self.map = mmap.mmap(-1, self.size + 2 * CANARY)
        self.bytes = np.frombuffer(self.map, np.uint8)
        self.bytes[:] = MARK
        if array is not None:
            held = np.ndarray(v.type.shape, array.dtype, self.map, first, [s * array.itemsize for s in strides])
            held[...] = array
        self.before = self.bytes.copy()
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map)) + first

    @property
    def content(self) -> np.ndarray:
        return self.bytes[CANARY : CANARY + self.size]

    def harm(self, written: bool) -> str | None:
        """What was written beside it, or over it where it is only read."""
        changed = self.bytes != self.before
        for where, part in (("before", changed[:CANARY]), ("behind", changed[CANARY + self.size :])):
            if part.any():
                return f"writes {int(part.sum())} bytes {where}"
        return None if written or not changed[CANARY : CANARY + self.size].any() else "writes over"


def check_plugins(code: bytes, chosen: Sequence[ScheduledTask], seed: int = 0) -> None:
    """Runs each kernel of a plugin on random operands; BuildError if it crashes, writes where it should not, or gives
    something else where its tiles run in another order."""
    tasks = [
        c
        for c in chosen
        if isinstance(c.task.what, Region)
        and c.task.what.anchor is not None
        and c.task.what.anchor.op.instance is not None
        and isinstance(c.kernel, Kernel)
    ]
    if not tasks:
        return
    with load_code(code) as loaded:
        for c in tasks:
            assert isinstance(c.kernel, Kernel)
            _check(loaded, c.kernel, c.task, np.random.default_rng(seed))


def _check(loaded: LoadedCode, kernel: Kernel, task: Task, rng: np.random.Generator) -> None:
    region = task.what
    assert isinstance(region, Region) and region.anchor is not None
    node, guarded = region.anchor, dict[Value, Guarded]()
    values = [x for x in kernel.operands if isinstance(x, Value)]
    for v in values:
        array = None
        if v in region.body.constants:
            array = np.asarray(region.body.constants[v])
        elif v not in node.outputs:
            whole = rng.standard_normal(v.type.shape) * (1 if v.type.dtype.is_float else 3)
            array = (
                np.abs(whole).astype(v.type.dtype.numpy)
                if not v.type.dtype.is_float
                else whole.astype(v.type.dtype.numpy)
            )
        guarded[v] = Guarded(v, task.layouts[v], array)
    names = dict(zip((*node.inputs, *node.outputs), operand_names(node)))
    address = loaded.symbol(kernel.symbol)

    def fail(what: str) -> BuildError:
        return BuildError(f"the kernel of plugin {node.op.name} {what} (layer {node.name or node.op.name!r})")

    first: list[np.ndarray] = []
    for backwards in (False, True):
        status = _run(address, kernel, [guarded[v].address for v in values], backwards)
        if status:
            signals = signal.Signals(-status).name if status < 0 else f"status {status}"
            raise fail(f"crashes on {', '.join(str(v.type) for v in node.inputs)} with {signals}")
        for v in values:
            if harm := guarded[v].harm(v in node.outputs):
                raise fail(f"{harm} its operand {names[v]}, {v.type}")
        now = [guarded[v].content.copy() for v in node.outputs]
        if backwards and not all(map(np.array_equal, first, now)):
            raise fail("gives something else where its tiles run in another order; they have to be independent")
        first = now


def _run(address: int, kernel: Kernel, pointers: Sequence[int], backwards: bool) -> int:
    """Runs all tiles in a forked child; 0, its status, or minus the signal that ended it."""
    table = (ctypes.c_int64 * max(len(pointers) + len(kernel.dims), 1))(*pointers, *map(int, kernel.dims))
    scratch = ctypes.create_string_buffer(int(kernel.scratch) + 128)
    where = -ctypes.addressof(scratch) % 64 + ctypes.addressof(scratch)
    child = os.fork()
    if not child:
        try:
            faulthandler.disable()  # a crash is an answer here, not a report
            function, tiles = FUNCTION(address), int(kernel.tiles)
            if backwards:
                for tile in range(tiles)[::-1]:
                    function(ctypes.addressof(table), tile, tile + 1, where)
            else:
                function(ctypes.addressof(table), 0, tiles, where)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
