"""Writes foreign ops as the ONNX node that they hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx

from pelton.ops.foreign import unpacked

from .schemas import NeedsOpset, Unwritable, schema_of
from .writing import Writing


def foreign(w: Writing) -> Sequence[str]:
    """Writes the node that a foreign op holds, with the names of its operands here."""
    held, model = unpacked(w.attrs["model"]), w.model
    for opset in held.opset_import:
        _check_opset(w, held, _domain(opset.domain), opset.version)
    model.functions.extend(f for f in held.functions if f not in model.functions)
    names = dict(zip((v.name for v in held.graph.input), w.inputs, strict=True))
    for tensor in held.graph.initializer:
        names[tensor.name] = model.constant(onnx.numpy_helper.to_array(tensor))
    for v, out in zip(held.graph.output, w.node.outputs, strict=True):
        names[v.name] = model.fresh(f"{out.name}.foreign")
    for node in held.graph.node:
        model.append(_renamed(node, names))
    model.untyped.update((v, None) for v in w.node.outputs)
    return [names[v.name] for v in held.graph.output]


def _check_opset(w: Writing, held: onnx.ModelProto, domain: str, version: int) -> None:
    """Raises Unwritable if the model's opset defines other operators of these names than the node's."""
    used = {n.op_type for n in _nodes(held.graph.node) if _domain(n.domain) == domain}
    if not used:
        return
    ours = w.model.opsets.setdefault(domain, version)
    for kind in sorted(used) if ours != version else ():
        then, now = schema_of(kind, version, domain), schema_of(kind, ours, domain)
        if then is None or now is None or then.since_version != now.since_version:
            if not domain:
                raise NeedsOpset(f"{kind} of opset {version}, which differs at opset {ours},", version)
            raise Unwritable(f"{kind} is of opset {version} of {domain}, and another one at opset {ours}")


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _nodes(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for n in nodes:
        yield n
        for g in graphs_in(n):
            yield from _nodes(g.node)


def graphs_in(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yields the graphs within a node."""
    for a in node.attribute:
        yield from (a.g,) if a.type == a.GRAPH else a.graphs


def _renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    """Copies a node under other names, also in nested graphs where these do not define them."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    for of in (made.input, made.output):
        of[:] = [names.get(name, name) for name in of]
    for g in graphs_in(made):
        own = {v.name for v in g.input} | {t.name for t in g.initializer} | {o for n in g.node for o in n.output}
        outer = {k: v for k, v in names.items() if k not in own}
        nodes = [_renamed(n, outer) for n in g.node]
        del g.node[:]
        g.node.extend(nodes)
        for v in g.output:
            v.name = outer.get(v.name, v.name)
    return made
