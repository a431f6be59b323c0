"""Moves the ranges of channels from layers' inputs into their weights: one scale then suits all channels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pelton.ir.bounds import Bounds
from pelton.ir.graph import Graph, Node, Value, remove_dead_nodes, unique
from pelton.ir.types import F32, TensorType
from pelton.ops.words import add, convolution, matmul, mul, reduce_max, reduce_mean, reduce_min, relu

from .calibrated import SAME_SCALE, Layer

EXPONENTS = np.linspace(0.3, 1, 8)  # of the ranges of channels, and of weights
OF_WEIGHTS = (0.0, 0.5)
SMALLEST = 1 / 32  # of the largest range; limits the stretch of channels that calibration hardly saw
GAIN = 10**0.1  # minimum reduction of a layer's noise


@dataclass(frozen=True)
class ChannelRange:
    """Statistics of each channel of a tensor, [channels]: the smallest and largest value, and the mean square."""

    low: np.ndarray
    high: np.ndarray
    square: np.ndarray


@dataclass(frozen=True, eq=False)
class Equalized:
    """A tensor `x` that layers read as `y` = x / by, with their weights multiplied by `by`; by: f32[channels]."""

    x: Value
    y: Value
    axis: int
    by: np.ndarray

    def spread(self) -> np.ndarray:
        """Reshapes the factors to broadcast along their axis."""
        return self.by.reshape(-1, *[1] * (self.x.type.rank - self.axis - 1))


def candidates(graph: Graph, layers: Iterable[Layer]) -> dict[Value, list[Layer]]:
    """Returns the tensors to equalize with their layers: only layers quantize them, and no op moves their bytes."""
    groups: dict[Value, list[Layer]] = {}
    for layer in layers:
        groups.setdefault(layer.x, []).append(layer)
    return {
        x: readers
        for x, readers in groups.items()
        if x in graph.producer
        and isinstance(x.type.shape[readers[0].channels], int)
        and all(layer.channels == readers[0].channels for layer in readers)
        and not any(node.op in SAME_SCALE for node in (graph.producer[x], *graph.users[x]))
    }


def choose_factors(
    graph: Graph, x: Value, readers: Sequence[Layer], seen: ChannelRange, levels: int, names: set[str]
) -> Equalized | None:
    """Returns the factors of a tensor with the least noise in the layers' outputs; None if they hardly help.

    Factors are (range of the channel)^a / (range of its weights)^b: of SmoothQuant (Xiao et al. 2022, arXiv 2211.10438)
    with a + b = 1, and of cross-layer equalization (Nagel et al. 2019, arXiv 1906.04721); a and b are searched. The
    noise model is independent rounding of each element of inputs and weights to uniform steps; weights have a scale for
    each output. levels: of weights. names: of the program; gains that of the new tensor.
    """
    range_ = np.maximum(seen.high, -seen.low)
    if not np.isfinite([range_, seen.square]).all() or not range_.max(initial=0) > 0:
        return None
    range_ = np.maximum(range_, SMALLEST * range_.max())
    weights = [_by_channel(graph.constants[layer.w], layer) for layer in readers]
    heaviest = np.max([np.abs(w).max((1, 3)).reshape(-1) for w in weights], 0)
    if not heaviest.max(initial=0) > 0:
        return None
    heaviest = np.maximum(heaviest, SMALLEST * heaviest.max())
    parts = [(np.abs(w).max(3), np.square(w).sum((1, 3)).reshape(-1), w.shape[3]) for w in weights]
    tried = [range_**a / heaviest**b for a in EXPONENTS for b in OF_WEIGHTS]
    tried = [by / np.exp(np.log(by).mean()) for by in tried]
    noises = [_noise(by, seen, parts, levels) for by in tried]
    if not min(noises) * GAIN < _noise(np.ones_like(range_), seen, parts, levels):
        return None
    name = unique(f"{x.name}.equalized", names)
    names.add(name)
    by = tried[int(np.argmin(noises))].astype(np.float32)
    return Equalized(x, Value(x.type, name), readers[0].channels, by)


def _by_channel(w: np.ndarray, layer: Layer) -> np.ndarray:
    """Returns weights as f64[groups, outputs, channels, taps]; the channels of all groups, in order, are those of x."""
    if layer.node.op is matmul:
        return w.T[None, :, :, None].astype(np.float64)
    groups = layer.node.attrs["group"]
    return w.reshape(groups, w.shape[0] // groups, w.shape[1], -1).astype(np.float64)


def _noise(
    by: np.ndarray, seen: ChannelRange, parts: Sequence[tuple[np.ndarray, np.ndarray, int]], levels: int
) -> float:
    """Returns 12 times the noise power of the layers' outputs, summed over outputs."""
    step = Bounds(float((seen.low / by).min()), float((seen.high / by).max())).byte_grid().scale
    total = 0.0
    for largest, squares, taps in parts:
        groups, _, channels = largest.shape
        of_groups = by.reshape(groups, 1, channels)
        steps = (largest * of_groups).max(2) / levels  # per output
        total += step**2 * float(squares @ by**2)
        total += taps * float((np.square(steps).sum(1) * (seen.square / by**2).reshape(groups, -1).sum(1)).sum())
    return total


