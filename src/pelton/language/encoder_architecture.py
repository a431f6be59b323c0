"""What families of encoders differ in, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .architecture import Architecture, TensorPlace


@dataclass(frozen=True)
class EncoderArchitecture(Architecture):
    """Layers whose tokens see each other, without caches; windows are as wide on both sides.

    after: norms lie behind the sums of a layer, as in BERT, and none at the end. first_row: of the table of positions.
    types: rows of a table of kinds of tokens, of which all are the first. table_norm: a norm of the rows of tables.
    buckets: of distances, which have biases of scores for each head (MPNet); 0 for none. bare_first: the first layer
    has no norm in front of attention. causal: tokens see earlier ones alone.
    """

    after: bool = False
    first_row: int = 0
    types: int = 0
    table_norm: bool = False
    buckets: int = 0
    bare_first: bool = False
    causal: bool = False


@dataclass(frozen=True)
class EncoderFamily:
    """An architecture, and the places of its tensors, as in `DecoderFamily`; further parts: types, table_norm, buckets.
    harmless: begins of names of tensors that embeddings do not need."""

    architecture: EncoderArchitecture
    places: Mapping[str, TensorPlace] = field(default_factory=dict)
    harmless: tuple[str, ...] = ()
