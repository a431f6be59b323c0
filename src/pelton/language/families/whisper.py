"""Whisper: an encoder of sound, and a decoder of text."""

from __future__ import annotations

from typing import Any

from pelton.errors import ModelError

from pelton.language.architecture import Architecture, DecoderFamily, LayerNumbers
from pelton.language.encoder_architecture import EncoderArchitecture, EncoderDecoderFamily, EncoderFamily
from pelton.language.source import LanguageSettings

from .common import activation, places

LAYER = {
    "attention_norm": "self_attn_layer_norm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "output": "self_attn.out_proj",
    "hidden_norm": "final_layer_norm",
    "up": "fc1",
    "down": "fc2",
}
CROSS = {
    "cross_norm": "encoder_attn_layer_norm",
    "cross_q": "encoder_attn.q_proj",
    "cross_k": "encoder_attn.k_proj",
    "cross_v": "encoder_attn.v_proj",
    "cross_output": "encoder_attn.out_proj",
}
TABLE = "model.decoder.embed_tokens"


def whisper(settings: LanguageSettings) -> EncoderDecoderFamily:
    """Whisper (arXiv 2212.04356)."""
    rows, mels = settings.whole("max_source_positions", 1500), settings.whole("num_mel_bins", 80, 1024)
    encoder = EncoderArchitecture(**_side(settings, "encoder", rows), mels=mels)
    context = settings.whole("max_target_positions", 448)
    settings.flag("scale_embedding")  # which transformers ignores, too
    decoder = Architecture(**_side(settings, "decoder", context), sources=rows, padded=True)
    return EncoderDecoderFamily(
        EncoderFamily(encoder, places(_names("encoder", LAYER), conv1=_name("conv1"), conv2=_name("conv2"))),
        DecoderFamily(decoder, places(_names("decoder", LAYER | CROSS), embedding=TABLE, head="proj_out")),
        context,
        settings.flag("tie_word_embeddings", True),
        (TABLE,),
    )


def _side(settings: LanguageSettings, side: str, context: int) -> dict[str, Any]:
    """Returns the numbers of the encoder or the decoder."""
    width, heads = settings.whole("d_model"), settings.whole(f"{side}_attention_heads")
    if width % heads:
        raise ModelError(f"{settings.path}: {heads} {side}_attention_heads do not divide a d_model of {width}")
    return dict(
        family="whisper",
        width=width,
        heads=heads,
        kv_heads=heads,
        head_size=width // heads,
        hidden=settings.whole(f"{side}_ffn_dim"),
        vocabulary=settings.whole("vocab_size"),
        context=context,
        epsilon=1e-5,
        layers=(LayerNumbers(None),) * settings.layers(f"{side}_layers"),
        norm="layer",
        activation=activation(settings, "activation_function"),
        gated=False,
        positions=True,
    )


def _names(side: str, layer: dict[str, str]) -> dict[str, str]:
    names = {part: f"model.{side}.layers.{{}}.{name}" for part, name in layer.items()}
    return names | dict(norm=f"model.{side}.layer_norm", positions=f"model.{side}.embed_positions")


def _name(part: str) -> str:
    return f"model.encoder.{part}"
