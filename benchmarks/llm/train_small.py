#!/usr/bin/env python3
"""Trains the small language model of the tests of `pelton compress`, on this project's pages.

    python benchmarks/llm/train_small.py docs tests/data/small_transformer [--minutes 8]

Needs torch and onnx. The model predicts bytes: a causal transformer of 3 layers with norms before attention and MLP,
width 128, 4 heads, context 128. Every eighth page is held out. The script writes OUTPUT.onnx, of f32, and OUTPUT.npz:
`calibration`, rows of training text, and `held_out`, rows of the pages that were not trained on, both u8[rows, 129].
The last 128 bytes of a row are the targets of the first 128.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
from onnx import TensorProto, helper, numpy_helper, save
from torch import nn
from torch.nn import functional

VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS = 256, 128, 128, 4, 3
EVERY = 8  # one of so many pages is held out
ROWS = 96  # of calibration, and of held-out text
BATCH, RATE, WARM = 24, 3e-3, 50


class Layer(nn.Module):
    """One layer: attention over earlier bytes, then an MLP, each behind a norm and added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        heads = [f(y).view(*y.shape[:2], HEADS, -1).transpose(1, 2) for f in (self.query, self.key, self.value)]
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """The whole model: tokens i64[rows, 128] → logits f32[rows, 128, 256]."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                depth = 2 * LAYERS if name.endswith(("out.weight", "down.weight")) else 1
                nn.init.normal_(weight, std=0.05 / math.sqrt(depth))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def read(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Returns the bytes of the pages for training and of those held out."""
    pages = [np.frombuffer(p.read_bytes(), np.uint8) for p in sorted(folder.glob("*.md"))]
    return (
        np.concatenate([p for i, p in enumerate(pages) if i % EVERY != EVERY // 2]),
        np.concatenate(pages[EVERY // 2 :: EVERY]),
    )


def rows(text: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    at = rng.integers(0, len(text) - CONTEXT, count)
    return text[at[:, None] + np.arange(CONTEXT + 1)]


def loss(model: Transformer, text: np.ndarray) -> torch.Tensor:
    tokens = torch.from_numpy(text.astype(np.int64))
    return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def train(model: Transformer, text: np.ndarray, kept: np.ndarray, minutes: float) -> None:
    """Trains for so long, with a rate that falls to 0 as a cosine."""
    rng, start, step = np.random.default_rng(0), time.monotonic(), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.1)
    while (part := (time.monotonic() - start) / (60 * minutes)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / WARM) * (0.5 + 0.5 * math.cos(math.pi * part))
        optimizer.zero_grad()
        now = loss(model, rows(text, BATCH, rng))
        now.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            with torch.no_grad():
                print(f"step {step}: {now.item():.3f}, held out {loss(model, kept).item():.3f}", flush=True)
        step += 1
    with torch.no_grad():
        print(f"{step} steps: held out {loss(model, kept).item():.3f} nats a byte", flush=True)


class Writer:
    """Writes the model as ONNX, node by node."""

    def __init__(self, model: Transformer):
        self.weights = {name: w.detach().numpy() for name, w in model.named_parameters()}
        self.nodes, self.constants = [], {}

    def constant(self, array: np.ndarray, name: str) -> str:
        self.constants[name] = array
        return name

    def emit(self, kind: str, *inputs: str, name: str, **attrs) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attrs))
        return name

    def linear(self, x: str, name: str) -> str:
        y = self.emit("MatMul", x, self.constant(self.weights[f"{name}.weight"].T.copy(), f"{name}.weight"), name=name)
        bias = self.weights.get(f"{name}.bias")
        return y if bias is None else self.emit("Add", y, self.constant(bias, f"{name}.bias"), name=f"{name}.add")

    def norm(self, x: str, name: str) -> str:
        own = [self.constant(self.weights[f"{name}.{part}"], f"{name}.{part}") for part in ("weight", "bias")]
        return self.emit("LayerNormalization", x, *own, name=name, epsilon=1e-5)

    def heads(self, x: str, name: str, perm: tuple[int, ...]) -> str:
        split = self.constant(np.array([0, CONTEXT, HEADS, WIDTH // HEADS]), "split")
        return self.emit("Transpose", self.emit("Reshape", x, split, name=f"{name}.split"), perm=perm, name=name)

    def layer(self, x: str, name: str) -> str:
        y = self.norm(x, f"{name}.norm1")
        query, key, value = (self.linear(y, f"{name}.{part}") for part in ("query", "key", "value"))
        query, value = (self.heads(v, f"{v}.heads", (0, 2, 1, 3)) for v in (query, value))
        key = self.heads(key, f"{key}.heads", (0, 2, 3, 1))
        factor = self.constant(np.float32(1 / math.sqrt(WIDTH // HEADS)), "factor")
        scores = self.emit(
            "Mul", self.emit("MatMul", query, key, name=f"{name}.products"), factor, name=f"{name}.scores"
        )
        mask = self.constant(np.triu(np.full((CONTEXT, CONTEXT), -1e9, np.float32), 1), "mask")
        shares = self.emit("Softmax", self.emit("Add", scores, mask, name=f"{name}.masked"), name=f"{name}.shares")
        mixed = self.emit("MatMul", shares, value, name=f"{name}.mixed")
        mixed = self.emit("Transpose", mixed, perm=(0, 2, 1, 3), name=f"{name}.merged")
        joined = self.constant(np.array([0, CONTEXT, WIDTH]), "joined")
        mixed = self.emit("Reshape", mixed, joined, name=f"{name}.joined")
        x = self.emit("Add", x, self.linear(mixed, f"{name}.out"), name=f"{name}.attended")
        up = self.linear(self.norm(x, f"{name}.norm2"), f"{name}.up")
        gelu = self.emit("Gelu", up, name=f"{name}.gelu")
        return self.emit("Add", x, self.linear(gelu, f"{name}.down"), name=f"{name}.sum")

    def write(self, path: Path) -> None:
        table = self.constant(self.weights["table.weight"], "table.weight")
        x = self.emit("Gather", table, "tokens", name="table")
        x = self.emit("Add", x, self.constant(self.weights["places"], "places"), name="placed")
        for i in range(LAYERS):
            x = self.layer(x, f"layers.{i}")
        self.nodes.append(helper.make_node("Identity", [self.linear(self.norm(x, "norm"), "head")], ["logits"]))
        info = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "small_transformer",
            [info("tokens", TensorProto.INT64, ["rows", CONTEXT])],
            [info("logits", TensorProto.FLOAT, ["rows", CONTEXT, VOCABULARY])],
            [numpy_helper.from_array(np.ascontiguousarray(a), name) for name, a in self.constants.items()],
        )
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    text, held_out = read(args.folder)
    rng = np.random.default_rng(1)
    calibration, kept = rows(text, ROWS, rng), rows(held_out, ROWS, rng)
    model = Transformer()
    train(model, text, kept, args.minutes)
    Writer(model).write(args.output.with_suffix(".onnx"))
    np.savez_compressed(args.output.with_suffix(".npz"), calibration=calibration, held_out=kept)


if __name__ == "__main__":
    main()
