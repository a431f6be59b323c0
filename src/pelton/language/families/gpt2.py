"""GPT-2, whose positions are learned."""

from __future__ import annotations

from pelton.errors import ModelError

from pelton.language.architecture import Architecture, DecoderFamily, LayerNumbers, TensorPlace
from pelton.language.source import LanguageSettings

from .common import activation

NAMES = {
    "embedding": "wte",
    "positions": "wpe",
    "norm": "ln_f",
    "attention_norm": "h.{}.ln_1",
    "hidden_norm": "h.{}.ln_2",
}
TRANSPOSED = {"output": "h.{}.attn.c_proj", "up": "h.{}.mlp.c_fc", "down": "h.{}.mlp.c_proj"}
PREFIX = "transformer."


def gpt2(settings: LanguageSettings) -> DecoderFamily:
    """GPT-2 (Radford et al. 2019): layer norms, learned positions, matrices stored transposed."""
    for name in ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"):
        if settings.flag(name):
            raise ModelError(f"{settings.path}: {name} is not supported")
    width, heads, count = settings.whole("n_embd"), settings.whole("n_head"), settings.layers("n_layer")
    if width % heads:
        raise ModelError(f"{settings.path}: {heads} heads do not divide an n_embd of {width}")
    size = width // heads
    a = Architecture(
        family="gpt2",
        width=width,
        heads=heads,
        kv_heads=heads,
        head_size=size,
        hidden=settings.whole("n_inner", 4 * width),
        vocabulary=settings.whole("vocab_size"),
        context=settings.whole("n_positions"),
        epsilon=settings.number("layer_norm_epsilon", 1e-5),
        layers=(LayerNumbers(None),) * count,
        norm="layer",
        activation=activation(settings, "activation_function"),
        gated=False,
        score_scale=size**-0.5 if settings.flag("scale_attn_weights", True) else 1.0,
        positions=True,
    )
    parts = {part: TensorPlace(PREFIX + name) for part, name in NAMES.items()}
    parts |= {part: TensorPlace(PREFIX + name, None, True) for part, name in TRANSPOSED.items()}
    fused = PREFIX + "h.{}.attn.c_attn"
    parts |= {part: TensorPlace(fused, (i * width, (i + 1) * width), True) for i, part in enumerate("qkv")}
    return DecoderFamily(a, {**parts, "head": TensorPlace("lm_head")})
