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
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import pelton
from pelton.errors import Error
from pelton.language import Decoder, GenerationRequest
from pelton.language.mel import log_mel
from pelton.language.source_encoder import EncoderInput
from pelton.language.transcription import listener

from .compared import LIMIT, ComparedModel, add_arguments, compare, head, report

PEER = Path(__file__).parent / "peers" / "encoder_decoders.py"
BEGIN, END = "<!-- encoder-decoders: begin -->", "<!-- encoder-decoders: end -->"
SOURCES, NEW, FIRST = 3, 40, 5
PARTS = ("all at once", "steps", "batch", "spectrogram")


@dataclass
class ComparedPair(ComparedModel):
    """The result of an encoder–decoder. same, tokens: of generated answers, those that are equal, and all."""

    same: int = 0
    tokens: int = 0

    @property
    def fails(self) -> bool:
        return self.worst > LIMIT or self.same < self.tokens

    def note_tokens(self, got: tuple[int, ...], want: np.ndarray) -> None:
        """Notes a generated answer; tokens behind the first other one count as others."""
        equal = [a == b for a, b in zip(got, want.tolist(), strict=False)]
        self.same += equal.index(False) if False in equal else len(equal)
        self.tokens += max(len(got), len(want))


def check(folder: Path, cache: str) -> ComparedPair:
    """Returns the result of the model in a folder. cache: a folder for engines."""
    row, answers = ComparedPair(folder.name), dict(np.load(folder / "answers.npz"))
    try:
        decoder = pelton.language.open(folder, threads=1, cache_folder=cache)
        check_logits(row, decoder, answers)
        with pelton.LanguageModel(decoder) as model:
            generate = check_speech if "0 sound" in answers else check_text
            generate(row, model, answers)
    except Error as e:
        row.note_fault(e)
    return row


def source(decoder: Decoder, answers: dict[str, np.ndarray], i: int) -> EncoderInput:
    encoder = decoder.encoder
    assert encoder is not None
    if f"{i} ids" in answers:
        return encoder.text(answers[f"{i} ids"].tolist())
    return encoder.sound(answers[f"{i} spectrogram"])


def check_logits(row: ComparedPair, decoder: Decoder, answers: dict[str, np.ndarray]) -> None:
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


def check_text(row: ComparedPair, model: pelton.LanguageModel, answers: dict[str, np.ndarray]) -> None:
    requests = [GenerationRequest(tuple(answers[f"{i} ids"].tolist()), NEW) for i in range(SOURCES)]
    for i, answer in enumerate([model.submit(r) for r in requests]):
        row.note_tokens(answer.tokens, answers[f"{i} generated"])


def check_speech(row: ComparedPair, model: pelton.LanguageModel, answers: dict[str, np.ndarray]) -> None:
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


def table(rows: list[ComparedPair]) -> list[str]:
    close = sum(not row.fails for row in rows)
    lines = [f"{close} of {len(rows)} models agree within {LIMIT:g} of the largest number, and in all tokens.", ""]
    found = (row.line(PARTS, f"{row.same} of {row.tokens}") for row in rows)
    return [*lines, *head("Model", PARTS, "equal tokens"), *found]


def main() -> str | None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser, "build/encoder-decoders")
    parser.add_argument(
        "--real", nargs=2, default=(), metavar=("WHISPER", "WAV"), help="a folder of CTranslate2, and what it hears"
    )
    args = parser.parse_args()
    rows = compare(args, PEER, check, args.real)
    return report(rows, table(rows), args.page, BEGIN, END)


if __name__ == "__main__":
    sys.exit(main())
