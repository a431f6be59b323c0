"""Layers that combine blobs, or elements along axes."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from pelton.importers.caffe.layer import LayerReading, reads
from pelton.importers.caffe.schema import enum_name
from pelton.ir.types import F32
from pelton.network.tensor import NetworkTensor


@reads("Eltwise")
def eltwise(n: LayerReading) -> NetworkTensor:
    p, inputs = n.param("eltwise_param"), n.inputs
    operation = enum_name(p, "EltwiseOp", p.operation)
    if len(inputs) < 2:
        raise n.refuse(f"needs two bottoms and more, got {len(inputs)}")
    if any(x.shape != inputs[0].shape for x in inputs):
        raise n.refuse(f"needs bottoms of one shape, got {', '.join(map(repr, inputs))}")
    if p.coeff and (operation != "SUM" or len(p.coeff) != len(inputs)):
        raise n.refuse(f"needs a coeff for each of {len(inputs)} bottoms of a SUM, got {list(p.coeff)} of {operation}")
    terms = [x if c == 1 else x * c for x, c in zip(inputs, p.coeff or [1] * len(inputs))]
    op = {"PROD": n.net.mul, "SUM": n.net.add, "MAX": n.net.maximum}[operation]
    return op(functools.reduce(op, terms[:-1]), terms[-1], name=n.name)


@reads("Axpy")
def axpy(n: LayerReading) -> NetworkTensor:
    """Reads a layer of squeeze-and-excitation networks: scale per channel · x + y."""
    a, x, y = (n.input(i) for i in range(3))
    if a.rank > x.rank or x.rank < 2 or a.shape[:2] != x.shape[:2] or any(d != 1 for d in a.shape[2:]):
        raise n.refuse(f"needs a scale for each channel of {x!r}, got {a!r}")
    return n.net.add(n.net.reshape(a, (*x.shape[:2], *[1] * (x.rank - 2))) * x, y, name=n.name)


@reads("Reduction")
def reduction(n: LayerReading) -> NetworkTensor:
    """Reduces all axes from one on."""
    p, x = n.param("reduction_param"), n.input()
    operation = enum_name(p, "ReductionOp", p.operation)
    axis = n.axis(p.axis, x.rank)
    rows = n.net.reshape(x, (*x.shape[:axis], math.prod(x.shape[axis:])))
    op = {
        "SUM": n.net.reduce_sum,
        "ASUM": n.net.reduce_l1,
        "SUMSQ": n.net.reduce_sum_square,
        "MEAN": n.net.reduce_mean,
    }[operation]
    y = op(rows, axes=(axis,), keepdims=False, name=n.name if p.coeff == 1 else "")
    return y if p.coeff == 1 else n.net.mul(y, p.coeff, name=n.name)


@reads("ArgMax")
def arg_max(n: LayerReading) -> NetworkTensor:
    """Returns the indices, as floats, or values of the top_k largest elements, along an axis or of each image; of
    equals, the last ones. Returns both as two channels with out_max_val and without an axis."""
    p, x = n.param("argmax_param"), n.input()
    if p.HasField("axis"):
        axis = n.axis(p.axis, x.rank)
    else:
        axis, x = 1, n.net.flatten(x)
    size = n.number(x.shape[axis], "the size of the axis that it searches")
    if not 1 <= p.top_k <= size:
        raise n.refuse(f"needs a top_k from 1 to {size}, got {p.top_k}")
    # reversed, since top_k prefers the first of equals
    reverse: Sequence[slice] = [slice(None)] * axis + [slice(None, None, -1)]
    values, places = n.net.top_k(x[tuple(reverse)], k=p.top_k, axis=axis)
    indices = n.net.cast(size - 1 - places, to=F32)
    if p.HasField("axis"):
        return values if p.out_max_val else indices
    parts = [n.net.unsqueeze(part, 1) for part in ((indices, values) if p.out_max_val else (indices,))]
    return n.net.concat(parts, 1, name=n.name) if len(parts) > 1 else parts[0]
