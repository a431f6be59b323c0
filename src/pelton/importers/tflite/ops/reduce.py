"""Reductions, argmin and argmax."""

from __future__ import annotations

import numpy as np

from typing import Any

from pelton.ir.types import DType

from ..held import to_first
from ..node import Given, TFLiteReading, reads

REDUCTIONS = {
    "MEAN": "reduce_mean",
    "SUM": "reduce_sum",
    "REDUCE_MAX": "reduce_max",
    "REDUCE_MIN": "reduce_min",
    "REDUCE_PROD": "reduce_prod",
}


@reads(*REDUCTIONS, "REDUCE_ANY", "REDUCE_ALL")
def reduction(n: TFLiteReading) -> Given:
    x, keeps = n.given(0), bool(n.option("keep_dims"))
    axes = n.axes(n.known(1, "axes"), x.rank)
    first = n.prefers_first(0)
    if first:
        perm = to_first(x.rank)
        placed = tuple(sorted(perm.index(a) for a in axes))
        left = [a for a in range(x.rank) if a not in axes]
        if keeps or [p for p in perm if p in left] == left:
            return n.ordered(_reduced(n, placed, keeps, True), keeps)
    return _reduced(n, axes, keeps, False)


def _reduced(n: TFLiteReading, axes: tuple[int, ...], keeps: bool, first: bool):
    net, x = n.net, n.given(0).real(first)
    attrs: dict[str, Any] = dict(axes=axes, keepdims=keeps)
    if n.op in REDUCTIONS:
        return getattr(net, REDUCTIONS[n.op])(x, **attrs) if axes else x
    y, reduce = net.cast(x, to=DType.I32), net.reduce_max if n.op == "REDUCE_ANY" else net.reduce_min
    y = reduce(y, **attrs) if axes else y
    return net.greater(y, np.int32(0))


@reads("ARG_MAX", "ARG_MIN")
def extreme(n: TFLiteReading) -> Given:
    x = n.given(0).raw()
    find = n.net.arg_max if n.op == "ARG_MAX" else n.net.arg_min
    return find(x, axis=n.known_axis(1, x.rank), keepdims=False)


@reads("TOPK_V2")
def top_k(n: TFLiteReading) -> tuple[Given, ...]:
    x, k = n.moved(0), n.size(1, "count")
    for size, least in ((k, 0), (x.shape[-1] if x.rank else 1, k)):
        n.at_least(size, least, f"needs a count from 0 to the last size of {x!r}, got {k}")
    values, places = n.net.apply("top_k", [x], dict(k=k, axis=x.rank - 1))
    return values, places
