#!/usr/bin/env python3
"""Compares decoders of many families with ONNX Runtime, as onnxruntime-genai's builder writes them.

    python -m benchmarks.llm.families --genai PYTHON [FAMILIES] [--folder build/decoders] [--page FILE]

PYTHON has onnxruntime-genai, transformers, torch and onnxruntime: it makes tiny models with random weights, builds each
in several forms, and records the answers of ONNX Runtime's CPU provider (peers/decoders.py). Pelton builds the same
files at level 0 and takes the same tokens (peers/steps.py): a prompt of 13, 5 single ones and a chunk of 4, with caches
that grow from 0, with caches of 64 positions that are written in place if the engine can, and without the chunk in a
batch of two. An error is the largest difference of an output, divided by its largest element. Where one exceeds 1e-4,
both answers are compared with an evaluation in float64.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import pelton
from pelton.errors import Error
from pelton.importers.onnx.load import load
from pelton.ir.evaluate import evaluate
from pelton.ir.imported import OnData

from benchmarks.llm.peers.steps import RUNS, WINDOW, State, steps
from benchmarks.serve.page import replace_part

BEGIN, END = "<!-- families: begin -->", "<!-- families: end -->"
PEER = Path(__file__).parent / "peers" / "decoders.py"
LIMIT = 1e-4
VOCABULARY = 500
Arrays = dict[str, np.ndarray]


@dataclass
class Row:
    """The result of one model.

    errors: largest one by the name of a part; faults: rejected runs and wrong shapes; judgments: the errors of both
    runtimes against float64.
    """

    family: str
    form: str
    errors: dict[str, float] = field(default_factory=dict)
    in_place: str = ""
    faults: list[str] = field(default_factory=list)
    judgments: list[str] = field(default_factory=list)
    refused: str = ""

    @property
    def worst(self) -> float:
        return float("inf") if self.faults or self.refused else max(self.errors.values())

    @property
    def fails(self) -> bool:
        """True if Pelton refuses the model, or is wrong."""
        return self.refused.startswith("Pelton") if self.refused else self.worst > LIMIT


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """Returns the largest difference divided by the largest element of b; infinity for other shapes or NaN."""
    if a.shape != b.shape:
        return float("inf")
    if not a.size:
        return 0.0
    most = float(np.abs(b.astype(np.float64)).max()) or 1.0
    error = float(np.abs(a.astype(np.float64) - b).max()) / most
    return error if np.isfinite(error) else float("inf")


class Decoder:
    """One built model and ONNX Runtime's answers."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.answers: Mapping[str, np.ndarray] = np.load(folder / "answers.npz")
        described = json.loads((folder / "inputs.json").read_text())
        self.depth, self.types = described["depth"], described["inputs"]
        self.engine = pelton.build(folder / "model.onnx", self.shapes(), level=0, threads=1)
        self.context = self.engine.context(1)
        self.shares = {p.name: p.shares for p in self.engine.outputs if p.shares is not None}

    def shapes(self) -> dict[str, tuple[Any, ...]]:
        """Returns sizes of caches that may be empty; all others are those of the model."""
        known = {"batch_size": "1..1..64", "kv_cache_dim": self.depth, "past_sequence_length": "0..16..4096"}
        known["past_sliding_length"] = f"{WINDOW}..{WINDOW}..4096"
        return {
            name: tuple(d if isinstance(d, int) else known[d] for d in shape)
            for name, (shape, _) in self.types.items()
            if name.startswith("past")
        }

    def state(self, run: str) -> State:
        types = {name: (shape, np.dtype(dtype)) for name, (shape, dtype) in self.types.items()}
        return State(types, run, self.depth)

    def run(self, run: str, tokens: np.ndarray, state: State) -> Arrays:
        """Runs a step; in the run "shared", caches are extended in place where the engine can."""
        out = {name: state.caches[of] for name, of in self.shares.items()} if run == "shared" else None
        return self.context.run(state.inputs(tokens), out=out)

    def compare(self, row: Row, run: str) -> None:
        """Compares every step of a run, and the caches after the last."""
        state = self.state(run)
        for index, tokens in enumerate(steps(VOCABULARY, run)):
            try:
                outputs = self.run(run, tokens, state)
            except Error as e:
                row.faults.append(f"{run}, step {index}: {shorten(str(e))}")
                return
            errors = {
                name: difference(a, self.answers[f"{run} {name} {index}"])
                for name, a in outputs.items()
                if f"{run} {name} {index}" in self.answers
            }
            part = f"{run} {part_of(index, tokens)}"
            row.errors[part] = max(row.errors.get(part, 0.0), *errors.values())
            for name, error in errors.items():
                if error > LIMIT and not row.judgments:
                    row.judgments.append(f"{run}, step {index}, {name}: {self.judge(run, name, index, outputs[name])}")
            state.extend(tokens, outputs)
        self.compare_caches(row, run, state)

    def compare_caches(self, row: Row, run: str, state: State) -> None:
        """Compares the positions of caches that count; the rest of a longer one is not specified."""
        for name, past in state.caches.items():
            output = name.replace("past_key_values.", "present.").replace("past.", "present.")
            want = self.answers[f"{run} {output}"]
            if past.shape != want.shape:
                row.faults.append(f"{run}, {output} has shape {list(past.shape)}, not {list(want.shape)}")
            elif past.ndim == 4:
                count = resident(self.types[name][0][2], state.length, past.shape[2])
                past, want = past[:, :, :count], want[:, :, :count]
            row.errors[f"{run} caches"] = max(row.errors.get(f"{run} caches", 0.0), difference(past, want))

    def judge(self, run: str, name: str, index: int, output: np.ndarray) -> str:
        """Returns both errors of an output against a float64 evaluation of all steps up to it."""
        state = self.state(run)
        for tokens in [*steps(VOCABULARY, run)][: index + 1]:
            truth = self.evaluate(state.inputs(tokens))
            state.extend(tokens, truth)
        errors = (difference(a, truth[name]) for a in (output, self.answers[f"{run} {name} {index}"]))
        return "against float64, Pelton {:.1e} and ONNX Runtime {:.1e}".format(*errors)

    def evaluate(self, inputs: Arrays) -> Arrays:
        """Returns the outputs of the imported graph, computed in float64."""
        try:
            graph = load(self.folder / "model.onnx", self.shapes()).graph
        except OnData:  # conditions on lengths: masks and positions become constants
            fixed = {name: a for name, a in inputs.items() if name.startswith(("attention", "position"))}
            graph = load(self.folder / "model.onnx", values=fixed).graph
        return evaluate(graph, {v.name: inputs[v.name] for v in graph.inputs}, round=False)


