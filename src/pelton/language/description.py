"""What a language model is, and which ports of its engine have which part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Description:
    """The numbers of a language model.

    family: such as "llama". context: the most tokens of a sequence. weight_bytes: of the engine's constants.
    token_bytes: of all caches, for each token of a sequence. template: the chat template, in Jinja; "" without one.
    notes: what the model's file has and the engine stores in another form. long_from:
    if not 0, a sequence that grows beyond so many tokens is computed anew, as its positions are then others.
    digest: a hash of the model's files and of all that its engine depends on. few: the most tokens of a run that
    computes, bit for bit, what runs of one token do; 0 if none of several does.
    """

    family: str
    layers: int
    kv_heads: int
    head_size: int
    context: int
    vocabulary: int
    weight_bytes: int = 0
    token_bytes: int = 0
    template: str = ""
    notes: tuple[str, ...] = ()
    long_from: int = 0
    digest: str = ""
    few: int = 0


@dataclass(frozen=True)
class DecoderPorts:
    """Names of ports of the engine.

    ids: i64 [batch, tokens]. mask: i64 [batch, all tokens], 1 for tokens that count. positions: i64 [batch, tokens], if
    the engine needs them. rows: i64 [rows], the tokens of a run whose logits it returns; None if only those of the last
    one. long: i64 [batch, 1], 1 for sequences beyond `Description.long_from` tokens, if that makes a difference.
    logits: f32 [batch, rows, vocabulary]. caches: the inputs, [batch, heads, capacity, size].
    Names of dynamic dimensions, "" where the engine has one size: batch; tokens, of a run; capacity, of the caches;
    kept, of the rows. With an encoder: crosses, inputs with the keys and values of its rows, f32 [batch, heads, rows,
    size]; source_lengths: i64 [batch], how many of them count; source_rows: i64 [rows], 0, 1, 2, …, up to the most of
    these; both None if all count.
    """

    ids: str
    mask: str
    positions: str | None
    rows: str | None
    logits: str
    caches: tuple[str, ...]
    batch: str
    tokens: str
    capacity: str
    kept: str
    long: str | None = None
    crosses: tuple[str, ...] = ()
    source_lengths: str | None = None
    source_rows: str | None = None


def described(values: Mapping[str, Any]) -> Description:
    """Returns the description that `dataclasses.asdict` made a dictionary. Raises TypeError for other fields."""
    return Description(**{**values, "notes": tuple(values.get("notes", ()))})
