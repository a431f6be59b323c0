"""ResNet-50 and BERT as JAX users would write them, with the weights of a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pelton.errors import BuildError
from pelton.ir.graph import Graph, Node, Value

Weights = dict[str, Any]  # arrays, in lists and dictionaries
Network = tuple[Callable[..., jax.Array], Weights]


def converted(weights: Any, dtype: Any) -> Any:
    """Weights in the element type of the network."""
    return jax.tree.map(lambda a: jnp.asarray(a, dtype), weights)


# ---- ResNet-50: channels last, as XLA's convolutions want them


def convolution(x: jax.Array, layer: Weights, stride: int = 1, pad: int = 0) -> jax.Array:
    y = lax.conv_general_dilated(
        x, layer["w"], (stride, stride), ((pad, pad),) * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return y + layer["b"]


def residual(x: jax.Array, block: Weights, first: int, middle: int) -> jax.Array:
    """1×1, 3×3 and 1×1, the first two with these strides, around which the input goes, through a convolution of its own
    where sizes change."""
    y = jax.nn.relu(convolution(x, block["first"], first))
    y = jax.nn.relu(convolution(y, block["middle"], middle, 1))
    side = convolution(x, block["side"], first * middle) if "side" in block else x
    return jax.nn.relu(convolution(y, block["last"]) + side)


def resnet50(graph: Graph, dtype: Any = jnp.bfloat16) -> Network:
    """From images [batch, 3, 224, 224] to shares of 1,000 classes; `graph` is the optimized program, its batch norms in
    the convolutions."""

    def layer(node: Node) -> Weights:
        _, w, b = node.inputs
        return {"w": graph.constants[w].transpose(2, 3, 1, 0), "b": graph.constants[b]}

    def before(value: Value) -> Node:
        """The convolution whose result that is, a ReLU aside."""
        node = graph.producer[value]
        return before(node.inputs[0]) if node.op.name == "relu" else node

    blocks, strides = [], []
    for node in graph.nodes:
        if node.op.name == "add" and all(v in graph.producer for v in node.inputs):
            chains: list[list[Node]] = []
            # the side is one convolution or none, the other way three
            for v in node.inputs:
                chain: list[Node] = []
                while v in graph.producer and graph.producer[v].op.name in ("convolution", "relu") and len(chain) < 3:
                    if graph.producer[v].op.name == "relu" and not chain:
                        break  # the result of the block before
                    chain.append(before(v))
                    v = chain[-1].inputs[0]
                    if graph.uses(v) > 1:
                        break  # what both ways begin with
                chains.append(chain)
            side, way = sorted(chains, key=len)
            if len(way) != 3 or len(side) > 1:
                raise BuildError(
                    f"{graph.name} is no ResNet-50: around {node.name!r} are ways of {len(way)} and {len(side)}"
                    " convolutions"
                )
            last, middle, start = way
            blocks.append(
                {
                    "first": layer(start),
                    "middle": layer(middle),
                    "last": layer(last),
                    **({"side": layer(side[0])} if side else {}),
                }
            )
            strides.append((start.attrs["strides"][0], middle.attrs["strides"][0]))
    stem = next(n for n in graph.nodes if n.op.name == "convolution")
    product = next(n for n in graph.nodes if n.op.name == "matmul")
    bias = next(
        (
            graph.constants[v]
            for n in graph.users[product.output]
            for v in n.inputs
            if n.op.name == "add" and v in graph.constants
        ),
        np.float32(0),
    )
    weights = {"stem": layer(stem), "blocks": blocks, "out": {"w": graph.constants[product.inputs[1]], "b": bias}}

    def run(weights: Weights, images: jax.Array) -> jax.Array:
        x = jax.nn.relu(convolution(images.transpose(0, 2, 3, 1), weights["stem"], 2, 3))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0)))
        for block, (first, middle) in zip(weights["blocks"], strides):
            x = residual(x, block, first, middle)
        x = x.astype(jnp.float32).mean((1, 2)).astype(x.dtype)
        return jax.nn.softmax((x @ weights["out"]["w"] + weights["out"]["b"]).astype(jnp.float32))

    return run, converted(weights, dtype)


# ---- BERT


def norm(x: jax.Array, layer: Weights, epsilon: float) -> jax.Array:
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    y = centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + epsilon)
    return y.astype(x.dtype) * layer["w"] + layer["b"]


def dense(x: jax.Array, layer: Weights) -> jax.Array:
    return x @ layer["w"] + layer["b"]


def bert(graph: Graph, dtype: Any = jnp.bfloat16) -> Network:
    """From words and a mask [batch, length] to features; `graph` is the optimized program, with attention, norms and
    one product for Q, K and V."""

    def is_sum(node: Node) -> bool:
        return node.op.name == "add" and any(v in graph.constants for v in node.inputs)

    def layer(product: Node) -> Weights:
        bias = next(v for n in graph.users[product.output] if is_sum(n) for v in n.inputs if v in graph.constants)
        return {"w": graph.constants[product.inputs[1]], "b": graph.constants[bias]}

    def part(value: Value) -> int:
        """Which third of the product an operand of attention is."""
        node = graph.producer[value]
        return (
            node.attrs["starts"][0] // node.outputs[0].type.shape[2]
            if node.op.name == "slice"
            else part(node.inputs[0])
        )

    attentions = [n for n in graph.nodes if n.op.name == "attention"]
    products = [layer(n) for n in graph.nodes if n.op.name == "matmul"]
    norms = [n for n in graph.nodes if n.op.name == "layer_norm"]
    if len(products) != 4 * len(attentions) or len(norms) != 2 * len(attentions) + 1:
        raise BuildError(
            f"{graph.name} is no BERT: {len(attentions)} attentions, {len(products)} products and {len(norms)} norms"
        )
    scales = [{"w": graph.constants[n.inputs[1]], "b": graph.constants[n.inputs[2]]} for n in norms]
    table = next(n for n in graph.nodes if n.op.name == "gather").inputs[0]
    places = [
        graph.constants[v]
        for n in graph.nodes[: graph.nodes.index(norms[0])]
        if is_sum(n)
        for v in n.inputs
        if v in graph.constants
    ]
    thirds = [part(v) for v in attentions[0].inputs[:3]]
    heads, scale, epsilon = (
        attentions[0].inputs[0].type.shape[1],
        attentions[0].attrs["scale"],
        norms[0].attrs["epsilon"],
    )
    blocks = [
        dict(
            zip(("qkv", "out", "wide", "narrow"), products[4 * i : 4 * i + 4]),
            norm1=scales[2 * i + 1],
            norm2=scales[2 * i + 2],
        )
        for i in range(len(attentions))
    ]
    weights = {"words": graph.constants[table], "places": sum(places), "norm": scales[0], "blocks": blocks}

    def run(weights: Weights, ids: jax.Array, mask: jax.Array) -> jax.Array:
        batch, length = ids.shape
        x = norm(weights["words"][ids] + weights["places"], weights["norm"], epsilon)
        hidden = ((1 - mask[:, None, None, :]) * -10000.0).astype(x.dtype)
        for block in weights["blocks"]:
            found = jnp.split(dense(x, block["qkv"]), 3, -1)
            q, k, v = (found[i].reshape(batch, length, heads, -1) for i in thirds)
            a = jax.nn.dot_product_attention(q, k, v, bias=hidden, scale=scale)
            x = norm(x + dense(a.reshape(batch, length, -1), block["out"]), block["norm1"], epsilon)
            x = norm(
                x + dense(jax.nn.gelu(dense(x, block["wide"]), approximate=False), block["narrow"]),
                block["norm2"],
                epsilon,
            )
        return x

    return run, converted(weights, dtype)


NETWORKS: dict[str, Callable[..., Network]] = {"resnet50": resnet50, "bert_base": bert}
