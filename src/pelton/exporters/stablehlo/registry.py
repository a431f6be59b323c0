"""The writers of ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pelton.ir.graph import Node
from pelton.ir.op import Op, get
from pelton.ir.types import BF16, F16, F32, F64, DType

from .blocks import SsaValue

OperationsWriter = Callable[..., "SsaValue | Sequence[SsaValue]"]
WRITERS: dict[Op, OperationsWriter] = {}


def writes(*names: str) -> Callable[[OperationsWriter], OperationsWriter]:
    """Registers the function that writes these ops: `write(block, node, *operands)` returns the results.

    It raises Inexpressible if it cannot write exactly; then the op's expansion, if any, is written.
    """

    def register(function: OperationsWriter) -> OperationsWriter:
        WRITERS.update((get(name), function) for name in names)
        return function

    return register


def summed_as(dtype: DType) -> DType:
    """Returns the type for sums of numbers of a type: narrow floats are summed in f32."""
    return F32 if dtype.is_float and dtype not in (F32, F64) else dtype


def is_half(dtype: DType) -> bool:
    return dtype in (F16, BF16)


__all__ = ["WRITERS", "Node", "OperationsWriter", "is_half", "summed_as", "writes"]
