"""Matrix products, softmax and normalizations."""

from __future__ import annotations


import numpy as np

from pelton.ir.dims import is_known

from ..node import Given, TFLiteReading, reads
from .images import bias_of


@reads("FULLY_CONNECTED")
def fully_connected(n: TFLiteReading) -> Given:
    """Computes x · weightsᵀ + bias with weights [outputs, inputs]; x is flattened unless the model keeps its axes."""
    if n.option("weights_format"):
        raise n.refuse("has weights in a shuffled format, which is not supported; convert the model anew")
    weights = n.given(1)
    if weights.rank != 2:
        raise n.refuse(f"needs weights of two axes, got {weights.spec}")
    w, x, net = weights.transposed((1, 0)), n.input(0), n.net
    inputs, outputs = w.shape
    keeps = n.option("keep_num_dims") and x.rank > 0 and x.shape[-1] == inputs
    rows = x if keeps or x.rank == 2 and x.shape[1] == inputs else net.reshape(x, (-1, inputs))
    y = net.matmul(rows, w)
    if n.has(2):
        y = net.add(y, bias_of(n, 2, 1, 0, outputs))
    return n.activated(y)


@reads("BATCH_MATMUL")
def batch_matmul(n: TFLiteReading) -> Given:
    net, factors = n.net, []
    for i, option in enumerate(("adj_x", "adj_y")):
        x = n.given(i)
        swapped = (*range(x.rank - 2), x.rank - 1, x.rank - 2)
        factors.append(x.transposed(swapped) if n.option(option) else x.real())
    return net.matmul(*factors)


@reads("SOFTMAX")
def softmax(n: TFLiteReading) -> Given:
    x, first = n.either(0)
    beta = n.option("beta")
    x = x if beta == 1 else n.net.mul(x, np.float32(beta))
    return n.ordered(n.net.softmax(x, axis=1 if first else -1), first)


@reads("LOG_SOFTMAX")
def log_softmax(n: TFLiteReading) -> Given:
    x, first = n.either(0)
    return n.ordered(n.net.log_softmax(x, axis=1 if first else -1), first)


@reads("L2_NORMALIZATION")
def l2_normalization(n: TFLiteReading) -> Given:
    """Computes x / √max(Σ x², 10⁻⁶) along channels."""
    x, first = n.either(0)
    squares = n.net.reduce_sum(n.net.mul(x, x), axes=(1 if first else x.rank - 1,), keepdims=True)
    return n.ordered(n.activated(n.net.div(x, n.net.sqrt(n.net.maximum(squares, np.float32(1e-6))))), first)


@reads("CUMSUM")
def cumsum(n: TFLiteReading) -> Given:
    x = n.input(0)
    return n.net.cumsum(
        x, axis=n.known_axis(1, x.rank), exclusive=bool(n.option("exclusive")), reverse=bool(n.option("reverse"))
    )


@reads("SVDF")
def svdf(n: TFLiteReading) -> Given:
    """Computes a layer of filters of some rank over time: inputs x [batch, inputs], features [filters, inputs], filters
    over time [filters, steps], an optional bias, and the state [batch, steps · filters]."""
    net, rank = n.net, n.option("rank")
    x, state, features = n.input(0), n.given(4), n.given(1)
    time = n.input(2)
    filters, steps = time.shape
    if not is_known(filters, steps) or rank < 1 or filters % rank or state.rank != 2:
        raise n.refuse(f"needs filters of rank {rank}, got {n.given(2).spec}")
    new = net.matmul(x, features.transposed((1, 0)))
    before = net.reshape(state.real(), (-1, filters, steps))
    memory = net.concat([before[:, :, 1:], net.unsqueeze(new, 2)], axis=2)
    n.scope.assign_variable(state.variable, n.finished(net.reshape(memory, state.shape), state.spec))
    y = net.reduce_sum(net.mul(memory, time), axes=(2,), keepdims=False)
    y = net.reduce_sum(net.reshape(y, (-1, filters // rank, rank)), axes=(2,), keepdims=False) if rank > 1 else y
    return n.activated(net.add(y, bias_of(n, 3, 1, 0, filters // rank)) if n.has(3) else y)
