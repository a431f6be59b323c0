"""Ranks the quantized tensors of a model by the effect of rounding each of them alone on the outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from pelton.builder.build import build_program, explain_undecided
from pelton.compiler.compilation import Compilation
from pelton.compiler.stages import run_stages
from pelton.quantize.switches import noises, together
from pelton.errors import BuildError, InputError
from pelton.ir.builder import Builder
from pelton.ir.dims import Undecided
from pelton.ir.expansion import expand_op
from pelton.ir.graph import Graph, Node, Value, remove_dead_nodes, unique
from pelton.ir.types import F32, TensorType
from pelton.metrics import Noise
from pelton.ops.words import cast, concat, dequantize, max_pool, quantize, round_
from pelton.options import Options
from pelton.passes.precision.switches import blend


@dataclass(frozen=True)
class TensorNoise:
    """One quantized tensor. `tensor`: its name before it is quantized; `readers`: the nodes that read it dequantized;
    `sqnr`: output → dB against the float network, with this tensor alone rounded; `share`: its part of the total noise,
    0 to 1."""

    tensor: str
    readers: tuple[str, ...]
    sqnr: Mapping[str, float]
    share: float

    @property
    def lowest(self) -> float:
        """The SQNR of the output that it harms most, in dB."""
        return min(self.sqnr.values())


@dataclass(frozen=True)
class Sensitivity:
    """The quantized tensors of a model, the most harmful first. `together`: output → SQNR in dB with all of them
    rounded; `whole`: tensors always rounded, because integer arithmetic reads them; `samples`: the number of runs."""

    tensors: tuple[TensorNoise, ...]
    together: Mapping[str, float]
    whole: tuple[str, ...]
    samples: int

    def json(self) -> dict[str, Any]:
        """Returns SQNR in dB as numbers, infinite ones as texts."""
        return {
            "samples": self.samples,
            "together_db": _finite(self.together),
            "tensors": [{**asdict(t), "sqnr": _finite(t.sqnr)} for t in self.tensors],
            "whole": list(self.whole),
        }


def _finite(sqnr: Mapping[str, float]) -> dict[str, float | str]:
    return {name: value if math.isfinite(value) else str(value) for name, value in sqnr.items()}


def rank(model: Any, samples: Sequence[Mapping[str, np.ndarray]], options: Options) -> Sensitivity | None:
    """Ranks tensors by per-layer sensitivity analysis (Wu et al. 2020, "Integer quantization for deep learning
    inference", arXiv 2004.09602): rounds one quantized tensor at a time, and compares the outputs with those of the
    float network, in which none is rounded; SQNR over all samples.

    The float network saturates where the model does (activations often depend on that), and has the model's weights:
    their own quantization errors are not in the file. All variants are runs of one engine of f32 kernels, built at
    level 0, with an input that selects the rounded tensors; (tensors + 2) runs for each sample.

    samples: inputs by name, all of the same sizes. options: those of the build. None if the model quantizes nothing.
    Raises errors of `pelton.build`, and InputError without samples.
    """
    if not samples:
        raise InputError("there are no samples to rank quantized tensors with")
    shapes = {name: np.shape(a) for name, a in samples[0].items()}
    plain = Options(shapes=shapes, values=options.values, outputs=options.outputs, memory=options.memory, level=0)
    plain = plain.but(threads=options.threads, cache_dir=options.cache_dir)
    imported = run_stages(Compilation(plain, model), "import").imported
    nodes, whole = separable(imported.graph)
    if not nodes:
        return None
    graph, switch = with_switches(imported.graph, nodes)
    try:
        engine = build_program(replace(imported, graph=graph), plain).engine
    except Undecided as e:
        raise BuildError(explain_undecided(imported, e)) from e
    outputs = {p.name: v.name for p, v in zip(engine.outputs, imported.graph.outputs)}
    settings = [*np.eye(len(nodes)), np.ones(len(nodes))]
    progress = options.progress
    tell = None if progress is None else lambda done, total: progress("check", done, total)
    runs = [
        {outputs[port]: noise for port, noise in of.items()} for of in noises(engine, switch, settings, samples, tell)
    ]
    return _ranked(imported.graph, nodes, runs, whole, len(samples))


def _ranked(
    graph: Graph, nodes: Sequence[Node], found: Sequence[Mapping[str, Noise]], whole: Sequence[Node], samples: int
) -> Sensitivity:
    *alone, all_of_them = [{name: noise.sqnr for name, noise in of.items()} for of in found]
    powers = [together(of.values()) for of in found[:-1]]
    total = sum(p for p in powers if math.isfinite(p))

    def share(power: float) -> float:
        return power / total if math.isfinite(power) and total else float(not math.isfinite(power))

    tensors = [
        TensorNoise(node.inputs[0].name, readers(graph, node), sqnr, share(power))
        for node, sqnr, power in zip(nodes, alone, powers)
    ]
    return Sensitivity(
        tuple(sorted(tensors, key=lambda t: (-t.share, t.lowest))),
        all_of_them,
        tuple(node.inputs[0].name for node in whole),
        samples,
    )


def separable(graph: Graph) -> tuple[list[Node], list[Node]]:
    """Returns the nodes whose integers are only moved, pooled and dequantized, so that they can be left unrounded; and
    all others that quantize."""
    free: set[Value] = set()
    for node in reversed(graph.nodes):
        for v in node.outputs:
            if v not in graph.outputs and all(_keeps_apart(user, v, free) for user in graph.users.get(v, ())):
                free.add(v)
    quantizers = [node for node in graph.nodes if node.op is quantize and node.inputs[0] not in graph.constants]
    apart = [node for node in quantizers if node.attrs["to"].is_integer and node.output in free]
    return apart, [node for node in quantizers if node not in apart]


def _keeps_apart(user: Node, v: Value, free: set[Value]) -> bool:
    """True if a node only dequantizes a value, or only moves it to such nodes."""
    others = user.inputs if user.op is concat else user.inputs[:1]
    if user.inputs.count(v) != others.count(v):
        return False
    return user.op is dequantize or ((user.op.moves or user.op is max_pool) and user.output in free)


def readers(graph: Graph, node: Node) -> tuple[str, ...]:
    """Returns the names of the nodes that read a quantized value after dequantizing; "output NAME" for outputs."""
    names: dict[str, None] = {}
    waiting = [node.output]
    while waiting:
        for user in graph.users.get(waiting.pop(), ()):
            if user.op is dequantize:
                names.update((n.name or n.op.name, None) for n in graph.users.get(user.output, ()))
                names.update((f"output {v.name}", None) for v in graph.outputs if v is user.output)
            else:
                waiting += user.outputs
    return tuple(names)


def with_switches(graph: Graph, nodes: Sequence[Node]) -> tuple[Graph, str]:
    """Adds an input f32[nodes], and returns the program and its name: node i rounds where element i is 1, and only
    saturates where it is 0. The integers of these nodes are f32."""
    b = Builder(graph.name)
    to = {v: b.input(v.type, v.name) for v in graph.inputs}
    switch = b.input(TensorType(F32, (len(nodes),)), unique("rounded", {v.name for v in graph.inputs}))
    to.update((v, b.constant(array, v.name)) for v, array in graph.constants.items())
    numbers = {node: i for i, node in enumerate(nodes)}
    soft: set[Value] = set()  # values no longer in integers

    def steps(node: Node, last: bool) -> Value:
        """Writes the expansion of a node, without its last step unless `last`."""
        body = expand_op(node.op, tuple(to[v] for v in node.inputs), node.attrs)
        env = {v: v for v in body.inputs} | {v: b.constant(array) for v, array in body.constants.items()}
        for step in body.nodes if last else body.nodes[:-1]:
            inputs = tuple(env[v] for v in step.inputs)
            if step.op is round_:
                env[step.output] = rounded(inputs[0], numbers[node], node.name)
            else:
                (env[step.output],) = b.emit(step.op, inputs, step.attrs, node_name=node.name)
        return env[body.outputs[0] if last else body.nodes[-1].inputs[0]]

    def rounded(x: Value, number: int, name: str) -> Value:
        """Adds to x the difference to its nearest integer where the switch is 1; exact in both cases."""
        nearest = b.emit(round_, (x,), node_name=name)[0]
        return blend(lambda op, of, attrs: b.emit(op, of, attrs, node_name=name)[0], switch, number, x, nearest)

    def as_f32(v: Value) -> Value:
        return v if v.type.dtype is F32 else b.emit(cast, (v,), {"to": F32})[0]

    for node in graph.nodes:
        if node in numbers:
            to[node.output] = as_f32(steps(node, last=False))
            soft.add(node.output)
        elif soft.isdisjoint(node.inputs):
            names = [v.name for v in node.outputs]
            outputs = b.emit(node.op, [to[v] for v in node.inputs], node.attrs, names=names, node_name=node.name)
            to.update(zip(node.outputs, outputs))
        elif node.op is dequantize:
            to[node.output] = steps(node, last=True)
        else:
            moved = node.inputs if node.op is concat else node.inputs[:1]
            inputs = [as_f32(to[v]) for v in moved] + [to[v] for v in node.inputs[len(moved) :]]
            (to[node.output],) = b.emit(node.op, inputs, node.attrs, node_name=node.name)
            soft.add(node.output)
    return remove_dead_nodes(b.graph(to[v] for v in graph.outputs)), switch.name
