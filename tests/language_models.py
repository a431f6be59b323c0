"""A small language model in onnxruntime-genai's layout: random weights of 4 bits, and a tokenizer of bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_sequences import CAPACITY, DEPTH, KV, LAYERS, decoder

VOCABULARY = 320
SPECIAL = ("<|end|>", "<|user|>", "<|assistant|>")
TEMPLATE = (
    "{% for m in messages %}{{ '<|user|>' if m.role == 'user' else '<|assistant|>' }}{{ m.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
TEXT = "A sequence keeps its keys and values: the cache of a decoder. Ein Wörterbuch für Bäume, 你好, and a smile 🙂. "


def write_model(folder: Path, template: str = TEMPLATE) -> Path:
    """Writes the files of a model into a folder, which it returns; skips the test without the library of tokens."""
    pytest.importorskip("tokenizers", reason="language models need the package tokenizers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=[*SPECIAL], initial_alphabet=alphabet)
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": SPECIAL[0], "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "model.onnx").write_bytes(decoder(VOCABULARY).SerializeToString())
    (folder / "genai_config.json").write_text(json.dumps({"model": _config()}))
    return folder


def _config() -> dict:
    names = {f"past_{part}_names": f"past.%d.{part}" for part in ("key", "value")}
    return {
        "type": "llama",
        "context_length": CAPACITY,
        "vocab_size": VOCABULARY,
        "eos_token_id": 0,
        "decoder": {
            "filename": "model.onnx",
            "num_hidden_layers": LAYERS,
            "num_key_value_heads": KV,
            "head_size": DEPTH,
            "inputs": {"input_ids": "ids", "attention_mask": "mask", **names},
            "outputs": {"logits": "logits"},
        },
    }
