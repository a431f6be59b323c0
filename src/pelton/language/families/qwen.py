"""Qwen 2, 2.5 and 3."""

from __future__ import annotations

from pelton.language.architecture import DecoderFamily
from pelton.language.source import LanguageSettings

from .common import HEAD_NORMS, LLAMA, decoder, places, window_of, windows


def _windows(settings: LanguageSettings) -> list[int]:
    count, used = settings.layers(), settings.flag("use_sliding_window")
    window, first = window_of(settings, used), settings.value("max_window_layers")
    begin = first if isinstance(first, int) else count
    return windows(settings, count, window, lambda i: used and i >= begin)


def qwen2(settings: LanguageSettings) -> DecoderFamily:
    """Qwen2 (arXiv 2407.10671): a Llama with biases of queries, keys and values."""
    return DecoderFamily(decoder(settings, _windows(settings)), places(LLAMA))


def qwen3(settings: LanguageSettings) -> DecoderFamily:
    """Qwen3 (arXiv 2505.09388): norms of the heads of queries and keys."""
    settings.flag("attention_bias")
    return DecoderFamily(decoder(settings, _windows(settings), head_norms=True), places(LLAMA, **HEAD_NORMS))
