"""Analyzes names of ONNX graphs: order of nodes, free names, attributes of function bodies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import onnx

from pelton.ir.unread import order


def names_in(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[str]:
    """Yields every name in a graph or function, subgraphs included; protobuf returns non-UTF-8 as bytes."""
    if isinstance(graph, onnx.GraphProto):
        yield from (graph.name, *(v.name for v in (*graph.input, *graph.output)), *(t.name for t in graph.initializer))
        yield from (d.dim_param for v in graph.input for d in v.type.tensor_type.shape.dim)
        yield from (t.values.name for t in graph.sparse_initializer)
    else:
        yield from (graph.name, graph.domain, graph.overload, *graph.input, *graph.output)
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, node.overload, *node.input, *node.output)
        yield from (name for a in node.attribute for name in (a.name, a.ref_attr_name))
        for inner in subgraphs(node):
            yield from names_in(inner)


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    graphs = []
    for a in node.attribute:
        if a.type == onnx.AttributeProto.GRAPH:
            graphs.append(a.g)
        elif a.type == onnx.AttributeProto.GRAPHS:
            graphs.extend(a.graphs)
    return graphs


def all_nodes(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """Yields the nodes, subgraphs included."""
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from all_nodes(inner)


def nodes_in(graph: onnx.GraphProto | onnx.FunctionProto) -> int:
    """Counts the nodes, subgraphs included."""
    return sum(1 + sum(map(nodes_in, subgraphs(node))) for node in graph.node)


def read_by(node: onnx.NodeProto) -> set[str]:
    """Returns the names a node reads, including those its subgraphs read from outside."""
    return {name for name in node.input if name}.union(*map(free, subgraphs(node)))


def free(graph: onnx.GraphProto) -> set[str]:
    """Returns the names that a subgraph reads from outside."""
    own = (
        {i.name for i in graph.input}
        | {t.name for t in graph.initializer}
        | {t.values.name for t in graph.sparse_initializer}
    )
    own.update(o for node in graph.node for o in node.output)
    return {o.name for o in graph.output}.union(*map(read_by, graph.node)) - own


def ordered(
    nodes: Sequence[onnx.NodeProto], outputs: Iterable[str], known: Callable[[str], bool]
) -> list[onnx.NodeProto]:
    """Sorts the nodes that the outputs need topologically, close to the order of the file.

    Raises ModelError for a cycle, or for a name with two producers.
    """
    titles = [node.name or node.op_type for node in nodes]
    return [nodes[i] for i in order(titles, list(map(read_by, nodes)), [node.output for node in nodes], outputs, known)]


def with_attributes(node: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto]) -> onnx.NodeProto:
    """Returns a node of a function body, with references to attributes replaced by the caller's values."""
    if not _refers(node):
        return node
    filled = onnx.NodeProto()
    filled.CopyFrom(node)
    del filled.attribute[:]
    for a in node.attribute:
        if not a.ref_attr_name:
            filled.attribute.append(a)
        elif a.ref_attr_name in given:
            value = filled.attribute.add()
            value.CopyFrom(given[a.ref_attr_name])
            value.name = a.name
    for graph in subgraphs(filled):
        bodies = [with_attributes(inner, given) for inner in graph.node]
        del graph.node[:]
        graph.node.extend(bodies)
    return filled


def _refers(node: onnx.NodeProto) -> bool:
    return any(a.ref_attr_name for a in node.attribute) or any(
        _refers(inner) for g in subgraphs(node) for inner in g.node
    )
