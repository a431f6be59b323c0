"""A Llama with weights in blocks: the numbers of its file, and a reference in numpy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

BLOCK = 32
POSITIONS = 2048  # of tables of rotations


@dataclass(frozen=True)
class Blocks:
    """A matrix [N, K] in blocks of 32 along rows: scale · code + least; without least, scale · (code − middle).

    codes: a byte each; scale, least: [N, K / 32].
    """

    codes: np.ndarray
    scale: np.ndarray
    least: np.ndarray | None
    bits: int

    def wide(self, dtype: Any) -> np.ndarray:
        """Returns the matrix in floats."""
        scale, middle = self.scale.astype(dtype), dtype(1 << (self.bits - 1))
        least = -middle * scale if self.least is None else self.least.astype(dtype)
        return self.codes * scale.repeat(BLOCK, 1) + least.repeat(BLOCK, 1)


@dataclass(frozen=True)
class Llama:
    """The numbers of a model. matrices, norms: by names of the file; head: the table of tokens, unless replaced."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    epsilon: float
    theta: float
    matrices: Mapping[str, Blocks]
    norms: Mapping[str, np.ndarray]
    head: Blocks

    @property
    def depth(self) -> int:
        return self.width // self.heads

    def with_head(self, head: Blocks) -> Llama:
        return replace(self, head=head)

    def rotations(self, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns cosines and sines, [positions, depth / 2]."""
        frequencies = self.theta ** (-np.arange(0, self.depth, 2) / self.depth)
        angles = np.arange(POSITIONS)[:, None] * frequencies
        return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


def read(path: Path) -> tuple[Llama, np.ndarray]:
    """Reads what peers/gguf_file.py wrote: a model, and the tokens of a text."""
    with np.load(path) as file:
        arrays = dict(file)
    matrices, norms = {}, {}
    for name, array in arrays.items():
        if name.endswith(" codes"):
            of = name.removesuffix(" codes")
            least = arrays.get(f"{of} least")
            matrices[of] = Blocks(array, arrays[f"{of} scale"], least, 8 if least is None else 4)
        elif "norm" in name:
            norms[name] = array
    head = matrices.get("output", matrices["token_embd"])
    model = Llama(**json.loads(str(arrays["sizes"])), matrices=matrices, norms=norms, head=head)
    return model, arrays["tokens"]


class Reference:
    """A model's own weights in floats: no cache, all tokens at once."""

    def __init__(self, model: Llama, dtype: Any):
        self.model, self.dtype = model, dtype
        self.matrices = {name: m.wide(dtype) for name, m in model.matrices.items()}
        self.rotations = model.rotations(dtype)

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        mean = np.square(x).mean(-1, keepdims=True)
        return x / np.sqrt(mean + self.dtype(self.model.epsilon)) * self.model.norms[name].astype(self.dtype)

    def rotate(self, x: np.ndarray) -> np.ndarray:
        """Rotates halves of heads, [tokens, heads, depth]."""
        c, s = (a[: len(x), None] for a in self.rotations)
        a, b = np.split(x, 2, -1)
        return np.concatenate([a * c - b * s, b * c + a * s], -1)

    def attention(self, x: np.ndarray, block: str) -> np.ndarray:
        model, count = self.model, len(x)
        parts = (x @ self.matrices[f"{block}.attn_{part}"].T for part in "qkv")
        q, k, v = (p.reshape(count, -1, model.depth) for p in parts)
        q = self.rotate(q).reshape(count, model.kv_heads, -1, model.depth).transpose(1, 2, 0, 3)
        k, v = self.rotate(k).transpose(1, 2, 0)[:, None], v.transpose(1, 0, 2)[:, None]
        scores = q @ k / self.dtype(model.depth**0.5)
        scores[..., ~np.tri(count, dtype=bool)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        y = weights / weights.sum(-1, keepdims=True) @ v  # [kv heads, queries of one, tokens, depth]
        return y.transpose(2, 0, 1, 3).reshape(count, -1) @ self.matrices[f"{block}.attn_output"].T

    def hidden(self, tokens: np.ndarray) -> np.ndarray:
        """Returns the rows that the head multiplies, [tokens, width]."""
        x = self.matrices["token_embd"][tokens]
        for i in range(self.model.layers):
            block = f"blk.{i}"
            x = x + self.attention(self.norm(x, f"{block}.attn_norm"), block)
            y = self.norm(x, f"{block}.ffn_norm")
            gate, up = (y @ self.matrices[f"{block}.ffn_{part}"].T for part in ("gate", "up"))
            x = x + (gate / (1 + np.exp(-gate)) * up) @ self.matrices[f"{block}.ffn_down"].T
        return self.norm(x, "output_norm")

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        return self.hidden(tokens) @ self.model.head.wide(self.dtype).T
