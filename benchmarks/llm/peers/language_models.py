#!/usr/bin/env python3
"""Makes tiny language models of every family, and records what transformers computes: language_models.py FOLDER.

Needs the packages transformers, torch, gguf and tokenizers. Each model has random weights, is a folder of FOLDER with
config.json, safetensors and a tokenizer, or a GGUF file, and has answers.npz beside it: `ids`, and logits in float64 of
all of them (`all`) and of the first 12, 13, 17 and 30 of them. Weights are those that the file holds: rounded to bf16,
or dequantized from blocks. Types that the package gguf cannot write get blocks of random bits.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from gguf.quants import dequantize, quantize

VOCABULARY, CONTEXT, LENGTH = 300, 128, 40
STEPS = (12, 13, 17, 30)
SMALL = dict(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4)
SMALL |= dict(num_key_value_heads=2, max_position_embeddings=CONTEXT, bos_token_id=0, eos_token_id=1, pad_token_id=0)
WIDE = {**SMALL, "hidden_size": 256, "intermediate_size": 512}
LONG = dict(
    rope_type="longrope",
    rope_theta=10000.0,
    short_factor=[1 + i / 9 for i in range(6)],
    long_factor=[1 + i / 2 for i in range(6)],
    original_max_position_embeddings=16,
    partial_rotary_factor=0.75,
)
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32)
GEMMA = dict(head_dim=24, query_pre_attn_scalar=24, sliding_window=8)
GPT2 = dict(vocab_size=VOCABULARY, n_embd=64, n_head=4, n_layer=2, n_positions=CONTEXT, bos_token_id=0, eos_token_id=1)
FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    "llama, rope llama3, tied": lambda: transformers.LlamaConfig(
        **SMALL, tie_word_embeddings=True, rope_parameters={**LLAMA3, "original_max_position_embeddings": 32}
    ),
    "llama, rope linear, biases": lambda: transformers.LlamaConfig(
        **SMALL,
        attention_bias=True,
        mlp_bias=True,
        rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=4.0),
    ),
    "llama, rope yarn": lambda: transformers.LlamaConfig(**SMALL, rope_parameters=YARN),
    "mistral": lambda: transformers.MistralConfig(**SMALL, sliding_window=9),
    "qwen2": lambda: transformers.Qwen2Config(**SMALL),
    "qwen2, windows": lambda: transformers.Qwen2Config(
        **SMALL, use_sliding_window=True, sliding_window=7, max_window_layers=1
    ),
    "qwen3": lambda: transformers.Qwen3Config(**SMALL, head_dim=24),
    "gemma2": lambda: transformers.Gemma2Config(**{**SMALL, **GEMMA, "num_hidden_layers": 3}),
    "gemma3": lambda: transformers.Gemma3TextConfig(**{**SMALL, **GEMMA, "num_hidden_layers": 7}),
    "phi3": lambda: transformers.Phi3Config(**SMALL, sliding_window=11),
    "phi3, rope longrope": lambda: transformers.Phi3Config(
        **SMALL, original_max_position_embeddings=16, partial_rotary_factor=0.75, rope_parameters=LONG
    ),
    "gpt2": lambda: transformers.GPT2Config(**GPT2),
    "starcoder2": lambda: transformers.Starcoder2Config(**SMALL, sliding_window=10),
}
# GGUF: family → its architecture and settings
FILES: dict[str, Callable[[], Any]] = {
    "llama": FAMILIES["llama"],
    "llama, rope llama3, tied": FAMILIES["llama, rope llama3, tied"],
    "llama, rope linear": lambda: transformers.LlamaConfig(
        **SMALL, rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=4.0)
    ),
    "qwen2": FAMILIES["qwen2"],
    "qwen3": FAMILIES["qwen3"],
    "gemma2": FAMILIES["gemma2"],
    "gemma3": FAMILIES["gemma3"],
    "phi3": FAMILIES["phi3"],
    "phi3, rope longrope": FAMILIES["phi3, rope longrope"],
    "gpt2": FAMILIES["gpt2"],
    "starcoder2": FAMILIES["starcoder2"],
}
TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,)}
HALVES |= {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
RANDOM = ("Q4_K", "Q5_K", "Q6_K")  # the package only reads them
NAMES = (
    (r"^(model|transformer)\.", ""),
    (r"^(embed_tokens|wte)\.", "token_embd."),
    (r"^wpe\.", "position_embd."),
    (r"^(norm|ln_f)\.", "output_norm."),
    (r"^lm_head\.", "output."),
    (r"^(layers|h)\.", "blk."),
    (r"self_attn\.([qkv])_proj\.", r"attn_\1."),
    (r"self_attn\.qkv_proj\.|attn\.c_attn\.", "attn_qkv."),
    (r"self_attn\.([qk])_norm\.", r"attn_\1_norm."),
    (r"self_attn\.o_proj\.|attn\.c_proj\.", "attn_output."),
    (r"input_layernorm\.|ln_1\.", "attn_norm."),
    (r"pre_feedforward_layernorm\.|ln_2\.", "ffn_norm."),
    (r"post_feedforward_layernorm\.", "post_ffw_norm."),
    (r"mlp\.(gate_up|up)_proj\.|mlp\.c_fc\.", "ffn_up."),
    (r"mlp\.gate_proj\.", "ffn_gate."),
    (r"mlp\.(down_proj|c_proj)\.", "ffn_down."),
)


def random_model(config: Any) -> Any:
    """Returns a model with random weights: transformers' own make all logits about equal."""
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            centre = 1.0 if p.dim() == 1 and ("norm" in name or "ln_" in name) and "weight" in name else 0.0
            p.copy_(torch.randn_like(p) * (p.shape[-1] ** -0.5 if p.dim() > 1 else 0.3) + centre)
    return model


