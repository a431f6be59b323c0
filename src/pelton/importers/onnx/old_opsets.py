"""Rewrites models of opsets 1 to 5 as of opset 6, the oldest that readers know."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableSequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import helper

from pelton.errors import ModelError

from .file import Source, array_of
from .node import attribute, schema_of
from .scope import domain_of, node_label

OLDEST = 6  # of the opsets that readers know
FIRST = 1  # the opset of files without one
FIRST_WITH_OPSETS = 3  # IR version
MAX_COPIES = 1 << 10  # copies that a Tile expands to


@dataclass(frozen=True)
class OldNode:
    """A node to rewrite in place, the constants visible to its graph, and unused names."""

    node: onnx.NodeProto
    opset: int
    source: Source
    constants: Mapping[str, onnx.TensorProto]
    free: Iterator[str]

    def refuse(self, reason: str) -> ModelError:
        return ModelError(
            f"{self.node.op_type} of opset {self.opset} {reason} (node {node_label(self.node)!r}, {self.source.name})"
        )

    def take(self, name: str) -> onnx.AttributeProto | None:
        """Removes and returns an attribute; None if the node lacks it."""
        for i, proto in enumerate(self.node.attribute):
            if proto.name == name:
                return self.node.attribute.pop(i)
        return None

    def put(self, name: str, value: object) -> None:
        self.node.attribute.append(helper.make_attribute(name, value))

    def constant(self, i: int, what: str) -> np.ndarray:
        """Returns the elements of an operand that later opsets have as an attribute."""
        name = self.node.input[i]
        if name not in self.constants:
            raise self.refuse(f"needs a constant as its {what}; export the model with a later opset")
        return array_of(self.constants[name], self.source)


def modernized(found: Source) -> Source:
    """Converts a model to opset 6 at least; raises ModelError if that is impossible."""
    imports = [o.version for o in found.model.opset_import if not domain_of(o.domain)]
    default = FIRST if found.model.ir_version < FIRST_WITH_OPSETS else OLDEST
    version = min(imports, default=default)
    if version >= OLDEST:
        return found
    if version < FIRST:
        raise ModelError(f"opsets {FIRST} and up are supported, {found.name} has {version}; export it again")
    model = onnx.ModelProto()
    model.CopyFrom(found.model)
    names = {n for graph in _graphs(model.graph) for node in graph.node for n in (*node.input, *node.output)}
    free = (name for i in range(1 << 60) if (name := f"opset{OLDEST}.{i}") not in names)
    _rewrite(model.graph, version, found, {}, free)
    others = [o for o in model.opset_import if domain_of(o.domain)]
    del model.opset_import[:]
    model.opset_import.extend([helper.make_opsetid("", OLDEST), *others])
    return replace(found, model=model, opset=version)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yields a graph and those nested in it."""
    yield graph
    for node in graph.node:
        for a in node.attribute:
            for inner in (*([a.g] if a.HasField("g") else ()), *a.graphs):
                yield from _graphs(inner)


def _rewrite(
    graph: onnx.GraphProto,
    opset: int,
    source: Source,
    outer: Mapping[str, onnx.TensorProto],
    free: Iterator[str],
) -> None:
    constants = {**outer, **{t.name: t for t in graph.initializer}}
    for node in graph.node:
        if node.op_type == "Constant" and not domain_of(node.domain) and node.output:
            constants.update((node.output[0], a.t) for a in node.attribute if a.name == "value")
    rewritten: list[onnx.NodeProto] = []
    for node in graph.node:
        for a in node.attribute:
            for inner in (*([a.g] if a.HasField("g") else ()), *a.graphs):
                _rewrite(inner, opset, source, constants, free)
        if not domain_of(node.domain):
            old = OldNode(node, opset, source, constants, free)
            _adapt_attributes(old)
            if opset < SPECIAL.get(node.op_type, (0, None))[0]:
                rewritten += SPECIAL[node.op_type][1](old)
        rewritten.append(node)
    del graph.node[:]
    graph.node.extend(rewritten)


