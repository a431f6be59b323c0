"""Operands of one-node models in tests of the ONNX importer: types, constants and random weights."""

from __future__ import annotations

import numpy as np

IMAGE, VECTOR = "f32[2, 6, 7, 8]", "f32[2, 3, 5]"
TRAINING, ML = {"domain": "ai.onnx.preview.training"}, {"domain": "ai.onnx.ml"}


def i64(*numbers) -> np.ndarray:
    return np.array(numbers, np.int64)


def f32(*numbers) -> np.ndarray:
    return np.array(numbers, np.float32)


def strings(*words) -> np.ndarray:
    return np.array(words, object)


class Draws:
    """Arrays out of one generator: which numbers they hold depends on the order in which they are asked for."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)

    def weights(self, *shape: int) -> np.ndarray:
        """float32 between -1 and 1."""
        return self.rng.uniform(-1, 1, shape).astype(np.float32)

    def bytes(self, *shape: int) -> np.ndarray:
        """uint8 below 9."""
        return self.rng.integers(0, 9, shape).astype(np.uint8)
