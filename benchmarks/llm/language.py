#!/usr/bin/env python3
"""Compares language models of every family with transformers in float64, from folders and from GGUF files.

    python -m benchmarks.llm.language --peer PYTHON [--folder build/language] [--page benchmarks/llm/language.md]

PYTHON has transformers, torch, gguf and tokenizers; it makes tiny models with random weights (peers/language_models.py)
and their answers. Pelton opens each (`pelton.language.open`), and takes a prompt of 12 tokens, one, four, thirteen
single ones and ten; then all of them at once; then three sequences in one batch, of which one rests. An error is the
largest difference of a logit, divided by the largest one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import pelton.language
from pelton.errors import Error

from benchmarks.serve.page import replace_part

PEER = Path(__file__).parent / "peers" / "language_models.py"
BEGIN, END = "<!-- language: begin -->", "<!-- language: end -->"
LIMIT = 1e-4


@dataclass
class Row:
    """The result of one model. errors: by part."""

    name: str
    errors: dict[str, float] = field(default_factory=dict)
    fault: str = ""

    @property
    def worst(self) -> float:
        return float("inf") if self.fault else max(self.errors.values())

    def note(self, part: str, logits: np.ndarray, want: np.ndarray) -> None:
        """Notes the error of logits; infinity for other shapes and NaN."""
        error = float("inf")
        if logits.shape == want.shape and np.isfinite(logits).all():
            error = float(np.abs(logits.astype(np.float64) - want).max() / np.abs(want).max())
        self.errors[part] = max(self.errors.get(part, 0.0), error)


def check(folder: Path, cache: str) -> Row:
    """Returns the result of the model in a folder. cache: a folder for engines."""
    row, answers = Row(folder.name), dict(np.load(folder / "answers.npz"))
    ids, path = answers["ids"].tolist(), folder / "model.gguf"
    try:
        decoder = pelton.language.open(path if path.exists() else folder, threads=1, cache_folder=cache)
        sequence = decoder.state()
        row.note("prompt", sequence.extend(ids[:12], all_rows=True), answers["12"])
        row.note("steps", sequence.extend(ids[12:13]), answers["13"][-1])
        row.note("chunk", sequence.extend(ids[13:17]), answers["17"][-1])
        for id in ids[17:30]:
            logits = sequence.extend([id])
        row.note("steps", logits, answers["30"][-1])
        row.note("chunk", sequence.extend(ids[30:], all_rows=True), answers["all"][30:])
        row.note("all at once", decoder.state().extend(ids, all_rows=True), answers["all"])
        sequence.rewind(12)
        row.note("rewound", sequence.fork().extend(ids[12:17]), answers["17"][-1])
        batch = decoder.batch(3)
        for i, length in enumerate((29, 12, 16)):
            batch[i].extend(ids[:length])
        logits_of = batch.step({0: ids[29], 2: ids[16]}) | batch.step({1: ids[12]})
        for i, length in enumerate((30, 13, 17)):
            row.note("batch", logits_of[i], answers[f"{length}"][-1])
    except Error as e:
        row.fault = f"{type(e).__name__}: {e}".replace("|", "\\|")
    return row


PARTS = ("prompt", "steps", "chunk", "all at once", "rewound", "batch")


def table(rows: list[Row]) -> list[str]:
    close = sum(row.worst <= LIMIT for row in rows)
    lines = [f"{close} of {len(rows)} models agree within {LIMIT:g} of the largest logit.", ""]
    lines += [f"| Model | {' | '.join(PARTS)} | largest | |", f"|---|{'--:|' * (len(PARTS) + 1)}---|"]
    for row in rows:
        cells = [f"{row.errors[part]:.1e}" if part in row.errors else "" for part in PARTS]
        lines.append(f"| {row.name} | {' | '.join(cells)} | {row.worst:.1e} | {row.fault} |")
    return lines


def main() -> str | None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", metavar="PYTHON", help="makes the models")
    parser.add_argument("--folder", type=Path, default=Path("build/language"))
    parser.add_argument("--only", default="", help="a part of the names of models")
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    if args.peer:
        subprocess.run([args.peer, str(PEER), str(args.folder)], check=True)
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        for answers in sorted(args.folder.glob("*/answers.npz")):
            if args.only in answers.parent.name:
                rows.append(check(answers.parent, cache))
                print(f"{rows[-1].name}: {rows[-1].worst:.1e} {rows[-1].fault}", flush=True)
    lines = table(rows)
    print("\n".join(lines))
    if args.page:
        replace_part(args.page, BEGIN, END, lines)
    wrong = sum(row.worst > LIMIT for row in rows)
    return f"{wrong} of {len(rows)} models fail" if wrong or not rows else None


if __name__ == "__main__":
    sys.exit(main())
