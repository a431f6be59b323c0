"""Converts functions with jax2onnx, in the Python that has JAX: of_jax.py FOLDER, each with inputs of two batches and
its outputs."""

import os
import sys

import jax
import jax.numpy as jnp
import jax2onnx
import numpy as np
import onnx
from flax import nnx

BATCHES = (1, 3)


def draw(*shape, seed=0, scale=0.2):
    return jnp.asarray(np.random.default_rng(seed).normal(0, scale, shape).astype(np.float32))


def cnn(x):
    """Convolutions and a pool in plain JAX, channels last."""
    form = ("NHWC", "HWIO", "NHWC")
    y = jax.nn.relu(jax.lax.conv_general_dilated(x, draw(3, 3, 3, 12), (2, 2), "SAME", dimension_numbers=form))
    y = jax.lax.reduce_window(y, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    y = jax.nn.silu(
        jax.lax.conv_general_dilated(y, draw(3, 3, 12, 20, seed=1), (1, 1), "VALID", dimension_numbers=form)
    )
    return jax.nn.log_softmax(y.mean((1, 2)) @ draw(20, 7, seed=2, scale=1))


def transformer_block(x):
    """Attention of four heads and a multilayer perceptron, each behind a layer norm, in plain JAX."""

    def norm(x):
        centered = x - x.mean(-1, keepdims=True)
        return centered * jax.lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-6)

    def heads(x, seed):
        return (norm(x) @ draw(32, 32, seed=seed)).reshape(-1, 17, 4, 8)

    q, k, v = (heads(x, seed) for seed in (3, 4, 5))
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(8))
    x = x + jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(-1, 17, 32) @ draw(32, 32, seed=6)
    return x + jax.nn.gelu(norm(x) @ draw(32, 128, seed=7)) @ draw(128, 32, seed=8)


class Small(nnx.Module):
    """A network of Flax."""

    def __init__(self, rngs):
        self.conv = nnx.Conv(3, 16, (3, 3), strides=2, rngs=rngs)
        self.norm = nnx.BatchNorm(16, use_running_average=True, rngs=rngs)
        self.out = nnx.Linear(16, 5, rngs=rngs)

    def __call__(self, x):
        return self.out(
            nnx.avg_pool(nnx.relu(self.norm(self.conv(x))), window_shape=(3, 3), strides=(2, 2)).mean((1, 2))
        )


def main(folder):
    flax = Small(nnx.Rngs(0))
    flax.norm.mean.value, flax.norm.var.value = draw(16, seed=9), 1 + draw(16, seed=10) ** 2
    for name, function, shape in (
        ("cnn", cnn, (45, 51, 3)),
        ("transformer_block", transformer_block, (17, 32)),
        ("flax", flax, (33, 29, 3)),
    ):
        model = jax2onnx.to_onnx(function, [("batch", *shape)])
        onnx.save(model, os.path.join(folder, f"{name}.onnx"))
        arrays = {"model": np.array(f"{name}.onnx")}
        for batch in BATCHES:
            x = np.random.default_rng(batch).standard_normal((batch, *shape)).astype(np.float32)
            with jax.default_matmul_precision("highest"):
                y = function(jnp.asarray(x))
            arrays |= {f"{batch}/in/{model.graph.input[0].name}": x, f"{batch}/out/0": np.asarray(y)}
        np.savez(os.path.join(folder, f"{name}.npz"), **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
