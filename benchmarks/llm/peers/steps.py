"""Inputs of a decoder, step by step: a prompt of 13 tokens, 5 single ones, and a chunk of 4, in several runs.

A run has caches that grow from 0 or are shared, and one sequence or two, which take no chunk: ONNX Runtime has none for
several sequences. Caches of a sliding window have a fixed size in all runs. Both runtimes take these same tokens;
nothing here depends on their answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

PROMPT, SINGLE, CHUNK, CAPACITY = 13, 5, 4, 64
WINDOW = 8  # positions that layers with a sliding window see; a cache of their own has at least as many
RUNS = {
    "growing": {"batch_size": 1, "past_sequence_length": 0, "past_sliding_length": WINDOW},
    "shared": {"batch_size": 1, "past_sequence_length": CAPACITY, "past_sliding_length": WINDOW + 3},
    "batch": {"batch_size": 2, "past_sequence_length": 0, "past_sliding_length": WINDOW + 1},
}
Types = Mapping[str, tuple[Any, np.dtype]]  # the shape and the type by the name of an input


def steps(vocabulary: int, run: str) -> Iterator[np.ndarray]:
    """Yields the tokens of each step, [batch, tokens]."""
    batch, ends = RUNS[run]["batch_size"], [PROMPT, *range(PROMPT + 1, PROMPT + SINGLE + 1)]
    if batch == 1:
        ends.append(ends[-1] + CHUNK)
    tokens = np.random.default_rng(5).integers(2, vocabulary, (batch, ends[-1]))
    yield from (tokens[:, start:end] for start, end in zip([0, *ends], ends))


class State:
    """What a decoder hands from step to step. depth: elements of a head."""

    def __init__(self, types: Types, run: str, depth: int):
        sizes = {**RUNS[run], "kv_cache_dim": depth}
        self.types, self.length = types, 0
        self.caches = {
            name: np.zeros([d if isinstance(d, int) else sizes[d] for d in shape], dtype)
            for name, (shape, dtype) in types.items()
            if name.startswith("past")
        }

    def inputs(self, tokens: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the inputs of the step that appends these tokens."""
        batch, end = len(tokens), self.length + tokens.shape[1]
        places = np.broadcast_to(np.arange(self.length, end), tokens.shape)
        if len(self.types.get("position_ids", ((),))[0]) == 3:  # of time, height and width
            places = np.stack([places, places + 1, places + 2])
        known = {
            "input_ids": tokens,
            "attention_mask": np.ones((batch, end)),
            "position_ids": places,
        }
        rest = {name: array.astype(self.types[name][1]) for name, array in known.items() if name in self.types}
        return rest | self.caches

    def extend(self, tokens: np.ndarray, outputs: Mapping[str, np.ndarray]) -> None:
        """Takes the caches from the outputs of the step with these tokens."""
        self.length += tokens.shape[1]
        self.caches = {name: outputs[output_of(name)] for name in self.caches}


def output_of(name: str) -> str:
    """Returns the name of the output that continues an input of the cache."""
    return name.replace("past_key_values.", "present.").replace("past.", "present.")