def part_of(index: int, tokens: np.ndarray) -> str:
    """Returns the name of a step's part of a run."""
    if index == 0:
        return "prompt"
    return "steps" if tokens.shape[1] == 1 else "chunk"


def resident(symbol: Any, length: int, capacity: int, window: int = WINDOW) -> int:
    """Returns how many positions of a cache count: all, or those that a windowed one keeps."""
    if symbol != "past_sliding_length" or length <= capacity:
        return min(length, capacity)
    freed = capacity - window + 1
    return length - freed * -(-(length - capacity) // freed)


def shorten(text: str) -> str:
    """Returns a message for a cell of a table."""
    text = re.sub(r"\s+", " ", text).replace("|", "\\|").strip()
    return text if len(text) <= 200 else f"{text[:200]}…"


def check(folder: Path, family: str, form: str) -> Row:
    """Returns the result of one model."""
    row, refused = Row(family, form), folder / "refused.txt"
    if refused.exists():
        row.refused = shorten(refused.read_text())
        return row
    try:
        decoder = Decoder(folder)
    except Error as e:
        row.refused = f"Pelton: {shorten(str(e))}"
        return row
    pasts = sum(name.startswith("past") for name in decoder.types)
    row.in_place = f"{len(decoder.shares)} of {pasts}"
    for run in RUNS:
        decoder.compare(row, run)
    return row


PARTS = ("prompt", "steps", "chunk", "caches")


def cells(row: Row) -> list[str]:
    """Returns a row's cells: the parts of the first run, the largest errors of the others, and of all."""
    first, *others = RUNS
    errors = [row.errors.get(f"{first} {part}") for part in PARTS]
    errors += [max((e for part, e in row.errors.items() if part.startswith(run)), default=None) for run in others]
    return ["" if e is None else f"{e:.1e}" for e in [*errors, row.worst]]


def table(rows: list[Row]) -> list[str]:
    """Returns the lines of the page."""
    compared = [row for row in rows if not row.refused]
    close = sum(row.worst <= LIMIT for row in compared)
    own = sum(row.fails for row in rows if row.refused)
    others = len(rows) - len(compared) - own
    lines = [
        f"{close} of {len(compared)} models agree within {LIMIT:g} of the largest element. Pelton"
        f" refuses {own}, the builder or ONNX Runtime {others}.",
        "",
        f"| Family | Form | {' | '.join([*PARTS, *[*RUNS][1:]])} | largest | in place | |",
        f"|---|---|{'--:|' * (len(PARTS) + len(RUNS) + 1)}---|",
    ]
    for row in compared:
        texts = [row.family, row.form, *cells(row), row.in_place, "; ".join(row.faults + row.judgments)]
        lines.append(f"| {' | '.join(texts)} |")
    if refusals := [row for row in rows if row.refused]:
        lines += ["", "| Refused | Forms | By: reason |", "|---|---|---|"]
        forms: dict[tuple[str, str], list[str]] = {}
        for row in refusals:
            forms.setdefault((row.family, row.refused), []).append(row.form)
        lines += [f"| {family} | {'; '.join(names)} | {reason} |" for (family, reason), names in forms.items()]
    return lines


def main() -> str | None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--genai", metavar="PYTHON", help="makes the models that FOLDER lacks")
    parser.add_argument("--folder", type=Path, default=Path("build/decoders"))
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    if args.genai:
        subprocess.run([args.genai, str(PEER), str(args.folder), *args.families], check=True)
    rows = []
    for forms in sorted(args.folder.glob("*/forms.json")):
        if not args.families or forms.parent.name in args.families:
            for form in json.loads(forms.read_text()):
                rows.append(check(forms.parent / form, forms.parent.name, form))
                row = rows[-1]
                print(
                    row.family,
                    row.form,
                    row.refused or f"{row.worst:.1e}",
                    *row.faults,
                    *row.judgments,
                    sep=", ",
                    flush=True,
                )
    lines = table(rows)
    print("\n".join(lines))
    if args.page:
        replace_part(args.page, BEGIN, END, lines)
    wrong = sum(row.fails for row in rows)
    return f"{wrong} of {len(rows)} models fail" if wrong or not rows else None


if __name__ == "__main__":
    sys.exit(main())
