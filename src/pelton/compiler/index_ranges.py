"""Finds inputs that index tables of known length, for a check at the start of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pelton.engine.plan import IndexRange
from pelton.ir.dims import is_known
from pelton.ir.graph import Graph, Node, Value
from pelton.ir.types import I32, I64
from pelton.ops.words import (
    cast,
    concat,
    expand,
    gather,
    gather_elements,
    gather_nd,
    quantized_gather,
    reshape,
    scatter_elements,
    scatter_nd,
    transpose,
)


def index_ranges(graph: Graph) -> dict[str, IndexRange]:
    """Returns the valid range of each input whose integers are all indices, by name, from its shortest table."""
    makers = {v: node for node in graph.nodes for v in node.outputs}
    ranges: dict[str, IndexRange] = {}
    tables = sorted(((length, i) for i, node in enumerate(graph.nodes) if (length := _length(node))), reverse=True)
    for length, i in tables:
        node = graph.nodes[i]
        for v in _origins(node.inputs[1], makers):
            if v in graph.inputs and v.type.dtype in (I32, I64):
                ranges[v.name] = IndexRange(-length, length - 1, node.name)
    return ranges


def _length(node: Node) -> int:
    """Returns the number of elements that a gather or scatter indexes; 0 unless it is one known number."""
    if node.op in (gather, gather_elements, scatter_elements):
        size = node.inputs[0].type.shape[node.attrs["axis"]]
    elif node.op is quantized_gather:
        size = node.inputs[0].type.shape[0]
    elif node.op in (gather_nd, scatter_nd) and node.inputs[1].type.shape[-1] == 1:
        size = node.inputs[0].type.shape[node.attrs.get("batch_dims", 0)]
    else:
        return 0
    return size if is_known(size) else 0


def _origins(v: Value, makers: Mapping[Value, Node]) -> Iterator[Value]:
    """Yields the values that supply all integers of a value."""
    maker = makers.get(v)
    if maker is None:
        yield v
    elif maker.op in (reshape, transpose, expand, cast):
        yield from _origins(maker.inputs[0], makers)
    elif maker.op is concat:
        for part in maker.inputs:
            yield from _origins(part, makers)
