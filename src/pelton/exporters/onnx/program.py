"""Writes a program: each node by its writer, as it is declared, or by its expansion."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import onnx
from onnx import helper

from pelton.ir.dims import Undecided
from pelton.ir.expansion import expand_op
from pelton.ir.graph import Graph, Node, unique

from . import generic
from .foreign import graphs_in
from .model import ModelWriter, value_info
from .schemas import NeedsOpset, Unwritable
from .writing import WRITERS, Writing

OLDEST = 18  # earlier opsets have axes, pads and more in other places


def write_node(model: ModelWriter, node: Node) -> None:
    """Writes a node by its writer, else as it is declared, else by its expansion, else by its scalar expression."""
    before, reasons, mark = model.enter(node), list[Unwritable](), len(model.stack[-1])
    names: str | Sequence[str] | None = None
    try:
        for write in (WRITERS.get(node.op, generic.write), expansion, generic.by_scalar):
            try:
                w = Writing(node, model)
                names = write(w)
                if write not in (expansion, generic.by_scalar) and (attribute := w.attrs.ignored()):
                    raise Unwritable(f"ONNX has nothing for its attribute {attribute}")
                break
            except Unwritable as e:
                names = None
                reasons.append(e)
                del model.stack[-1][mark:]
    finally:
        model.leave(before)
    if names is None:
        # a later opset helps most
        reason = next((r for r in reasons if isinstance(r, NeedsOpset)), reasons[0])
        reason.node = reason.node or node
        raise reason
    settled: dict[str, str] = {}
    for value, name in zip(node.outputs, (names,) if isinstance(names, str) else tuple(names), strict=True):
        if name in settled:  # returned twice
            model.settle(value, settled[name], len(model.stack[-1]))
        else:
            settled[name] = model.settle(value, name, mark)


def expansion(w: Writing) -> Sequence[str]:
    """Writes the op's expansion to other ops."""
    node, model = w.node, w.model
    try:
        if node.op.expand is None or node.op.expand(*node.inputs, **node.attrs) is None:
            raise Unwritable("ONNX has no operator for it")
        body = expand_op(node.op, node.inputs, node.attrs)
    except Undecided as e:
        raise Unwritable(str(e)) from None
    if body.nodes and body.nodes[0].op is node.op and body.nodes[0].inputs == node.inputs:
        raise Unwritable("ONNX has no operator for it")
    for v, array in body.constants.items():
        model.bind_constant(v, array)
    for inner in body.nodes:
        write_node(model, inner)
    return [model.name(v) for v in body.outputs]


def to_model(graph: Graph, opset: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Returns the model of a program, and its initializers, not yet added to it; raises Unwritable."""
    w = ModelWriter(graph, opset, write_node)
    for node in graph.nodes:
        w.write_node(node)
    produced = {name for n in w.stack[0] for name in n.output}
    for v in graph.outputs:
        if v.name not in produced:  # an input or a constant
            source = w.name(v)
            if source == v.name:
                source = w.fresh(f"{v.name}.constant")
                w.arrays[source] = w.arrays.pop(v.name)
            w.append(helper.make_node("Identity", [source], [v.name]))
    nodes, read = _needed([*w.front, *w.stack[0]], {v.name for v in graph.outputs})
    _name_apart(nodes, set())
    inputs, outputs = ([value_info(v.name, v.type) for v in values] for values in (graph.inputs, graph.outputs))
    described = [value_info(v.name, v.type) for v in w.untyped if v.name in produced and v not in graph.outputs]
    made = helper.make_graph(nodes, graph.name, inputs, outputs, value_info=described)
    used = {"", *(n.domain for n in nodes)}
    opsets = [helper.make_opsetid(domain, version) for domain, version in w.opsets.items() if domain in used]
    ir = helper.find_min_ir_version_for(opsets, ignore_unknown=True)
    model = helper.make_model(
        made, opset_imports=opsets, functions=w.functions, ir_version=max(ir, 8), producer_name="pelton"
    )
    return model, {name: a for name, a in w.arrays.items() if name in read}


def _needed(nodes: Sequence[onnx.NodeProto], outputs: set[str]) -> tuple[list[onnx.NodeProto], set[str]]:
    """Returns the nodes that the outputs need, and the names that these read."""
    read, kept = set(outputs), list[onnx.NodeProto]()
    for n in reversed(nodes):
        if any(name in read for name in n.output):
            kept.append(n)
            read.update(names_read(n))
    return kept[::-1], read


def _name_apart(nodes: Iterable[onnx.NodeProto], taken: set[str]) -> None:
    """Renames nodes of one name, which stand for one layer, since runtimes expect unique names."""
    for n in nodes:
        if n.name:
            n.name = unique(n.name, taken)
            taken.add(n.name)
        for g in graphs_in(n):
            _name_apart(g.node, taken)


def names_read(node: onnx.NodeProto) -> Iterator[str]:
    """Yields the names that a node reads, those of nested graphs included."""
    yield from node.input
    for inner in graphs_in(node):
        yield from (v.name for v in inner.output)
        for n in inner.node:
            yield from names_read(n)
