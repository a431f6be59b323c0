"""Families of decoders: from the settings of a model to its architecture and the places of its tensors."""

from __future__ import annotations

from collections.abc import Callable

from pelton.errors import ModelError

from pelton.language.architecture import DecoderFamily
from pelton.language.encoder_architecture import EncoderDecoderFamily, EncoderFamily
from pelton.language.source import LanguageSettings

from .encoders import ENCODERS, HARMLESS as HARMLESS_OF_ENCODERS
from .gemma import gemma2, gemma3
from .gpt2 import gpt2
from .llama import llama, mistral
from .phi import phi3
from .qwen import qwen2, qwen3
from .starcoder import starcoder2
from .t5 import mt5, t5
from .whisper import whisper

FAMILIES: dict[str, Callable[[LanguageSettings], DecoderFamily]] = {
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "gpt2": gpt2,
    "llama": llama,
    "mistral": mistral,
    "phi3": phi3,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "starcoder2": starcoder2,
}
PAIRS: dict[str, Callable[[LanguageSettings], EncoderDecoderFamily]] = {"mt5": mt5, "t5": t5, "whisper": whisper}
# what a configuration has beside the network: training, generation, and whatever transformers writes for all models
HARMLESS = {
    *("architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "auto_map", "_name_or_path"),
    *("use_cache", "initializer_range", "cache_implementation", "_attn_implementation", "bos_token_id"),
    *("eos_token_id", "pad_token_id", "unk_token_id", "decoder_start_token_id", "id2label", "label2id", "num_labels"),
    *("return_dict", "output_attentions", "output_hidden_states", "is_decoder", "chunk_size_feed_forward"),
    *("attention_dropout", "embd_pdrop", "resid_pdrop", "attn_pdrop", "residual_dropout", "embedding_dropout"),
    *("summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"),
    *("task_specific_params", "problem_type", "finetuning_task", "is_llama_config", "rope_interleaved"),
    *("pretraining_tp", "layer_norm_type", "n_ctx", "gradient_checkpointing", "transformers.js_config"),
    *("max_window_layers", "_sliding_window_pattern", "sliding_window_pattern", "tie_word_embeddings"),
}
# and what those of encoder–decoders have
HARMLESS_OF_PAIRS = {
    *("is_encoder_decoder", "dropout", "dropout_rate", "activation_dropout", "initializer_factor", "init_std"),
    *("classifier_dropout", "encoder_layerdrop", "decoder_layerdrop", "classifier_proj_size", "output_past"),
    *("num_hidden_layers", "max_length", "apply_spec_augment", "median_filter_width", "use_weighted_layer_sum"),
    *("mask_time_prob", "mask_time_length", "mask_time_min_masks", "mask_feature_prob", "mask_feature_length"),
    *("mask_feature_min_masks", "suppress_tokens", "begin_suppress_tokens", "forced_decoder_ids", "tokenizer_class"),
    *("tie_word_embeddings", "scale_decoder_outputs", "num_hidden_layers", "vocab_size", "layerdrop"),
}


def family_of(settings: LanguageSettings) -> DecoderFamily:
    """Returns the family of a model's settings, in the form of transformers.

    Raises ModelError for an architecture that is not known, and for settings whose meaning is not, by their names.
    """
    kind = settings.text("model_type")
    if kind in ENCODERS:
        raise ModelError(
            f"{settings.path}: models of type {kind!r} make embeddings and no text: use LanguageModel.embed"
        )
    if kind in PAIRS:
        raise ModelError(
            f"{settings.path}: models of type {kind!r} make text and no embeddings: use LanguageModel.generate"
        )
    if kind not in FAMILIES:
        raise ModelError(
            f"{settings.path}: language models of type {kind!r} are not supported, only"
            f" {', '.join([*FAMILIES, *PAIRS])}"
        )
    family = FAMILIES[kind](settings)
    unknown = settings.unknown(HARMLESS)
    if unknown:
        raise ModelError(f"{settings.path}: {unknown[0]!r} is not supported in models of type {kind!r}")
    return family


def pair_of(settings: LanguageSettings) -> EncoderDecoderFamily:
    """Returns the family of an encoder–decoder, of a type among PAIRS. Raises ModelError as `family_of` does."""
    kind = settings.text("model_type")
    family = PAIRS[kind](settings)
    unknown = settings.unknown(HARMLESS | HARMLESS_OF_PAIRS)
    if unknown:
        raise ModelError(f"{settings.path}: {unknown[0]!r} is not supported in models of type {kind!r}")
    return family


def encoder_of(settings: LanguageSettings) -> EncoderFamily:
    """Returns the family of an encoder's settings. Raises ModelError as `family_of` does."""
    kind = settings.text("model_type")
    if kind not in ENCODERS:
        raise ModelError(
            f"{settings.path}: sentence encoders of type {kind!r} are not supported, only {', '.join(ENCODERS)}"
        )
    family = ENCODERS[kind](settings)
    unknown = settings.unknown(HARMLESS | HARMLESS_OF_ENCODERS)
    if unknown:
        raise ModelError(f"{settings.path}: {unknown[0]!r} is not supported in models of type {kind!r}")
    return family
