"""Programs with separate weights, the common start of builds and refits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pelton.errors import BuildError
from pelton.ir import lineage
from pelton.ir.folding import compute
from pelton.ir.graph import Graph, Node, Value, bodies, remove_dead_nodes, substitute, unique
from pelton.ir.imported import Imported
from pelton.ir.lineage import Lineage
from pelton.ir.text import parse, to_text
from pelton.ir.types import BF16, F16, F32, F64, DType, TensorType

FLOATS = (F16, BF16, F32, F64)
NUMBER = "it is a scalar, part of the kernels' code"
READ = "its values determined the program during the import"
UNUSED = "unused"
OUTPUT = "it is an output of the model"


@dataclass(frozen=True)
class RefitProgram:
    """A model with separate weights. text: the program, whose first `folds` nodes compute constants from others;
    constants: all initial ones, by name; weights: the names of replaceable ones; refused: the others, with reasons."""

    text: str
    folds: int
    constants: Mapping[str, np.ndarray]
    weights: frozenset[str]
    refused: Mapping[str, str]

    def graph(self, weights: Mapping[str, np.ndarray], known: Lineage) -> Graph:
        """Returns the program with these weights, folds computed. `known` records the weights behind each constant."""
        graph = parse(self.text, {**self.constants, **weights})
        constants = dict(graph.constants)
        for v, array in constants.items():
            if v.name in self.weights:
                known.depends(array, frozenset((v.name,)))
        with lineage.following(known):
            for node in graph.nodes[: self.folds]:
                constants.update(zip(node.outputs, compute(node, tuple(constants[v] for v in node.inputs))))
        return remove_dead_nodes(graph.replace(nodes=graph.nodes[self.folds :], constants=constants))


def program_of(imported: Imported, known: Lineage) -> RefitProgram:
    """Returns the program of a model, with the weights from which its import computed constants.

    BuildError for models whose weights cannot be distinguished."""
    graph, info = imported.graph, imported.info
    if not info.opsets:
        raise BuildError(
            f"refit= is for models that are ONNX or become it, and {info.label or 'this one'} is read in another way;"
            " leave it out, or export the model to ONNX"
        )
    if any(bodies(node) for node in graph.nodes):
        raise BuildError("refit= is for programs without graphs within their nodes; leave it out")
    graph, leaves, nodes = _apart(graph, known)
    constants = {v.name: array for v, array in leaves.items()}
    refused, names = dict[str, str](), {id(array): name for array, name in known.names.values()}
    for v, array in leaves.items():
        reason = _rejection(array, known) or (OUTPUT if v in graph.outputs else None)
        if reason is not None and id(array) in names:
            refused[names[id(array)]] = reason
            constants[names[id(array)]] = array
    held = {id(array) for array in leaves.values()}
    for array, name in known.names.values():
        if id(array) not in held and name not in constants:
            refused[name] = READ if known.is_read(array) else UNUSED
            if known.is_read(array):
                constants[name] = array
    weights = frozenset(v.name for v, array in leaves.items() if id(array) in names and names[id(array)] not in refused)
    whole = graph.replace(nodes=(*nodes, *graph.nodes), constants=leaves)
    return RefitProgram(to_text(whole), len(nodes), constants, weights, refused)


def _rejection(array: np.ndarray, known: Lineage) -> str | None:
    """Returns the reason why a constant cannot change, as far as it shows before a build; or None."""
    dtype = DType.of(array)
    if dtype not in FLOATS:
        return f"it has type {dtype.value}: constants that are no floats may determine the program"
    if array.size <= 1:
        return NUMBER if array.size else "it is empty"
    return READ if known.is_read(array) else None


def _apart(graph: Graph, known: Lineage) -> tuple[Graph, dict[Value, np.ndarray], list[Node]]:
    """Returns the program, its initial constants, and the nodes that compute the other constants from them: only those
    between weights and constants."""
    first = {id(array): v for v, array in reversed(list(graph.constants.items()))}
    twins = {v: first[id(a)] for v, a in graph.constants.items() if first[id(a)] is not v and v not in graph.outputs}
    graph = substitute(graph, twins)
    taken = {v.name for v in (*graph.inputs, *graph.constants, *(v for n in graph.nodes for v in n.outputs))}
    outputs: dict[int, dict[int, np.ndarray]] = {}
    for made in known.made.values():
        outputs.setdefault(id(made.node), {})[made.output] = made.array
    leads: dict[int, bool] = {}
    leaves: dict[Value, np.ndarray] = {}
    nodes: dict[int, Node] = {}

    def from_weights(array: np.ndarray) -> bool:
        if id(array) not in leads:
            made = known.made.get(id(array))
            leads[id(array)] = (
                id(array) in known.names and _rejection(array, known) is None
                if made is None
                else any(map(from_weights, made.given))
            )
        return leads[id(array)]

    def value(array: np.ndarray, like: Value) -> Value:
        if id(array) not in first:
            hint = known.names[id(array)][1] if id(array) in known.names else like.name
            first[id(array)] = Value(TensorType.of(array), unique(hint or "folded", taken))
            taken.add(first[id(array)].name)
        return first[id(array)]

    def write(array: np.ndarray, like: Value) -> Value:
        made, constant = known.made.get(id(array)), value(array, like)
        if made is None or not from_weights(array):
            leaves[constant] = array
        elif id(made.node) not in nodes:
            inputs = tuple(write(a, v) for a, v in zip(made.given, made.node.inputs))
            results = tuple(value(outputs[id(made.node)][i], v) for i, v in enumerate(made.node.outputs))
            nodes[id(made.node)] = Node(made.node.op, inputs, made.node.attrs, results, made.node.name)
        return constant

    for v, array in graph.constants.items():
        if v in twins:
            continue
        if first[id(array)] is v:
            write(array, v)
        else:
            leaves[v] = array  # an output, which has its own name
    return graph, leaves, list(nodes.values())
