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
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import pelton
from pelton.errors import Error

from benchmarks.serve.page import replace_part

PEER = Path(__file__).parent / "peers" / "sentence_encoders.py"
REAL = Path(__file__).parent / "peers" / "sentence_embeddings.py"
BEGIN, END = "<!-- embeddings: begin -->", "<!-- embeddings: end -->"
LIMIT = 1e-4
PARTS = {"one by one": 1, "four at once": 4, "all at once": 32}


@dataclass
class EncoderRow:
    """The result of one encoder. errors: by part."""

    name: str
    errors: dict[str, float] = field(default_factory=dict)
    fault: str = ""

    @property
    def worst(self) -> float:
        return float("inf") if self.fault else max(self.errors.values())


def error_of(got: np.ndarray, want: np.ndarray) -> float:
    """Returns the error of embeddings; infinity for other shapes and NaN."""
    if got.shape != want.shape or not np.isfinite(got).all():
        return float("inf")
    return float(np.abs(got.astype(np.float64) - want).max() / np.abs(want).max())


def check(folder: Path, cache: str) -> EncoderRow:
    """Returns the result of the encoder in a folder. cache: a folder for engines."""
    row, answers = EncoderRow(folder.name), dict(np.load(folder / "answers.npz"))
    texts = [part.tolist() for part in np.split(answers["ids"], np.cumsum(answers["lengths"])[:-1])]
    try:
        encoder = pelton.language.open_encoder(folder, threads=1, cache_folder=cache)
        for part, batch in PARTS.items():
            row.errors[part] = error_of(encoder.embed_tokens(texts, batch=batch), answers["embeddings"])
    except Error as e:
        row.fault = f"{type(e).__name__}: {e}".replace("|", "\\|")
    return row


def check_real(folder: Path, peer: str, cache: str) -> EncoderRow:
    """Returns the result of an encoder that a package ships, on sentences."""
    row = EncoderRow(folder.parent.name.replace("_", "-") + ", sentences")
    with tempfile.TemporaryDirectory() as made:
        answers, texts = Path(made) / "answers.npy", Path(made) / "texts.json"
        texts.write_text(json.dumps(sentences()))
        subprocess.run([peer, str(REAL), str(folder), str(texts), str(answers)], check=True)
        want = np.load(answers)
    model = pelton.LanguageModel(folder, threads=1, cache_folder=cache)
    for part, batch in PARTS.items():
        row.errors[part] = error_of(model.embed(sentences(), batch=batch), want)
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


def table(rows: list[EncoderRow]) -> list[str]:
    close = sum(row.worst <= LIMIT for row in rows)
    lines = [f"{close} of {len(rows)} encoders agree within {LIMIT:g} of the largest number.", ""]
    lines += [f"| Encoder | {' | '.join(PARTS)} | |", f"|---|{'--:|' * len(PARTS)}---|"]
    for row in rows:
        cells = [f"{row.errors[part]:.1e}" if part in row.errors else "" for part in PARTS]
        lines.append(f"| {row.name} | {' | '.join(cells)} | {row.fault} |")
    return lines


def main() -> str | None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", metavar="PYTHON", help="makes the encoders")
    parser.add_argument("--folder", type=Path, default=Path("build/embeddings"))
    parser.add_argument("--real", type=Path, help="a folder of sentence-transformers")
    parser.add_argument("--only", default="", help="a part of the names of encoders")
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
        if args.real:
            rows.append(check_real(args.real, args.peer or sys.executable, cache))
    lines = table(rows)
    print("\n".join(lines))
    if args.page:
        replace_part(args.page, BEGIN, END, lines)
    wrong = sum(row.worst > LIMIT for row in rows)
    return f"{wrong} of {len(rows)} encoders fail" if wrong or not rows else None


if __name__ == "__main__":
    sys.exit(main())
