"""StarCoder 2."""

from __future__ import annotations

from pelton.language.architecture import DecoderFamily
from pelton.language.source import LanguageSettings

from .common import LLAMA, decoder, places, window_of, windows


def starcoder2(settings: LanguageSettings) -> DecoderFamily:
    """StarCoder2 (arXiv 2402.19173): layer norms and biases, rotations, windows, one product between activations."""
    settings.flag("use_bias", True)
    count, window = settings.layers(), window_of(settings)
    a = decoder(
        settings,
        windows(settings, count, window, lambda i: True),
        norm="layer",
        epsilon=settings.number("norm_epsilon", 1e-5),
        gated=False,
    )
    others = {"up": "model.layers.{}.mlp.c_fc", "down": "model.layers.{}.mlp.c_proj"}
    return DecoderFamily(a, places({k: v for k, v in LLAMA.items() if k != "gate"}, **others))
