"""Products of few elements with long sums, as several products of a part of each sum, which are added: they keep more of a GPU busy."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pelton.ir.graph import Graph, Node
from pelton.ops.conv import is_product
from pelton.ops.op import Term

from .draft import Draft
from .words import add, cast, convolution_wide, matmul_wide, reduce_sum, reshape, transpose


def split(graph: Graph, parts: Callable[[Node], int]) -> Graph:
    """The graph with the products for which `parts` says more than one in as many parts, whose sums are f32 until all are added. A convolution with filters of
    one element is a product of all its pixels; for others the parts are groups of channels."""
    draft = Draft(graph)
    for node in draft.nodes:
        count = parts(node)
        if count > 1:
            draft.replace(node, _rows(node, count) if node.op.name == "matmul" else _pixels(node, count) if is_product(node) else
                          _windows(node, count, *(graph.constants[v] for v in node.inputs[1:])), node.name)
    return draft.graph()


def _rows(node: Node, count: int) -> Term:
    a, b = node.inputs
    *lead, k = a.type.shape
    rank, n = len(lead), node.output.type.shape[-1]
    left = transpose(reshape(a, shape=(*lead, count, k // count)), perm=(rank, *range(rank), rank + 1))
    right = reshape(b, shape=(count, *[1] * (rank - 1), k // count, n))
    return cast(reduce_sum(matmul_wide(left, right), axes=(0,), keepdims=False), to=node.output.type.dtype)


def _pixels(node: Node, count: int) -> Term:
    x, w, bias = node.inputs
    batch, k, *space = x.type.shape
    n, rank = w.type.shape[0], len(space)
    points = node.output.type.size // n // batch
    left = transpose(reshape(x, shape=(batch, count, k // count, points)), perm=(1, 0, 3, 2))
    right = transpose(reshape(w, shape=(n, count, 1, k // count)), perm=(1, 2, 3, 0))
    made = transpose(reshape(matmul_wide(left, right), shape=(count, batch, *space, n)), perm=(0, 1, rank + 2, *range(2, rank + 2)))
    y = cast(reduce_sum(made, axes=(0,), keepdims=False), to=node.output.type.dtype)
    return add(y, reshape(bias, shape=(n, *[1] * rank)))


def _windows(node: Node, count: int, filters: np.ndarray, bias: np.ndarray) -> Term:
    """Filters and bias are constants; the first part has the bias."""
    x, y = node.inputs[0], node.output.type
    o, c, *kernel = filters.shape
    each = np.ascontiguousarray(filters.reshape(o, count, c // count, *kernel).swapaxes(0, 1)).reshape(count * o, c // count, *kernel)
    made = convolution_wide(x, each, np.concatenate([bias, np.zeros((count - 1) * o, bias.dtype)]), **{**node.attrs, "group": count})
    sums = reshape(made, shape=(y.shape[0], count, o, *y.shape[2:]))
    return cast(reduce_sum(sums, axes=(1,), keepdims=False), to=y.dtype)
