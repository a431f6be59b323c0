"""Other operators for integers: products and sums for each channel as one layer, pools of whole images as means."""

from __future__ import annotations

import numpy as np

from pelton.ir.graph import Graph, Node, Value
from pelton.ir.types import F32, TensorType
from pelton.ops import words

from .images import images

LINEAR = (words.mul, words.add, words.sub, words.div)
CHANNELS = 1  # the axis of an image


def with_channel_layers(graph: Graph) -> Graph:
    """Replaces two and more products and sums of an image in a row by a depthwise convolution of one element.

    Its weights have a scale for each channel, and its biases 32 bits.
    """
    pictures, constants = images(graph), dict(graph.constants)
    ends = dict[Node, Node]()  # last nodes of rows → their layers
    dropped = set[Node]()
    for node in graph.nodes:
        row = _row(graph, node, pictures)
        if len(row) > 1 and node not in dropped:
            ends[row[-1]] = _layer(graph, row, constants)
            dropped.update(row)
    nodes = tuple(ends.get(n, n) for n in graph.nodes if n not in dropped or n in ends)
    return graph.replace(nodes=nodes, constants=constants)


def with_means(graph: Graph) -> Graph:
    """Replaces mean pools of whole images by means: TFLite's pools keep the scale, which is too large for means.

    A program whose inputs and outputs would have another order of axes stays as it is.
    """
    nodes = list(graph.nodes)
    for i, n in enumerate(nodes):
        if n.op is words.average_pool and n.outputs[0].type.dtype is F32 and _is_whole(n):
            attrs = words.reduce_mean.complete(dict(axes=tuple(range(2, n.outputs[0].type.rank)), keepdims=True))
            nodes[i] = Node(words.reduce_mean, n.inputs, attrs, n.outputs, n.name)
    made, ports = graph.replace(nodes=tuple(nodes)), {*graph.inputs, *graph.outputs}
    return made if images(made) & ports == images(graph) & ports else graph


def _is_whole(pool: Node) -> bool:
    x, y = pool.inputs[0].type, pool.outputs[0].type
    one = all(d == 1 for d in y.shape[2:]) and not any(pool.attrs["pads"])
    return one and tuple(pool.attrs["kernel"]) == tuple(x.shape[2:])


def _row(graph: Graph, node: Node, pictures: frozenset[Value]) -> list[Node]:
    """Returns the products and sums from a node on, each of which alone reads the one before."""
    row = list[Node]()
    while node.outputs[0] in pictures and (parts := _parts(graph, node)) is not None:
        if row and parts[0] is not row[-1].outputs[0]:
            break
        row.append(node)
        users = graph.users.get(node.outputs[0], [])
        if len(users) != 1 or node.outputs[0] in graph.outputs:
            break
        (node,) = users
    return row


def _parts(graph: Graph, node: Node) -> tuple[Value, np.ndarray, np.ndarray] | None:
    """Returns x, a and b of a node that computes a · x + b for each channel."""
    if node.op not in LINEAR or node.outputs[0].type.rank != 4 or node.outputs[0].type.dtype is not F32:
        return None
    x, other = node.inputs
    turned = x in graph.constants
    x, other = (other, x) if turned else (x, other)
    count = node.outputs[0].type.shape[CHANNELS]
    if x.type != node.outputs[0].type or other not in graph.constants or not isinstance(count, int):
        return None
    shape = (*[1] * (4 - other.type.rank), *other.type.shape)
    if any(d != 1 for i, d in enumerate(shape) if i != CHANNELS):
        return None
    c = np.broadcast_to(graph.constants[other].astype(np.float64).reshape(-1), (count,))
    one, none = np.ones(count), np.zeros(count)
    if node.op is words.mul:
        return x, c, none
    if node.op is words.div:
        return None if turned or not c.all() else (x, 1 / c, none)
    if node.op is words.add:
        return x, one, c
    return (x, -one, c) if turned else (x, one, -c)


def _layer(graph: Graph, row: list[Node], constants: dict[Value, np.ndarray]) -> Node:
    factor, shift = np.ones(1), np.zeros(1)
    for node in row:
        parts = _parts(graph, node)
        assert parts is not None
        factor, shift = factor * parts[1], shift * parts[1] + parts[2]
    first, end = _parts(graph, row[0]), row[-1]
    assert first is not None
    operands = [first[0]]
    for kind, array in (("factor", factor.reshape(-1, 1, 1, 1)), ("shift", shift)):
        held = np.asarray(array, np.float32)
        v = Value(TensorType.of(held), f"{end.outputs[0].name}.{kind}")
        constants[v] = held
        operands.append(v)
    attrs = words.convolution.complete(dict(strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), group=len(factor)))
    return Node(words.convolution, tuple(operands), attrs, end.outputs, end.name)
