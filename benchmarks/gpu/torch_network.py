"""Converts a program to a torch.fx module, with one of torch's functions for each op, and the program's weights."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.nn import functional as F

from pelton.errors import BuildError
from pelton.ir.graph import Graph, Node, Value
from pelton.ir.types import DType
from pelton.passes.pipeline import PIPELINE
from pelton.passes.rewriting.report import PassReport

POINTWISE: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "pow": torch.pow,
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "exp": torch.exp,
    "sqrt": torch.sqrt,
    "abs": torch.abs,
    "neg": torch.neg,
    "gelu": F.gelu,
    "clip": torch.clamp,
}
CONVOLUTIONS = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}
MAX_POOLS = {3: F.max_pool1d, 4: F.max_pool2d, 5: F.max_pool3d}
AVERAGE_POOLS = {3: F.avg_pool1d, 4: F.avg_pool2d, 5: F.avg_pool3d}


def optimized(graph: Graph) -> Graph:
    """The program as torch's best users would have it: batch norms folded, attention, norms and GELUs as one op each,
    Q, K and V by one product.

    Without the convolutions that Pelton makes of siblings, of whose results torch would have to copy the parts.
    """
    for name, step in PIPELINE:
        if name != "sibling convolutions":
            graph = step(graph, PassReport(name, before=len(graph.nodes)), False)
    return graph


class Network:
    """Makes the module, node by node."""

    def __init__(self, graph: Graph, dtype: torch.dtype):
        self.program, self.dtype = graph, dtype
        self.graph, self.root = fx.Graph(), nn.Module()
        self.known: dict[Value, fx.Node] = {}
        self.merged: set[Node] = set()  # sums that went with a product

    def module(self) -> fx.GraphModule:
        program = self.program
        for i, v in enumerate(program.inputs):
            self.known[v] = self.graph.placeholder(f"input_{i}")
        for node in program.nodes:
            if node in self.merged:
                continue
            made = getattr(self, node.op.name, None) if node.op.name not in POINTWISE else self.pointwise
            if made is None:
                raise BuildError(
                    f"benchmarks know no function of torch for {node.op.name} (node {node.name!r}); add one to"
                    " torch_network.py"
                )
            found = made(node)
            for v, result in zip(node.outputs, found if isinstance(found, tuple) else (found,)):
                self.known.setdefault(v, result)
        self.graph.output(tuple(self.known[v] for v in program.outputs))
        return fx.GraphModule(self.root, self.graph).eval()

    # ---- operands ----

    def constant(self, value: Value) -> np.ndarray | None:
        return self.program.constants.get(value)

    def needed(self, value: Value, node: Node) -> np.ndarray:
        """A constant that the function wants to know."""
        array = self.constant(value)
        if array is None:
            raise BuildError(
                f"benchmarks take {node.op.name} (node {node.name!r}) with a constant in place of %{value.name} only"
            )
        return array

    def buffer(self, array: np.ndarray, channels_last: bool = False) -> fx.Node:
        """A tensor that the module holds, in the network's element type if it is one of floats."""
        tensor = torch.from_numpy(np.array(array))
        tensor = tensor.to(self.dtype) if tensor.is_floating_point() else tensor
        name = f"weight_{sum(1 for _ in self.root.buffers())}"
        self.root.register_buffer(
            name,
            (
                tensor.contiguous(memory_format=torch.channels_last)
                if channels_last and tensor.ndim == 4
                else tensor.contiguous()
            ),
        )
        return self.graph.get_attr(name)

    def at(self, value: Value) -> Any:
        """An operand: what was made of it, a number of Python's, or a weight."""
        if value not in self.known:
            array = self.needed(value, self.program.nodes[0])
            if array.ndim == 0:
                return array.item()
            self.known[value] = self.buffer(array)
        return self.known[value]

    def call(self, fn: Callable[..., Any], *args: Any, **more: Any) -> fx.Node:
        return self.graph.call_function(fn, args, more)

    def padded(self, x: fx.Node, pads: Sequence[int], value: float) -> fx.Node:
        spatial = len(pads) // 2
        return self.call(
            F.pad, x, [p for i in reversed(range(spatial)) for p in (pads[i], pads[i + spatial])], "constant", value
        )

    # ---- ops ----

    def pointwise(self, node: Node) -> fx.Node:
        args = [self.at(v) for v in node.inputs]
        if not any(isinstance(a, fx.Node) for a in args[:1]) and node.op.name in ("sub", "div", "pow"):
            args[0] = self.buffer(np.asarray(args[0], np.float32))  # torch's functions want a tensor there
        elif not isinstance(args[0], fx.Node):
            args.reverse()
        return self.call(POINTWISE[node.op.name], *args)

    def gelu_tanh(self, node: Node) -> fx.Node:
        return self.call(F.gelu, self.at(node.inputs[0]), approximate="tanh")

    def swish(self, node: Node) -> fx.Node:
        x, alpha = self.at(node.inputs[0]), node.attrs["alpha"]
        return (
            self.call(F.silu, x)
            if alpha == 1
            else self.call(torch.mul, x, self.call(torch.sigmoid, self.call(torch.mul, x, alpha)))
        )

    def hard_sigmoid(self, node: Node) -> fx.Node:
        at = node.attrs
        return self.call(
            torch.clamp,
            self.call(torch.add, self.call(torch.mul, self.at(node.inputs[0]), at["alpha"]), at["beta"]),
            0.0,
            1.0,
        )

    def cast(self, node: Node) -> fx.Node:
        to: DType = node.attrs["to"]
        return self.call(
            torch.Tensor.to,
            self.at(node.inputs[0]),
            self.dtype if to.is_float else getattr(torch, np.dtype(to.numpy).name),
        )

    def convolution(self, node: Node) -> fx.Node:
        x, w, b = node.inputs
        at, pads = node.attrs, node.attrs["pads"]
        spatial, source = len(pads) // 2, self.at(x)
        if pads[:spatial] != pads[spatial:]:
            source, pads = self.padded(source, pads, 0.0), (0,) * len(pads)
        weight = self.buffer(self.needed(w, node), channels_last=True)
        return self.call(
            CONVOLUTIONS[x.type.rank],
            source,
            weight,
            self.at(b),
            at["strides"],
            tuple(pads[:spatial]),
            at["dilations"],
            at["group"],
        )

    def max_pool(self, node: Node) -> fx.Node:
        x, at = node.inputs[0], node.attrs
        pads, source, spatial = at["pads"], self.at(x), x.type.rank - 2
        if pads[:spatial] != pads[spatial:]:
            source, pads = self.padded(source, pads, -math.inf), (0,) * len(pads)
        return self.call(
            MAX_POOLS[x.type.rank],
            source,
            at["kernel"],
            at["strides"],
            tuple(pads[:spatial]),
            at["dilations"],
            at["ceil_mode"],
        )

    def average_pool(self, node: Node) -> fx.Node:
        x, at = node.inputs[0], node.attrs
        pads, spatial, pool = at["pads"], x.type.rank - 2, AVERAGE_POOLS[x.type.rank]
        if set(at["dilations"]) != {1} or at["ceil_mode"] and pads[:spatial] != pads[spatial:]:
            raise BuildError(
                f"benchmarks know no function of torch for average_pool with {dict(at)} (node {node.name!r})"
            )
        if pads[:spatial] == pads[spatial:]:
            return self.call(
                pool,
                self.at(x),
                at["kernel"],
                at["strides"],
                tuple(pads[:spatial]),
                at["ceil_mode"],
                at["count_include_pad"],
            )
        mean = self.call(pool, self.padded(self.at(x), pads, 0.0), at["kernel"], at["strides"])
        if at["count_include_pad"]:
            return mean
        inside = np.pad(np.ones(x.type.shape[2:], np.float32), list(zip(pads[:spatial], pads[spatial:])))
        # of each window that is no padding
        share = pool(torch.from_numpy(inside)[None, None], at["kernel"], at["strides"])
        return self.call(torch.mul, mean, self.buffer((1 / share).numpy()))

    def lrn(self, node: Node) -> fx.Node:
        at = node.attrs
        if at["size"] % 2 == 0:
            raise BuildError(f"torch's windows of {at['size']} channels are others than ONNX's (node {node.name!r})")
        return self.call(
            F.local_response_norm, self.at(node.inputs[0]), at["size"], at["alpha"], at["beta"], at["bias"]
        )

    def matmul(self, node: Node) -> fx.Node:
        """A product; with weights, and a bias where one is added next, as torch's `linear`."""
        a, b = node.inputs
        weight, result = self.constant(b), node.output
        if weight is None or weight.ndim != 2:
            return self.call(torch.matmul, self.at(a), self.at(b))
        bias = None
        readers = self.program.users.get(result, [])
        if len(readers) == 1 == self.program.uses(result) and readers[0].op.name == "add":
            other = (
                next(v for v in readers[0].inputs if v is not result)
                if readers[0].inputs[0] is not readers[0].inputs[1]
                else result
            )
            array = self.constant(other)
            if array is not None and array.shape == weight.shape[1:]:
                self.merged.add(readers[0])
                bias, result = self.at(other), readers[0].output
        made = self.call(F.linear, self.at(a), self.buffer(weight.T), bias)
        self.known[result] = made
        return made

    def attention(self, node: Node) -> fx.Node:
        q, k, v, mask = node.inputs
        none = self.constant(mask) is not None and not np.any(self.constant(mask))
        if node.attrs["causal"] and not none:
            raise BuildError(f"torch's attention takes a mask or is causal, not both (node {node.name!r})")
        return self.call(
            F.scaled_dot_product_attention,
            self.at(q),
            self.at(k),
            self.at(v),
            attn_mask=None if none else self.at(mask),
            is_causal=node.attrs["causal"],
            scale=node.attrs["scale"],
        )

    def layer_norm(self, node: Node) -> fx.Node:
        x, scale, bias = node.inputs
        return self.call(
            F.layer_norm,
            self.at(x),
            x.type.shape[node.attrs["axis"] :],
            self.at(scale),
            self.at(bias),
            node.attrs["epsilon"],
        )

    def softmax(self, node: Node) -> fx.Node:
        return self.call(torch.softmax, self.at(node.inputs[0]), node.attrs["axis"])

    def reduce_mean(self, node: Node) -> fx.Node:
        return self.call(torch.mean, self.at(node.inputs[0]), node.attrs["axes"], node.attrs["keepdims"])

    def gather(self, node: Node) -> fx.Node:
        table, index = node.inputs
        if node.attrs["axis"] != 0 or table.type.rank != 2:
            raise BuildError(f"benchmarks know gathers of rows alone, as embeddings (node {node.name!r})")
        return self.call(F.embedding, self.at(index), self.at(table))

    def concat(self, node: Node) -> fx.Node:
        return self.call(torch.cat, [self.at(v) for v in node.inputs], node.attrs["axis"])

    def reshape(self, node: Node) -> fx.Node:
        return self.call(torch.reshape, self.at(node.inputs[0]), node.attrs["shape"])

    def transpose(self, node: Node) -> fx.Node:
        return self.call(torch.permute, self.at(node.inputs[0]), node.attrs["perm"])

    def slice(self, node: Node) -> fx.Node:
        at, index = node.attrs, [slice(None)] * node.inputs[0].type.rank
        for axis, start, end, step in zip(at["axes"], at["starts"], at["ends"], at["steps"]):
            index[axis] = slice(start, end, step)
        return self.call(operator.getitem, self.at(node.inputs[0]), tuple(index))

    def lstm(self, node: Node) -> tuple[fx.Node, ...]:
        x, w, r, b, *states, peepholes = node.inputs
        at, known = node.attrs, [self.needed(v, node) for v in (w, r, b, *states, peepholes)]
        usual = ("Sigmoid", "Tanh", "Tanh") * known[0].shape[0]
        if (
            at["direction"] == "reverse"
            or at["clip"]
            or at["input_forget"]
            or tuple(at["activations"]) not in ((), usual)
            or any(map(np.any, known[3:]))
        ):
            raise BuildError(
                f"torch has no LSTM with initial states, peepholes, a clip or other activations (node {node.name!r})"
            )
        hidden, (time, directions, batch, _) = at["hidden"], node.outputs[0].type.shape
        layer = nn.LSTM(x.type.shape[2], hidden, bidirectional=directions == 2).requires_grad_(False)
        for d, ending in zip(range(directions), ("", "_reverse")):
            parts = {
                "weight_ih_l0": known[0][d],
                "weight_hh_l0": known[1][d],
                "bias_ih_l0": known[2][d, : 4 * hidden],
                "bias_hh_l0": known[2][d, 4 * hidden :],
            }
            for name, array in parts.items():
                i, o, f, c = np.split(array, 4)  # torch has the gates in another order
                getattr(layer, name + ending).copy_(torch.from_numpy(np.concatenate([i, f, c, o])))
        name = f"lstm_{len(list(self.root.children()))}"
        self.root.add_module(name, layer.to(self.dtype))
        made = self.graph.call_module(name, (self.at(x),))
        y = self.call(
            torch.permute,
            self.call(torch.reshape, self.call(operator.getitem, made, 0), (time, batch, directions, hidden)),
            (0, 2, 1, 3),
        )
        last = self.call(operator.getitem, made, 1)
        return y, self.call(operator.getitem, last, 0), self.call(operator.getitem, last, 1)


def network(graph: Graph, dtype: torch.dtype = torch.float32) -> fx.GraphModule:
    """The module; its inputs and outputs are the program's, in order, floats in the element type given."""
    with torch.no_grad():
        return Network(graph, dtype).module()
