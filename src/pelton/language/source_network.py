"""The networks of encoders beside decoders: a text or a spectrogram in, keys and values for each layer out."""

from __future__ import annotations


from collections.abc import Mapping

import numpy as np


from pelton.network import Network, NetworkTensor

from .architecture import Architecture, TensorPlace
from .decoder_network import cross_name
from .encoder_architecture import EncoderArchitecture, EncoderDecoderFamily
from .encoder_network import encoded, layered
from .layers import LayerPositions
from .source import DecoderSizes
from .source_encoder import SOURCE
from .weights import DecoderWeights, TensorFile, product

USUAL = 64  # tokens of a text that engines are tuned for
HOP = 2  # frames of a spectrogram for each row


def source_network(
    family: EncoderDecoderFamily, file: TensorFile, places: Mapping[str, TensorPlace], sizes: DecoderSizes
) -> Network:
    """Returns the network of an encoder: ids, i64 [1, tokens], or a spectrogram, f32 [1, mels, frames], to the keys and
    values of its rows for each layer of the decoder, f32 [1, heads, rows, size]. places: of the encoder's parts.

    Raises ModelError for weights of another shape.
    """
    a = family.encoder.architecture
    net, weights = Network(f"{a.family}_encoder"), DecoderWeights(file, places)
    if a.mels:
        x = _heard(net, a, weights, sizes.sources)
    else:
        ids = net.input(SOURCE, f"i64[1, tokens=1..{min(USUAL, sizes.sources)}..{sizes.sources}]")
        x = encoded(net, a, weights, ids, None, sizes.sources)
    d = family.decoder.architecture
    crosses = DecoderWeights(file, family.decoder.places)
    for i in range(len(d.layers)):
        for part in ("key", "value"):
            with net.scope(f"cross{i}"):
                y = _heads(net, d, crosses, x, f"cross_{part[0]}", i)
            net.output(y, cross_name(i, part))
    return net


def _heads(
    net: Network, d: Architecture, weights: DecoderWeights, x: NetworkTensor, part: str, i: int
) -> NetworkTensor:
    """Returns keys or values of a layer of the decoder, f32 [1, heads, rows, size]."""
    size = d.kv_heads * d.head_size
    y = product(net, x, weights.matrix(part, size, x.shape[2], i), weights.bias(part, size, i), part)
    return net.transpose(net.reshape(y, (1, x.shape[1], d.kv_heads, d.head_size)), (0, 2, 1, 3))


def _heard(net: Network, a: EncoderArchitecture, weights: DecoderWeights, rows: int) -> NetworkTensor:
    """Returns the rows of a spectrogram, f32 [1, rows, width] (Whisper, arXiv 2212.04356)."""
    x = net.input(SOURCE, f"f32[1, {a.mels}, {HOP * rows}]")
    for part, channels, stride in (("conv1", a.mels, 1), ("conv2", a.width, HOP)):
        kernel = weights.kernel(part, (a.width, channels, 3))
        x = net.convolution(x, kernel, weights.bias(part, a.width), stride=stride, padding=1, name=part)
        x = net.gelu(x)
    table = np.asarray(weights.matrix("positions", rows, a.width))
    x = net.transpose(x, (0, 2, 1)) + table
    return layered(net, a, weights, x, LayerPositions((), {0: None}))
