#!/usr/bin/env python3
"""Makes folders with tokenizers of several kinds, and records what transformers makes of lines:
tokenizers_of_folders.py FOLDER COUNT. Needs the packages transformers and tokenizers.

Each is trained on lines of scripts.py, as the families have them: bytes cut into words as GPT-2, Llama 3 and Qwen 2 do,
pieces with bytes for unknown characters as Llama 2 and Gemma have, and WordPiece.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from scripts import lines
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>"]
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|")
BYTES = [f"<0x{b:02X}>" for b in range(256)]


def byte_level(words: str | None, normalizer: Any = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words is None)
    split = [] if words is None else [pre_tokenizers.Split(Regex(words), "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, cut])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def pieces() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def word_pieces() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    return tokenizer


KINDS = {
    "gpt2": lambda: byte_level(None),
    "llama3": lambda: byte_level(LLAMA3),
    "qwen2": lambda: byte_level(QWEN2, normalizers.NFC()),
    "llama2": pieces,
    "bert": word_pieces,
}


def main(folder: Path, count: int) -> None:
    texts, judged = list(lines(4000, 1)), list(lines(count, 2))
    for name, make in KINDS.items():
        tokenizer = make()
        alphabet = pre_tokenizers.ByteLevel.alphabet() if name in ("gpt2", "llama3", "qwen2") else []
        special = [*SPECIAL, *(BYTES if name == "llama2" else [])]
        trainer_of = trainers.WordPieceTrainer if name == "bert" else trainers.BpeTrainer
        trainer = trainer_of(vocab_size=3000, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
        tokenizer.train_from_iterator(texts, trainer)
        if name in ("llama3", "llama2"):
            tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
        to = folder / name
        to.mkdir(parents=True, exist_ok=True)
        fast = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>",
            clean_up_tokenization_spaces=False,
        )  # fmt: skip
        fast.save_pretrained(to)
        ids = [fast.encode(text) for text in judged]
        decoded = [fast.decode(i, skip_special_tokens=True) for i in ids]
        answers = dict(lines=judged, ids=ids, decoded=decoded, kept=[fast.decode(i) for i in ids])
        (to / "answers.json").write_text(json.dumps(answers))
        print(name, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
