"""Families of decoders and forms of their files, as onnxruntime-genai's builder takes and writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

VOCABULARY = 500
SIZES = dict(
    vocab_size=VOCABULARY,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=1,
)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
    "rope_theta": 10000.0,
}
FACTORS = {"short_factor": list(np.linspace(1, 2, 16)), "long_factor": list(np.linspace(2, 9, 16))}
LONG = {"rope_type": "longrope", "type": "longrope", "rope_theta": 10000.0, **FACTORS}
PARTLY = {"short_factor": list(np.linspace(1, 2, 8)), "long_factor": list(np.linspace(2, 9, 8))}
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [6, 5, 5]}
# Families whose decoder is a part: the builder exports that alone, but loads the whole.
VISION = dict(
    depth=1,
    hidden_size=32,
    intermediate_size=32,
    num_heads=2,
    out_hidden_size=128,
    patch_size=4,
    spatial_merge_size=2,
    temporal_patch_size=1,
)
COMPOSITE: dict[str, dict[str, Any]] = {
    "Qwen2_5_VL": dict(VISION, fullatt_block_indexes=[0]),
    "Qwen3VL": dict(VISION, num_position_embeddings=16, deepstack_visual_indexes=[0]),
    "Qwen3_5": dict(VISION, num_position_embeddings=16),
}
# Beside the sizes: the class of the configuration and its own fields. Prompts and steps cross position 16.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama3-rope": ("Llama", dict(rope_parameters=LLAMA3)),
    "smollm": ("Llama", dict(tie_word_embeddings=True, hidden_size=96, num_attention_heads=3, num_key_value_heads=3)),
    "qwen2": ("Qwen2", dict(tie_word_embeddings=True)),
    "qwen2-window": ("Qwen2", dict(use_sliding_window=True, sliding_window=8, max_window_layers=1)),
    "qwen3": ("Qwen3", dict(head_dim=64, tie_word_embeddings=True)),
    "gemma": ("Gemma", dict(head_dim=64)),
    "gemma2": ("Gemma2", dict(head_dim=64, sliding_window=8, query_pre_attn_scalar=48)),
    "gemma3": ("Gemma3Text", dict(head_dim=64, sliding_window=8, layer_types=["sliding_attention", "full_attention"])),
    "phi": ("Phi", dict(num_key_value_heads=4)),
    "phi3": ("Phi3", dict(original_max_position_embeddings=256)),
    "phi3-window": ("Phi3", dict(original_max_position_embeddings=256, sliding_window=8)),
    "phi3-longrope": ("Phi3", dict(original_max_position_embeddings=16, rope_parameters=LONG)),
    "phi4-mini": (
        "Phi3",
        dict(
            original_max_position_embeddings=16,
            tie_word_embeddings=True,
            rope_parameters={**LONG, **PARTLY, "partial_rotary_factor": 0.5},
        ),
    ),
    "smollm3": ("SmolLM3", dict(no_rope_layers=[1, 1], tie_word_embeddings=True)),
    "smollm3-nope": ("SmolLM3", dict(no_rope_layers=[1, 0])),
    "mistral": ("Mistral", dict(sliding_window=8)),
    "mistral-nemo": ("Mistral", dict(sliding_window=None, head_dim=64)),
    "granite": (
        "Granite",
        dict(embedding_multiplier=12.0, logits_scaling=8.0, residual_multiplier=0.22, attention_multiplier=0.0625),
    ),
    "granite-hybrid": (
        "GraniteMoeHybrid",
        dict(
            layer_types=["attention", "attention"],
            num_local_experts=0,
            num_experts_per_tok=0,
            shared_intermediate_size=256,
            position_embedding_type="rope",
        ),
    ),
    "olmo": ("Olmo", dict(clip_qkv=None)),
    "olmo2": ("Olmo2", {}),
    "nemotron": ("Nemotron", {}),
    "ernie": ("Ernie4_5", dict(head_dim=32)),
    "hunyuan": ("HunYuanDenseV1", dict(head_dim=32)),
    "lfm2": ("Lfm2", dict(layer_types=["conv", "full_attention"], conv_L_cache=3)),
    "qwen2.5-vl": ("Qwen2_5_VL", dict(rope_parameters=MROPE)),
    "qwen3-vl": ("Qwen3VL", dict(head_dim=32, rope_parameters={**MROPE, "mrope_interleaved": True})),
    "qwen3.5": (
        "Qwen3_5",
        dict(
            head_dim=32,
            layer_types=["linear_attention", "full_attention"],
            linear_num_key_heads=2,
            linear_num_value_heads=4,
            linear_key_head_dim=16,
            linear_value_head_dim=16,
            linear_conv_kernel_dim=4,
            rope_parameters={
                **MROPE,
                "mrope_section": [3, 3, 2],
                "mrope_interleaved": True,
                "partial_rotary_factor": 0.5,
            },
        ),
    ),
    "gpt-oss": (
        "GptOss",
        dict(
            head_dim=32,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=8,
            layer_types=["sliding_attention", "full_attention"],
        ),
    ),
}
INT4 = dict(accuracy_level="1", block_size="32")
SCALES = {"scales": {"k_scales": [0.05, 0.04], "v_scales": [0.03, 0.04]}}
# The precision and the options of the builder. Level 1 keeps activations of quantized products in f32.
FORMS: dict[str, tuple[str, dict[str, str]]] = {
    "fp32": ("fp32", {}),
    "int4 of 32": ("int4", INT4),
    "int4 of 128": ("int4", {**INT4, "block_size": "128"}),
    "int4, zero points": ("int4", {**INT4, "is_symmetric": "false"}),
    "int4, QDQ": ("int4", {**INT4, "use_qdq": "true"}),
    "int4, QDQ, zero points": ("int4", {**INT4, "use_qdq": "true", "is_symmetric": "false"}),
    "int4, int8 head": ("int4", {**INT4, "algo_config": "rtn", "matmul_mixed_precision": "last_matmul:int8"}),
    "int4, k_quant": ("int4", {**INT4, "algo_config": "k_quant_mixed", "block_size": "64"}),
    "int8": ("int8", INT4),
    "int4, embeddings too": ("int4", {**INT4, "op_types_to_quantize": "MatMul/Gather"}),
    "fp32, last logits": ("fp32", dict(prune_lm_head="true")),
    "fp32, hidden states": ("fp32", dict(include_hidden_states="true", fuse_qkv="false", fuse_mlp_gate_up="true")),
    "fp32, whole caches": ("fp32", dict(windowed_kv_cache="false")),
    "int4, whole caches": ("int4", {**INT4, "windowed_kv_cache": "false"}),
    "fp32, int8 cache": ("fp32", dict(kv_cache_quant_scheme="int8_per_tensor")),
    "fp32, int4 cache": ("fp32", dict(kv_cache_quant_scheme="int4_per_tensor")),
}
FEW = ("fp32", "int4 of 32", "int4 of 128", "int4, QDQ", "int4, int8 head")
ALL = {"llama", "qwen2", "phi3", "gemma3", "qwen3"}  # families of every form
WINDOWED = {"qwen2-window", "gemma2", "gpt-oss"}  # families with caches of their own for sliding windows


def forms(family: str) -> Iterator[str]:
    yield from FORMS if family in ALL else FEW
    if family in WINDOWED:
        yield from ("fp32, whole caches", "int4, whole caches")
