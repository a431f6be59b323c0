"""Writers of reductions, softmax, cumulative sums and the largest elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pelton.ir.graph import Node
from pelton.ir.types import BOOL, I32, I64, U64, TensorType
from pelton.ops.norm import softmax
from pelton.ops.reduce import arg_max, cumsum, reduce_max, reduce_sum

from ..blocks import Operations, SsaValue
from ..registry import summed_as, writes


def _kept(s: Operations, node: Node, y: SsaValue) -> SsaValue:
    return s.reshape(y, node.outputs[0].type.shape)


@writes("reduce_sum", "reduce_prod")
def total(s: Operations, node: Node, x: SsaValue) -> SsaValue:
    kind, start = ("add", 0) if node.op is reduce_sum else ("multiply", 1)
    y = s.reduce(kind, s.convert(x, summed_as(x.dtype)), node.attrs["axes"], start)
    return s.convert(_kept(s, node, y), x.dtype)


@writes("reduce_max", "reduce_min")
def extreme(s: Operations, node: Node, x: SsaValue) -> SsaValue:
    largest, dtype = node.op is reduce_max, x.dtype
    kind, start = ("maximum", dtype.lowest) if largest else ("minimum", dtype.highest)
    if dtype is BOOL:
        kind, start = ("or", False) if largest else ("and", True)
    return _kept(s, node, s.reduce(kind, x, node.attrs["axes"], start))


@writes("reduce_mean")
def reduce_mean(s: Operations, node: Node, x: SsaValue) -> SsaValue:
    axes, dtype = node.attrs["axes"], x.dtype
    exact = U64 if dtype.value[0] == "u" else I64
    wide = s.convert(x, summed_as(dtype) if dtype.is_float else exact)
    total = s.reduce("add", wide, axes, 0)
    mean = s.divide(total, math.prod(x.shape[a] for a in axes))
    return s.convert(_kept(s, node, mean), dtype)


@writes("arg_max", "arg_min")
def arg(s: Operations, node: Node, x: SsaValue) -> SsaValue:
    """Writes the first (or last) index of the extreme element; NaN is more than any."""
    axis, last, largest = node.attrs["axis"], node.attrs["select_last_index"], node.op is arg_max
    n = x.shape[axis]
    kind, start = ("maximum", x.dtype.lowest) if largest else ("minimum", x.dtype.highest)
    best = s.reduce(kind, x, [axis], start)
    others = [i for i in range(len(x.shape)) if i != axis]
    hit = s.compare("EQ", x, s.spread(best, x.shape, others))
    if x.dtype.is_float:
        hit = s.binary("or", hit, s.compare("NE", x, x))
    places = s.iota(x.shape, axis, I64)
    index = (
        s.reduce("maximum", s.select(hit, places, 0), [axis], 0)
        if last
        else s.reduce("minimum", s.select(hit, places, n), [axis], n)
    )
    return _kept(s, node, index)


@writes("cumsum", "cumprod")
def cumulate(s: Operations, node: Node, x: SsaValue) -> SsaValue:
    """Writes log₂ n sums of the tensor and itself moved by 1, 2, 4, … elements."""
    axis, exclusive, reverse = (node.attrs[k] for k in ("axis", "exclusive", "reverse"))
    kind, start = ("add", 0) if node.op is cumsum else ("multiply", 1)
    y = s.convert(x, summed_as(x.dtype))

    def moved(y: SsaValue, by: int) -> SsaValue:
        sides = [(0, 0)] * len(y.shape)
        sides[axis] = (-by, by) if reverse else (by, -by)
        return s.pad(y, start, sides)

    if exclusive and x.shape[axis]:
        y = moved(y, 1)
    by = 1
    while by < x.shape[axis]:
        y = s.binary(kind, y, moved(y, by))
        by *= 2
    return s.convert(y, x.dtype)


@writes("top_k")
def top_k(s: Operations, node: Node, x: SsaValue) -> Sequence[SsaValue]:
    """Writes a stable sort of elements and indices, with NaN more than any number."""
    axis, k, largest = (node.attrs[a] for a in ("axis", "k", "largest"))
    n = x.shape[axis]
    counted = I32 if n < 1 << 31 else I64
    types = [TensorType(x.dtype)] * 2 + [TensorType(counted)] * 2
    inner, (a, b, _, _) = s.region(types)
    before = inner.compare("GT" if largest else "LT", a, b)
    if x.dtype.is_float:
        number, other = (a, b) if not largest else (b, a)
        alone = inner.binary("and", inner.compare("EQ", number, number), inner.compare("NE", other, other))
        before = inner.binary("or", before, alone)
    inner.finish([before])
    places = s.iota(x.shape, axis, counted)
    attrs = {"dimension": f"{axis} : i64", "is_stable": "true"}
    values, indices = s.op("sort", [x, places], [x.type, places.type], attrs, [inner])
    return s.slice(values, axis, 0, k), s.convert(s.slice(indices, axis, 0, k), I64)


@writes("softmax", "log_softmax")
def exponentials(s: Operations, node: Node, x: SsaValue) -> SsaValue:
    axis = node.attrs["axis"]
    others = [i for i in range(len(x.shape)) if i != axis]
    wide = s.convert(x, summed_as(x.dtype))
    top = s.reduce("maximum", wide, [axis], -math.inf)
    shifted = s.subtract(wide, s.spread(top, wide.shape, others))
    e = s.unary("exponential", shifted)
    total = s.reduce("add", e, [axis], 0)
    if node.op is softmax:
        return s.convert(s.divide(e, s.spread(total, wide.shape, others)), x.dtype)
    return s.convert(s.subtract(shifted, s.spread(s.unary("log", total), wide.shape, others)), x.dtype)
