"""Convolutions of few pixels with long sums, as several of a part of the channels, whose sums are added: they keep more of a GPU busy."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pelton.ir.graph import Graph, Node
from pelton.ops.op import Term

from .draft import Draft
from .words import cast, convolution_wide, reduce_sum, reshape


def split(graph: Graph, parts: Callable[[Node], int]) -> Graph:
    """The graph with the convolutions for which `parts` says more than one in as many groups of channels, whose sums are f32 until all are added."""
    draft = Draft(graph)
    for node in draft.nodes:
        count = parts(node)
        if count > 1:
            draft.replace(node, _windows(node, count, *(graph.constants[v] for v in node.inputs[1:])), node.name)
    return draft.graph()


def _windows(node: Node, count: int, filters: np.ndarray, bias: np.ndarray) -> Term:
    """Filters and bias are constants; the first part has the bias."""
    x, y = node.inputs[0], node.output.type
    o, c, *kernel = filters.shape
    each = np.ascontiguousarray(filters.reshape(o, count, c // count, *kernel).swapaxes(0, 1)).reshape(count * o, c // count, *kernel)
    made = convolution_wide(x, each, np.concatenate([bias, np.zeros((count - 1) * o, bias.dtype)]), **{**node.attrs, "group": count})
    sums = reshape(made, shape=(y.shape[0], count, o, *y.shape[2:]))
    return cast(reduce_sum(sums, axes=(1,), keepdims=False), to=y.dtype)
