#!/usr/bin/env python3
"""Measures a decoder as onnxruntime-genai's builder writes it: prefill and greedy decoding, tokens a second.

    python -m benchmarks.llm.decoder FOLDER [--peer KIND PYTHON MODEL [LIBRARY]] [--rounds 3]
        [--page benchmarks/llm/results.md]

Pelton builds one engine of the model, with a profile for single tokens and one for prompts of 128; both write one cache
in place, of 1,024 positions, and return the logits of the last row. peers/timing.py describes the figures, which are
medians of all rounds. Memory is the most that the process had at a time; Pelton's loads the engine from a file, which
another process built. The bandwidth is that of two threads that read 1 GB, in the same minute; the share of it is that
of the weights of Pelton's products.

Each --peer takes turns with Pelton, in a process of its own. PYTHON has its packages. Kinds:

    genai     onnxruntime-genai; MODEL is a folder of its builder, such as FOLDER
    openvino  OpenVINO; MODEL is a folder of optimum-intel (packages optimum-intel, nncf, openvino and torch):
              optimum-cli export openvino -m FOLDER --task text-generation-with-past --weight-format int4
              --group-size 32 --ratio 1.0 --disable-convert-tokenizer MODEL
    llama     llama.cpp; MODEL is a GGUF file, LIBRARY the libggml-cpu-VARIANT.so to use (peers/llama.py)
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
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

import pelton
from pelton.engine.plan import EnginePlan

from benchmarks.llm.peers.timing import Result, Step, measure, most_memory
from benchmarks.serve.page import replace_part

CAPACITY, THREADS = 1024, 2
PROFILES = {"token": {"sequence_length": 1}, "prompt": {"sequence_length": f"1..128..{CAPACITY}"}}
NEXT = "next"  # the output with the logits of the next token
PEERS = {
    "genai": ("onnxruntime-genai", "genai.py"),
    "openvino": ("OpenVINO", "openvino_ir.py"),
    "llama": ("llama.cpp", "llama.py"),
}
ONCE = ("first token", "load", "MB")  # figures of a process that has run nothing else


def build(folder: Path, level: int, target: str, to: Path) -> float:
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
    pelton.build(net, outputs=outputs, profiles=PROFILES, level=level, target=target, threads=THREADS).save(to)
    return time.perf_counter() - start


class Decoder:
    """An engine with its cache."""

    def __init__(self, path: Path):
        engine = pelton.load(path)
        self.context, self.state, self.length = engine.context(THREADS), engine.state(), 0
        self.read = bytes_read(engine.parts[0].plain)

    def step(self, tokens: np.ndarray) -> int:
        """Appends tokens, and returns the most probable next one."""
        self.length += len(tokens)
        inputs = {"input_ids": tokens.reshape(1, -1), "attention_mask": np.ones((1, self.length), np.int64)}
        return int(self.state.run(self.context, inputs)[NEXT].argmax())


def bytes_read(plan: EnginePlan) -> int:
    """Returns the bytes of weights that the products of a run read."""
    products = (s for s in plan.steps if "quantized_linear" in str(s.info["op"]).split("+"))
    buffers = {a.buffer for s in products for a in s.args}
    return sum(int(plan.buffers[b].size) for b in buffers if plan.buffers[b].kind == "constant")


@dataclass(frozen=True)
class Peer:
    """Another runtime: the row's name, and the command that measures it, without threads, turn and library."""

    name: str
    command: list[str]
    library: list[str]

    def measure(self, turn: int) -> Result:
        command = [*self.command, str(THREADS), str(turn), *self.library]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])


def peer(parser: argparse.ArgumentParser, words: list[str]) -> Peer:
    """Returns the peer of the words behind --peer."""
    if words[0] not in PEERS or len(words) != (4 if words[0] == "llama" else 3):
        parser.error(
            "--peer needs genai PYTHON MODEL, openvino PYTHON MODEL, or llama PYTHON MODEL LIBRARY, got"
            f" {' '.join(words)}"
        )
    kind, python, model, *library = words
    name, script = PEERS[kind]
    variants = [Path(path).stem.removeprefix("libggml-cpu-") for path in library]
    command = [python, str(Path(__file__).parent / "peers" / script), model]
    return Peer(", ".join((name, *variants, Path(model).name)), command, library)


def short(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{number:.2f}"


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
    parser.add_argument("--peer", nargs="+", action="append", default=[], metavar="WORD", help="see above")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--level", type=int, default=2)
    parser.add_argument("--target", default="cpu", help="of Pelton's code, such as cpu:x86_64_v3 for AVX2")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--part", default="decoder", help="of the page")
    args = parser.parse_args()
    peers = [peer(parser, words) for words in args.peer]
    with tempfile.TemporaryDirectory() as name, ProcessPoolExecutor(1, get_context("spawn")) as pool:
        path = Path(name) / "decoder.pelton"
        seconds = pool.submit(build, args.folder, args.level, args.target, path).result()
        start = time.perf_counter()
        decoder = Decoder(path)
        load = time.perf_counter() - start

        def sequence(length: int) -> Step:
            decoder.length = 0
            return decoder.step

        rows: dict[str, list[Result]] = {"Pelton": [], **{each.name: [] for each in peers}}
        for turn in range(args.rounds):
            result = {**measure(sequence, turn), "load": load, "MB": most_memory()}  # before the bandwidth's arrays
            result |= {name: rows["Pelton"][0][name] for name in ONCE if turn}
            bandwidth = read_bandwidth()
            share = 100 * decoder.read * result["decode after 16"] / bandwidth
            rows["Pelton"].append({**result, "GB/s": bandwidth / 1e9, "% of it after 16": share})
            for each in peers:
                rows[each.name].append(each.measure(turn))
            print(*(f"{name}: {results[-1]}" for name, results in rows.items()), sep="\n", flush=True)
    columns = [*rows["Pelton"][0]]
    lines = [f"| {args.folder.name} | {' | '.join(columns)} |", f"|---|{'--:|' * len(columns)}"]
    for name, results in rows.items():
        medians = [np.median([r[c] for r in results]) if c in results[0] else None for c in columns]
        cells = ("" if m is None else short(float(m)) for m in medians)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", f"Pelton built the engine in {seconds:.0f} s."]
    print("\n".join(lines))
    if args.page:
        replace_part(args.page, f"<!-- {args.part}: begin -->", f"<!-- {args.part}: end -->", lines)


if __name__ == "__main__":
    sys.exit(main())
