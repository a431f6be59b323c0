"""Writes the versions of layers into the program: dequantized codes, codebooks, or other floats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pelton.ir.graph import Graph, Node, Value, remove_dead_nodes, substitute
from pelton.ir.builder import Builder
from pelton.ir.types import I64
from pelton.ops.words import cast, dequantize, gather

from .blocks import PackedRows
from .layers import WeightLayer
from .methods import Version
from .scaling import Divisor

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Division:
    """Divisors of a group's input, and the layer whose gain they divide by."""

    divisors: Sequence[Divisor]
    of: WeightLayer


def write_versions(graph: Graph, chosen: Mapping[WeightLayer, Version], divisions: Sequence[Division] = ()) -> Graph:
    """Returns the program with these versions of its layers' weights. Names of inputs and outputs stay."""
    by_rows: dict[WeightLayer, Array] = {}  # what the rows of a layer are divided by
    operands: dict[tuple[Node, int], Array] = {}  # other constants that are divided
    for division in divisions:
        gain = chosen[division.of].gain
        if gain is None:
            continue
        for d in division.divisors:
            if d.layer is not None:
                by_rows[d.layer] = gain
            else:
                array = graph.constants[d.node.inputs[d.operand]]
                operands[d.node, d.operand] = (array / gain).astype(array.dtype)
    values = {*graph.inputs, *graph.constants, *(v for n in graph.nodes for v in n.outputs)}
    builder = Builder(graph.name, taken={v.name for v in values})
    to: dict[Value, Value] = {}
    for layer, version in chosen.items():
        to[layer.weight] = _write(builder, layer, version, by_rows.get(layer))
    nodes = [_with_operands(builder, n, operands) for n in graph.nodes]
    whole = graph.replace(
        constants={**graph.constants, **builder.constants}, nodes=(*builder.nodes, *nodes), outputs=graph.outputs
    )
    return remove_dead_nodes(substitute(whole, to))


def _with_operands(builder: Builder, node: Node, operands: Mapping[tuple[Node, int], Array]) -> Node:
    """Returns a node with other constants as some of its operands."""
    if not any((node, i) in operands for i in range(len(node.inputs))):
        return node
    inputs = tuple(
        builder.constant(operands[node, i], f"{v.name}.divided") if (node, i) in operands else v
        for i, v in enumerate(node.inputs)
    )
    return Node(node.op, inputs, node.attrs, node.outputs, node.name)


def _write(builder: Builder, layer: WeightLayer, version: Version, by: Array | None) -> Value:
    """Writes a layer's weights; returns their value."""
    name = layer.weight.name
    if version.packed is not None:
        packed = version.packed if by is None else version.packed.divided(by)
        return _dequantized(builder, layer, packed)
    if version.codebook is not None and by is None:
        centres, codes = version.codebook
        book = builder.constant(centres, f"{name}.codebook")
        places = builder.constant(np.ascontiguousarray(layer.array(codes)), f"{name}.codes")
        (wide,) = builder.emit(cast, (places,), {"to": I64}, names=[f"{name}.places"])
        return builder.emit(gather, (book, wide), {"axis": 0}, names=[f"{name}.clustered"])[0]
    weights = version.weights if version.gain is None else version.weights * version.gain
    weights = weights if by is None else weights / by[:, None]
    return builder.constant(np.ascontiguousarray(layer.array(weights), np.float32), f"{name}.floats")


def _dequantized(builder: Builder, layer: WeightLayer, packed: PackedRows) -> Value:
    """Writes codes, scales and zero points in front of a dequantization, in blocks along the rows, or with one scale
    for each row."""
    name, grid = layer.weight.name, packed.grid
    whole = packed.scales.scale.shape[1] == 1  # one block a row

    def constant(array: Array, dtype: Any, part: str) -> Value:
        return builder.constant(np.ascontiguousarray(array).astype(dtype), f"{name}.{part}")

    def of_blocks(array: Array) -> Array:
        return array.reshape(-1) if whole else layer.array(array)

    scales, zeros = packed.scales.scale, packed.scales.zero
    inputs = [constant(layer.array(packed.codes), grid.dtype.numpy, "codes")]
    inputs.append(constant(of_blocks(scales), np.float32, "scales"))
    if grid.zero_points:
        inputs.append(constant(of_blocks(zeros), grid.dtype.numpy, "zeros"))
    attrs = {"axis": 1 - layer.axis, "block": 0} if whole else {"axis": layer.axis, "block": grid.block}
    return builder.emit(dequantize, inputs, attrs, names=[f"{name}.dequantized"])[0]
