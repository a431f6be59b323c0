"""Quantizes a whole program of f32 by the ranges of its values, as LiteRT's converter does for integer-only devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pelton.ir.graph import Graph, Node, Value, remove_dead_nodes
from pelton.ir.types import F32, I8, TensorType
from pelton.ops import words

from .fusion import ACTIVATED, CLIPS, INTEGER
from .joins import far_joins, shared_scalings
from .tensors import Scaling

Ranges = Mapping[str, tuple[float, float]]  # value → its smallest and its largest number
# outputs of integers whose scaling TFLite fixes
FIXED = {
    words.sigmoid: Scaling((1 / 256,), -128),
    words.softmax: Scaling((1 / 256,), -128),
    words.tanh: Scaling((1 / 128,)),
}
# the output has the scaling of the input
KEEPING = frozenset(
    getattr(words, name)
    for name in (
        "max_pool average_pool reshape transpose slice_ resize tile expand gather depth_to_space space_to_depth pad"
    ).split()
)
LEVELS = 127
# constants beside integers are integers, too
WITH_CONSTANTS = (words.add, words.sub, words.mul, words.minimum, words.maximum, words.concat, words.prelu)


def with_products(graph: Graph) -> Graph:
    """Replaces quotients by constants, swish and hard sigmoid by products: TFLite has no others of integers.

    A hard sigmoid behind a convolution becomes part of that, which clips.
    """
    draft = _ProductDraft(dict(graph.constants), _gates(graph))
    for n in graph.nodes:
        draft.add(n)
    return graph.replace(nodes=tuple(draft.nodes), constants=draft.constants)


def _gates(graph: Graph) -> dict[Value, Node]:
    """Returns the hard sigmoids by their operands, where that is a convolution's and nothing else reads it."""
    found = dict[Value, Node]()
    for n in graph.nodes:
        v, users = n.outputs[0], graph.users.get(n.outputs[0], [])
        layer = n.op is words.convolution and len(n.inputs) == 3 and n.inputs[0].type.dtype is F32
        constant = layer and all(w in graph.constants for w in n.inputs[1:])
        if constant and len(users) == 1 and users[0].op is words.hard_sigmoid and v not in graph.outputs:
            found[v] = users[0]
    return found


class _ProductDraft:
    """The nodes of a program whose operators have forms of integers."""

    def __init__(self, constants: dict[Value, np.ndarray], gates: Mapping[Value, Node]):
        self.constants, self.gates, self.nodes = constants, gates, list[Node]()

    def add(self, n: Node) -> None:
        y, x = n.outputs[0], n.inputs[0] if n.inputs else None
        if x is None or y.type.dtype is not F32 or x in self.constants:
            self.nodes.append(n)
        elif y in self.gates:
            alpha, beta = (self.gates[y].attrs[k] for k in ("alpha", "beta"))
            weights, bias = (self.constants[v].astype(np.float64) for v in n.inputs[1:])
            operands = (x, self._constant(alpha * weights), self._constant(alpha * bias + beta))
            self.nodes.append(Node(n.op, operands, n.attrs, n.outputs, n.name))
        elif x in self.gates:
            self._apply(words.clip, n, y, x, self._constant(0.0), self._constant(1.0))
        elif n.op is words.div and (divisor := self.constants.get(n.inputs[1])) is not None and (divisor != 0).all():
            factor = (1 / divisor.astype(np.float64)).astype(np.float32)
            self._apply(words.mul, n, y, x, self._constant(factor))
        elif n.op is words.swish and n.attrs["alpha"] == 1:
            self._apply(words.mul, n, y, x, self._apply(words.sigmoid, n, self._like(y, "gate"), x))
        elif n.op is words.hard_sigmoid:  # 6 times as large, as TFLite clips to 0 and 6
            alpha, beta = 6 * n.attrs["alpha"], 6 * n.attrs["beta"]
            if abs(alpha - 1) > 1e-6:
                x = self._apply(words.mul, n, self._like(y, "product"), x, self._constant(alpha))
            total = self._apply(words.add, n, self._like(y, "sum"), x, self._constant(beta))
            limits = self._constant(0.0), self._constant(6.0)
            clipped = self._apply(words.clip, n, self._like(y, "clipped"), total, *limits)
            self._apply(words.mul, n, y, clipped, self._constant(1 / 6))
        else:
            self.nodes.append(n)

    def _like(self, y: Value, name: str) -> Value:
        return Value(y.type, f"{y.name}.{name}")

    def _constant(self, array: Any) -> Value:
        made = np.asarray(array, np.float32)
        v = Value(TensorType.of(made), f"factor.{len(self.constants)}")
        self.constants[v] = made
        return v

    def _apply(self, op: Any, n: Node, y: Value, *operands: Value) -> Value:
        self.nodes.append(Node(op, operands, op.complete({}), (y,), n.name))
        return y


