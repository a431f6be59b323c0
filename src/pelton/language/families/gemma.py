"""Gemma 2 and 3, of text alone."""

from __future__ import annotations

from typing import Any

from pelton.errors import ModelError

from pelton.language.architecture import Architecture, DecoderFamily, LayerNumbers, Rotation
from pelton.language.rotations import rotation, scaled
from pelton.language.source import LanguageSettings

from .common import HEAD_NORMS, LLAMA, activation, decoder, head_size_of, places, window_of, windows

PLACES = {
    **LLAMA,
    "attention_end_norm": "model.layers.{}.post_attention_layernorm",
    "hidden_norm": "model.layers.{}.pre_feedforward_layernorm",
    "hidden_end_norm": "model.layers.{}.post_feedforward_layernorm",
}
LOCAL, GLOBAL = "sliding_attention", "full_attention"


def _gemma(settings: LanguageSettings, windows: list[int], **others: Any) -> Architecture:
    settings.flag("attention_bias")
    if settings.flag("use_bidirectional_attention"):
        raise ModelError(f"{settings.path}: use_bidirectional_attention is not supported")
    return decoder(
        settings,
        windows,
        activation=activation(settings, "hidden_activation"),
        norm_from=1.0,
        sandwich=True,
        score_scale=settings.number("query_pre_attn_scalar", float(head_size_of(settings))) ** -0.5,
        score_cap=_cap(settings, "attn_logit_softcapping"),
        logit_cap=_cap(settings, "final_logit_softcapping"),
        embedding_scale=settings.whole("hidden_size") ** 0.5,
        **others,
    )


def _cap(settings: LanguageSettings, name: str) -> float:
    return 0.0 if settings.value(name) is None else settings.number(name)


def gemma2(settings: LanguageSettings) -> DecoderFamily:
    """Gemma 2 (arXiv 2408.00118): norms behind both parts of a layer, caps, windows in every other layer."""
    count, window = settings.layers(), window_of(settings)
    return DecoderFamily(_gemma(settings, windows(settings, count, window, lambda i: i % 2 == 0)), places(PLACES))


def gemma3(settings: LanguageSettings) -> DecoderFamily:
    """Gemma 3 (arXiv 2503.19786): five layers with windows and a rotation of their own, then one without."""
    count, window = settings.layers(), window_of(settings)
    pattern = settings.value("sliding_window_pattern") or settings.value("_sliding_window_pattern")
    every = pattern if isinstance(pattern, int) and pattern > 0 else 6
    sizes = windows(settings, count, window, lambda i: (i + 1) % every)
    architecture = _gemma(
        settings,
        sizes,
        head_norms=True,
        rotations=_rotations(settings),
        layers=tuple(LayerNumbers(int(w > 0), w) for w in sizes),
    )
    return DecoderFamily(architecture, places(PLACES, **HEAD_NORMS))


def _rotations(settings: LanguageSettings) -> tuple[Rotation, Rotation]:
    """Returns the rotation of layers that see all keys, and that of those with windows."""
    pairs, context = head_size_of(settings) // 2, settings.whole("max_position_embeddings")
    parameters = settings.value("rope_parameters")
    if isinstance(parameters, dict) and {LOCAL, GLOBAL} <= parameters.keys():
        parts = (LanguageSettings(parameters, settings.path).part(kind) for kind in (GLOBAL, LOCAL))
        whole, local = (scaled(p, p.number("rope_theta"), pairs, context) for p in parts)
        return whole, local
    local = scaled(
        LanguageSettings({}, settings.path), settings.number("rope_local_base_freq", 10000.0), pairs, context
    )
    return rotation(settings, pairs, context, 1e6), local
