"""Rounds the layers of a program one after the other, and gives the worst ones more bits until the accuracy holds."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from pelton.errors import BuildError
from pelton.ir.graph import Graph
from pelton.logs import Logger
from pelton.quantize.accuracy_bound import AccuracyBound, Feed

from .layers import WeightLayer
from .methods import Version, as_they_are, choose, in_eight_bits, in_floats
from .moments import Moments, measure
from .prune import pruned_weights
from .scaling import find_divisors
from .settings import Settings
from .simulation import Simulation, Weighted
from .write import Division

log = Logger("pelton.build")
Array = np.ndarray[Any, Any]


class Tell(Protocol):
    """Receives a stage, and how much of it is done."""

    def __call__(self, stage: str, done: int, total: int, /) -> object: ...


@dataclass
class Rungs:
    """The versions of each layer, from the fewest bits to the original weights, and the divisions of inputs."""

    of: dict[WeightLayer, list[Version]] = field(default_factory=dict)
    divisions: list[Division] = field(default_factory=list)

    def at(self, steps: Mapping[WeightLayer, int]) -> dict[WeightLayer, Version]:
        """Returns the versions of all layers, so many rungs above the first ones."""
        return {layer: versions[min(steps.get(layer, 0), len(versions) - 1)] for layer, versions in self.of.items()}


def simulated(chosen: Mapping[WeightLayer, Version]) -> dict[WeightLayer, Array]:
    """Returns the weights of versions in the form of the program."""
    return {layer: layer.array(version.weights) for layer, version in chosen.items()}


def round_layers(
    graph: Graph,
    layers: Sequence[WeightLayer],
    settings: Settings,
    simulation: Simulation | None,
    feeds: Sequence[Feed],
    tell: Tell,
) -> Rungs:
    """Returns the versions of layers. With a simulation, each layer is rounded by its inputs on these batches, behind
    the layers in front of it as they are rounded."""
    rungs = Rungs()
    groups: dict[Any, list[WeightLayer]] = {}
    for layer in layers:
        groups.setdefault(layer.inputs if layer.kind == "product" else layer, []).append(layer)
    weights: dict[WeightLayer, Array] = {}
    for done, group in enumerate(groups.values()):
        tell("calibrate", done, len(groups))
        moments = None
        if simulation is not None and group[0].inputs:
            moments = measure(simulation, group[0], feeds, weights)
        divisors = [] if moments is None or group[0].kind != "product" else find_divisors(graph, group, layers)
        found = _round_group(graph, group, settings, moments, bool(divisors))
        first = [versions[0] for versions in found]
        if any(v.gain is not None for v in first):
            rungs.divisions.append(Division(divisors, group[0]))
        rungs.of.update(zip(group, found))
        weights |= simulated(dict(zip(group, first)))
        for layer, v in zip(group, first):
            log.info("%s: %s, %d bits, error %.3g", layer.name, v.method, v.bits, v.error or 0.0)
    tell("calibrate", len(groups), len(groups))
    return rungs


def _round_group(
    graph: Graph, group: Sequence[WeightLayer], settings: Settings, moments: Moments | None, scalable: bool
) -> list[list[Version]]:
    """Returns the versions of layers that read one input."""
    originals = [layer.rows(graph.constants[layer.weight]) for layer in group]
    rows = [array.astype(np.float64) for array in originals]
    own = None if moments is None else moments.own
    sparsity = settings.sparsity
    pruned = [
        None if sparsity is None or layer.kind == "table" else pruned_weights(r, sparsity, own)
        for layer, r in zip(group, rows)
    ]
    bits = [settings.bits(layer) for layer in group]
    if any(b == 32 for b in bits):  # floats in the group have no gain
        scalable = False
    few = [i for i, b in enumerate(bits) if b < 32]
    method = settings.method if moments is not None or settings.method != "auto" else "clip"
    method = "clip" if moments is None and method == "gptq" else method  # tables have no inputs
    grids = [settings.grid(group[i], bits[i]) for i in few]
    chosen = choose([rows[i] for i in few], grids, method, moments, [pruned[i] for i in few], scalable)
    out: list[list[Version]] = [[] for _ in group]
    for i, version in zip(few, chosen):
        more = [in_eight_bits(rows[i], version, moments, pruned[i])] if version.bits < 8 else []
        out[i] = [version, *more, as_they_are(originals[i], version)]
    for i, b in enumerate(bits):
        if b == 32:
            changed = in_floats(rows[i], moments, pruned[i], settings.clusters)
            out[i] = [changed, as_they_are(originals[i], changed)]
    return out


def hold(rungs: Rungs, bound: AccuracyBound, simulation: Simulation, tell: Tell) -> dict[WeightLayer, int]:
    """Returns how many rungs each layer climbs so that the bound holds.

    As few layers of four bits as it takes get 8 bits; if all of them do, as few layers as it takes become floats. Those
    with the most noise for their size come first. BuildError if every layer would be a float."""

    def holds(steps: Mapping[WeightLayer, int]) -> bool:
        return bound.holds(bound.measure(Weighted(simulation, simulated(rungs.at(steps)))))

    if holds({}):
        return {}
    noise = {}
    for done, layer in enumerate(rungs.of):
        tell("accuracy", done, len(rungs.of))
        alone = Weighted(simulation, simulated({layer: rungs.of[layer][0]}))
        noise[layer] = bound.measure(alone).noise
    order = sorted(rungs.of, key=lambda layer: -noise[layer] / layer.weight.type.size)
    fours = [layer for layer in order if len(rungs.of[layer]) > 2]
    eight = dict.fromkeys(fours, 1)

    def state(count: int) -> dict[WeightLayer, int]:
        if count <= len(fours):
            return dict.fromkeys(fours[:count], 1)
        return eight | {layer: len(rungs.of[layer]) - 1 for layer in order[: count - len(fours)]}

    most = len(fours) + len(order) - 1  # one layer is left
    count = _least(functools.cache(lambda n: holds(state(n))), most)
    tell("accuracy", len(rungs.of), len(rungs.of))
    if count is None:
        drop = bound.measure(Weighted(simulation, simulated(rungs.at(eight)))).drop
        eights = " in 8 bits" if fours else ""
        raise BuildError(
            f"max_drop {bound.max_drop:g} cannot hold: the drop is {drop:.4g} with all layers{eights}, and too"
            " large with a single one; allow more, or pass more inputs like those of real runs"
        )
    log.info("max_drop %g holds with %d steps to more bits", bound.max_drop, count)
    return state(count)


def _least(holds: Any, most: int) -> int | None:
    """Returns the least count from 1 to `most` that holds, by doubling and halving; None if `most` does not."""
    fails, good = 0, 1
    while good < most and not holds(good):
        fails, good = good, min(2 * good, most)
    if good > most or not holds(good):
        return None
    while good - fails > 1:
        middle = (good + fails) // 2
        fails, good = (fails, middle) if holds(middle) else (middle, good)
    return good
