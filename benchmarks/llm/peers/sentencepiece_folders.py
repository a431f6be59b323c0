#!/usr/bin/env python3
"""Makes folders whose tokenizers are SentencePiece models, and records what others make of lines:
sentencepiece_folders.py FOLDER COUNT. Needs the packages transformers and sentencepiece.

Models are trained on lines of scripts.py. Tokens are those of transformers' slow tokenizer, framed as the families have
them; texts are those of sentencepiece.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts import lines
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from transformers.tokenization_utils_sentencepiece import SentencePieceBackend

SPACE = "\u2581"
NAMED = dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>")
T5 = dict(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)


def train(path: Path, texts: Path, **options: Any) -> SentencePieceProcessor:
    options = dict(input=str(texts), model_prefix=str(path.with_suffix("")), minloglevel=2) | options
    SentencePieceTrainer.train(vocab_size=6000, character_coverage=0.98, max_sentence_length=20000, **options)
    path.with_suffix(".vocab").unlink()
    return SentencePieceProcessor(model_file=str(path))


class SlowTokenizer(SentencePieceBackend):
    """transformers' tokenizer by sentencepiece. legacy false: as its Llama tokenizers were, with one space in front."""

    def tokenize(self, text: str, **options: Any) -> list[str]:
        if self.legacy:
            return super().tokenize(text, **options)
        pieces = super().tokenize(SPACE + text.replace(SPACE, " "), **options)
        return pieces[1:] if len(pieces) > 1 and pieces[0] == SPACE and pieces[1] in self.all_special_tokens else pieces


@dataclass(frozen=True)
class Recorded:
    """A folder's model, what makes ids of a line, what makes them the model's again, and the folder's settings."""

    model: SentencePieceProcessor
    encode: Callable[[str], list[int]]
    pieces: Callable[[list[int]], list[int]]
    settings: dict[str, Any]


def byte_pairs(to: Path, texts: Path, legacy: bool) -> Recorded:
    path = to / "tokenizer.model"
    exact = dict(normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True)
    model = train(path, texts, model_type="bpe", byte_fallback=True, **exact)
    slow = SlowTokenizer(vocab_file=str(path), legacy=legacy, **NAMED)
    settings = dict(tokenizer_class="LlamaTokenizer", legacy=legacy, **NAMED)
    return Recorded(model, lambda text: [1, *slow.encode(text)], list, settings)


def t5(to: Path, texts: Path) -> Recorded:
    path = to / "spiece.model"
    model = train(path, texts, model_type="unigram", **T5)
    named = dict(eos_token="</s>", unk_token="<unk>", pad_token="<pad>")
    slow = SlowTokenizer(vocab_file=str(path), legacy=True, **named)
    settings = dict(tokenizer_class="T5Tokenizer", **named)
    return Recorded(model, lambda text: [*slow.encode(text), 1], list, settings)


def xlm(to: Path, texts: Path) -> Recorded:
    """Ids are those of fairseq: <s>, <pad>, </s>, <unk>, then pieces."""
    path = to / "sentencepiece.bpe.model"
    model = train(path, texts, model_type="unigram")  # <unk>, <s>, </s>, then pieces
    slow = SlowTokenizer(vocab_file=str(path), legacy=True, **NAMED)
    to_fairseq, back = {0: 3, 1: 0, 2: 2}, {3: 0, 0: 1, 2: 2}
    settings = dict(tokenizer_class="XLMRobertaTokenizer", pad_token="<pad>", mask_token="<mask>", **NAMED)
    return Recorded(
        model,
        lambda text: [0, *(to_fairseq.get(i, i + 1) for i in slow.encode(text)), 2],
        lambda ids: [back.get(i, i - 1) for i in ids],
        settings,
    )


def decoded(model: SentencePieceProcessor, pieces: list[int]) -> str | None:
    """Returns sentencepiece's text without special tokens; None where it begins with unknown characters: sentencepiece
    then drops the space behind them."""
    if model.unk_id() in pieces and not model.decode(pieces[: pieces.index(model.unk_id())]):
        return None
    return model.decode([i for i in pieces if not model.is_control(i) and not model.is_unknown(i)])


KINDS = {
    "sentencepiece, byte pairs": lambda to, texts: byte_pairs(to, texts, True),
    "sentencepiece, byte pairs, not legacy": lambda to, texts: byte_pairs(to, texts, False),
    "sentencepiece, t5": t5,
    "sentencepiece, xlm-r": xlm,
}


def main(folder: Path, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    texts, judged = folder / "lines.txt", list(lines(count, 2))
    texts.write_text("\n".join(lines(4000, 1)))
    for name, make in KINDS.items():
        to = folder / name
        to.mkdir(exist_ok=True)
        made = make(to, texts)
        (to / "tokenizer_config.json").write_text(json.dumps(made.settings))
        ids = [made.encode(text) for text in judged]
        plain = [decoded(made.model, made.pieces(row)) for row in ids]
        answers = dict(lines=judged, ids=ids, decoded=plain, kept=None)
        (to / "answers.json").write_text(json.dumps(answers))
        print(name, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