def equalize(graph: Graph, chosen: Iterable[Equalized], layers: Iterable[Layer]) -> Graph:
    """Divides these tensors by their factors, in their producers if that is free, else behind them, and multiplies
    again for readers outside the layers."""
    return _Equalization(graph, list(chosen), layers).graph()


class _Equalization:
    """A program being rewritten node by node."""

    def __init__(self, source: Graph, chosen: Sequence[Equalized], layers: Iterable[Layer]):
        self.source, self.of = source, {e.x: e for e in chosen}
        self.layers = {layer.node: layer for layer in layers if layer.x in self.of}
        self.constants = dict(source.constants)
        self.names = {v.name for n in source.nodes for v in n.outputs} | {v.name for v in source.constants}
        self.names |= {v.name for v in source.inputs} | {e.y.name for e in chosen}
        self.replaced: dict[Node, Node] = {}
        self.behind: dict[Node, list[Node]] = {}
        self.back: dict[Value, Value] = {}  # x → its restored form for other readers

    def graph(self) -> Graph:
        for e in self.of.values():
            self._divide(e)
        nodes: list[Node] = []
        for source in self.source.nodes:
            node = self.replaced.get(source, source)
            nodes.append(self._reader(source, node))
            nodes += self.behind.get(source, ())
        return self.source.replace(nodes=tuple(nodes), constants=self.constants)

    def _divide(self, e: Equalized) -> None:
        """Produces y from the producer of x."""
        free = self._scale_producer(e)
        made = self.source.producer[e.x]
        behind = self.behind.setdefault(made, [])
        if not free:
            behind.append(Node(mul, (e.x, self._constant((1 / e.spread()).astype(np.float32), e.y.name)), {}, (e.y,)))
        # they always read y, so that x need not be stored beside y, which is rounded
        if any(node not in self.layers for node in self.source.users[e.x]):
            self.back[e.x] = Value(e.x.type, self._fresh(f"{e.x.name}.restored"))
            behind.append(Node(mul, (e.y, self._constant(e.spread(), e.y.name)), {}, (self.back[e.x],)))

    def _scale_producer(self, e: Equalized) -> bool:
        """Scales a convolution or product by constants, or one before a relu, to produce y; True if there is one."""
        if e.x in self.source.outputs:
            return False
        node, value = self.source.producer[e.x], e.x
        through: list[Node] = []
        while node.op in (relu, add):
            others = [v for v in node.inputs if v not in self.source.constants]
            if len(others) != 1 or self.source.uses(others[0]) != 1 or others[0].type != value.type:
                return False
            if others[0] not in self.source.producer:
                return False
            through.append(node)
            value = others[0]
            node = self.source.producer[value]
        if node.op not in (convolution, matmul) or node in self.replaced or not self._scalable(node, through, e):
            return False
        for n in (*through, node):
            outputs = (e.y,) if n.output is e.x else n.outputs
            self.replaced[n] = Node(n.op, tuple(self._scaled(n, v, e) for v in n.inputs), n.attrs, outputs, n.name)
        return True

    def _scalable(self, node: Node, through: Sequence[Node], e: Equalized) -> bool:
        """True if a node adds and multiplies by constants, one or one for each channel."""
        if any(v not in self.source.constants for v in node.inputs[1:]) or node.attrs["accumulate"] is not None:
            return False
        if node.inputs[1].type.rank < 2 or e.axis != (1 if node.op is convolution else e.x.type.rank - 1):
            return False
        if node.op is matmul and node.inputs[1].type.rank != 2:
            return False
        added = [v for n in through if n.op is add for v in n.inputs if v in self.source.constants]
        return all(v.type.size == 1 or v.type.size == e.by.size == _along(v, e) for v in added)

    def _scaled(self, node: Node, v: Value, e: Equalized) -> Value:
        """Returns a scaled operand of a node that produces y."""
        array = self.source.constants.get(v)
        if array is None or node.op is relu:
            return v
        if node.op is convolution:
            return self._constant(array / e.by.reshape(-1, *[1] * (array.ndim - 1)), v.name)
        return self._constant(array / (e.by if node.op is matmul else e.spread()), v.name)

    def _reader(self, source: Node, node: Node) -> Node:
        """Returns a node that reads the divided tensors."""
        layer = self.layers.get(source)
        inputs = tuple(self.back.get(v, v) for v in node.inputs)
        if layer is not None:
            e = self.of[layer.x]
            # the producer of another tensor may be a layer of this one
            inputs = (e.y, self._constant(_times(self.constants[node.inputs[1]], layer, e.by), layer.w.name))
            inputs += node.inputs[2:]
        return node if inputs == node.inputs else Node(node.op, inputs, node.attrs, node.outputs, node.name)

    def _constant(self, array: np.ndarray, name: str) -> Value:
        value = Value(TensorType(F32, array.shape), self._fresh(name))
        self.constants[value] = np.ascontiguousarray(array, np.float32)
        return value

    def _fresh(self, hint: str) -> str:
        name = unique(hint, self.names)
        self.names.add(name)
        return name


