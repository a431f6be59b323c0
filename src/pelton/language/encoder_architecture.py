"""What families of encoders differ in, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .architecture import Architecture, DecoderFamily, TensorPlace


@dataclass(frozen=True)
class EncoderArchitecture(Architecture):
    """Layers whose tokens see each other, without caches; windows are as wide on both sides.

    after: norms lie behind the sums of a layer, as in BERT, and none at the end. first_row: of the table of positions.
    types: rows of a table of kinds of tokens, of which all are the first. table_norm: a norm of the rows of tables.
    bare_first: the first layer has no norm in front of attention. causal: tokens see earlier ones alone. mels: bins of
    a spectrogram, which convolutions read in place of a table of tokens; 0 for texts.
    """

    after: bool = False
    first_row: int = 0
    types: int = 0
    table_norm: bool = False
    bare_first: bool = False
    causal: bool = False
    mels: int = 0


@dataclass(frozen=True)
class EncoderFamily:
    """An architecture, and the places of its tensors, as in `DecoderFamily`; further parts: types, table_norm, buckets.
    harmless: begins of names of tensors that embeddings do not need."""

    architecture: EncoderArchitecture
    places: Mapping[str, TensorPlace] = field(default_factory=dict)
    harmless: tuple[str, ...] = ()


@dataclass(frozen=True)
class EncoderDecoderFamily:
    """An encoder, and a decoder whose layers attend to its rows. further parts of an encoder of sound: conv1, conv2.

    usual: tokens of a text and of an answer, unless the caller says otherwise. tied: the head is the
    table of tokens, even if the file has another. tables: names that files have for the
    table of tokens. harmless: begins of names of tensors that neither needs.
    """

    encoder: EncoderFamily
    decoder: DecoderFamily
    usual: int
    tied: bool
    tables: tuple[str, ...]
    harmless: tuple[str, ...] = ()
