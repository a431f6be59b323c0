"""Convolutional networks of ONNX as programs for TF.js: calls of its operators, in its order of axes (channels last).

Convolutions are fused with their bias and activation as TF.js' own converter fuses them, and tensors are freed behind
their last use, as its graph models free them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

LAST = {0: 0, 1: 3, 2: 1, 3: 2}  # an axis of [batch, channels, rows, columns] among [batch, rows, columns, channels]
TO_LAST = (0, 2, 3, 1)


class TfjsError(Exception):
    """A network that this file does not express in TF.js' operators."""


class Program:
    """The program of a model, as it grows: calls, weights, and which values are images with channels last."""

    def __init__(self, model: onnx.ModelProto):
        graph = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
        self.nodes = list(graph.node)
        self.arrays = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        self.shapes = {
            v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
            for v in (*graph.input, *graph.output, *graph.value_info)
        }
        self.inputs = [i.name for i in graph.input if i.name not in self.arrays]
        self.outputs = [o.name for o in graph.output]
        self.images = {name for name in self.inputs if len(self.shapes[name]) == 4}
        self.same: dict[str, str] = {}  # values that a call before theirs computes
        self.calls: list[dict[str, Any]] = []
        self.weights = bytearray()
        for node in self.nodes:
            if node.op_type == "Constant":
                self.arrays[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
            elif node.output[0] not in self.same:
                self._write(node)

    def _write(self, node: onnx.NodeProto) -> None:
        if node.op_type not in WRITERS:
            raise TfjsError(f"node {node.name or node.output[0]!r}: no operator of TF.js is known for {node.op_type}")
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        WRITERS[node.op_type](self, node, attributes)

    def name(self, value: str) -> str:
        return self.same.get(value, value)

    def call(self, op: str, operands: Sequence[str], result: str, image: bool, **how: Any) -> None:
        """Adds a call. Operands that are arrays become weights."""
        values = [
            {"weights": self.place(self.arrays[x], image)} if x in self.arrays else {"value": self.name(x)}
            for x in operands
        ]
        self.calls.append({"op": op, "operands": values, "result": result, **how})
        if image:
            self.images.add(result)

    def place(self, array: np.ndarray, image: bool = False) -> dict[str, Any]:
        if image and array.ndim == 4 and array.size > 1:
            array = array.transpose(TO_LAST)
        at = len(self.weights)
        self.weights += np.ascontiguousarray(array, np.float32).tobytes()
        return {"at": at, "shape": list(array.shape)}

    def is_image(self, value: str) -> bool:
        return value in self.images or self.name(value) in self.images

    def next(self, value: str, kind: str) -> onnx.NodeProto | None:
        """Returns the only reader of a value, if it is of this kind."""
        readers = [n for n in self.nodes if value in n.input]
        alone = len(readers) == 1 and value not in self.outputs
        return readers[0] if alone and readers[0].op_type == kind else None

    def as_json(self) -> dict[str, Any]:
        outputs = {o: self.name(o) for o in self.outputs}
        last = {x["value"]: i for i, c in enumerate(self.calls) for x in c["operands"] if "value" in x}
        for i, call in enumerate(self.calls):
            call["frees"] = [v for v, at in last.items() if at == i and v not in outputs.values()]
        channels = [o for o in self.outputs if self.is_image(o)]
        return {
            "inputs": {i: [self.shapes[i][a] for a in TO_LAST] for i in self.inputs},
            "outputs": outputs,
            "calls": self.calls,
            "shapes": {o: self.shapes[o] for o in channels},
        }


def write(model: Path, program: Path, weights: Path) -> None:
    """Writes an ONNX file as a program (JSON) and its weights; TfjsError for a network without convolutions alone."""
    made = Program(onnx.load(model))
    program.write_text(json.dumps(made.as_json()), "utf-8")
    weights.write_bytes(made.weights)


Attributes = dict[str, Any]
WRITERS: dict[str, Callable[[Program, onnx.NodeProto, Attributes], None]] = {}


def writes(*kinds: str):
    def register(function: Callable[[Program, onnx.NodeProto, Attributes], None]):
        WRITERS.update(dict.fromkeys(kinds, function))
        return function

    return register


def _clip(p: Program, node: onnx.NodeProto) -> str:
    low, high = (float(p.arrays[x]) for x in node.input[1:3])
    if (low, high) != (0, 6):
        raise TfjsError(f"clips to [{low}, {high}] are not written, those to [0, 6] are")
    return "relu6"


@writes("Conv")
def convolution(p: Program, node: onnx.NodeProto, a: Attributes) -> None:
    filters, result, activation = p.arrays[node.input[1]], node.output[0], "linear"
    depthwise = a.get("group", 1) > 1
    if depthwise and filters.shape[:2] != (a["group"], 1):
        raise TfjsError(f"convolutions of groups are not written: {node.input[1]} is {filters.shape}")
    if following := p.next(result, "Relu") or p.next(result, "Clip"):
        activation = "relu" if following.op_type == "Relu" else _clip(p, following)
        p.same[following.output[0]] = result
    top, left, bottom, right = a.get("pads", (0,) * 4)
    p.call(
        "depthwise" if depthwise else "convolution",
        node.input[:1],
        result,
        True,
        filters=p.place(filters.transpose((2, 3, 0, 1) if depthwise else (2, 3, 1, 0))),
        bias=p.place(p.arrays[node.input[2]]),
        strides=list(a.get("strides", (1, 1))),
        pad=[[0, 0], [top, bottom], [left, right], [0, 0]],
        activation=activation,
    )


@writes("Add", "Sub", "Mul", "Div", "Relu", "Sigmoid")
def elementwise(p: Program, node: onnx.NodeProto, a: Attributes) -> None:
    p.call(node.op_type.lower(), node.input, node.output[0], any(map(p.is_image, node.input)))


@writes("Clip")
def clip(p: Program, node: onnx.NodeProto, a: Attributes) -> None:
    p.call(_clip(p, node), node.input[:1], node.output[0], p.is_image(node.input[0]))


@writes("MaxPool")
def max_pool(p: Program, node: onnx.NodeProto, a: Attributes) -> None:
    top, left, bottom, right = a.get("pads", (0,) * 4)
    pad = [[0, 0], [top, bottom], [left, right], [0, 0]]
    kernel, strides = list(a["kernel_shape"]), list(a.get("strides", (1, 1)))
    p.call("maxPool", node.input, node.output[0], True, kernel=kernel, strides=strides, pad=pad)


@writes("Resize")
def resize(p: Program, node: onnx.NodeProto, a: Attributes) -> None:
    ops = {b"linear": "resizeBilinear", b"nearest": "resizeNearestNeighbor"}
    if a.get("coordinate_transformation_mode", b"half_pixel") != b"half_pixel" or a["mode"] not in ops:
        raise TfjsError("resizes are written with the mode linear or nearest, by the centres of pixels")
    p.call(ops[a["mode"]], node.input[:1], node.output[0], True, size=p.shapes[node.output[0]][2:])


@writes("Concat")
def concat(p: Program, node: onnx.NodeProto, a: Attributes) -> None:
    image = p.is_image(node.input[0])
    p.call("concat", node.input, node.output[0], image, axis=LAST[a["axis"]] if image else a["axis"])


@writes("Slice")
def cut(p: Program, node: onnx.NodeProto, a: Attributes) -> None:
    image, shape, result = p.is_image(node.input[0]), p.shapes[node.input[0]], p.shapes[node.output[0]]
    starts, _, axes, steps = (p.arrays[x].tolist() for x in node.input[1:5])
    if any(step != 1 for step in steps):
        raise TfjsError("slices are written with steps of 1")
    begin = [0] * len(shape)
    for axis, start in zip(axes, starts):
        begin[axis] = start + shape[axis] * (start < 0)
    order = TO_LAST if image else range(len(shape))
    how = {"begin": [begin[i] for i in order], "size": [result[i] for i in order]}
    p.call("slice", node.input[:1], node.output[0], image, **how)


@writes("Transpose")
def transpose(p: Program, node: onnx.NodeProto, a: Attributes) -> None:
    if not p.is_image(node.input[0]) or tuple(a["perm"]) != TO_LAST:
        raise TfjsError(f"transpositions are written from images to {TO_LAST}")
    p.call("reshape", node.input, node.output[0], False, shape=p.shapes[node.output[0]])  # it is in that order


@writes("Reshape", "Flatten")
def reshape(p: Program, node: onnx.NodeProto, a: Attributes) -> None:
    if p.is_image(node.input[0]) and p.shapes[node.input[0]][2:] != [1, 1]:
        raise TfjsError(f"{node.input[0]} is reshaped with its channels first")
    p.call("reshape", node.input[:1], node.output[0], False, shape=p.shapes[node.output[0]])


@writes("GlobalAveragePool", "ReduceMean")
def mean(p: Program, node: onnx.NodeProto, a: Attributes) -> None:
    axes = sorted(p.arrays[node.input[1]].tolist()) if len(node.input) > 1 else a.get("axes", [2, 3])
    if axes != [2, 3] or not p.is_image(node.input[0]):
        raise TfjsError(f"means over axes {axes} are not written, those over the space of images are")
    p.call("mean", node.input[:1], node.output[0], True)


@writes("Gemm", "MatMul")
def product(p: Program, node: onnx.NodeProto, a: Attributes) -> None:
    w, result = p.arrays[node.input[1]], node.output[0]
    bias = p.arrays[node.input[2]] if len(node.input) > 2 else np.zeros(1, np.float32)
    if following := p.next(result, "Add"):
        other = next(x for x in following.input if x != result)
        if len(node.input) == 2 and other in p.arrays:
            bias = p.arrays[other]
            p.same[following.output[0]] = result
    how = {"filters": p.place(w.T if a.get("transB") else w), "bias": p.place(bias.reshape(-1))}
    p.call("matMul", node.input[:1], result, False, **how)
