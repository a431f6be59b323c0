#!/usr/bin/env python3
"""Makes folders with tokenizers of several kinds, and records what transformers makes of lines:
tokenizers_of_folders.py FOLDER COUNT. Needs the packages transformers, tokenizers and gguf.

Each is trained on lines of scripts.py, as the families have them: bytes cut into words as GPT-2, Llama 3 and Qwen 2 do,
pieces with bytes for unknown characters as Llama 2 and Gemma have, and WordPiece. Those that GGUF files have are also
written as such, KIND.gguf, beside a network without meaning.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
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


# name → the kind of tokenizer in GGUF files, and that of words; for pieces, whether a space is put in front
FILES = {
    "gpt2": (("gpt2", "gpt-2"), ("gpt2", "smollm"), ("gpt2", "default")),
    "llama3": (("gpt2", "llama-bpe"),),  # llama.cpp takes minutes for words of tekken and gpt-4o
    "qwen2": (("gpt2", "qwen2"),),
    "llama2": (("llama", ""), ("llama", "bare")),
}
WIDTH = 32


def write_file(path: Path, tokenizer: Tokenizer, model: str, words: str) -> None:
    """Writes a GGUF file with the tokens of a tokenizer, and a Llama of one layer."""
    described = json.loads(tokenizer.to_str())
    vocabulary = described["model"]["vocab"]
    texts = sorted(vocabulary, key=vocabulary.__getitem__)
    writer = gguf.GGUFWriter(path, "llama")
    for key, number in (("context_length", 64), ("embedding_length", WIDTH), ("block_count", 1)):
        writer.add_uint32(f"llama.{key}", number)
    for key, number in (("feed_forward_length", WIDTH), ("attention.head_count", 2), ("rope.dimension_count", 16)):
        writer.add_uint32(f"llama.{key}", number)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model(model)
    if model == "gpt2":
        writer.add_tokenizer_pre(words)
        writer.add_token_merges([" ".join(pair) for pair in described["model"]["merges"]])
    else:
        writer.add_token_scores([-float(i) for i in range(len(texts))])
        writer.add_add_space_prefix(words != "bare")
    kinds = {text: 3 for text in SPECIAL} | {"<unk>": 2} | dict.fromkeys(BYTES, 6)
    writer.add_token_list(texts)
    writer.add_token_types([kinds.get(text, 1) for text in texts])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(2)
    shapes = {"token_embd": (len(texts), WIDTH), "output_norm": (WIDTH,), "output": (len(texts), WIDTH)}
    shapes |= {f"blk.0.attn_{p}": (WIDTH, WIDTH) for p in ("q", "k", "v", "output")}
    shapes |= {f"blk.0.ffn_{p}": (WIDTH, WIDTH) for p in ("gate", "up", "down")}
    shapes |= {f"blk.0.{p}_norm": (WIDTH,) for p in ("attn", "ffn")}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", np.ones(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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
        for model, words in FILES.get(name, ()):
            write_file(folder / f"{model}{words and '-' + words}.gguf", tokenizer, model, words)
        print(name, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
