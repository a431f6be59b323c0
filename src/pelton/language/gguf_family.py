"""Families of GGUF files: their metadata as the settings that transformers has for the same model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from pelton.errors import ModelError

from .architecture import Architecture, DecoderFamily, Rotation, TensorPlace
from .families import FAMILIES, HARMLESS
from .gguf_file import GgufFile
from .source import LanguageSettings

ARCHITECTURE = "general.architecture"
NAMES = {
    "embedding": "token_embd",
    "positions": "position_embd",
    "head": "output",
    "norm": "output_norm",
    "attention_norm": "blk.{}.attn_norm",
    "q": "blk.{}.attn_q",
    "k": "blk.{}.attn_k",
    "v": "blk.{}.attn_v",
    "output": "blk.{}.attn_output",
    "q_norm": "blk.{}.attn_q_norm",
    "k_norm": "blk.{}.attn_k_norm",
    "attention_end_norm": "blk.{}.post_attention_norm",
    "hidden_norm": "blk.{}.ffn_norm",
    "gate": "blk.{}.ffn_gate",
    "up": "blk.{}.ffn_up",
    "down": "blk.{}.ffn_down",
    "hidden_end_norm": "blk.{}.post_ffw_norm",
}
QKV = "blk.{}.attn_qkv"
# architecture of GGUF → type of model of transformers, and its activation
TYPES = {
    "llama": ("llama", "silu"),
    "qwen2": ("qwen2", "silu"),
    "qwen3": ("qwen3", "silu"),
    "gemma2": ("gemma2", "gelu_pytorch_tanh"),
    "gemma3": ("gemma3_text", "gelu_pytorch_tanh"),
    "phi3": ("phi3", "silu"),
    "gpt2": ("gpt2", "gelu_new"),
    "starcoder2": ("starcoder2", "gelu_pytorch_tanh"),
}
# what says nothing that the shapes of tensors do not
IGNORED = {"vocab_size", "attention.causal", "rope.scaling.finetuned", "attention.value_length", "tensor_data_layout"}
# Gemma's largest models scale scores by another size than that of their heads; layers → true
LARGEST = {"gemma2": 46, "gemma3": 62}


def gguf_family(file: GgufFile) -> DecoderFamily:
    """Returns the family of a file. Raises ModelError for an architecture that is not known, and for metadata whose
    meaning is not, by their names."""
    kind = file.metadata.get(ARCHITECTURE)
    if kind not in TYPES:
        raise ModelError(
            f"{file.path}: GGUF files of the architecture {kind!r} are not supported, only {', '.join(TYPES)}"
        )
    prefix = f"{kind}."
    own = {k.removeprefix(prefix): v for k, v in file.metadata.items() if k.startswith(prefix)}
    metadata = LanguageSettings(own, file.path)
    settings = LanguageSettings(_settings(kind, metadata, file), file.path)
    family = FAMILIES[TYPES[kind][0]](settings)
    unknown = metadata.unknown(IGNORED) or settings.unknown(HARMLESS)
    if unknown:
        raise ModelError(f"{file.path}: {prefix}{unknown[0]} is not supported")
    a = replace(family.architecture, family=kind, norm_from=0.0)  # files have the whole weights of norms
    return DecoderFamily(_rotated(a, kind, file), _places(a, file))


def _settings(kind: str, m: LanguageSettings, file: GgufFile) -> dict[str, Any]:
    """Returns the settings of transformers."""
    table = file.tensors.get("token_embd.weight")
    if table is None:
        raise ModelError(f"{file.path} has no tensor 'token_embd.weight'")
    name, act = TYPES[kind]
    vocabulary, context = table.shape[0], m.whole("context_length")
    width, heads, layers = m.whole("embedding_length"), m.whole("attention.head_count"), m.layers("block_count")
    hidden = m.whole("feed_forward_length")
    if kind == "gpt2":
        numbers = dict(n_embd=width, n_head=heads, n_layer=layers, n_positions=context, n_inner=hidden)
        m.value("attention.head_count_kv")
        epsilon = m.number("attention.layer_norm_epsilon")
        return dict(
            numbers, vocab_size=vocabulary, layer_norm_epsilon=epsilon, activation_function=act, model_type=name
        )
    size = m.whole("attention.key_length", max(1, width // heads))
    if m.whole("attention.value_length", size) != size:
        raise ModelError(f"{file.path}: keys and values of other sizes are not supported")
    rope = _rope(m)
    settings: dict[str, Any] = dict(
        model_type=name,
        hidden_size=width,
        num_attention_heads=heads,
        num_key_value_heads=m.whole("attention.head_count_kv", heads),
        head_dim=size,
        num_hidden_layers=layers,
        intermediate_size=hidden,
        vocab_size=vocabulary,
        max_position_embeddings=context,
        rope_theta=m.number("rope.freq_base", 10000.0),
        rope_scaling=rope,
        sliding_window=m.value("attention.sliding_window") or None,
        partial_rotary_factor=m.whole("rope.dimension_count", size) / size,
    )
    if kind == "starcoder2":
        return dict(settings, norm_epsilon=m.number("attention.layer_norm_epsilon"), hidden_act=act)
    settings |= dict(rms_norm_eps=m.number("attention.layer_norm_rms_epsilon"))
    if not kind.startswith("gemma"):
        return dict(settings, hidden_act=act)
    scale = width // heads if layers == LARGEST[kind] else size
    settings |= dict(hidden_activation=act, query_pre_attn_scalar=scale)
    if settings.pop("partial_rotary_factor") != 1:
        raise ModelError(f"{file.path}: {kind}.rope.dimension_count must be that of a head")
    settings |= dict(attn_logit_softcapping=m.value("attn_logit_softcapping"))
    settings |= dict(final_logit_softcapping=m.value("final_logit_softcapping"))
    if kind == "gemma3":
        pattern = m.value("attention.sliding_window_pattern")
        settings |= dict(sliding_window_pattern=pattern if isinstance(pattern, int) else None)
        settings |= dict(rope_local_base_freq=m.number("rope.freq_base_swa", 10000.0))
    return settings


def _rope(m: LanguageSettings) -> dict[str, Any] | None:
    """Returns the scaling of rotations, in the form of transformers."""
    kind, first = m.text("rope.scaling.type", "none"), m.value("rope.scaling.original_context_length")
    factor = m.value("rope.scaling.factor")
    if kind == "yarn":
        values = dict(rope_type=kind, factor=factor, original_max_position_embeddings=first)
        names = {"beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow"}
        return {**values, **{ours: v for ours, n in names.items() if (v := m.value(f"rope.scaling.{n}")) is not None}}
    m.value("rope.scaling.attn_factor")
    if kind == "longrope" or factor is None:
        return None  # tensors have the factors
    if kind not in ("linear", "none"):
        raise ModelError(f"{m.path}: rope.scaling.type {kind!r} is not supported, only linear, yarn and longrope")
    return dict(rope_type="linear", factor=factor) if kind == "linear" else None


def _rotated(a: Architecture, kind: str, file: GgufFile) -> Architecture:
    """Returns the architecture with the rotations that tensors of the file change."""
    if not a.rotations:
        return a
    first, *others = a.rotations
    pairs = len(first.frequencies)
    if factors := _factors(file, "rope_freqs.weight", pairs):
        first = replace(first, frequencies=first.frequencies / factors[0])
    long = _factors(file, "rope_factors_long.weight", pairs)
    short = _factors(file, "rope_factors_short.weight", pairs)
    if long and short:
        factor = file.metadata.get(f"{kind}.rope.scaling.attn_factor", 1.0)
        begin = file.metadata.get(f"{kind}.rope.scaling.original_context_length", a.context)
        if not isinstance(begin, int) or not isinstance(factor, float):
            raise ModelError(f"{file.path}: {kind}.rope.scaling must have numbers")
        plain = first.frequencies
        first = Rotation(plain / short[0], factor, long=plain / long[0], long_from=begin)
    # files of Llama have the rows of queries and keys in the order in which neighbours rotate
    rotations = (replace(r, interleaved=kind == "llama") for r in (first, *others))
    return replace(a, rotations=tuple(rotations))


def _factors(file: GgufFile, name: str, pairs: int) -> list[np.ndarray]:
    """Returns the factors of frequencies in a tensor, [] if the file has none."""
    if name not in file.tensors:
        return []
    from .gguf_blocks import matrix_of  # which imports the operators

    tensor = file.tensors[name]
    values = matrix_of(tensor, file.bytes_of(tensor))
    if not isinstance(values, np.ndarray) or values.shape != (pairs,) or not (values > 0).all():
        raise ModelError(f"{file.path}: {name} must be {pairs} positive numbers")
    return [values.astype(np.float64)]


def _places(a: Architecture, file: GgufFile) -> dict[str, TensorPlace]:
    """Returns the places of tensors, some of which files have as one."""
    of = {part: TensorPlace(name) for part, name in NAMES.items()}
    if f"{QKV.replace('{}', '0')}.weight" in file.tensors:
        q, kv = a.heads * a.head_size, a.kv_heads * a.head_size
        rows = {"q": (0, q), "k": (q, q + kv), "v": (q + kv, q + 2 * kv)}
        of |= {part: TensorPlace(QKV, at) for part, at in rows.items()}
    if a.gated and f"{NAMES['gate'].replace('{}', '0')}.weight" not in file.tensors:
        both = NAMES["up"]
        of |= {"gate": TensorPlace(both, (0, a.hidden)), "up": TensorPlace(both, (a.hidden, 2 * a.hidden))}
    return of