def calibrated_values(graph: Graph) -> list[str]:
    """Returns the names of the values whose ranges decide the scales."""
    values = dict.fromkeys(v for n in graph.nodes if _is_integer(graph, n) for v in (*n.inputs, *n.outputs))
    return [v.name for v in values if v.type.dtype is F32 and v not in graph.constants]


def scaling_of_range(low: float, high: float) -> Scaling:
    """Returns 256 steps from the smallest to the largest number, with 0 among them."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = float(np.float32((high - low) / 255)) or 1.0
    return Scaling((scale,), int(np.clip(np.rint(-128 - low / scale), -128, 127)))


def quantized(graph: Graph, ranges: Ranges, *, ports: bool = False) -> Graph:
    """Returns the program with `quantize` and `dequantize` behind every value that operators of integers exchange.

    ranges: of `calibrated_values`; others stay f32. Weights are signed bytes, of convolutions with a scale for each
    output channel. ports: True to make inputs and outputs of f32 bytes, where these have a range.
    """
    return _Quantizer(graph, ranges, ports).quantized()


def _is_integer(graph: Graph, node: Node) -> bool:
    floats = [v for v in node.inputs if v.type.dtype is F32]
    if node.op not in INTEGER or not floats or all(v in graph.constants for v in floats):
        return False
    if node.op in (words.arg_max, words.arg_min):
        return True
    return node.outputs[0].type.dtype is F32


def _limits(graph: Graph, node: Node) -> tuple[float, ...]:
    """Returns the constant limits of a clip; () for other nodes."""
    constants = [graph.constants.get(v) for v in node.inputs[1:]] if node.op is words.clip else []
    return tuple(float(a.item()) for a in constants if a is not None and a.size == 1)


def _clips_by_range(graph: Graph, node: Node) -> bool:
    """True for a clip of a layer from 0 to a limit that no activation has: the range of the result's integers clips."""
    producer, limits = graph.producer.get(node.inputs[0]) if node.inputs else None, _limits(graph, node)
    alone = len(graph.users.get(node.inputs[0], [])) == 1 if producer is not None else False
    fits = len(limits) == 2 and limits[0] == 0 < limits[1] and limits not in CLIPS
    return fits and alone and producer is not None and producer.op in ACTIVATED and _is_integer(graph, producer)


