"""The networks of published figures, layer by layer, with weights of zeros: only their shapes count."""

from __future__ import annotations

import numpy as np

from pelton.network import Network

BLOCKS = ((64, 3), (128, 4), (256, 6), (512, 3))  # width of the 3×3 convolutions, and number of blocks
ENCODERS = {"bert_base": (12, 768, 12), "bert_large": (24, 1024, 16)}  # layers, width, heads


def zeros(*shape: int) -> np.ndarray:
    """Returns weights, whose memory the system allocates when they are read."""
    return np.zeros(shape, np.float32)


def resnet50(batch: int = 1) -> Network:
    """Returns ResNet-50 v1.5 (He et al. 2015; the second convolution of a block has its stride), batch norms folded."""
    net = Network("resnet50")

    def convolution(x, after: int, before: int, size: int, stride: int = 1):
        weights = zeros(after, before, size, size)
        return net.convolution(x, weights, zeros(after), stride=stride, padding=size // 2)

    x = net.input("image", f"f32[{batch}, 3, 224, 224]")
    x = net.max_pool(net.relu(convolution(x, 64, 3, 7, 2)), 3, stride=2, padding=1)
    before = 64
    for stage, (width, count) in enumerate(BLOCKS):
        for block in range(count):
            stride = 2 if stage and not block else 1
            y = net.relu(convolution(x, width, before, 1))
            y = convolution(net.relu(convolution(y, width, width, 3, stride)), 4 * width, width, 1)
            x = x if block else convolution(x, 4 * width, before, 1, stride)
            x, before = net.relu(x + y), 4 * width
    y = net.linear(net.flatten(net.global_average_pool(x)), zeros(1000, before), zeros(1000))
    net.output(net.softmax(y), "probabilities")
    return net


def bert(name: str, sequence: int, batch: int = 1, layers: int | None = None) -> Network:
    """Returns BERT (Devlin et al. 2018) for answers in a text, of ENCODERS, behind its embedding. layers: other than
    those of ENCODERS."""
    usual, width, heads = ENCODERS[name]
    net, one, zero = Network(name), np.ones(width, np.float32), zeros(width)

    def linear(x, before: int, after: int):
        return net.linear(x, zeros(after, before), zeros(after))

    def heads_of(x):
        return net.transpose(net.reshape(x, (batch, sequence, heads, width // heads)), (0, 2, 1, 3))

    x = net.layer_norm(net.input("embedded", f"f32[{batch}, {sequence}, {width}]"), one, zero)
    for _ in range(layers or usual):
        q, k, v = (heads_of(linear(x, width, width)) for _ in range(3))
        y = net.reshape(net.transpose(net.attention(q, k, v), (0, 2, 1, 3)), (batch, sequence, width))
        x = net.layer_norm(x + linear(y, width, width), one, zero)
        x = net.layer_norm(x + linear(net.gelu(linear(x, width, 4 * width)), 4 * width, width), one, zero)
    net.output(linear(x, width, 2), "logits")
    return net


def network(name: str, sequence: int | None, batch: int = 1) -> Network:
    """Returns the network of a point."""
    return resnet50(batch) if sequence is None else bert(name, sequence, batch)
