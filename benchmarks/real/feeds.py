"""Inputs for models without a description, guessed from names, types and the graph; ONNX Runtime checks them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.helper import tensor_dtype_to_np_dtype

BATCH = (1, 2, 3, 8)
HEIGHTS = (320, 224, 640, 256, 48, 32, 512, 192, 416, 64, 384, 28)
WIDTHS = (320, 224, 640, 256, 192, 128, 512, 480, 352, 160, 448, 28)
TEXT = (32, 21, 16, 64, 12, 128, 8, 10, 5, 2, 1)
SOUND = (16000, 512, 1280, 1536, 48000, 8000, 12000, 32000, 160, 24000, 256, 12640)
FRAMES = (64, 96, 100, 76, 32, 128, 80, 200, 16, 900, 10, 8, 5, 2, 1)
COUNT = (24, 17, 12, 30, 8, 6, 4, 2, 1)
SAME = {"Identity", "Cast", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Transpose", "Slice", "Concat"}
SAME |= {"Add", "Expand", "Min", "Clip", "Where", "Mul", "Sub"}
VAGUE = re.compile(r"\W*|unk_.*|none|-?\d+|dynamicdimension.*|dim_?\d*|\?.*", re.IGNORECASE)
IMAGE_CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class Input:
    """An input of a model.

    `keys`: per axis a size, or the name of a dynamic one; `bound`: of indices, by the tables of the graph that they
    read, 0 where unknown.
    """

    name: str
    dtype: np.dtype
    keys: tuple[int | str, ...]
    bound: int = 0
    thresholds: Mapping[int, tuple[float, float]] | None = None

    @property
    def spatial(self) -> tuple[int, ...]:
        """The axes of an image's rows and columns."""
        if len(self.keys) != 4 or self.dtype.kind not in "fu":
            return ()
        if self.keys[1] in IMAGE_CHANNELS or isinstance(self.keys[1], str) and self.keys[3] not in IMAGE_CHANNELS:
            return (2, 3)
        return (1, 2) if self.keys[3] in IMAGE_CHANNELS else ()

    def called(self, *words: str) -> bool:
        return any(re.search(rf"(?<![a-z]){w}", self.name.lower()) for w in words)


