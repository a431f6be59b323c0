#!/usr/bin/env python3
"""Measures a decoder as onnxruntime-genai's builder writes it: prefill and greedy decoding, tokens a second.

    python -m benchmarks.llm.decoder FOLDER [--genai PYTHON] [--rounds 3] [--page benchmarks/llm/results.md]

Pelton builds two engines of the model, one tuned for single tokens and one for prompts of 128; both write one cache in
place, of 1,024 positions. No run has a prompt of another. A run decodes 40 tokens after 16, and 16 after 512; its
figure is the best mean of 8 in a row, that of the table the median of all rounds. Memory is that of the process.
--genai names a Python with onnxruntime-genai, which takes turns on the same model. The bandwidth is that of two threads
that read 1 GB, in the same minute.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

import pelton

from benchmarks.serve.page import replace_part

BEGIN, END = "<!-- decoder: begin -->", "<!-- decoder: end -->"
CAPACITY, THREADS = 1024, 2
PEER = Path(__file__).parent / "peers" / "genai.py"
Result = dict[str, float]


class Decoder:
    """Two engines of a model over one cache. folder: with genai_config.json; the engines are built at this level."""

    def __init__(self, folder: Path, level: int, threads: int = THREADS):
        config = json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]
        self.layers, heads, depth = (config[key] for key in ("num_hidden_layers", "num_key_value_heads", "head_size"))
        model, start = folder / config["filename"], time.perf_counter()
        engines = [
            pelton.build(model, self._shapes(rows, heads, depth), level=level, threads=threads) for rows in (1, 128)
        ]
        self.seconds = time.perf_counter() - start
        self.few, self.many = (engine.context(threads) for engine in engines)
        self.state, self.length = engines[0].state(past_sequence_length=CAPACITY), 0
        if len(self.state.arrays) != 2 * self.layers:
            raise SystemExit(f"the engine extends {len(self.state.arrays)} of {2 * self.layers} caches in place")

    def _shapes(self, rows: int, heads: int, depth: int) -> dict[str, str]:
        cache = f"1x{heads}x1..{CAPACITY}..{8 * CAPACITY}x{depth}"
        names = [f"past_key_values.{i}.{kind}" for i in range(self.layers) for kind in ("key", "value")]
        tokens = {"input_ids": f"1x1..{rows}..{CAPACITY}", "attention_mask": f"1x1..{max(rows, 256)}..{8 * CAPACITY}"}
        return tokens | dict.fromkeys(names, cache)

    def step(self, tokens: np.ndarray) -> int:
        """Appends tokens, and returns the most probable next one."""
        self.length += len(tokens)
        inputs = {"input_ids": tokens.reshape(1, -1), "attention_mask": np.ones((1, self.length), np.int64)}
        context = self.few if len(tokens) == 1 else self.many
        return int(self.state.run(context, inputs)["logits"][0, -1].argmax())

    def run(self, prompt: np.ndarray, count: int) -> tuple[float, list[float]]:
        """Returns the seconds of the prompt, and those of each of `count` tokens after it."""
        self.length, start = 0, time.perf_counter()
        token = self.step(prompt)
        first, times = time.perf_counter() - start, []
        for _ in range(count):
            start = time.perf_counter()
            token = self.step(np.array([token]))
            times.append(time.perf_counter() - start)
        return first, times


def unseen(count: int, seed: int) -> np.ndarray:
    """Returns the tokens of a prompt that no earlier run had."""
    return np.random.default_rng(seed).integers(300, 20000, count)


def best(times: list[float]) -> float:
    """Returns tokens a second: the best mean of 8 in a row."""
    return 1 / min(float(np.mean(times[i : i + 8])) for i in range(len(times) - 7))


def measure(decoder: Decoder, turn: int) -> Result:
    """Returns tokens a second of prompts and of decoding."""
    result = {}
    for length, count in ((128, 0), (512, 16), (16, 40)):
        first, times = decoder.run(unseen(length, 100 * turn + length), count)
        if length > 16:
            result[f"prefill {length}"] = length / first
        if count:
            result[f"decode after {length}"] = best(times)
    return result


def read_bandwidth() -> float:
    """Returns the bytes a second that two threads read from memory."""
    data = [np.ones(1 << 26, np.float64) for _ in range(THREADS)]
    seconds = []
    for _ in range(3):
        threads = [threading.Thread(target=part.max) for part in data]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds.append(time.perf_counter() - start)
    return sum(part.nbytes for part in data) / min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--genai", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--level", type=int, default=2)
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    decoder = Decoder(args.folder, args.level)
    rows: dict[str, list[Result]] = {"Pelton": []}
    for turn in range(args.rounds):
        rows["Pelton"].append({**measure(decoder, turn), "GB/s read": read_bandwidth() / 1e9})
        if args.genai:
            command = [args.genai, str(PEER), str(args.folder), str(THREADS), str(turn)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.setdefault("onnxruntime-genai", []).append(json.loads(done.stdout.splitlines()[-1]))
        print(*(f"{name}: {results[-1]}" for name, results in rows.items()), sep="\n", flush=True)
    memory = {"Pelton": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    columns = [*rows["Pelton"][0]]
    lines = [f"| {args.folder.name} | {' | '.join(columns)} | MB |", f"|---|{'--:|' * (len(columns) + 1)}"]
    for name, results in rows.items():
        medians = [float(np.median([r[c] for r in results])) if c in results[0] else None for c in columns]
        cells = ["" if m is None else f"{m:.0f}" for m in medians]
        lines.append(f"| {name} | {' | '.join(cells)} | {memory.get(name, results[0].get('MB', 0)):.0f} |")
    lines += ["", f"Pelton built both engines in {decoder.seconds:.0f} s."]
    print("\n".join(lines))
    if args.page:
        replace_part(args.page, BEGIN, END, lines)


if __name__ == "__main__":
    sys.exit(main())
