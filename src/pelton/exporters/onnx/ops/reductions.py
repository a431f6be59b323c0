"""Writers of reductions, running sums and the largest elements, whose axes are operands in ONNX."""

from __future__ import annotations

from typing import Any

from pelton.ir.types import I32, I64, DType

from ..writing import Writing, writes
from .elements import narrow

_KINDS = {
    "sum": "ReduceSum",
    "mean": "ReduceMean",
    "max": "ReduceMax",
    "min": "ReduceMin",
    "prod": "ReduceProd",
    "l1": "ReduceL1",
    "l2": "ReduceL2",
    "sum_square": "ReduceSumSquare",
    "log_sum": "ReduceLogSum",
    "log_sum_exp": "ReduceLogSumExp",
}


def _through(dtype: DType) -> DType:
    """Returns i32 for small integers: modulo their width, sums and products are the same."""
    return I32 if narrow(dtype) else dtype


@writes(*(f"reduce_{name}" for name in _KINDS))
def reduce(w: Writing) -> str:
    axes, dtype = w.attrs["axes"], w.type(0).dtype
    if not axes:
        raise w.refuse("no axes are all axes")
    x = w.cast(w.input(0), _through(dtype))
    y = w.emit(w.node.op.onnx[0], x, w.constant(axes, I64), keepdims=int(w.attrs["keepdims"]))
    return w.cast(y, dtype)


@writes("cumsum", "cumprod")
def cumulative(w: Writing) -> str:
    a, dtype = w.attrs, w.type(0).dtype
    flags: dict[str, Any] = {k: 1 if a[k] else None for k in ("exclusive", "reverse")}
    x = w.cast(w.input(0), _through(dtype))
    return w.cast(w.emit(w.node.op.onnx[0], x, w.constant(a["axis"], I64), **flags), dtype)


@writes("arg_max", "arg_min")
def arg(w: Writing) -> str:
    return w.emit(w.node.op.onnx[0], w.input(0), **w.attrs)


@writes("top_k")
def top_k(w: Writing) -> tuple[str, ...]:
    a = w.attrs
    how = dict(axis=a["axis"], largest=int(a["largest"]), sorted=int(a["sorted"]))
    return w.emit_all("TopK", [w.input(0), w.ints([a["k"]])], [None, I64], **how)
