"""The memory of kernels that are timed: activations, constants and indices, as in a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import numpy as np

from pelton.ir.graph import Value
from pelton.codegen.template import Kernel, Packed
from pelton.plan.layout import first_element, span
from pelton.plan.placed import Task
from pelton.plan.workspace import KernelWorkspace

Operand = Value | Packed | KernelWorkspace
LINE = 64


def aligned_bytes(nbytes: int) -> np.ndarray:
    """Allocates bytes that start on a cache line."""
    raw = np.empty(nbytes + LINE, np.uint8)
    at = -raw.ctypes.data % LINE
    return raw[at : at + nbytes]


class TimedOperands:
    """The operands of racing programs in memory, but packed weights, whose numbers do not affect the time.

    arrays: the bytes of each.
    """

    def __init__(self, tasks: Sequence[Task], programs: Sequence[Sequence[Kernel]]):
        self._layouts = {v: strides for t in tasks for v, strides in t.layouts.items()}
        self._constants = {v: a for t in tasks for v, a in t.region.body.constants.items()}
        self._inputs = {v for t in tasks for v in t.region.body.inputs} - self._constants.keys()
        rng = np.random.default_rng(0)
        operands = dict.fromkeys(x for kernels in programs for k in kernels for x in k.operands)
        self._numbers = {x: i for i, x in enumerate(x for x in operands if not is_weights(x))}
        self.arrays = [self._array(x, rng) for x in self._numbers]

    def inputs_of(self, k: Kernel) -> list[Operand]:
        """Returns a kernel's inputs that earlier steps of a network write."""
        return [x for x in k.operands if x in self._inputs]

    def number(self, x: Operand) -> int:
        """Returns the place of an operand in `arrays`."""
        return self._numbers[x]

    def first_byte(self, x: Operand) -> int:
        """Returns the offset of its first element, which negative strides move."""
        return first_element(x.type.shape, self._layouts[x]) * x.type.dtype.size if isinstance(x, Value) else 0

    def _array(self, x: Operand, rng: np.random.Generator) -> np.ndarray:
        """Allocates an operand: constants and indices unchanged, floats random, other values zero."""
        if not isinstance(x, Value):
            data = aligned_bytes(x.bytes)
            if isinstance(x, Packed):
                data[:] = 0
                x.fill(data.view(x.dtype.numpy).reshape(x.shape))
            return data
        size = span(x.type.shape, tuple(map(abs, self._layouts[x]))) * x.type.dtype.size
        data = aligned_bytes(max(size, 1))
        if x in self._constants:
            constant = np.ascontiguousarray(self._constants[x])
            data[: constant.nbytes] = constant.reshape(-1).view(np.uint8)
        elif x.type.dtype.is_float and x.type.dtype.size >= 4:
            drawn = rng.standard_normal(min(size, 1 << 18) // x.type.dtype.size + 1).astype(x.type.dtype.numpy)
            data[:] = np.resize(drawn.view(np.uint8), data.size)
        else:
            data[:] = 0
        return data


def is_weights(x: Operand) -> TypeGuard[Packed]:
    """True if an operand is packed weights, whose numbers do not affect the time."""
    return isinstance(x, Packed) and not x.has_indices
