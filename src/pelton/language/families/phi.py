"""Phi 3, 3.5, 4 and 4-mini."""

from __future__ import annotations

from pelton.language.architecture import DecoderFamily, TensorPlace
from pelton.language.source import LanguageSettings

from .common import LLAMA, decoder, places, window_of, windows

ATTENTION, HIDDEN = "model.layers.{}.self_attn.qkv_proj", "model.layers.{}.mlp.gate_up_proj"


def phi3(settings: LanguageSettings) -> DecoderFamily:
    """Phi-3 (arXiv 2404.14219): a Llama whose products of one input are one matrix."""
    settings.flag("attention_bias")
    settings.value("original_max_position_embeddings")
    count, window = settings.layers(), window_of(settings)
    a = decoder(settings, windows(settings, count, window, lambda i: True))
    q, kv = a.heads * a.head_size, a.kv_heads * a.head_size
    of = places(LLAMA)
    of |= {"q": TensorPlace(ATTENTION, (0, q)), "k": TensorPlace(ATTENTION, (q, q + kv))}
    of |= {"v": TensorPlace(ATTENTION, (q + kv, q + 2 * kv))}
    of |= {"gate": TensorPlace(HIDDEN, (0, a.hidden)), "up": TensorPlace(HIDDEN, (a.hidden, 2 * a.hidden))}
    return DecoderFamily(a, of)
