"""The layers of a program whose weights can be compressed, and the weights that cannot, each with the reason."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

import numpy as np

from pelton.errors import InputError, near
from pelton.ir.graph import Graph, Node, Value
from pelton.ir.op import Op
from pelton.ir.types import F32
from pelton.ops.words import (
    add,
    cast,
    convolution,
    div,
    gather,
    log_softmax,
    matmul,
    mul,
    reshape,
    sigmoid,
    softmax,
    sub,
    transpose,
)
from pelton.passes.rules.few_bits import FEWEST

Kind = Literal["product", "table", "convolution"]
Array = np.ndarray[Any, Any]
KINDS: dict[Op, Kind] = {matmul: "product", gather: "table", convolution: "convolution"}
BEHIND = (add, sub, mul, div, reshape, transpose, cast, softmax, log_softmax, sigmoid)


@dataclass(frozen=True, eq=False)
class WeightLayer:
    """Weights that products read as a second operand [inner, rows], a table [rows, inner] that lookups read, or weights
    of a convolution of images [rows, channels, height, width], whose rows are [height, width, channels].

    name: of its first node. nodes: all that read the weights, in order. head: True for the last product, whose results
    are the scores of the model.
    """

    name: str
    kind: Kind
    weight: Value
    nodes: tuple[Node, ...]
    head: bool = False

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values that are multiplied with the weights; none for tables."""
        return () if self.kind == "table" else tuple(dict.fromkeys(n.inputs[0] for n in self.nodes))

    @property
    def axis(self) -> int:
        """The axis of the weights along which blocks lie."""
        return 0 if self.kind == "product" else 1

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, elements of a row)."""
        first, *others = self.weight.type.shape
        return (others[0], first) if self.kind == "product" else (first, math.prod(others))

    def block(self, largest: int) -> int:
        """Returns the number of elements in a block: all of a shorter row; in convolutions it divides the channels."""
        if self.kind != "convolution":
            return min(largest, self.shape[1])
        channels = self.weight.type.shape[1]
        return max(d for d in range(1, min(largest, channels) + 1) if channels % d == 0)

    def rows(self, array: Array) -> Array:
        """Converts weights, in the form of the program, to rows."""
        if self.kind == "convolution":
            return array.transpose(0, 2, 3, 1).reshape(len(array), -1)
        return array.T if self.kind == "product" else array

    def array(self, rows: Array) -> Array:
        """Converts rows, or something for each block of them, to the form of the program."""
        if self.kind == "convolution":
            return rows.reshape(len(rows), *self.weight.type.shape[2:], -1).transpose(0, 3, 1, 2)
        return rows.T if self.kind == "product" else rows

    def input_rows(self, x: Array) -> Array:
        """Returns what the rows are multiplied with, f32[…, inner]: of convolutions all windows of x."""
        if self.kind != "convolution":
            return x.reshape(-1, x.shape[-1])
        (node,) = self.nodes
        top, left, bottom, right = node.attrs["pads"]
        padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
        size, apart = self.weight.type.shape[2:], node.attrs["dilations"]
        extent = [(n - 1) * d + 1 for n, d in zip(size, apart)]
        windows = np.lib.stride_tricks.sliding_window_view(padded, extent, (2, 3))
        (down, across), (deep, wide) = node.attrs["strides"], apart
        windows = windows[:, :, ::down, ::across, ::deep, ::wide]
        return windows.transpose(0, 2, 3, 4, 5, 1).reshape(-1, self.shape[1])


@dataclass(frozen=True)
class Kept:
    """Weights that stay as they are. bytes: their size."""

    name: str
    shape: tuple[int, ...]
    bytes: int
    reason: str


def find_layers(graph: Graph) -> tuple[list[WeightLayer], list[Kept]]:
    """Returns the layers of a program in order, and constants of at least `FEWEST` f32 elements that are none."""
    layers: list[WeightLayer] = []
    kept: list[Kept] = []
    heads = set(_heads(graph))
    seen: set[Value] = set()
    for node in graph.nodes:
        for value in node.inputs:
            if value in graph.constants and value not in seen and value.type.dtype.is_float:
                seen.add(value)
                if value.type.size < FEWEST and value.type.rank != 2:
                    continue  # biases, gains, numbers
                users = tuple(graph.users[value])
                name = users[0].name or users[0].outputs[0].name
                if reason := _rejection(graph, value, users):
                    kept.append(Kept(name, value.type.shape, graph.constants[value].nbytes, reason))
                else:
                    head = not heads.isdisjoint(users)
                    layers.append(WeightLayer(name, KINDS[users[0].op], value, users, head))
    return _with_own_names(layers), kept


def _rejection(graph: Graph, value: Value, users: Sequence[Node]) -> str:
    """Returns the reason why a constant cannot be compressed; "" if it can."""
    ops = {n.op for n in users}
    if len(ops) > 1 or not KINDS.keys() >= ops:
        return f"it is read by {', '.join(sorted(op.name for op in ops))}"
    if value in graph.outputs:
        return "it is an output of the model"
    if value.type.dtype is not F32:
        return f"its elements are {value.type.dtype.value}, not f32"
    if ops == {convolution} and (value.type.rank != 4 or len(users) > 1):
        return "a convolution of other than images, or several with the same weights"
    if ops == {convolution} and any(n.attrs["group"] > 1 or n.inputs[1] is not value for n in users):
        return "a convolution in groups"
    if ops == {convolution} and any(len(n.inputs) > 3 or n.inputs[0] in graph.constants for n in users):
        return "a convolution of a constant, or with padding of another number than 0"
    if ops != {convolution} and value.type.rank != 2:
        return f"{value.type.rank} axes, not 2"
    if value.type.size < FEWEST:
        return f"fewer than {FEWEST:,} elements"
    if not np.isfinite(graph.constants[value]).all():
        return "it has elements that are infinite or NaN"
    if matmul in ops:
        if any(n.inputs[1] is not value or n.inputs[0] is value or n.inputs[0] in graph.constants for n in users):
            return "it is not the second factor of a product"
        if any(n.inputs[0].type.rank < 2 or n.attrs["accumulate"] or n.attrs["to"] for n in users):
            return "a product of one axis, or of integers"
    elif gather in ops and any(n.inputs[0] is not value or n.attrs["axis"] for n in users):
        return "lookups along another axis than the first"
    return ""


def _heads(graph: Graph) -> Iterator[Node]:
    """Yields the products whose results reach an output through pointwise ops of one value alone."""
    for v in graph.outputs:
        while v in graph.producer:
            node = graph.producer[v]
            if node.op is matmul:
                yield node
                break
            varying = [x for x in node.inputs if x not in graph.constants]
            if node.op not in BEHIND or len(varying) != 1:
                break
            (v,) = varying


def _with_own_names(layers: Sequence[WeightLayer]) -> list[WeightLayer]:
    """Returns the layers with unique names: the names of their weights where those of nodes occur twice."""
    names = [layer.name for layer in layers]
    return [
        WeightLayer(layer.weight.name, layer.kind, layer.weight, layer.nodes, layer.head)
        if names.count(layer.name) > 1
        else layer
        for layer in layers
    ]


def matching(layers: Sequence[WeightLayer], patterns: Sequence[str]) -> set[WeightLayer]:
    """Returns the layers whose names match one of the patterns, such as "head.*"; InputError for a pattern without
    any."""
    chosen: set[WeightLayer] = set()
    for pattern in patterns:
        some = {layer for layer in layers if fnmatchcase(layer.name, pattern)}
        if not some:
            names = [layer.name for layer in layers]
            raise InputError(
                f"keep names {pattern!r}, but no layer has this name{near(pattern, names)}; the layers are"
                f" {', '.join(names[:8])}{', …' if len(names) > 8 else ''}"
            )
        chosen |= some
    return chosen
