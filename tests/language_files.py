"""Tiny language models on disk, with random weights and a vocabulary of bytes."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np

from benchmarks.llm.llama import BLOCK, Blocks, Llama, Reference
from benchmarks.llm.llama_onnx import onnx_model

WIDTH, INNER, VOCABULARY, CONTEXT, LAYERS = 64, 96, 300, 64, 2
SHAPES = {"attn_q": (WIDTH, WIDTH), "attn_k": (32, WIDTH), "attn_v": (32, WIDTH), "attn_output": (WIDTH, WIDTH)}
SHAPES |= {"ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}
HEADS, KV_HEADS, DEPTH = 4, 2, 16


def letters() -> list[str]:
    """Returns the characters by which tokenizers of bytes write bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(b) for b in shown] + [chr(256 + i) for i in range(256 - len(shown))]


def vocabulary() -> list[str]:
    return ["<s>", "</s>", *letters(), "Ġt", *(f"<extra{i}>" for i in range(VOCABULARY - 259))]


def matrix(rng: np.random.Generator, rows: int, inner: int, bits: int = 8) -> Blocks:
    codes = rng.integers(0, 1 << bits, (rows, inner)).astype(np.uint8)
    scale = (rng.uniform(1, 2, (rows, inner // BLOCK)) * inner**-0.5 / (1 << bits)).astype(np.float16)
    return Blocks(codes, scale, None, bits)


def llama(seed: int = 0) -> Llama:
    """Returns a Llama whose queries and keys rotate halves of a head."""
    rng = np.random.default_rng(seed)
    matrices = {f"blk.{i}.{n}": matrix(rng, *shape) for i in range(LAYERS) for n, shape in SHAPES.items()}
    matrices["token_embd"] = matrix(rng, VOCABULARY, WIDTH)
    names = [*(f"blk.{i}.{part}_norm" for i in range(LAYERS) for part in ("attn", "ffn")), "output_norm"]
    norms = {name: rng.uniform(0.5, 1.5, WIDTH).astype(np.float32) for name in names}
    return Llama(LAYERS, WIDTH, HEADS, KV_HEADS, 1e-5, 1e4, matrices, norms, matrices["token_embd"])


def logits(model: Llama, ids: list[int]) -> np.ndarray:
    """Returns logits in float64."""
    return Reference(model, np.float64).logits(np.array(ids))


def write_tokenizer(folder: Path, **settings) -> None:
    vocabulary_of = {text: i for i, text in enumerate(vocabulary())}
    added = [
        dict(id=i, content=text, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
        for i, text in enumerate(("<s>", "</s>"))
    ]
    words = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
    model = dict(type="BPE", vocab=vocabulary_of, merges=["Ġ t"], unk_token=None, byte_fallback=False)
    tokenizer = dict(version="1.0", added_tokens=added, pre_tokenizer=words, decoder=words, model=model)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = dict(bos_token="<s>", eos_token=dict(content="</s>"), chat_template="{{ messages }}", **settings)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_genai(folder: Path, model: Llama) -> None:
    """Writes a folder of onnxruntime-genai."""
    inputs = dict(input_ids="input_ids", attention_mask="attention_mask")
    inputs |= {f"past_{p}_names": f"past_key_values.%d.{p}" for p in ("key", "value")}
    outputs = {"logits": "logits", **{f"present_{p}_names": f"present.%d.{p}" for p in ("key", "value")}}
    decoder = dict(filename="model.onnx", head_size=DEPTH, num_key_value_heads=KV_HEADS, num_hidden_layers=LAYERS)
    decoder |= dict(inputs=inputs, outputs=outputs)
    about = dict(type="llama", context_length=CONTEXT, vocab_size=VOCABULARY, eos_token_id=[1], bos_token_id=0)
    (folder / "genai_config.json").write_text(json.dumps(dict(model=dict(about, decoder=decoder))))
    (folder / "model.onnx").write_bytes(onnx_model(model, 0))
    write_tokenizer(folder)


def config(**others) -> dict:
    """Returns the config.json of a Llama."""
    numbers = dict(hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=HEADS)
    numbers |= dict(num_key_value_heads=KV_HEADS, vocab_size=VOCABULARY, max_position_embeddings=CONTEXT)
    numbers |= dict(model_type="llama", hidden_act="silu", rms_norm_eps=1e-5, rope_theta=1e4, tie_word_embeddings=True)
    return {**numbers, **others}


NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_output": "self_attn.o_proj"}
NAMES |= {f"attn_{p}": f"self_attn.{p}_proj" for p in "qkv"} | {
    f"ffn_{p}": f"mlp.{p}_proj" for p in ("gate", "up", "down")
}


def write_folder(folder: Path, model: Llama, dtype: str = "F32", **others) -> None:
    """Writes a folder of transformers; dtype: F32 or BF16."""
    arrays = {name: m.wide(np.float32) for name, m in model.matrices.items()} | dict(model.norms)
    tensors = {}
    for name, array in arrays.items():
        full = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}.get(name)
        if full is None:
            _, i, part = name.split(".")
            full = f"model.layers.{i}.{NAMES[part]}"
        tensors[f"{full}.weight"] = array
    (folder / "model.safetensors").write_bytes(safetensors(tensors, dtype))
    (folder / "config.json").write_text(json.dumps(config(**others)))
    write_tokenizer(folder)


def safetensors(tensors: dict[str, np.ndarray], dtype: str = "F32") -> bytes:
    header, data = {}, b""
    for name, array in tensors.items():
        array = np.ascontiguousarray(array, np.float32)
        part = (array.view(np.uint32) >> 16).astype("<u2").tobytes() if dtype == "BF16" else array.tobytes()
        header[name] = dict(dtype=dtype, shape=list(array.shape), data_offsets=[len(data), len(data) + len(part)])
        data += part
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def write_gguf(path: Path, model: Llama, **others) -> None:
    """Writes a GGUF file with matrices in Q8_0. others: further metadata."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    numbers = dict(context_length=CONTEXT, embedding_length=WIDTH, block_count=LAYERS, feed_forward_length=INNER)
    numbers |= {"attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS}
    for name, number in numbers.items():
        writer.add_uint32(f"llama.{name}", number)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e4)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(others.pop("pre", "gpt-2"))
    writer.add_token_list(vocabulary())
    writer.add_token_types([3, 3] + [1] * (VOCABULARY - 2))
    writer.add_token_merges(["Ġ t"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template("{{ messages }}")
    for name, value in others.items():
        writer.add_string(name, value) if isinstance(value, str) else writer.add_uint32(name, value)
    for name, m in model.matrices.items():
        heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(name.split(".")[-1])
        codes, scale = (m.codes ^ np.uint8(128)), m.scale
        blocks = np.concatenate([scale[..., None].view(np.uint8), codes.reshape(*scale.shape, BLOCK)], -1)
        data = blocks.reshape(len(codes), -1)
        if heads:  # pairs that rotate are neighbours
            data = data.reshape(heads, 2, -1, data.shape[1]).swapaxes(1, 2).reshape(data.shape)
        writer.add_tensor(f"{name}.weight", np.ascontiguousarray(data), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    for name, array in model.norms.items():
        writer.add_tensor(f"{name}.weight", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
