#!/usr/bin/env python3
"""Measures a decoder as onnxruntime-genai's builder writes it: prefill and greedy decoding, tokens a second.

    python -m benchmarks.llm.decoder FOLDER [--genai PYTHON] [--rounds 3] [--page benchmarks/llm/results.md]

Pelton builds one engine of the model, with a profile for single tokens and one for prompts of 128; both write one cache
in place, of 1,024 positions, and return the logits of the last row. No run has a prompt of another. A run decodes 40
tokens after 16, and 16 after 512; its figure is the best mean of 8 in a row, that of the table the median of all
rounds. Memory is the most that the process had at a time; Pelton's loads the engine from a file, which another process
built. --genai names a Python with onnxruntime-genai, which takes turns on the same model. The bandwidth is that of two
threads that read 1 GB, in the same minute.
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

import numpy as np

import pelton

from benchmarks.serve.page import replace_part

BEGIN, END = "<!-- decoder: begin -->", "<!-- decoder: end -->"
CAPACITY, THREADS = 1024, 2
PROFILES = {"token": {"sequence_length": 1}, "prompt": {"sequence_length": f"1..128..{CAPACITY}"}}
NEXT = "next"  # the output with the logits of the next token
PEER = Path(__file__).parent / "peers" / "genai.py"
Result = dict[str, float]


def build(folder: Path, level: int, to: Path) -> float:
    """Builds the engine; returns the seconds."""
    config = json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]
    sizes = {
        "batch_size": 1,
        "sequence_length": f"1..128..{CAPACITY}",
        "total_sequence_length": f"1..256..{CAPACITY}",
        "past_sequence_length": f"1..{CAPACITY}..{CAPACITY}",
    }
    start = time.perf_counter()
    net = pelton.import_onnx(folder / config["filename"], sizes)
    net.output(net.outputs["logits"][:, -1:], NEXT)
    outputs = [name for name in net.outputs if name != "logits"]
    pelton.build(net, outputs=outputs, profiles=PROFILES, level=level, threads=THREADS).save(to)
    return time.perf_counter() - start


class Decoder:
    """An engine with its cache."""

    def __init__(self, path: Path):
        engine = pelton.load(path)
        self.context, self.state, self.length = engine.context(THREADS), engine.state(), 0

    def step(self, tokens: np.ndarray) -> int:
        """Appends tokens, and returns the most probable next one."""
        self.length += len(tokens)
        inputs = {"input_ids": tokens.reshape(1, -1), "attention_mask": np.ones((1, self.length), np.int64)}
        return int(self.state.run(self.context, inputs)[NEXT].argmax())

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
        path = Path(name) / "decoder.pelton"
        seconds = pool.submit(build, args.folder, args.level, path).result()
        decoder = Decoder(path)
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
    lines += ["", f"Pelton built the engine in {seconds:.0f} s."]
    print("\n".join(lines))
    if args.page:
        replace_part(args.page, BEGIN, END, lines)


if __name__ == "__main__":
    sys.exit(main())
