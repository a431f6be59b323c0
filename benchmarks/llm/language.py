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
import sys
from pathlib import Path

import numpy as np

import pelton.language
from pelton.errors import Error

from .compared import LIMIT, ComparedModel, add_arguments, compare, head, report

PEER = Path(__file__).parent / "peers" / "language_models.py"
BEGIN, END = "<!-- language: begin -->", "<!-- language: end -->"


def check(folder: Path, cache: str) -> ComparedModel:
    """Returns the result of the model in a folder. cache: a folder for engines."""
    row, answers = ComparedModel(folder.name), dict(np.load(folder / "answers.npz"))
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
        row.note_fault(e)
    return row


PARTS = ("prompt", "steps", "chunk", "all at once", "rewound", "batch")


def table(rows: list[ComparedModel]) -> list[str]:
    close = sum(not row.fails for row in rows)
    lines = [f"{close} of {len(rows)} models agree within {LIMIT:g} of the largest logit.", ""]
    return [*lines, *head("Model", PARTS, "largest"), *(row.line(PARTS, f"{row.worst:.1e}") for row in rows)]


def main() -> str | None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, "build/language")
    args = parser.parse_args()
    rows = compare(args, PEER, check)
    return report(rows, table(rows), args.page, BEGIN, END)


if __name__ == "__main__":
    sys.exit(main())
