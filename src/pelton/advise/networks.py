"""Networks that profiles are fitted on: the layers of usual families in several sizes, with random weights.

None of them is a published network: those that predictions are judged by must not decide the fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from pelton.network import Network

Write = Callable[[Network, np.random.Generator], None]
SEED = 53


def weights(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Returns weights whose products keep the magnitude of values."""
    fan = int(np.prod(shape[1:])) or 1
    return (rng.standard_normal(shape) / np.sqrt(fan)).astype(np.float32)


def image(net: Network, channels: int, size: int):
    return net.input("x", f"f32[1, {channels}, {size}, {size}]")


def stack(channels: tuple[int, ...], size: int, kernel: int) -> Write:
    """Convolutions with ReLU, and a pool of two after each but the last."""

    def write(net: Network, rng: np.random.Generator) -> None:
        x = image(net, channels[0], size)
        for i, (before, after) in enumerate(zip(channels, channels[1:])):
            x = net.relu(net.convolution(x, weights(rng, after, before, kernel, kernel), padding=kernel // 2))
            if kernel > 1 and i < len(channels) - 2:
                x = net.max_pool(x, 2)
        net.output(net.global_average_pool(x), "y")

    return write


def strided(channels: tuple[int, ...], size: int, kernel: int) -> Write:
    """Convolutions with ReLU that halve the size."""

    def write(net: Network, rng: np.random.Generator) -> None:
        x = image(net, channels[0], size)
        for before, after in zip(channels, channels[1:]):
            x = net.relu(net.convolution(x, weights(rng, after, before, kernel, kernel), stride=2, padding=kernel // 2))
        net.output(x, "y")

    return write


def residual(width: int, size: int, blocks: int) -> Write:
    """Blocks of two convolutions of 3×3 and a sum, after a strided one."""

    def write(net: Network, rng: np.random.Generator) -> None:
        x = net.relu(net.convolution(image(net, 3, 2 * size), weights(rng, width, 3, 5, 5), stride=2, padding=2))
        for _ in range(blocks):
            y = net.relu(net.convolution(x, weights(rng, width, width, 3, 3), padding=1))
            x = net.relu(x + net.convolution(y, weights(rng, width, width, 3, 3), padding=1))
        net.output(net.linear(net.flatten(net.global_average_pool(x)), weights(rng, 100, width)), "y")

    return write


def separable(width: int, size: int, blocks: int, kernel: int) -> Write:
    """Depthwise and pointwise convolutions with hard swish; every other block halves the size."""

    def write(net: Network, rng: np.random.Generator) -> None:
        before = width
        x = net.convolution(image(net, 3, 2 * size), weights(rng, before, 3, 3, 3), stride=2, padding=1)
        for i in range(blocks):
            stride, after = 1 + i % 2, before * (1 + i % 2)
            depthwise = weights(rng, before, 1, kernel, kernel)
            x = net.convolution(x, depthwise, groups=before, stride=stride, padding=kernel // 2)
            x = net.hard_swish(net.convolution(net.hard_swish(x), weights(rng, after, before, 1, 1)))
            before = after
        net.output(net.global_average_pool(x), "y")

    return write


def dense(widths: tuple[int, ...], rows: int) -> Write:
    """Linear layers with ReLU and biases."""

    def write(net: Network, rng: np.random.Generator) -> None:
        x = net.input("x", f"f32[{rows}, {widths[0]}]")
        for before, after in zip(widths, widths[1:]):
            x = net.relu(net.linear(x, weights(rng, after, before), weights(rng, after)))
        net.output(net.softmax(x), "y")

    return write


def attending(rows: int, width: int, heads: int, blocks: int) -> Write:
    """Blocks of attention and two linear layers, each after a layer norm."""

    def write(net: Network, rng: np.random.Generator) -> None:
        x = net.input("x", f"f32[{rows}, {width}]")
        one, zero = np.ones(width, np.float32), np.zeros(width, np.float32)
        for _ in range(blocks):
            y = net.layer_norm(x, one, zero)
            parts = [net.linear(y, weights(rng, width, width)) for _ in range(3)]
            q, k, v = (
                net.transpose(net.reshape(part, (1, rows, heads, width // heads)), (0, 2, 1, 3)) for part in parts
            )
            joined = net.reshape(net.transpose(net.attention(q, k, v), (0, 2, 1, 3)), (rows, width))
            x = x + net.linear(joined, weights(rng, width, width))
            y = net.gelu(net.linear(net.layer_norm(x, one, zero), weights(rng, 4 * width, width)))
            x = x + net.linear(y, weights(rng, width, 4 * width))
        net.output(x, "y")

    return write


def joined(width: int, size: int, blocks: int) -> Write:
    """Convolutions whose outputs are joined with their inputs, each after a scale, a shift and ReLU."""

    def write(net: Network, rng: np.random.Generator) -> None:
        x, channels = image(net, width, size), width
        for _ in range(blocks):
            scale, shift = (rng.uniform(0.5, 1, (channels, 1, 1)).astype(np.float32) for _ in range(2))
            y = net.convolution(net.relu(x * scale + shift), weights(rng, 2 * width, channels, 1, 1))
            y = net.convolution(net.relu(y), weights(rng, width, 2 * width, 3, 3), padding=1)
            x, channels = net.concat((x, y), 1), channels + width
        net.output(net.global_average_pool(x), "y")

    return write


def gated(width: int, size: int, blocks: int) -> Write:
    """Depthwise convolutions whose channels are scaled by a function of their means, between pointwise ones."""

    def write(net: Network, rng: np.random.Generator) -> None:
        x, inner = image(net, width, size), 4 * width
        for _ in range(blocks):
            y = net.swish(net.convolution(x, weights(rng, inner, width, 1, 1)))
            y = net.swish(net.convolution(y, weights(rng, inner, 1, 3, 3), groups=inner, padding=1))
            gate = net.swish(net.convolution(net.global_average_pool(y), weights(rng, width // 2, inner, 1, 1)))
            y = y * net.sigmoid(net.convolution(gate, weights(rng, inner, width // 2, 1, 1)))
            x = x + net.convolution(y, weights(rng, width, inner, 1, 1))
        net.output(x, "y")

    return write


def grouped(width: int, size: int, groups: int, blocks: int) -> Write:
    """Convolutions of groups of channels, which are mixed between them, and a normalization over near channels."""

    def write(net: Network, rng: np.random.Generator) -> None:
        x = image(net, width, size)
        for _ in range(blocks):
            x = net.convolution(x, weights(rng, width, width // groups, 1, 1), groups=groups)
            x = net.transpose(net.reshape(x, (1, groups, width // groups, size, size)), (0, 2, 1, 3, 4))
            x = net.relu(net.reshape(x, (1, width, size, size)))
            x = net.convolution(x, weights(rng, width, width // groups, 3, 3), groups=groups, padding=1)
        x = net.lrn(x, size=5, alpha=1e-4, beta=0.75, bias=1.0)
        net.output(net.max_pool(x, 2), "y")

    return write


def windowed(side: int, width: int, window: int, blocks: int) -> Write:
    """Windows of an image, which is rolled between them, through a linear layer."""

    def write(net: Network, rng: np.random.Generator) -> None:
        x, of = net.input("x", f"f32[1, {side}, {side}, {width}]"), side // window
        for i in range(blocks):
            y = net.reshape(net.roll(net.roll(x, i, 1), i, 2), (1, of, window, of, window, width))
            y = net.reshape(net.transpose(y, (0, 1, 3, 2, 4, 5)), (of * of * window * window, width))
            y = net.reshape(net.gelu(net.linear(y, weights(rng, width, width))), (1, of, of, window, window, width))
            x = x + net.reshape(net.transpose(y, (0, 1, 3, 2, 4, 5)), (1, side, side, width))
        net.output(x, "y")

    return write


def filtered(width: int, length: int, blocks: int) -> Write:
    """Dilated convolutions over time with gates, after an embedding of numbers."""

    def write(net: Network, rng: np.random.Generator) -> None:
        x = net.embedding(weights(rng, 256, width), net.input("x", f"i64[1, {length}]"))
        x = net.transpose(x, (0, 2, 1))
        for i in range(blocks):
            apart = 2**i
            y, gate = (
                net.convolution(x, weights(rng, width, width, 3), padding=apart, dilation=apart) for _ in range(2)
            )
            x = x + net.convolution(net.tanh(y) * net.sigmoid(gate), weights(rng, width, width, 1))
        net.output(net.reduce_mean(x, axes=(2,)), "y")

    return write


def recurrent(kind: str, steps: int, width: int) -> Write:
    """A GRU or LSTM over `steps`, and a linear layer."""

    def write(net: Network, rng: np.random.Generator) -> None:
        x, gates = net.input("x", f"f32[{steps}, 1, {width}]"), {"gru": 3, "lstm": 4}[kind]
        y, *_ = getattr(net, kind)(x, weights(rng, 1, gates * width, width), weights(rng, 1, gates * width, width))
        net.output(net.linear(net.reshape(y, (steps, width)), weights(rng, 32, width)), "y")

    return write


def decoder(width: int, size: int) -> Write:
    """Convolutions up to four times the size: nearest neighbours, then a deconvolution, and a sigmoid."""

    def write(net: Network, rng: np.random.Generator) -> None:
        x = net.relu(net.convolution(image(net, width, size), weights(rng, width, width, 3, 3), padding=1))
        x = net.upsample(x, 2, "linear")
        x = net.relu(net.convolution(x, weights(rng, width // 2, width, 3, 3), padding=1))
        x = net.deconvolution(x, weights(rng, width // 2, 8, 4, 4), stride=2, padding=1)
        net.output(net.sigmoid(net.average_pool(x, 3, stride=1, padding=1)), "y")

    return write


def small_steps(count: int) -> Write:
    """A chain of reductions and sums of few numbers: their time is that of a start."""

    def write(net: Network, rng: np.random.Generator) -> None:
        x = net.input("x", "f32[16, 16]")
        for _ in range(count):
            x = x - net.reduce_mean(x, axes=(1,), keepdims=True)
            x = net.softmax(x)
        net.output(x, "y")

    return write


NETWORKS: Mapping[str, Write] = {
    "stack of 3x3, small": stack((3, 32, 64, 128, 128), 64, 3),
    "stack of 3x3, large": stack((3, 64, 128, 256, 512), 160, 3),
    "stack of 1x1": stack((64, 256, 512, 256, 1024), 28, 1),
    "stack of 7x7": stack((3, 32, 64), 112, 7),
    "strided 3x3": strided((32, 64, 128, 256), 112, 3),
    "strided 5x5": strided((16, 32, 64), 96, 5),
    "residual, 64 wide": residual(64, 56, 4),
    "residual, 256 wide": residual(256, 14, 4),
    "separable 3x3": separable(32, 112, 6, 3),
    "separable 5x5": separable(48, 56, 6, 5),
    "dense, one row": dense((2048, 4096, 4096, 1000), 1),
    "dense, 64 rows": dense((1024, 2048, 2048, 512), 64),
    "attending, 64 rows": attending(64, 256, 4, 4),
    "attending, 384 rows": attending(384, 512, 8, 2),
    "joined": joined(32, 28, 6),
    "gated": gated(32, 28, 4),
    "grouped": grouped(64, 28, 4, 3),
    "windowed": windowed(56, 96, 7, 3),
    "filtered": filtered(64, 1000, 4),
    "recurrent, GRU": recurrent("gru", 64, 256),
    "recurrent, LSTM": recurrent("lstm", 48, 384),
    "decoder": decoder(64, 32),
    "small steps": small_steps(20),
}

# Those that profiles are also fitted on in INT8.
IN_INT8 = (
    "stack of 3x3, large",
    "stack of 1x1",
    "stack of 7x7",
    "strided 3x3",
    "residual, 256 wide",
    "separable 3x3",
    "separable 5x5",
    "dense, one row",
    "dense, 64 rows",
    "attending, 384 rows",
)


def network(name: str) -> Network:
    """Returns one of NETWORKS; equal weights every time."""
    net = Network(name)
    NETWORKS[name](net, np.random.default_rng(SEED))
    return net