def _along(v: Value, e: Equalized) -> int:
    """Returns the size of a constant along the axis of channels, counted from the last as in broadcasting."""
    axis = v.type.rank - (e.x.type.rank - e.axis)
    return v.type.shape[axis] if axis >= 0 else 1


def _times(w: np.ndarray, layer: Layer, by: np.ndarray) -> np.ndarray:
    """Multiplies weights by the factors of their channels."""
    if layer.node.op is matmul:
        return w * by[:, None]
    groups = layer.node.attrs["group"]
    spread = by.reshape(groups, 1, -1, *[1] * (w.ndim - 2))
    return (w.reshape(groups, -1, *w.shape[1:]) * spread).reshape(w.shape)


def with_equalized(graph: Graph, chosen: Iterable[Equalized]) -> Graph:
    """Adds the divided tensors to the program, without readers."""
    constants, nodes = dict(graph.constants), list(graph.nodes)
    for e in chosen:
        factors = Value(TensorType(F32, e.spread().shape), f"{e.y.name}.factors")
        constants[factors] = (1 / e.spread()).astype(np.float32)
        nodes.append(Node(mul, (e.x, factors), {}, (e.y,)))
    return graph.replace(nodes=tuple(nodes), constants=constants)


def channel_ranges(graph: Graph, tensors: Mapping[Value, int]) -> Graph:
    """Builds a program with three outputs f32[channels] for each tensor: the smallest and the largest value of its
    channels, along this axis, and the mean of their squares."""
    nodes: list[Node] = list(graph.nodes)
    outputs: list[Value] = []
    for x, axis in tensors.items():
        others = {"axes": tuple(a for a in range(x.type.rank) if a != axis), "keepdims": False}
        square = Value(x.type, f"{x.name}.square")
        nodes.append(Node(mul, (x, x), {}, (square,)))
        for op, of in ((reduce_min, x), (reduce_max, x), (reduce_mean, square)):
            outputs.append(Value(TensorType(F32, (x.type.shape[axis],)), f"{x.name}.{op.name}"))
            nodes.append(Node(op, (of,), others, (outputs[-1],)))
    return remove_dead_nodes(graph.replace(nodes=tuple(nodes), outputs=tuple(outputs)))