class Model:
    """A model's inputs, and what its nodes say of them."""

    def __init__(self, path: Path):
        self.proto = onnx.load(str(path), load_external_data=False)
        graph = self.proto.graph
        self.stored = {t.name: t for t in graph.initializer}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes():
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.inputs = tuple(self._input(i) for i in graph.input if i.name not in self.stored)

    def nodes(self) -> Iterator[onnx.NodeProto]:
        """All of them, those of nested graphs and of functions included."""

        def inside(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
            for node in nodes:
                yield node
                for a in node.attribute:
                    for g in (a.g, *a.graphs):
                        yield from inside(g.node)

        yield from inside(self.proto.graph.node)
        for f in self.proto.functions:
            yield from inside(f.node)

    @property
    def kinds(self) -> dict[str, int]:
        """Operator → how many nodes."""
        found: dict[str, int] = {}
        for node in self.nodes():
            found[node.op_type] = found.get(node.op_type, 0) + 1
        return found

    @property
    def quantized(self) -> bool:
        """Whether activations are rounded to integers, which two right answers may do differently."""
        return any(
            "QuantizeLinear" in k
            and k != "DequantizeLinear"
            or k in ("ConvInteger", "MatMulInteger", "DynamicQuantizeLSTM")
            or k.startswith("QLinear")
            for k in self.kinds
        )

    def _input(self, i: onnx.ValueInfoProto) -> Input:
        if i.type.WhichOneof("value") != "tensor_type":
            raise ValueError(f"input {i.name!r} is no tensor")
        tensor = i.type.tensor_type
        keys: list[int | str] = []
        for axis, d in enumerate(tensor.shape.dim):
            fixed = d.HasField("dim_value") and d.dim_value > 0
            vague = not d.dim_param or VAGUE.fullmatch(d.dim_param)
            name = f"{i.name}[{axis}]" if vague else d.dim_param
            keys.append(d.dim_value if fixed else name)
        is_string = tensor.elem_type == onnx.TensorProto.STRING
        dtype = np.dtype(object) if is_string else tensor_dtype_to_np_dtype(tensor.elem_type)
        thresholds = self._thresholds(i.name) if dtype.kind == "f" else None
        return Input(i.name, dtype, tuple(keys), self._bound(i.name), thresholds)

    def _bound(self, name: str) -> int:
        """The rows of the smallest table that these indices look things up in."""
        found, seen, left = 0, {name}, [name]
        while left:
            value = left.pop()
            for node in self.readers.get(value, ()):
                rows = 0
                if (
                    node.op_type in ("Gather", "GatherElements", "GatherND")
                    and node.input[1] == value
                    and node.input[0] in self.stored
                ):
                    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
                    rows = self.stored[node.input[0]].dims[axis]
                elif node.op_type == "OneHot" and node.input[0] == value and node.input[1] in self.stored:
                    rows = int(numpy_helper.to_array(self.stored[node.input[1]]).ravel()[0])
                elif (
                    node.op_type == "EmbedLayerNormalization"
                    and node.input[0] == value
                    and node.input[2] in self.stored
                ):
                    rows = self.stored[node.input[2]].dims[0]
                elif node.op_type in SAME or "If" == node.op_type:
                    new = [o for o in node.output if o not in seen]
                    seen.update(new)
                    left += new
                found = min(found or rows, rows or found)
        return found

    def _thresholds(self, name: str) -> dict[int, tuple[float, float]] | None:
        """Of decision trees that read it: per column the range in which they decide."""
        pairs: dict[int, list[float]] = {}
        for node in self.readers.get(name, ()):
            if node.op_type.startswith("TreeEnsemble"):
                a = {x.name: x for x in node.attribute}
                if "nodes_values" in a and "nodes_featureids" in a:
                    for feature, value in zip(a["nodes_featureids"].ints, a["nodes_values"].floats):
                        pairs.setdefault(feature, []).append(value)
        return {k: (min(v), max(v)) for k, v in pairs.items()} or None

    @property
    def open(self) -> dict[str, tuple[Input, int]]:
        """The name of each dynamic dimension → the input and the axis where it occurs first."""
        found: dict[str, tuple[Input, int]] = {}
        for i in self.inputs:
            for axis, key in enumerate(i.keys):
                if isinstance(key, str):
                    found.setdefault(key, (i, axis))
        return found

    def sizes(self, key: str) -> tuple[int, ...]:
        """Sizes to try for a dynamic dimension, the likeliest first."""
        i, axis = self.open[key]
        name = key.lower()
        if axis in i.spatial:
            return HEIGHTS if axis == i.spatial[0] else WIDTHS
        if re.search(r"node|atom|edge|bond|graph|num|count", name):
            return COUNT
        if re.search(r"height|width|\bh\b|\bw\b", name):
            return HEIGHTS if "h" in name else WIDTHS
        state = (
            len(i.keys) >= 3
            and i.called("state", "h0", "c0", "hn", "cn", "h", "c", "hidden", "cache")
            and i.dtype.kind == "f"
        )
        if (
            "batch" in name
            or name in ("n", "b", "bs")
            or (axis == 0 and len(i.keys) > 1 and not re.search(r"seq|len|time|frame", name))
            or state
            and axis == 1
        ):
            return (*BATCH, *COUNT)
        if i.dtype.kind != "f" or i.bound or len(i.keys) > 2 and re.search(r"seq|tok|char|word", name):
            return TEXT
        wave = axis == len(i.keys) - 1 and (len(i.keys) <= 2 or len(i.keys) == 3 and i.keys[1] == 1)
        return (*SOUND, *FRAMES) if wave else (*FRAMES, *SOUND)

    def assignments(self) -> Iterator[dict[str, int]]:
        """Sizes for all that are open: the likeliest together first, then those further down the lists."""
        keys = list(self.open)
        lists = [self.sizes(k) for k in keys]
        deepest = max((len(x) for x in lists), default=1)
        for together in range(deepest):  # equal kinds of sizes often must be equal
            yield {k: x[0 if x[: len(BATCH)] == BATCH else min(together, len(x) - 1)] for k, x in zip(keys, lists)}
            yield {k: x[min(together, len(x) - 1)] for k, x in zip(keys, lists)}
        for k, x in zip(keys, lists):
            for size in x[1:]:
                yield {**{o: y[0] for o, y in zip(keys, lists)}, k: size}
        for k, x in zip(keys, lists):
            for other, y in zip(keys, lists):
                if k < other:
                    for a in x[:6]:
                        for b in y[:6]:
                            yield {**{o: z[0] for o, z in zip(keys, lists)}, k: a, other: b}

    def others(self, found: Mapping[str, int]) -> Iterator[dict[str, int]]:
        """Sizes that differ from these in as much as can be: everywhere, then without one, then in one alone."""
        keys = list(self.open)
        changed = {k: [s for s in self.sizes(k) if s != found[k]] for k in keys}
        same = {found[k] for k in keys}
        for turn in range(4):
            every = {k: x[min(turn, len(x) - 1)] for k, x in changed.items()}
            for size in same:  # what was equal stays so
                first = next((every[k] for k in keys if found[k] == size), size)
                every.update(
                    {
                        k: first
                        for k in keys
                        if found[k] == size and self.sizes(k) == self.sizes(next(o for o in keys if found[o] == size))
                    }
                )
            yield every
            yield {k: x[min(turn, len(x) - 1)] for k, x in changed.items()}
            for k in keys:
                yield {**every, k: found[k]}
        for k in keys:
            for size in changed[k][:6]:
                yield {**found, k: size}

    def shapes(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        return {i.name: tuple(k if isinstance(k, int) else sizes[k] for k in i.keys) for i in self.inputs}

    def draw(self, sizes: Mapping[str, int], hints: Mapping[str, Any], limit: int = 0) -> dict[str, np.ndarray]:
        """Arrays for all inputs.

        `hints` are values, or ranges as pairs, by names of inputs; `limit` bounds indices further than tables do.
        """
        r = np.random.default_rng(0)
        shapes = self.shapes(sizes)
        lengths = [
            shapes[i.name][axis] for i in self.inputs for axis in range(1, len(i.keys)) if isinstance(i.keys[axis], str)
        ]
        return {i.name: _drawn(i, shapes[i.name], hints.get(i.name), lengths, limit, r) for i in self.inputs}


def _drawn(
    i: Input, shape: tuple[int, ...], hint: Any, lengths: Sequence[int], limit: int, r: np.random.Generator
) -> np.ndarray:
    kind = i.dtype.kind
    if isinstance(hint, tuple):
        low, high = hint
        return (r.uniform(low, high, shape) if kind == "f" else r.integers(low, high, shape)).astype(i.dtype)
    if hint is not None:
        return np.broadcast_to(np.array(hint), shape).astype(i.dtype)
    if kind == "O":
        words = np.array(["a", "word", "of", "some", "text", "2026"], object)
        return words[r.integers(0, len(words), shape)]
    if kind == "b" or i.called("mask", "attention_mask") and len(shape) < 4:
        return np.ones(shape, i.dtype)
    if kind in "iu":
        if i.called(r"sr(?![a-z])", "sampl\\w*_?rate"):
            return np.full(shape, 16000, i.dtype)
        if i.called(r"\w*len") and len(shape) <= 1:
            return np.full(shape, max(lengths, default=1), i.dtype)
        if i.called("position", "pos"):
            return np.broadcast_to(np.arange(shape[-1]) if shape else np.array(0), shape).astype(i.dtype)
        if i.called("token_type", "segment"):
            return np.zeros(shape, i.dtype)
        if i.dtype == np.uint8:
            return r.integers(0, 256, shape).astype(i.dtype)
        bound = i.bound or 10
        return r.integers(0, min(bound, limit) if limit else bound, shape).astype(i.dtype)
    if i.bound:  # indices as floats, as TensorFlow has them
        return r.integers(0, min(i.bound, limit) if limit else i.bound, shape).astype(i.dtype)
    if i.thresholds:
        table = r.standard_normal(shape)
        for column, (low, high) in i.thresholds.items():
            if column < shape[-1]:
                slack = 0.1 * (high - low) + 1e-3
                table[..., column] = r.uniform(low - slack, high + slack, shape[:-1])
        return table.astype(i.dtype)
    if i.spatial or i.called("image", "img", "pixel"):
        return r.random(shape).astype(i.dtype)
    if int(np.prod(shape)) <= 1 and i.called("scale", "speed", "rate", "noise", "temperature", "threshold"):
        return np.full(shape, 0.5, i.dtype)
    if max(shape, default=1) >= 512 and len(shape) <= 3:
        return (0.3 * r.standard_normal(shape)).astype(i.dtype)  # a recording
    return r.standard_normal(shape).astype(i.dtype)
