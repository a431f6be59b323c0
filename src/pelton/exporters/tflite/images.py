"""Inputs and outputs that are images: those that convolutions, pools and the like read and write."""

from __future__ import annotations

from pelton.ir.graph import Graph, Value
from pelton.ops import words

# Ops of images [batch, channels, space…].
IMAGE_OPS = frozenset(
    getattr(words, name)
    for name in (
        "convolution conv_transpose max_pool average_pool batch_norm instance_norm lrn depth_to_space space_to_depth"
        " grid_sample deform_convolution max_pool_places"
    ).split()
)
# Ops whose operands and output are images together.
KEEPING = frozenset(
    getattr(words, name)
    for name in "concat slice_ pad quantize dequantize softmax log_softmax resize cast prelu where".split()
)


def images(graph: Graph) -> frozenset[Value]:
    """Returns the values of four and five axes that are images: [batch, channels, space…] by their use."""
    found = set[Value]()
    for node in graph.nodes:
        if node.op in IMAGE_OPS:
            found.update((node.inputs[0], *node.outputs))
    while True:
        before = len(found)
        for node in (*graph.nodes, *reversed(graph.nodes)):
            if node.op in KEEPING or node.op.kind == "pointwise":
                rank = node.outputs[0].type.rank
                linked = [v for v in (*node.inputs, *node.outputs) if v.type.rank == rank]
                if not found.isdisjoint(linked):
                    found.update(linked)
        if len(found) == before:
            return frozenset(v for v in found if v.type.rank in (4, 5))
