#!/usr/bin/env python3
"""Compares sentence encoders of every family with transformers in float64, and one that a package ships.

    python -m benchmarks.llm.embeddings --peer PYTHON [--folder build/embeddings] [--real FOLDER]
        [--page benchmarks/llm/language.md]

PYTHON has transformers and torch; it makes tiny encoders with random weights (peers/sentence_encoders.py) and their
embeddings, of texts of 1 to 141 tokens, each alone. Pelton embeds them one by one, four at once and all at once. With
--real, the peer embeds sentences by a folder of sentence-transformers, in float64, with its own tokens. An error is the
largest difference of a number, divided by the largest one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

import pelton
from pelton.errors import Error

from .compared import LIMIT, ComparedModel, add_arguments, compare, head, report

PEER = Path(__file__).parent / "peers" / "sentence_encoders.py"
REAL = Path(__file__).parent / "peers" / "sentence_embeddings.py"
BEGIN, END = "<!-- embeddings: begin -->", "<!-- embeddings: end -->"
PARTS = {"one by one": 1, "four at once": 4, "all at once": 32}


def check(folder: Path, cache: str) -> ComparedModel:
    """Returns the result of the encoder in a folder. cache: a folder for engines."""
    row, answers = ComparedModel(folder.name), dict(np.load(folder / "answers.npz"))
    texts = [part.tolist() for part in np.split(answers["ids"], np.cumsum(answers["lengths"])[:-1])]
    try:
        encoder = pelton.language.open_encoder(folder, threads=1, cache_folder=cache)
        for part, batch in PARTS.items():
            row.note(part, encoder.embed_tokens(texts, batch=batch), answers["embeddings"])
    except Error as e:
        row.note_fault(e)
    return row


def check_real(folder: Path, peer: str, cache: str) -> ComparedModel:
    """Returns the result of an encoder that a package ships, on sentences."""
    row = ComparedModel(folder.parent.name.replace("_", "-") + ", sentences")
    with tempfile.TemporaryDirectory() as made:
        answers, texts = Path(made) / "answers.npy", Path(made) / "texts.json"
        texts.write_text(json.dumps(sentences()))
        subprocess.run([peer, str(REAL), str(folder), str(texts), str(answers)], check=True)
        want = np.load(answers)
    model = pelton.LanguageModel(folder, threads=1, cache_folder=cache)
    for part, batch in PARTS.items():
        row.note(part, model.embed(sentences(), batch=batch), want)
    return row


def sentences() -> list[str]:
    """Returns sentences in several scripts, one of which is longer than models take."""
    own = [
        "How do I change my password?",
        "",
        "The cat sleeps.",
        "Le chat dort sur le canapé.",
        "猫がソファで寝ている。",
    ]
    own += ["Кошка спит на диване 😺", "naïve café, ÅNGSTRÖM", "x" * 300, "ten words and more " * 150]
    return own + [f"The number after {i} is {i + 1}, and {'so on ' * (i % 7)}." for i in range(24)]


def table(rows: list[ComparedModel]) -> list[str]:
    close = sum(not row.fails for row in rows)
    lines = [f"{close} of {len(rows)} encoders agree within {LIMIT:g} of the largest number.", ""]
    return [*lines, *head("Encoder", tuple(PARTS)), *(row.line(tuple(PARTS)) for row in rows)]


def main() -> str | None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, "build/embeddings")
    parser.add_argument("--real", type=Path, help="a folder of sentence-transformers")
    args = parser.parse_args()
    rows = compare(args, PEER, check)
    if args.real:
        with tempfile.TemporaryDirectory() as cache:
            rows.append(check_real(args.real, args.peer or sys.executable, cache))
    return report(rows, table(rows), args.page, BEGIN, END)


if __name__ == "__main__":
    sys.exit(main())
