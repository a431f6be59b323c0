"""Inputs of a decoder, step by step: a prompt of 13 tokens, then 5 single ones, with a cache that grows or is shared.

Caches of a sliding window have a fixed size in both. Both runtimes take these same tokens; nothing
here depends on their answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

PROMPT, SINGLE, CAPACITY = 13, 5, 64
WINDOW = 8  # positions that layers with a sliding window see; a cache of their own has at least as many
RUNS = {
    "growing": {"past_sequence_length": 0, "past_sliding_length": WINDOW},
    "shared": {"past_sequence_length": CAPACITY, "past_sliding_length": WINDOW + 3},
}
Types = Mapping[str, tuple[Any, np.dtype]]  # the shape and the type by the name of an input


def steps(vocabulary: int) -> Iterator[np.ndarray]:
    """Yields the tokens of each step."""
    tokens = np.random.default_rng(5).integers(2, vocabulary, PROMPT + SINGLE)
    yield tokens[:PROMPT]
    yield from (tokens[i : i + 1] for i in range(PROMPT, PROMPT + SINGLE))


class State:
    """What a decoder hands from step to step.

    run: "growing", from empty caches, or "shared", in caches of 64; depth: elements of a head.
    """

    def __init__(self, types: Types, run: str, depth: int):
        sizes = {**RUNS[run], "kv_cache_dim": depth}
        self.types, self.length = types, 0
        self.caches = {
            name: np.zeros([1, *(d if isinstance(d, int) else sizes[d] for d in shape[1:])], dtype)
            for name, (shape, dtype) in types.items()
            if name.startswith("past")
        }

    def inputs(self, tokens: np.ndarray) -> dict[str, np.ndarray]:
        """Returns the inputs of the step that appends these tokens."""
        end = self.length + len(tokens)
        places = np.arange(self.length, end)[None]
        if len(self.types.get("position_ids", ((),))[0]) == 3:  # of time, height and width
            places = np.stack([places, places + 1, places + 2])
        known = {
            "input_ids": tokens[None],
            "attention_mask": np.ones((1, end)),
            "position_ids": places,
        }
        rest = {name: array.astype(self.types[name][1]) for name, array in known.items() if name in self.types}
        return rest | self.caches

    def extend(self, tokens: np.ndarray, outputs: Mapping[str, np.ndarray]) -> None:
        """Takes the caches from the outputs of the step with these tokens."""
        self.length += len(tokens)
        self.caches = {name: outputs[output_of(name)] for name in self.caches}


def output_of(name: str) -> str:
    """Returns the name of the output that continues an input of the cache."""
    return name.replace("past_key_values.", "present.").replace("past.", "present.")
