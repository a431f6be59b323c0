"""Runs of a few tokens: whether they compute, bit for bit, what runs of one token each do."""

from __future__ import annotations

import numpy as np

from .decoder import Decoder

FEW = 8  # tokens of a run whose kernels are those of single tokens
BEGIN, ROUNDS = 24, 6


def few_tokens(decoder: Decoder) -> int:
    """Returns the most tokens of a run that leaves every bit as runs of one token do: FEW or 0. It runs both on random
    tokens, and compares logits and caches."""
    length = BEGIN + FEW * ROUNDS
    if decoder.ports.rows is None or decoder.description.context < length or not decoder.runner.positional:
        return 0
    ids = np.random.default_rng(0).integers(0, decoder.description.vocabulary, length)
    one, few = decoder.state(length), decoder.state(length)
    for sequence in (one, few):
        sequence.extend(ids[:BEGIN])
    singles = np.stack([one.extend(ids[i : i + 1]) for i in range(BEGIN, length)])
    sizes = [FEW - i % 3 for i in range(ROUNDS)]
    starts = np.cumsum([BEGIN, *sizes])
    rows = [few.extend(ids[i : i + n], all_rows=True) for i, n in zip(starts, sizes)]
    same = np.array_equal(np.concatenate(rows), singles[: sum(sizes)])
    end = int(starts[-1])
    caches = zip(one.state.arrays.values(), few.state.arrays.values())
    return FEW if same and all(np.array_equal(a[:, :, :end], b[:, :, :end]) for a, b in caches) else 0
