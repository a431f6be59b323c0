"""The program with the weights of its layers as inputs: one engine runs it with any weights, and shows all layers'
inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pelton.compiler.compile import compile_graph
from pelton.errors import BuildError
from pelton.ir.dims import Undecided
from pelton.ir.graph import Graph
from pelton.ir.imported import Imported, Info
from pelton.options import Options
from pelton.quantize.accuracy_bound import Feed, Outputs

from .layers import WeightLayer

Array = np.ndarray[Any, Any]


class Simulation:
    """A program that runs with any weights of its layers, on this machine's CPU.

    `weights`: layer → f32 in the form of the program. `run` returns outputs by name, and `inputs` the inputs of layers
    as rows. Both use the arrays of the last run again.
    """

    def __init__(self, graph: Graph, layers: Sequence[WeightLayer], options: Options):
        self.graph, self.layers = graph, layers
        values = [x for layer in layers for x in layer.inputs]
        self._seen = {x: x.name for x in dict.fromkeys(values)}
        ports = {layer: layer.weight for layer in layers}
        outputs = dict.fromkeys([*graph.outputs, *(x for x in self._seen if x not in graph.inputs)])
        shown = graph.replace(
            inputs=(*graph.inputs, *ports.values()),
            constants={v: a for v, a in graph.constants.items() if v not in set(ports.values())},
            outputs=tuple(outputs),
            name=f"{graph.name} with any weights",
        )
        plain = Options(
            level=0,
            threads=options.threads,
            cache_dir=options.cache_dir,
            cache_limit=options.cache_limit,
            cc=options.cc,
        )
        try:
            engine = compile_graph(Imported(shown, Info()), plain).engine
        except Undecided as e:
            raise BuildError(f"{graph.name}: {e}; fix these sizes with shapes=") from e
        self._context = engine.context(options.threads)
        self._results: dict[str, Array] = {}
        self._shapes: list[tuple[int, ...]] = []

    def run(self, feed: Feed, weights: Mapping[WeightLayer, Array]) -> Outputs:
        """Runs the program on a batch with these weights, and the original ones of other layers."""
        shapes = [a.shape for a in feed.values()]
        constants = self.graph.constants
        own = {x.weight.name: np.ascontiguousarray(weights.get(x, constants[x.weight])) for x in self.layers}
        self._results = self._context.run({**feed, **own}, self._results if shapes == self._shapes else None)
        self._shapes = shapes
        return {v.name: self._results[v.name] for v in self.graph.outputs}

    def rows(self, layer: WeightLayer, feed: Feed) -> Array:
        """Returns the rows of a layer's inputs in the last run, f32[rows, inner]."""
        every = [feed[v.name] if v in self.graph.inputs else self._results[v.name] for v in layer.inputs]
        return np.concatenate([layer.input_rows(a) for a in every])


class Weighted:
    """The simulated program with certain weights, which runs as an engine does."""

    def __init__(self, simulation: Simulation, weights: Mapping[WeightLayer, Array]):
        self.simulation, self.weights = simulation, weights

    def run(self, feed: Feed) -> Outputs:
        return self.simulation.run(feed, self.weights)