def answers(model: Any) -> dict[str, np.ndarray]:
    """Returns ids and their logits in float64."""
    ids = torch.randint(0, VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(2))
    wide = model.double()
    with torch.no_grad():
        steps = {f"{n}": wide(ids[None, :n], use_cache=False).logits[0].numpy() for n in STEPS}
        return {"ids": ids.numpy(), "all": wide(ids[None], use_cache=False).logits[0].numpy(), **steps}


def tokens() -> list[str]:
    """Returns a vocabulary of bytes, as GPT-2 writes them, with names of more tokens."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [b for b in range(256) if b not in shown]
    letters = [chr(b) for b in shown] + [chr(256 + i) for i in range(len(hidden))]
    return ["<s>", "</s>", *letters, "Ġt", *(f"<extra{i}>" for i in range(VOCABULARY - 259))]


def write_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens())}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


# --- folders


def write_folder(folder: Path, config: Any, dtype: Any) -> None:
    model = random_model(config)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.to(dtype))
    shards = "60KB" if folder.name.startswith("qwen2 ") else "5GB"
    np.savez(folder / "answers.npz", **answers(model))
    model.to(dtype).save_pretrained(folder, max_shard_size=shards)  # which would round frequencies of rotations, too
    write_tokenizer(folder)


# --- GGUF


def stored(array: np.ndarray, kind: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Returns a matrix as a file holds it, and the numbers that it then stands for."""
    of = gguf.GGMLQuantizationType[kind]
    if kind == "F32":
        return array, array
    if kind not in RANDOM:
        data = quantize(array, of)
        return data, dequantize(data, of)
    count, size = gguf.GGML_QUANT_SIZES[of]
    data = rng.integers(0, 256, (len(array), array.shape[1] // count, size)).astype(np.uint8)
    for at in HALVES[kind]:
        scale = rng.uniform(0.2, 1, data.shape[:2]) / {"Q6_K": 4000, "Q4_K": 1200, "Q5_K": 2000}[kind]
        data[..., at : at + 2] = scale.astype(np.float16)[..., None].view(np.uint8)
    data = data.reshape(len(array), -1)
    return data, dequantize(data, of)


def gguf_name(name: str, architecture: str) -> str:
    for pattern, to in NAMES:
        name = re.sub(pattern, to, name)
    ends = {"gemma2": "post_attention_norm.", "gemma3": "post_attention_norm."}
    return name.replace("post_attention_layernorm.", ends.get(architecture, "ffn_norm."))


def turned(array: np.ndarray, heads: int, back: bool) -> np.ndarray:
    """Orders rows of heads so that pairs which rotate are neighbours, or back."""
    shape = (heads, -1, 2) if back else (heads, 2, array.shape[0] // heads // 2)
    return array.reshape(*shape, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def write_file(folder: Path, config: Any, kind: str) -> None:
    """Writes a GGUF file with matrices of one type, and answers for what they then are."""
    model, rng = random_model(config), np.random.default_rng(3)
    architecture = {"gemma3_text": "gemma3"}.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(folder / "model.gguf", architecture)
    write_metadata(writer, config, architecture)
    heads = {"attn_q": config.num_attention_heads, "attn_k": getattr(config, "num_key_value_heads", 0)}
    with torch.no_grad():
        for full, p in model.named_parameters():
            name, array = gguf_name(full, architecture), p.numpy().copy()
            transposed = architecture == "gpt2" and array.ndim == 2 and name.startswith("blk.")
            array = np.ascontiguousarray(array.T) if transposed else array
            split = heads.get(name.split(".")[-2]) if architecture == "llama" else None
            if array.ndim == 1:
                add = np.float32(architecture.startswith("gemma") and "norm" in name)
                writer.add_tensor(name, array + add)
                continue
            array = turned(array, split, False) if split else array
            data, values = stored(np.ascontiguousarray(array), kind if "position" not in name else "F32", rng)
            quantized = None if data.dtype != np.uint8 else gguf.GGMLQuantizationType[kind]
            writer.add_tensor(name, data, raw_dtype=quantized)
            values = turned(values, split, True) if split else values
            p.copy_(torch.from_numpy(np.ascontiguousarray(values.T if transposed else values)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    np.savez(folder / "answers.npz", **answers(model))


def write_metadata(writer: Any, c: Any, architecture: str) -> None:
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_head_count(c.num_attention_heads)
    writer.add_feed_forward_length(getattr(c, "intermediate_size", 4 * c.hidden_size))
    if architecture == "gpt2":
        writer.add_layer_norm_eps(c.layer_norm_epsilon)
    else:
        write_rotation(writer, c, architecture)
        writer.add_head_count_kv(c.num_key_value_heads)
        size = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
        writer.add_key_length(size)
        writer.add_value_length(size)
        if architecture == "starcoder2":
            writer.add_layer_norm_eps(c.norm_epsilon)
        else:
            writer.add_layer_norm_rms_eps(c.rms_norm_eps)
        if getattr(c, "sliding_window", None):
            writer.add_sliding_window(c.sliding_window)
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(c.attn_logit_softcapping)
        writer.add_final_logit_softcapping(c.final_logit_softcapping)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens())
    writer.add_token_types([3, 3] + [1] * (VOCABULARY - 2))
    writer.add_token_merges(["Ġ t"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)


def write_rotation(writer: Any, c: Any, architecture: str) -> None:
    rope = c.rope_parameters
    rope = rope.get("full_attention", rope) if architecture == "gemma3" else rope
    writer.add_rope_freq_base(rope["rope_theta"])
    size = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    pairs = int(size * rope.get("partial_rotary_factor", 1.0)) // 2
    writer.add_rope_dimension_count(2 * pairs)
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "llama3":
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](c, "cpu")
        plain = rope["rope_theta"] ** -(np.arange(pairs) / pairs)
        writer.add_tensor("rope_freqs.weight", (plain / frequencies.numpy()).astype(np.float32))
    if rope["rope_type"] == "longrope":
        first = rope["original_max_position_embeddings"]
        stretch = c.max_position_embeddings / first
        writer.add_rope_scaling_orig_ctx_len(first)
        writer.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(stretch) / np.log(first))))
        for name in ("short", "long"):
            writer.add_tensor(f"rope_factors_{name}.weight", np.array(rope[f"{name}_factor"], np.float32))


def models(folder: Path) -> Iterator[tuple[Path, Callable[[Path], None]]]:
    """Yields the folder of each model, and what makes it."""
    for name, config in FAMILIES.items():
        yield folder / f"{name} f32", lambda to, config=config: write_folder(to, config(), torch.float32)
    for name in ("llama", "gemma3"):
        config = FAMILIES[name]
        yield folder / f"{name} bf16", lambda to, config=config: write_folder(to, config(), torch.bfloat16)
    for name, config in FILES.items():
        for kind in ("F32", "Q8_0") if config().hidden_size % 32 == 0 and "gemma" not in name else ("F32",):
            yield folder / f"{name} gguf {kind}", lambda to, config=config, kind=kind: write_file(to, config(), kind)
    for kind in TYPES:
        for tied in (False, True):
            config = transformers.LlamaConfig(**WIDE, tie_word_embeddings=tied)
            name = f"llama wide{', tied' if tied else ''} gguf {kind}"
            yield folder / name, lambda to, config=config, kind=kind: write_file(to, config, kind)


def main(folder: Path) -> None:
    for to, make in models(folder):
        to.mkdir(parents=True, exist_ok=True)
        make(to)
        print(to.name, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
