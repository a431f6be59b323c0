"""Damage to nodes and attributes of models."""

from __future__ import annotations

import random

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto

from .mutate_parts import FLOATS, NUMBERS, WORDS, change_list, graphs_of, names_of, nodes_of


def rewire_input(m: ModelProto, rng: random.Random) -> None:
    node = rng.choice(nodes_of(m))
    at = rng.randrange(len(node.input))
    node.input[at] = rng.choice([*names_of(m), "", "nobody"])


def swap_inputs(m: ModelProto, rng: random.Random) -> None:
    node = rng.choice([n for n in nodes_of(m) if len(n.input) > 1])
    order = list(node.input)
    rng.shuffle(order)
    node.input[:] = order


def change_arity(m: ModelProto, rng: random.Random) -> None:
    node = rng.choice(nodes_of(m))
    names = node.input if rng.random() < 0.6 else node.output
    if rng.random() < 0.5:
        del names[rng.randrange(len(names))]
    else:
        names.insert(rng.randrange(len(names) + 1), rng.choice([*names_of(m), "", "extra"]))


def rename_output(m: ModelProto, rng: random.Random) -> None:
    node = rng.choice(nodes_of(m))
    node.output[rng.randrange(len(node.output))] = rng.choice([*names_of(m), "", "other"])


def close_cycle(m: ModelProto, rng: random.Random) -> None:
    node = rng.choice(nodes_of(m))
    node.input[rng.randrange(len(node.input))] = rng.choice(list(node.output))


def change_operator(m: ModelProto, rng: random.Random) -> None:
    node = rng.choice(nodes_of(m))
    if rng.random() < 0.9:
        node.op_type = rng.choice(
            sorted({s.name for s in onnx.defs.get_all_schemas() if s.domain == node.domain or not node.domain})
            + ["", "Nothing"]
        )
    else:
        node.domain = rng.choice(("", "ai.onnx", "ai.onnx.ml", "com.microsoft", "mine", "nowhere"))


def drop_node(m: ModelProto, rng: random.Random) -> None:
    graph = rng.choice(list(graphs_of(m)))
    del graph.node[rng.randrange(len(graph.node))]


def copy_node(m: ModelProto, rng: random.Random) -> None:
    """A node once more, somewhere else, under new names or the old ones."""
    graph = rng.choice(list(graphs_of(m)))
    node = NodeProto()
    node.CopyFrom(rng.choice(nodes_of(m)))
    if rng.random() < 0.7:
        node.output[:] = [o and o + "'" for o in node.output]
    if rng.random() < 0.5 and graph.output:
        graph.output[0].name = node.output[0]
    graph.node.insert(rng.randrange(len(graph.node) + 1), node)


def shuffle_nodes(m: ModelProto, rng: random.Random) -> None:
    graph = rng.choice(list(graphs_of(m)))
    nodes = [NodeProto.FromString(n.SerializeToString()) for n in graph.node]
    rng.shuffle(nodes)
    del graph.node[:]
    graph.node.extend(nodes)


# --- changes of attributes


def change_attribute(m: ModelProto, rng: random.Random) -> None:
    node = rng.choice([n for n in nodes_of(m) if n.attribute])
    a = rng.choice(list(node.attribute))
    kind = a.type
    if rng.random() < 0.1:
        a.name = rng.choice([b.name for n in nodes_of(m) for b in n.attribute] + ["", "axis"])
    elif rng.random() < 0.06:
        a.type = rng.choice(list(AttributeProto.AttributeType.values()))
    elif kind == AttributeProto.INT:
        a.i = rng.choice((*NUMBERS, a.i + 1, -a.i, a.i - 1))
    elif kind == AttributeProto.FLOAT:
        a.f = rng.choice((*FLOATS, -a.f))
    elif kind == AttributeProto.STRING:
        a.s = rng.choice(WORDS).encode() if rng.random() < 0.9 else b"\xff\xfe"
    elif kind == AttributeProto.INTS:
        change_list(a.ints, (*NUMBERS, *NUMBERS[:6], *NUMBERS[:6]), rng)
    elif kind == AttributeProto.FLOATS:
        change_list(a.floats, FLOATS, rng)
    elif kind == AttributeProto.STRINGS:
        change_list(a.strings, [w.encode() for w in WORDS], rng)
    elif kind == AttributeProto.GRAPH:
        a.g.CopyFrom(GraphProto.FromString(rng.choice(list(graphs_of(m))).SerializeToString()))  # perhaps of itself
    else:
        node.attribute.remove(a)


def add_or_drop_attribute(m: ModelProto, rng: random.Random) -> None:
    """An attribute of the operator that the node did not have, or lost."""
    node = rng.choice(nodes_of(m))
    if rng.random() < 0.3 and node.attribute:
        del node.attribute[rng.randrange(len(node.attribute))]
        return
    if not onnx.defs.has(node.op_type, node.domain):  # an earlier change gave it another domain
        return
    schema = onnx.defs.get_schema(node.op_type, domain=node.domain)
    if not schema.attributes:
        return
    name = rng.choice(sorted(schema.attributes))
    kind = schema.attributes[name].type.name
    given = {
        "INT": rng.choice(NUMBERS),
        "FLOAT": rng.choice(FLOATS),
        "STRING": rng.choice(WORDS),
        "INTS": rng.choices(NUMBERS[:8], k=rng.randrange(5)),
        "FLOATS": rng.choices(FLOATS, k=rng.randrange(4)),
        "STRINGS": rng.choices(WORDS, k=2),
    }[kind if kind in _KINDS else "INT"]
    if kind in _KINDS and not (kind.endswith("S") and not given):
        node.attribute.append(onnx.helper.make_attribute(name, given))


_KINDS = ("INT", "FLOAT", "STRING", "INTS", "FLOATS", "STRINGS")


def swap_bodies(m: ModelProto, rng: random.Random) -> None:
    """The bodies of two attributes change places."""
    one, other = rng.sample([a for n in nodes_of(m) for a in n.attribute if a.type == AttributeProto.GRAPH], 2)
    kept, new = one.g.SerializeToString(), other.g.SerializeToString()
    if kept not in new and new not in kept:  # one within the other goes away with it
        one.g.CopyFrom(GraphProto.FromString(new))
        other.g.CopyFrom(GraphProto.FromString(kept))
