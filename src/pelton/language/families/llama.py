"""Llama 1 to 3, SmolLM and Mistral."""

from __future__ import annotations

from pelton.language.architecture import DecoderFamily
from pelton.language.source import LanguageSettings

from .common import LLAMA, decoder, places, window_of, windows


def llama(settings: LanguageSettings) -> DecoderFamily:
    """Llama (arXiv 2302.13971, 2407.21783) and all that have its form, such as SmolLM."""
    for name in ("attention_bias", "mlp_bias"):  # whatever biases the file has are added
        settings.flag(name)
    count = settings.layers()
    return DecoderFamily(decoder(settings, [0] * count), places(LLAMA))


def mistral(settings: LanguageSettings) -> DecoderFamily:
    """Mistral 7B (arXiv 2310.06825): a Llama, whose rows may see a window."""
    count, window = settings.layers(), window_of(settings)
    return DecoderFamily(decoder(settings, windows(settings, count, window, lambda i: True)), places(LLAMA))
