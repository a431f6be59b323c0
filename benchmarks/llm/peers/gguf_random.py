"""Writes a GGUF file with random weights of a Hugging Face folder's shape: gguf_random.py FOLDER FILE.

Weights are Q4_0, and the table of tokens, which is the head too, Q8_0. The vocabulary is made up: peers take tokens as
numbers. Needs the package gguf.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

HEAD = "token_embd.weight"


def shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the tensors of a model."""
    width, inner, depth = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = (depth * config[name] for name in ("num_attention_heads", "num_key_value_heads"))
    yield HEAD, (config["vocab_size"], width)
    for i in range(config["num_hidden_layers"]):
        for name, rows in (("q", queries), ("k", keys), ("v", keys)):
            yield f"blk.{i}.attn_{name}.weight", (rows, width)
            if config["model_type"] == "qwen2":
                yield f"blk.{i}.attn_{name}.bias", (rows,)
        yield f"blk.{i}.attn_output.weight", (width, queries)
        for name, shape in (("gate", (inner, width)), ("up", (inner, width)), ("down", (width, inner))):
            yield f"blk.{i}.ffn_{name}.weight", shape
        yield from ((f"blk.{i}.{name}_norm.weight", (width,)) for name in ("attn", "ffn"))
    yield "output_norm.weight", (width,)


def write_sizes(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    tokens = [f"<t{i}>" for i in range(config["vocab_size"])]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre({"qwen2": "qwen2", "llama": "llama-bpe"}[config["model_type"]])
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    writer.add_token_merges(["< t"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)


def main(folder: Path, path: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    if config["model_type"] not in ("qwen2", "llama") or not config["tie_word_embeddings"]:
        raise ValueError(f"{folder} is a {config['model_type']}, expected qwen2 or llama with tied embeddings")
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, config["model_type"])
    write_sizes(writer, config)
    for name, shape in shapes(config):
        if len(shape) == 1:
            middle = 0 if name.endswith("bias") else 1
            writer.add_tensor(name, (middle + 0.02 * rng.standard_normal(shape)).astype(np.float32))
            continue
        weights = rng.standard_normal(shape, np.float32) * np.float32(0.02 if name == HEAD else shape[1] ** -0.5)
        kind = Type.Q8_0 if name == HEAD else Type.Q4_0
        writer.add_tensor(name, gguf.quants.quantize(weights, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
