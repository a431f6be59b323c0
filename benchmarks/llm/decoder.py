#!/usr/bin/env python3
"""Measures a decoder as onnxruntime-genai's builder writes it: prefill and greedy decoding, tokens a second.

    python -m benchmarks.llm.decoder FOLDER [--genai PYTHON] [--rounds 3] [--page benchmarks/llm/results.md]

Pelton builds two engines of the model, one tuned for single tokens and one for prompts of 128; both write one cache in
place, of 1,024 positions. No run has a prompt of another. A run decodes 40 tokens after 16, and 16 after 512; its
figure is the best mean of 8 in a row, that of the table the median of all rounds. Memory is the most that the process
had at a time; Pelton's loads both engines from files, which another process built. --genai names a Python with
onnxruntime-genai, which takes turns on the same model. The bandwidth is that of two threads that read 1 GB, in the same
minute.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import pelton

from benchmarks.serve.page import replace_part

BEGIN, END = "<!-- decoder: begin -->", "<!-- decoder: end -->"
CAPACITY, THREADS = 1024, 2
PEER = Path(__file__).parent / "peers" / "genai.py"
Result = dict[str, float]


def shapes(config: dict[str, Any], rows: int) -> dict[str, str]:
    """Returns the shapes of an engine for this number of tokens at once."""
    heads, depth = config["num_key_value_heads"], config["head_size"]
    names = [f"past_key_values.{i}.{kind}" for i in range(config["num_hidden_layers"]) for kind in ("key", "value")]
    tokens = {"input_ids": f"1x1..{rows}..{CAPACITY}", "attention_mask": f"1x1..{max(rows, 256)}..{8 * CAPACITY}"}
    return tokens | dict.fromkeys(names, f"1x{heads}x1..{CAPACITY}..{8 * CAPACITY}x{depth}")


def build(folder: Path, level: int, to: list[Path]) -> float:
    """Builds the engines for single tokens and for prompts; returns the seconds."""
    config = json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]
    start = time.perf_counter()
    for path, rows in zip(to, (1, 128)):
        pelton.build(folder / config["filename"], shapes(config, rows), level=level, threads=THREADS).save(path)
    return time.perf_counter() - start


class Decoder:
    """The two engines of a model over one cache."""

    def __init__(self, paths: list[Path]):
        engines = [pelton.load(path) for path in paths]
        self.few, self.many = (engine.context(THREADS) for engine in engines)
        self.state, self.length = engines[0].state(past_sequence_length=CAPACITY), 0

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


def most_memory() -> float:
    """Returns the megabytes that this process had at most. `getrusage` counts those of the process before `exec`."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


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
    with tempfile.TemporaryDirectory() as name, ProcessPoolExecutor(1, get_context("spawn")) as pool:
        paths = [Path(name) / f"{kind}.pelton" for kind in ("tokens", "prompts")]
        seconds = pool.submit(build, args.folder, args.level, paths).result()
        decoder = Decoder(paths)
        rows: dict[str, list[Result]] = {"Pelton": []}
        for turn in range(args.rounds):
            result = measure(decoder, turn)
            held = rows["Pelton"][0]["MB"] if turn else most_memory()  # before the bandwidth's arrays
            rows["Pelton"].append({**result, "GB/s read": read_bandwidth() / 1e9, "MB": held})
            if args.genai:
                command = [args.genai, str(PEER), str(args.folder), str(THREADS), str(turn)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                rows.setdefault("onnxruntime-genai", []).append(json.loads(done.stdout.splitlines()[-1]))
            print(*(f"{name}: {results[-1]}" for name, results in rows.items()), sep="\n", flush=True)
    columns = [*rows["Pelton"][0]]
    lines = [f"| {args.folder.name} | {' | '.join(columns)} |", f"|---|{'--:|' * len(columns)}"]
    for name, results in rows.items():
        medians = [np.median([r[c] for r in results]) if c in results[0] else None for c in columns]
        lines.append(f"| {name} | {' | '.join('' if m is None else f'{m:.0f}' for m in medians)} |")
    lines += ["", f"Pelton built both engines in {seconds:.0f} s."]
    print("\n".join(lines))
    if args.page:
        replace_part(args.page, BEGIN, END, lines)


if __name__ == "__main__":
    sys.exit(main())
