"""Quantizes an f32 program by the ranges of its tensors: inserts quantize and dequantize as quantizers do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from pelton.ir.bounds import ANY, Bounds, value_bounds
from pelton.ir.classes import Classes
from pelton.ir.graph import Graph, Node, Value, remove_dead_nodes, unique
from pelton.ir.op import Op
from pelton.ir.types import F32, I8, U8, TensorType
from pelton.ops.words import (
    add,
    concat,
    convolution,
    dequantize,
    matmul,
    max_pool,
    quantize,
    reduce_mean,
    reshape,
    slice_,
    sub,
    transpose,
)
from pelton.passes.rules.integers import MAX_TERMS, MIN_CHANNELS

from .switches import blend

# Ops with bytes of one scale as input and output: these are quantized together.
SAME_SCALE = (max_pool, concat, reshape, slice_, transpose)
SWITCHES = "pelton.int8"  # the input of a program with switches


@dataclass(frozen=True)
class Layer:
    """A convolution or product that integers can compute: its node, input and weights."""

    node: Node
    x: Value
    w: Value

    @property
    def name(self) -> str:
        """The name of its node in the model, else of its output."""
        return self.node.name or self.node.output.name

    @property
    def names(self) -> tuple[str, ...]:
        """Its name, those of the nodes merged into it, and that of its output."""
        return (self.name, *self.node.name.split("+"), self.node.output.name)

    @property
    def macs(self) -> int:
        """Multiplications of one run; those of one element along dynamic dimensions."""
        sizes = [d for d in self.node.output.type.shape if isinstance(d, int)]
        terms = self.w.type.size // self.w.type.shape[self.axis]
        return int(np.prod(sizes, dtype=np.int64)) * terms

    @property
    def axis(self) -> int:
        """The axis of output channels of the weights."""
        return 0 if self.node.op is convolution else 1

    @property
    def channels(self) -> int:
        """The axis of x that sums run along."""
        return 1 if self.node.op is convolution else self.x.type.rank - 1

    @property
    def output_channels(self) -> int:
        """The axis of output channels of its output."""
        return 1 if self.node.op is convolution else self.node.output.type.rank - 1


def layers(graph: Graph) -> list[Layer]:
    """Returns the layers of an f32 program that integers can compute, in order."""
    return [Layer(n, n.inputs[0], n.inputs[1]) for n in graph.nodes if _is_layer(graph, n)]


def _is_layer(graph: Graph, node: Node) -> bool:
    if node.op not in (convolution, matmul) or node.attrs["accumulate"] is not None:
        return False
    x, w = node.inputs[:2]
    if x.type.dtype is not F32 or w not in graph.constants or x in graph.constants or w.type.size == 0:
        return False
    if not np.isfinite(graph.constants[w]).all():
        return False
    if node.op is matmul:
        return w.type.rank == 2 and x.type.rank >= 2 and w.type.shape[0] <= MAX_TERMS
    group = node.attrs["group"]
    depthwise = group == w.type.shape[0] == x.type.shape[1]  # it has its own kernel
    few = w.type.shape[1] < MIN_CHANNELS and group > 1 and not depthwise
    return not few and w.type.size // w.type.shape[0] <= MAX_TERMS


def scaled_values(chosen: Iterable[Layer]) -> list[str]:
    """Returns the names of the tensors whose ranges are required to quantize these layers, in order."""
    return list(dict.fromkeys(layer.x.name for layer in chosen))


def quantize_layers(
    graph: Graph,
    chosen: Iterable[Layer],
    scales: Mapping[str, float],
    weight_levels: int,
    switched: bool = False,
    lows: Mapping[str, float] = MappingProxyType({}),
    corrections: Mapping[Node, np.ndarray] = MappingProxyType({}),
) -> Graph:
    """Quantizes and dequantizes the operands of these layers.

    scales: tensor name → amax / 127, as in calibration tables; all of `scaled_values`. lows: tensor name → its smallest
    value, where known. Tensors that reach less far below 0 than above it become u8 from there, or from 0 where they
    cannot be negative, others i8. Weights become i8 from −weight_levels to weight_levels, with a scale for each output
    channel. Tensors connected by pools, joins and views share the largest scale. switched: the program has a further
    input, `SWITCHES` f32[layers]: a layer is quantized where its element is 1, in f32 where it is 0. corrections: node
    of a layer → f32[output channels], added where the layer is quantized.
    """
    program = _program(graph, list(chosen), scales, weight_levels, lows, corrections)
    return program.switched() if switched else program.graph()


def mean_errors(
    graph: Graph,
    chosen: Iterable[Layer],
    scales: Mapping[str, float],
    weight_levels: int,
    lows: Mapping[str, float] = MappingProxyType({}),
) -> Graph:
    """Builds a program with an output f32[output channels] for each of these layers, in order: the mean of the layer's
    f32 output minus its quantized output, on its f32 inputs (Nagel et al. 2019, arXiv 1906.04721, 4.2). Operands as in
    `quantize_layers`."""
    return _program(graph, list(chosen), scales, weight_levels, lows, {}).mean_errors()


def _program(
    graph: Graph,
    chosen: list[Layer],
    scales: Mapping[str, float],
    weight_levels: int,
    lows: Mapping[str, float],
    corrections: Mapping[Node, np.ndarray],
) -> _Quantized:
    same = Classes[Value]()
    for node in graph.nodes:
        if _shares_scale(node):
            for v in node.inputs:
                if v.type.dtype is F32:
                    same.join(v, node.output)
    ranges: dict[Value, Bounds] = {}
    for layer in chosen:
        key, high = same.find(layer.x), 127.0 * float(scales[layer.x.name])
        bounds = Bounds(min(0.0, max(-high, lows.get(layer.x.name, -high))), high)
        ranges[key] = ranges.get(key, bounds).union(bounds)
    by_node = {layer.node: layer for layer in chosen}
    return _Quantized(graph, by_node, same.find, ranges, weight_levels, corrections)


def _shares_scale(node: Node) -> bool:
    return node.op in SAME_SCALE and node.output.type.dtype is F32


class _Quantized:
    """A program being quantized value by value."""

    def __init__(
        self,
        source: Graph,
        chosen: dict[Node, Layer],
        scale_class: Callable[[Value], Value],
        ranges: Mapping[Value, Bounds],
        weight_levels: int,
        corrections: Mapping[Node, np.ndarray],
    ):
        self.source, self.chosen, self.weight_levels = source, chosen, weight_levels
        self._corrections = corrections
        self.constants: dict[Value, np.ndarray] = dict(source.constants)
        self.nodes: list[Node] = []
        self._names = {
            v.name for v in (*source.inputs, *source.constants, *(v for n in source.nodes for v in n.outputs))
        }
        self._class, self._ranges = scale_class, ranges
        self._bounds = value_bounds(source)
        self._unsigned = self._unsigned_classes()
        self._needed = self._needed_values()
        self._dequantized: dict[Value, Value] = {}  # value → its replacement in all readers

    def graph(self) -> Graph:
        for v in self.source.inputs:
            self._quantize(v)
        for node in self.source.nodes:
            layer = self.chosen.get(node)
            inputs = [self._dequantized.get(v, v) for v in node.inputs]
            if layer is not None:
                self._layer(layer, inputs[0], node.output)
            else:
                self.nodes.append(node if tuple(inputs) == node.inputs else self._with_inputs(node, inputs))
            if not _shares_scale(node):  # the others follow their inputs
                for v in node.outputs:
                    self._quantize(v)
        return remove_dead_nodes(self.source.replace(nodes=tuple(self.nodes), constants=self.constants))

    def switched(self) -> Graph:
        """Computes each layer in both precisions and blends them by its switch."""
        switches = Value(TensorType(F32, (len(self.chosen),)), self._fresh(SWITCHES))
        quantized: dict[Value, Value] = {}
        number = 0
        for node in self.source.nodes:
            layer = self.chosen.get(node)
            if layer is None:
                self.nodes.append(node)
                continue
            type, name = node.output.type, node.output.name
            exact, rounded = Value(type, self._fresh(f"{name}.fp32")), self._rounded(layer, quantized)
            self.nodes.append(Node(node.op, node.inputs, node.attrs, (exact,), node.name))
            blend(self._emit, switches, number, exact, rounded)
            self.nodes[-1] = Node(add, self.nodes[-1].inputs, {}, node.outputs)
            number += 1
        inputs = (*self.source.inputs, switches)
        return remove_dead_nodes(self.source.replace(inputs=inputs, nodes=tuple(self.nodes), constants=self.constants))

    def mean_errors(self) -> Graph:
        """Computes the mean error of each layer, by output channel."""
        quantized: dict[Value, Value] = {}
        outputs: list[Value] = []
        for node in self.source.nodes:
            layer = self.chosen.get(node)
            if layer is None:
                self.nodes.append(node)
                continue
            self.nodes.append(node)
            rounded, type, axis = self._rounded(layer, quantized), node.output.type, layer.output_channels
            error = self._node(sub, (node.output, rounded), {}, type, node.output.name)
            attrs = {"axes": tuple(a for a in range(type.rank) if a != axis), "keepdims": False}
            outputs.append(self._node(reduce_mean, (error,), attrs, TensorType(F32, (type.shape[axis],)), "error"))
        return remove_dead_nodes(
            self.source.replace(nodes=tuple(self.nodes), constants=self.constants, outputs=tuple(outputs))
        )

    def _rounded(self, layer: Layer, quantized: dict[Value, Value]) -> Value:
        """Returns a layer's quantized output; `quantized` caches the quantized x."""
        if layer.x not in quantized:
            quantized[layer.x] = self._conversions(layer.x)
        output = layer.node.output
        value = Value(output.type, self._fresh(f"{output.name}.int8"))
        self._layer(layer, quantized[layer.x], value)
        return value

    def _layer(self, layer: Layer, x: Value, output: Value) -> None:
        """Writes a layer of quantized operands, corrected."""
        node, correction = layer.node, self._corrections.get(layer.node)
        others = list(node.inputs[2:])
        if correction is not None and node.op is convolution and others[0] in self.source.constants:
            others[0] = self._constant(self.source.constants[others[0]] + correction, others[0].name)
            correction = None
        result = output if correction is None else Value(output.type, self._fresh(f"{output.name}.biased"))
        self.nodes.append(Node(node.op, (x, self._weights(layer), *others), node.attrs, (result,), node.name))
        if correction is not None:
            after = output.type.rank - layer.output_channels - 1
            spread = self._constant(correction.reshape(-1, *[1] * after), f"{output.name}.correction")
            self.nodes.append(Node(add, (result, spread), {}, (output,)))

    def _needed_values(self) -> set[Value]:
        """Returns the layers' inputs, and the values behind them across ops that keep scales."""
        needed = {layer.x for layer in self.chosen.values()}
        for node in reversed(self.source.nodes):
            if _shares_scale(node) and node.output in needed:
                needed.update(v for v in node.inputs if v.type.dtype is F32)
        return needed

    def _unsigned_classes(self) -> dict[Value, bool]:
        """Maps each class to True if none of its values can be negative."""
        unsigned: dict[Value, bool] = {}
        for v in (*self.source.inputs, *(v for n in self.source.nodes for v in n.outputs)):
            if v.type.dtype is F32:
                key = self._class(v)
                unsigned[key] = unsigned.get(key, True) and self._bounds.get(v, ANY).low >= 0
        return unsigned

    def _quantize(self, v: Value) -> None:
        """Quantizes and dequantizes the value for all later readers; outputs of the program stay as they are."""
        if v in self._needed and v.type.dtype is F32:
            self._dequantized[v] = self._conversions(v)

    def _conversions(self, v: Value) -> Value:
        """Quantizes and dequantizes a value."""
        key = self._class(v)
        low, high = self._ranges[key]
        grid = Bounds(0.0 if self._unsigned[key] else low, high).byte_grid()
        to = I8 if grid.signed else U8
        operands = [self._constant(np.float32(grid.scale), f"{v.name}.scale")]
        if grid.zero:
            operands.append(self._constant(np.uint8(grid.zero), f"{v.name}.zero"))
        attrs = {"axis": 0, "block": 0}
        stored = self._node(
            quantize, (v, *operands), {**attrs, "to": to, "saturate": True}, v.type.with_dtype(to), v.name
        )
        return self._node(dequantize, (stored, *operands), attrs, v.type, v.name)

    def _weights(self, layer: Layer) -> Value:
        """Returns the weights of a layer as i8, dequantized."""
        w, axis = self.source.constants[layer.w], layer.axis
        others = tuple(i for i in range(w.ndim) if i != axis)
        largest = np.abs(w).max(others)
        scales = np.where(largest > 0, largest, self.weight_levels).astype(np.float32) / np.float32(self.weight_levels)
        by = scales.reshape([-1 if i == axis else 1 for i in range(w.ndim)])
        levels = np.clip(np.rint(w / by), -self.weight_levels, self.weight_levels).astype(np.int8)
        stored = self._constant(levels, f"{layer.w.name}.i8")
        scale = self._constant(scales, f"{layer.w.name}.scale")
        return self._node(dequantize, (stored, scale), {"axis": axis, "block": 0}, layer.w.type, layer.w.name)

    def _with_inputs(self, node: Node, inputs: list[Value]) -> Node:
        return Node(node.op, tuple(inputs), node.attrs, node.outputs, node.name)

    def _constant(self, given: np.ndarray | np.generic, name: str) -> Value:
        array = np.asarray(given)
        value = Value(TensorType.of(array), self._fresh(name))
        self.constants[value] = array
        return value

    def _node(self, op, inputs: tuple[Value, ...], attrs: dict, type: TensorType, name: str) -> Value:
        output = Value(type, self._fresh(f"{name}.{op.name}"))
        self.nodes.append(Node(op, inputs, attrs, (output,)))
        return output

    def _emit(self, op: Op, inputs: Sequence[Value], attrs: Mapping[str, Any]) -> Value:
        (type,) = op.infer_types(tuple(v.type for v in inputs), attrs)
        return self._node(op, tuple(inputs), dict(attrs), type, inputs[0].name)

    def _fresh(self, hint: str) -> str:
        name = unique(hint, self._names)
        self._names.add(name)
        return name
