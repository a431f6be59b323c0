"""Readers of reductions, argmin and argmax, cumulative sums and products, and top-k."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pelton.ir.graph import Value
from pelton.ir.types import F64, I64, DType

from pelton.importers.onnx.node import Reading, Binding, reads

REDUCTIONS = {
    "ReduceSum": "reduce_sum",
    "ReduceMean": "reduce_mean",
    "ReduceMax": "reduce_max",
    "ReduceMin": "reduce_min",
    "ReduceProd": "reduce_prod",
    "ReduceL1": "reduce_l1",
    "ReduceL2": "reduce_l2",
    "ReduceSumSquare": "reduce_sum_square",
    "ReduceLogSum": "reduce_log_sum",
    "ReduceLogSumExp": "reduce_log_sum_exp",
}


_OF_FLOATS = {"ReduceL2", "ReduceLogSum", "ReduceLogSumExp"}

# reductions of empty axes return the neutral element of the element type
_NEUTRAL: dict[str, Callable[[DType], float]] = {
    "reduce_max": lambda d: d.lowest,
    "reduce_min": lambda d: d.highest,
    "reduce_log_sum_exp": lambda d: -np.inf,
}


@reads(*REDUCTIONS)
def reduction(n: Reading) -> Binding:
    """Reads axes, an attribute until opset 17 (ReduceSum: 12), an input since; without axes, reduces all.

    With noop_with_empty_axes, it then reduces none. Roots and logarithms of integers are rounded towards zero.
    """
    x = n.input(0)
    if n.op in _OF_FLOATS and x.type.dtype.is_integer:
        return n.cast(_reduce_with_attributes(n, n.cast(x, F64)), x.type.dtype)
    return _reduce_with_attributes(n, x)


def _reduce_with_attributes(n: Reading, x: Value) -> Value:
    by_input = n.opset >= (13 if n.op == "ReduceSum" else 18)
    axes = n.some_integers(1, "axes") if by_input else n.attr("axes")
    # reductions over no axes still apply their function to each element
    if not axes and n.flag("noop_with_empty_axes"):
        each = {
            "reduce_l1": lambda: n.emit("abs", x),
            "reduce_l2": lambda: n.emit("abs", x),
            "reduce_sum_square": lambda: n.emit("mul", x, x),
            "reduce_log_sum": lambda: n.emit("log", x),
        }
        return each.get(REDUCTIONS[n.op], lambda: x)()
    return emit_reduction(n, REDUCTIONS[n.op], x, n.axes(axes or range(x.type.rank), x.type.rank), n.flag("keepdims"))


def emit_reduction(n: Reading, word: str, x: Value, axes: tuple[int, ...], keepdims: bool) -> Value:
    if x.type.size == 0 and word in _NEUTRAL:
        shape = tuple(1 if i in axes else d for i, d in enumerate(x.type.shape) if keepdims or i not in axes)
        return n.expand(n.like(x, _NEUTRAL[word](x.type.dtype)), shape)
    if x.type.rank == 0:
        return n.emit(word, n.reshape(x, (1,)), axes=(0,), keepdims=False)
    return n.emit(word, x, axes=axes, keepdims=keepdims)


@reads("ArgMax", "ArgMin")
def arg_extremum(n: Reading) -> Binding:
    x = n.input(0)
    if x.type.rank == 0:
        return n.constant(0, I64)
    return n.emit(
        "arg_max" if n.op == "ArgMax" else "arg_min",
        x,
        axis=n.axis(n.attr("axis"), x.type.rank),
        keepdims=n.flag("keepdims"),
        select_last_index=n.flag("select_last_index"),
    )


@reads("CumSum", "CumProd")
def cumulative(n: Reading) -> Binding:
    x, (axis,) = n.input(0), n.integers(1, "axis")
    return n.emit(
        n.op.lower(), x, axis=n.axis(axis, x.type.rank), exclusive=n.flag("exclusive"), reverse=n.flag("reverse")
    )


@reads("TopK")
def top_k(n: Reading) -> tuple[Binding, ...]:
    """Reads k, an attribute before opset 10, an input since."""
    x = n.input(0)
    axis = n.axis(n.attr("axis", -1), x.type.rank)
    (k,) = (n.attr("k"),) if n.opset < 10 else n.integers(1, "k")
    return n.emit_all("top_k", x, k=k, axis=axis, largest=n.flag("largest", 1), sorted=n.flag("sorted", 1))