def _adapt_attributes(old: OldNode) -> None:
    """Writes out defaults that have changed since, and drops hints where results may be written."""
    before, now = (schema_of(old.node.op_type, opset, "") for opset in (old.opset, OLDEST))
    if before is None or now is None or before.since_version == now.since_version:
        return
    if "consumed_inputs" in before.attributes:
        old.take("consumed_inputs")
    known = {a.name for a in old.node.attribute}
    for name, spec in before.attributes.items():
        later = now.attributes.get(name)
        if name in known or later is None or later.type != spec.type:
            continue
        value = spec.default_value
        if value.type in (value.FLOAT, value.INT) and value != later.default_value:
            old.put(name, attribute(value))


def _cast(old: OldNode) -> list[onnx.NodeProto]:
    """Replaces the name of the type by its number."""
    proto = old.take("to")
    name = "" if proto is None else attribute(proto)
    if isinstance(name, str) and name.upper() in onnx.TensorProto.DataType.keys():
        old.put("to", onnx.TensorProto.DataType.Value(name.upper()))
        return []
    raise old.refuse(f"needs the name of an element type as its attribute 'to', got {name!r}")


def _concat(old: OldNode) -> list[onnx.NodeProto]:
    """Sets the axis to 1 if missing."""
    if all(a.name != "axis" for a in old.node.attribute):
        old.put("axis", 1)
    return []


def _pad(old: OldNode) -> list[onnx.NodeProto]:
    """Renames `paddings` to `pads`."""
    proto = old.take("paddings")
    if proto is None:
        raise old.refuse("needs its attribute 'paddings'")
    old.put("pads", list(proto.ints))
    return []


def _power(old: OldNode) -> list[onnx.NodeProto]:
    """Converts the exponent of a norm to an integer."""
    proto = old.take("p")
    if proto is not None and proto.f != int(proto.f):
        raise old.refuse(f"needs an integer as its exponent, got {proto.f}")
    if proto is not None:
        old.put("p", int(proto.f))
    return []


def _reshape(old: OldNode) -> list[onnx.NodeProto]:
    """Converts the attribute `shape` to an operand."""
    proto = old.take("shape")
    if proto is None:
        raise old.refuse("needs its attribute 'shape'")
    name = next(old.free)
    old.node.input.append(name)
    shape = helper.make_tensor(name, onnx.TensorProto.INT64, [len(proto.ints)], proto.ints)
    return [helper.make_node("Constant", [], [name], value=shape)]


def _split(old: OldNode) -> list[onnx.NodeProto]:
    """Converts the operand of sizes to an attribute."""
    if len(old.node.input) > 1:
        if all(a.name != "split" for a in old.node.attribute):
            old.put("split", [int(size) for size in old.constant(1, "sizes").reshape(-1)])
        del old.node.input[1:]
    return []


def _tile(old: OldNode) -> list[onnx.NodeProto]:
    """Expands a Tile along one axis: one operand holds the number of repeats, another one the axis."""
    if len(old.node.input) != 3:
        raise old.refuse(f"needs 3 inputs, got {len(old.node.input)}")
    count, axis = (int(old.constant(i, what).reshape(-1)[0]) for i, what in ((1, "tiles"), (2, "axis")))
    if not 1 <= count <= MAX_COPIES:
        raise old.refuse(f"needs from 1 to {MAX_COPIES} tiles, got {count}")
    copies: MutableSequence[str] = [old.node.input[0]] * count
    old.node.op_type = "Concat"
    del old.node.input[:]
    old.node.input.extend(copies)
    old.put("axis", axis)
    return []


# operator → the opset that changed it, and a function that rewrites an older node, and returns nodes to insert before
# it
SPECIAL: dict[str, tuple[int, Callable[[OldNode], list[onnx.NodeProto]]]] = {
    "Cast": (6, _cast),
    "Concat": (4, _concat),
    "GlobalLpPool": (2, _power),
    "LpPool": (2, _power),
    "Pad": (2, _pad),
    "Reshape": (5, _reshape),
    "Split": (2, _split),
    "Tile": (6, _tile),
}