class _Quantizer:
    def __init__(self, graph: Graph, ranges: Ranges, ports: bool):
        self.graph, self.ports = graph, ports
        self.nodes: list[Node] = []
        self.constants = dict(graph.constants)
        self.numbers: dict[Value, Value] = {}  # value → its dequantization
        self.codes: dict[Value, Value] = {}  # value → its stored integers
        self.floats = set[Node]() if ports else far_joins(graph, ranges)
        scalings = self._scaled(ranges, {})
        fixed = {n.outputs[0] for n in graph.nodes if n.op in FIXED or _clips_by_range(graph, n)}
        self.scalings = self._scaled(ranges, shared_scalings(graph, scalings, KEEPING, fixed))

    def _scaled(self, ranges: Ranges, shared: Mapping[Value, Scaling]) -> dict[Value, Scaling]:
        """Returns the scalings of all values that are stored as integers. shared: those decided already."""
        graph, inner, found = self.graph, self._inner(), dict[Value, Scaling]()

        def chosen(v: Value) -> Scaling:
            if v in shared:
                return shared[v]
            low, high = ranges[v.name]
            producer = graph.producer.get(v)
            if producer is not None and _clips_by_range(graph, producer):
                low, high = 0.0, min(high, _limits(graph, producer)[1])
            return scaling_of_range(low, high)

        for v in graph.inputs:
            if v.name in ranges and v.type.dtype is F32:
                found[v] = chosen(v)
        for node in graph.nodes:
            if not self._is_integer(node):
                continue
            for v in node.inputs:
                if v.name in ranges and v not in graph.constants and v not in inner:
                    found.setdefault(v, chosen(v))
            y = node.outputs[0]
            if y.type.dtype is not F32 or y in inner or y.name not in ranges and node.op not in FIXED:
                continue
            source = found.get(node.inputs[0])
            if node.op in KEEPING and source is not None:
                found[y] = source
            else:
                found[y] = FIXED.get(node.op) or chosen(y)
        return found

    def _is_integer(self, node: Node) -> bool:
        return node not in self.floats and _is_integer(self.graph, node)

    def _inner(self) -> set[Value]:
        """Returns values inside of operators: in front of a bias or an activation that these take in."""
        graph, inner = self.graph, set[Value]()
        for node in graph.nodes:
            v, users = node.outputs[0], graph.users.get(node.outputs[0], [])
            if len(users) != 1 or v in graph.outputs or node.op not in ACTIVATED:
                continue
            (user,) = users
            constants = [graph.constants.get(u) for u in user.inputs]
            if user.op is words.relu or _limits(graph, user) in CLIPS or _clips_by_range(graph, user):
                inner.add(v)
            elif user.op is words.add and node.op is words.matmul and node.inputs[1] in graph.constants:
                bias = next((a for a in constants if a is not None), None)
                if node.inputs[1].type.rank == 2 and bias is not None and bias.size == v.type.shape[-1]:
                    inner.add(v)
        return inner

    def quantized(self) -> Graph:
        graph = self.graph
        inputs = []
        for v in graph.inputs:
            if self.ports and v in self.scalings:
                code = Value(v.type.with_dtype(I8), v.name)
                inputs.append(code)
                self._dequantize(v, code)
            else:
                inputs.append(v)
                if v in self.scalings:
                    self._quantize(v, v)
        for node in graph.nodes:
            self._add(node)
        outputs = tuple(self._port(v) for v in graph.outputs)
        return remove_dead_nodes(
            graph.replace(inputs=tuple(inputs), nodes=tuple(self.nodes), constants=self.constants, outputs=outputs)
        )

    def _port(self, v: Value) -> Value:
        if v not in self.scalings:
            return self.numbers.get(v, v)
        return self.codes[v] if self.ports else self.numbers[v]

    def _add(self, node: Node) -> None:
        integer = self._is_integer(node)
        operands = [self.numbers.get(v, v) for v in node.inputs]
        if integer and node.op in (words.convolution, words.conv_transpose, words.matmul):
            if node.inputs[1] in self.graph.constants:
                operands[1] = self._weights(node)
                self._round_bias(node, operands)
        elif integer and node.op in WITH_CONSTANTS:
            operands = [self._rounded(v) if v in self.graph.constants else x for v, x in zip(node.inputs, operands)]
        scaled = [v for v in node.outputs if v in self.scalings]
        made = {v: Value(v.type, f"{v.name}.float") if v in self.graph.outputs else v for v in scaled}
        outputs = tuple(made.get(v, v) for v in node.outputs)
        self.nodes.append(Node(node.op, tuple(operands), node.attrs, outputs, node.name))
        for v in scaled:
            self._quantize(v, made[v])

    def _rounded(self, v: Value) -> Value:
        """Returns a constant in steps of its largest number."""
        array = self.graph.constants[v]
        if array.dtype != np.float32 or v in self.numbers:
            return self.numbers.get(v, v)
        scale = np.float32((np.abs(array).max(initial=0) or 1) / LEVELS)
        codes = np.clip(np.rint(array / scale), -LEVELS, LEVELS).astype(np.int8)
        return self._apply(words.dequantize, [self._constant(codes), self._constant(scale)], v)

    def _weights(self, node: Node) -> Value:
        """Returns the dequantization of a node's weights."""
        w, array = node.inputs[1], self.graph.constants[node.inputs[1]]
        axis = {words.convolution: 0, words.conv_transpose: 1}.get(node.op)
        if node.op is words.conv_transpose and node.attrs["group"] > 1:
            axis = None
        others = tuple(a for a in range(array.ndim) if a != axis)
        top = np.abs(array).max(axis=others if axis is not None else None)
        scale = (np.where(top == 0, 1, top) / LEVELS).astype(np.float32)
        spread = scale
        if axis is not None:
            spread = scale.reshape([-1 if a == axis else 1 for a in range(array.ndim)])
        codes = np.clip(np.rint(array / spread), -LEVELS, LEVELS).astype(np.int8)
        return self._apply(words.dequantize, [self._constant(codes), self._constant(scale)], w, axis=axis or 0)

    def _round_bias(self, node: Node, operands: list[Value]) -> None:
        """Rounds a bias to integers in units of the scales of the operands, as operators of integers hold it."""
        x, scales = node.inputs[0], self.constants[self.nodes[-1].inputs[1]].astype(np.float64)
        if x not in self.scalings:
            return
        units = scales * self.scalings[x].scale[0]
        if node.op is not words.matmul and node.inputs[2] in self.graph.constants:
            bias = self.graph.constants[node.inputs[2]]
            operands[2] = self._constant((np.rint(bias / units) * units).astype(np.float32))
        (user, *others) = self.graph.users.get(node.outputs[0], [node])
        if node.op is words.matmul and not others and user.op is words.add:
            for v in user.inputs:
                if v in self.graph.constants:
                    bias = self.graph.constants[v]
                    self.numbers[v] = self._constant((np.rint(bias / units) * units).astype(np.float32))

    def _quantize(self, v: Value, made: Value) -> None:
        code = self._apply(words.quantize, [made, *self._parameters(v)], v, to=I8)
        self.codes[v] = code
        self._dequantize(v, code)

    def _dequantize(self, v: Value, code: Value) -> None:
        self.numbers[v] = self._apply(words.dequantize, [code, *self._parameters(v)], v)

    def _parameters(self, v: Value) -> list[Value]:
        scaling = self.scalings[v]
        return [self._constant(np.float32(scaling.scale[0])), self._constant(np.int8(scaling.zero))]

    def _constant(self, array: Any) -> Value:
        array = np.asarray(array)
        v = Value(TensorType.of(array), f"constant.{len(self.constants)}")
        self.constants[v] = array
        return v

    def _apply(self, op: Any, operands: list[Value], v: Value, **attrs: Any) -> Value:
        complete = op.complete(attrs)
        (type,) = op.infer_types(tuple(x.type for x in operands), complete)
        keeps = op is words.dequantize and v in self.graph.outputs and not self.ports
        keeps |= op is words.quantize and v in self.graph.outputs and self.ports
        name = v.name if keeps else f"{v.name}.{op.name}"
        self.nodes.append(Node(op, tuple(operands), complete, (Value(type, name),), v.name))
        return self.nodes[-1].output
