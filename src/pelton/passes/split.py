"""Products of few elements with long sums, as several products of a part of each sum, which are added: they keep more of a GPU busy."""
from __future__ import annotations

from collections.abc import Callable

from pelton.ir.graph import Graph, Node
from pelton.ops.op import Term

from .draft import Draft
from .words import add, cast, matmul_wide, reduce_sum, reshape, transpose


def split(graph: Graph, parts: Callable[[Node], int]) -> Graph:
    """The graph with the products for which `parts` says more than one in as many parts, whose sums are f32 until all are added. A convolution is one of all
    its pixels with filters of one element."""
    draft = Draft(graph)
    for node in draft.nodes:
        count = parts(node)
        if count > 1:
            draft.replace(node, (_pixels if node.op.name == "convolution" else _rows)(node, count), node.name)
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
