"""Runs plugin kernels between canaries: in a child process, on operands with known bytes around them."""

from __future__ import annotations

import ctypes
import faulthandler
import hashlib
import mmap
import os
import resource
import signal
from collections.abc import Sequence

import numpy as np

from pelton.backends.cpu import LoadedCode
from pelton.codegen.c.templates.plugin import operand_names
from pelton.codegen.c.toolchain import ClangCompiler
from pelton.codegen.template import Kernel
from pelton.errors import BuildError
from pelton.ir.graph import Value
from pelton.plan.layout import Strides, first_element, span
from pelton.plan.placed import Task
from pelton.plan.region import Region
from pelton.system.cache import Cache

VERSION = 1  # of these checks: a new version repeats them for all kernels
CANARY = 1 << 20  # bytes on each side of an operand
LIMIT_S = 120  # of CPU time, for all tiles
MARK, OTHER_MARK = 0xA5, 0xFF  # the second one makes NaNs
FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


class Guarded:
    """Shared memory between canaries, writable throughout by the child."""

    def __init__(self, size: int):
        self.size = size
        self.map = mmap.mmap(-1, size + 2 * CANARY)
        self.bytes = np.frombuffer(self.map, np.uint8)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map)) + CANARY
        self.inside = "over"  # description of invalid writes inside it
        self.kept = np.ones(len(self.bytes), bool)  # True for bytes that must not change
        self.kept[CANARY : CANARY + size] = False

    def fill(self, mark: int) -> None:
        self.bytes[:] = mark
        self.before = self.bytes.copy()

    def harm(self) -> str | None:
        """Returns a description of invalid writes, or None."""
        at = np.flatnonzero((self.bytes != self.before) & self.kept)
        places = ("before", at < CANARY), ("behind", at >= CANARY + self.size), (self.inside, at >= 0)
        return next((f"writes {int(there.sum())} bytes {where}" for where, there in places if there.any()), None)


class GuardedOperand(Guarded):
    """An operand with strides in elements. With an array it is read-only; else its elements are written, but not the
    gaps between them."""

    def __init__(self, v: Value, strides: Strides, array: np.ndarray | None):
        item = v.type.dtype.size
        super().__init__(span(v.type.shape, tuple(map(abs, strides))) * item)
        first = first_element(v.type.shape, strides) * item
        self.address += first
        how = ((*v.type.shape, item), CANARY + first, (*(s * item for s in strides), 1))
        self.content = np.ndarray(how[0], np.uint8, self.map, *how[1:])
        self.array = None if array is None else np.ascontiguousarray(array).reshape(*v.type.shape, 1).view(np.uint8)
        self.kept[:] = True
        if array is None:
            self.inside = "between the elements of"
            np.ndarray(how[0], bool, self.kept, *how[1:])[...] = False

    def fill(self, mark: int) -> None:
        super().fill(mark)
        if self.array is not None:
            self.content[...] = self.array
            self.before = self.bytes.copy()


class Guard:
    """Checks each plugin kernel once by `check_kernel`; the cache records those that passed."""

    def __init__(self, compiler: ClangCompiler, kept: Cache):
        self._compiler, self._kept = compiler, kept
        self._passed: set[str] = set()

    def check(self, loaded: LoadedCode, kernel: Kernel, task: Task) -> None:
        """Raises BuildError for a kernel of known sizes that does harm."""
        name = f"{self._key(kernel, task)}.ok"
        if name not in self._passed and self._kept.read("guarded", name) is None:
            check_kernel(loaded, kernel, task)
            self._kept.store("guarded", name, b"")
        self._passed.add(name)

    def _key(self, kernel: Kernel, task: Task) -> str:
        """Returns the hash of all that a check depends on: the code, its execution, its operands, and the constants."""
        values = [x for x in kernel.operands if isinstance(x, Value)]
        how = (kernel.tiles, kernel.dims, kernel.scratch, [(str(v.type), task.layouts[v]) for v in values])
        key = hashlib.sha256(f"{VERSION} {self._compiler.key(kernel.source)} {how}".encode())
        for array in task.region.body.constants.values():
            key.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return key.hexdigest()


def check_kernel(loaded: LoadedCode, kernel: Kernel, task: Task, seed: int = 0) -> None:
    """Runs a plugin kernel of known sizes on random operands; BuildError if it crashes, does not end, writes out of
    bounds, or if its result depends on the order of tiles or on surrounding bytes."""
    region = task.what
    assert isinstance(region, Region) and region.anchor is not None
    node, rng = region.anchor, np.random.default_rng(seed)
    values = [x for x in kernel.operands if isinstance(x, Value)]
    guarded = {v: GuardedOperand(v, task.layouts[v], _array(v, region, rng)) for v in values}
    scratch = Guarded(int(kernel.scratch))
    names = dict(zip((*node.inputs, *node.outputs), operand_names(node)))
    address = loaded.symbol(kernel.symbol)

    def fail(what: str) -> BuildError:
        return BuildError(f"the kernel of plugin {node.op.name} {what} (layer {node.name or node.op.name!r})")

    def run(mark: int, backwards: bool = False) -> list[np.ndarray]:
        for memory in (*guarded.values(), scratch):
            memory.fill(mark)
        status = _run(address, kernel, [guarded[v].address for v in values], scratch.address, backwards)
        if status == -signal.SIGXCPU:
            raise fail(f"does not end within {LIMIT_S} s")
        if status:
            signals = signal.Signals(-status).name if status < 0 else f"status {status}"
            raise fail(f"crashes on {', '.join(str(v.type) for v in node.inputs)} with {signals}")
        for v in values:
            if harm := guarded[v].harm():
                raise fail(f"{harm} its operand {names[v]}, {v.type}")
        if harm := scratch.harm():
            raise fail(f"{harm} its scratch memory of {scratch.size} bytes")
        return [guarded[v].content.copy() for v in node.outputs]

    first = run(MARK)
    if not all(map(np.array_equal, first, run(MARK, backwards=True))):
        raise fail("returns other results if its tiles run in another order; tiles must be independent")
    if not all(map(np.array_equal, first, run(OTHER_MARK))):
        raise fail(
            "reads outside of its operands, reads previous contents of its outputs, or leaves elements of these"
            " unwritten"
        )


def _array(v: Value, region: Region, rng: np.random.Generator) -> np.ndarray | None:
    """Returns a constant, random elements of an input, or None for an output."""
    if v in region.body.constants:
        return np.asarray(region.body.constants[v])
    assert region.anchor is not None
    if v in region.anchor.outputs:
        return None
    whole = rng.standard_normal(v.type.shape)
    return (whole if v.type.dtype.is_float else np.abs(3 * whole)).astype(v.type.dtype.numpy)


def _run(address: int, kernel: Kernel, pointers: Sequence[int], scratch: int, backwards: bool) -> int:
    """Runs all tiles in a forked child; returns 0, its status, or minus the signal that ended it."""
    table = (ctypes.c_int64 * max(len(pointers) + len(kernel.dims), 1))(*pointers, *map(int, kernel.dims))
    child = os.fork()
    if not child:
        try:
            faulthandler.disable()  # a crash is an answer here, not a report
            resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S + 1))
            function, tiles = FUNCTION(address), int(kernel.tiles)
            if backwards:
                for tile in range(tiles)[::-1]:
                    function(ctypes.addressof(table), tile, tile + 1, scratch)
            else:
                function(ctypes.addressof(table), 0, tiles, scratch)
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
