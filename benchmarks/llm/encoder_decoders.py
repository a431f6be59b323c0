#!/usr/bin/env python3
"""Compares encoder–decoders of every family with transformers: logits in float64, answers, spectrograms.

    python -m benchmarks.llm.encoder_decoders --peer PYTHON [--real WHISPER WAV] [--folder build/encoder-decoders]
        [--page benchmarks/llm/language.md]

PYTHON has transformers, torch and tokenizers; it makes tiny models with random weights (peers/encoder_decoders.py) and
their answers. For each of three sources, Pelton runs the encoder, takes an answer of 24 tokens at once, and then 5 at
once and 19 singly; the same singly for all three in one batch; and generates. With --real, the peer also reads a model
of English that a package holds, as faster-whisper uses it. An error is the largest difference of a
number, divided by the largest one.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import pelton
from pelton.errors import Error
from pelton.language import Decoder, GenerationRequest
from pelton.language.mel import log_mel
from pelton.language.source_encoder import EncoderInput
from pelton.language.transcription import listener

from benchmarks.serve.page import replace_part

PEER = Path(__file__).parent / "peers" / "encoder_decoders.py"
BEGIN, END = "<!-- encoder-decoders: begin -->", "<!-- encoder-decoders: end -->"
LIMIT, SOURCES, NEW, FIRST = 1e-4, 3, 40, 5
PARTS = ("all at once", "steps", "batch", "spectrogram")


@dataclass
class PairRow:
    """The result of one model. errors: by part. same, tokens: of generated answers, those that are equal, and all."""

    name: str
    errors: dict[str, float] = field(default_factory=dict)
    same: int = 0
    tokens: int = 0
    fault: str = ""

    @property
    def fails(self) -> bool:
        return bool(self.fault) or max(self.errors.values()) > LIMIT or self.same < self.tokens

    def note(self, part: str, got: np.ndarray, want: np.ndarray) -> None:
        """Notes an error; infinity for other shapes and NaN."""
        error = float("inf")
        if got.shape == want.shape and np.isfinite(got).all():
            error = float(np.abs(got.astype(np.float64) - want).max() / np.abs(want).max())
        self.errors[part] = max(self.errors.get(part, 0.0), error)

    def note_tokens(self, got: tuple[int, ...], want: np.ndarray) -> None:
        """Notes a generated answer; tokens behind the first other one count as others."""
        equal = [a == b for a, b in zip(got, want.tolist(), strict=False)]
        self.same += equal.index(False) if False in equal else len(equal)
        self.tokens += max(len(got), len(want))


def check(folder: Path, cache: str) -> PairRow:
    """Returns the result of the model in a folder. cache: a folder for engines."""
    row, answers = PairRow(folder.name), dict(np.load(folder / "answers.npz"))
    try:
        decoder = pelton.language.open(folder, threads=1, cache_folder=cache)
        check_logits(row, decoder, answers)
        with pelton.LanguageModel(decoder) as model:
            generate = check_speech if "0 sound" in answers else check_text
            generate(row, model, answers)
    except Error as e:
        row.fault = f"{type(e).__name__}: {e}".replace("|", "\\|")
    return row


def source(decoder: Decoder, answers: dict[str, np.ndarray], i: int) -> EncoderInput:
    encoder = decoder.encoder
    assert encoder is not None
    if f"{i} ids" in answers:
        return encoder.text(answers[f"{i} ids"].tolist())
    return encoder.sound(answers[f"{i} spectrogram"])


def check_logits(row: PairRow, decoder: Decoder, answers: dict[str, np.ndarray]) -> None:
    batch, encoder = decoder.batch(SOURCES), decoder.encoder
    assert encoder is not None
    for i in range(SOURCES):
        ids, want = answers[f"{i} answer"].tolist(), answers[f"{i} logits"]
        sequence = decoder.state()
        encoder.read(source(decoder, answers, i), sequence.state)
        row.note("all at once", sequence.extend(ids, all_rows=True), want)
        sequence.rewind(0)
        row.note("steps", sequence.extend(ids[:FIRST], all_rows=True), want[:FIRST])
        other = sequence.fork()
        for at in range(FIRST, len(ids)):
            row.note("steps", other.extend([ids[at]]), want[at])
        encoder.read(source(decoder, answers, i), batch[i].state)
        batch[i].extend(ids[:FIRST])
    for at in range(FIRST, len(ids)):
        logits = batch.step({i: int(answers[f"{i} answer"][at]) for i in range(SOURCES)})
        for i in range(SOURCES):
            row.note("batch", logits[i], answers[f"{i} logits"][at])


def check_text(row: PairRow, model: pelton.LanguageModel, answers: dict[str, np.ndarray]) -> None:
    requests = [GenerationRequest(tuple(answers[f"{i} ids"].tolist()), NEW) for i in range(SOURCES)]
    for i, answer in enumerate([model.submit(r) for r in requests]):
        row.note_tokens(answer.tokens, answers[f"{i} generated"])


def check_speech(row: PairRow, model: pelton.LanguageModel, answers: dict[str, np.ndarray]) -> None:
    of = listener(model.scheduler, NEW)
    for i in range(SOURCES):
        want = answers[f"{i} spectrogram"]
        spectrogram = log_mel(answers[f"{i} sound"], *want.shape)
        row.note("spectrogram", spectrogram, want)
        ways = {"": ("de", "translate") if of.rules.languages else (None, None)}
        if of.rules.languages:
            ways[" detected"] = (of.detected(spectrogram), "transcribe")
        for name, (language, task) in ways.items():
            answer, ends = of.submit(spectrogram, of.prompt(language, task)), model.tokens.eos
            kept = tuple(t for t in answer.tokens if t not in ends)  # transformers leaves out the end of a sound
            row.note_tokens(kept, answers[f"{i} generated{name}"])


def table(rows: list[PairRow]) -> list[str]:
    close = sum(not row.fails for row in rows)
    lines = [f"{close} of {len(rows)} models agree within {LIMIT:g} of the largest number, and in all tokens.", ""]
    lines += [f"| Model | {' | '.join(PARTS)} | equal tokens | |", f"|---|{'--:|' * (len(PARTS) + 1)}---|"]
    for row in rows:
        cells = [f"{row.errors[part]:.1e}" if part in row.errors else "" for part in PARTS]
        lines.append(f"| {row.name} | {' | '.join(cells)} | {row.same} of {row.tokens} | {row.fault} |")
    return lines


def main() -> str | None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", metavar="PYTHON", help="makes the models")
    parser.add_argument(
        "--real", nargs=2, default=(), metavar=("WHISPER", "WAV"), help="a folder of CTranslate2, and what it hears"
    )
    parser.add_argument("--folder", type=Path, default=Path("build/encoder-decoders"))
    parser.add_argument("--only", default="", help="a part of the names of models")
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    if args.peer:
        subprocess.run([args.peer, str(PEER), str(args.folder), *args.real], check=True)
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        for answers in sorted(args.folder.glob("*/answers.npz")):
            if args.only in answers.parent.name:
                rows.append(check(answers.parent, cache))
                print(*table(rows[-1:])[-1:], flush=True)
    lines = table(rows)
    print("\n".join(lines))
    if args.page:
        replace_part(args.page, BEGIN, END, lines)
    wrong = sum(row.fails for row in rows)
    return f"{wrong} of {len(rows)} models fail" if wrong or not rows else None


if __name__ == "__main__":
    sys.exit(main())
