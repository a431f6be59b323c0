"""What families of decoders differ in, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from .description import Description


@dataclass(frozen=True)
class Rotation:
    """Rotations of queries and keys by position (RoFormer, arXiv 2104.09864).

    frequencies: [pairs], in radians a position. factor: of cosines and sines. interleaved: pairs are neighbours, not
    halves. long, long_from: frequencies for sequences of more than `long_from` tokens, if those differ.
    """

    frequencies: np.ndarray
    factor: float = 1.0
    interleaved: bool = False
    long: np.ndarray | None = None
    long_from: int = 0


@dataclass(frozen=True)
class LayerNumbers:
    """What may differ from layer to layer. rotation: its number, or None. window: keys that a row sees, 0 for all."""

    rotation: int | None = 0
    window: int = 0


@dataclass(frozen=True)
class Architecture:
    """A decoder: tokens, layers of attention and products between activations, a head.

    norm: "rms", with weights that count from `norm_from`, or "layer". sandwich: also norms behind both parts of a
    layer. head_norms: of queries and keys. activation: "silu", "gelu", "gelu_tanh" or "relu"; gated: of one product,
    times another. score_scale: of scores; score_cap, logit_cap: c · tanh(x / c) of scores and logits, 0 for none.
    embedding_scale: of the rows of the table of tokens. positions: true for a table of positions, added to these rows.
    head_scale: of the rows in front of the head. buckets: of distances, which have biases of scores for each head (T5,
    MPNet), 0 for none; far: the distance from which on all are in the last one. sources: rows of an encoder that layers
    also attend to, at most or, if `padded`, always so many; 0 for a decoder alone.
    """

    family: str
    width: int
    heads: int
    kv_heads: int
    head_size: int
    hidden: int
    vocabulary: int
    context: int
    epsilon: float
    layers: tuple[LayerNumbers, ...]
    rotations: tuple[Rotation, ...] = ()
    norm: str = "rms"
    norm_from: float = 0.0
    sandwich: bool = False
    head_norms: bool = False
    activation: str = "silu"
    gated: bool = True
    score_scale: float = 0.0
    score_cap: float = 0.0
    logit_cap: float = 0.0
    embedding_scale: float = 1.0
    positions: bool = False
    head_scale: float = 1.0
    buckets: int = 0
    far: int = 128
    sources: int = 0
    padded: bool = False

    def description(self) -> Description:
        """Returns the numbers that a decoder of it has."""
        return Description(
            family=self.family,
            layers=len(self.layers),
            kv_heads=self.kv_heads,
            head_size=self.head_size,
            context=self.context,
            vocabulary=self.vocabulary,
            long_from=max((r.long_from for r in self.rotations), default=0),
        )


@dataclass(frozen=True)
class TensorPlace:
    """Where a file has a matrix: `name` of a tensor, of which these rows count, or all; transposed: stored [K, N]."""

    name: str
    rows: tuple[int, int] | None = None
    transposed: bool = False


@dataclass(frozen=True)
class DecoderFamily:
    """An architecture, and the places of its tensors in a file.

    places: a name of the parts below → its place; "{}" stands for the number of a layer. Parts have ".weight" and,
    where the file has it, ".bias". Parts that are absent are those that the architecture has no use for.

    embedding, positions, head, norm; in each layer: attention_norm, q, k, v, output, q_norm, k_norm,
    attention_end_norm, hidden_norm, gate, up, down, hidden_end_norm; with an encoder: cross_norm, cross_q, cross_k,
    cross_v, cross_output.
    """

    architecture: Architecture
    places: Mapping[str, TensorPlace] = field(default_factory=dict)
