"""T5 and mT5: encoder–decoders of text with biases by distance."""

from __future__ import annotations

from typing import Any

from pelton.errors import ModelError

from pelton.language.architecture import Architecture, DecoderFamily, LayerNumbers
from pelton.language.encoder_architecture import EncoderArchitecture, EncoderDecoderFamily, EncoderFamily
from pelton.language.source import LanguageSettings

from .common import activation_of, places

LONGEST, USUAL = 32768, 512  # tokens: biases by distance have no limit of their own
TABLES = ("shared", "decoder.embed_tokens", "encoder.embed_tokens")
FAR = "relative_attention_max_distance"
OTHERS = ("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.",)  # which old files have for nothing


def t5(settings: LanguageSettings) -> EncoderDecoderFamily:
    """T5 (arXiv 1910.10683), its version 1.1 and Flan-T5, which have a head of their own and do not scale its rows."""
    tied = settings.flag("scale_decoder_outputs", settings.flag("tie_word_embeddings", True))
    return _family(settings, tied)


def mt5(settings: LanguageSettings) -> EncoderDecoderFamily:
    """mT5 (arXiv 2010.11934)."""
    settings.flag("tie_word_embeddings")
    return _family(settings, False)


def _family(settings: LanguageSettings, tied: bool) -> EncoderDecoderFamily:
    layers, form = settings.layers("num_layers"), settings.text("feed_forward_proj", "relu")
    gated = form.startswith("gated-")
    for name in ("is_gated_act", "dense_act_fn"):  # which follow from it
        settings.value(name)
    act = form.removeprefix("gated-")
    act = "gelu_new" if gated and act == "gelu" else act
    buckets, far = settings.whole("relative_attention_num_buckets", 32, 4096), settings.whole(FAR, 128)
    if buckets % 4 or far <= buckets // 2:
        raise ModelError(
            f"{settings.path}: relative_attention_num_buckets must be a multiple of 4, and {FAR} above half of it, got"
            f" {buckets} and {far}"
        )
    values = dict[str, Any](
        family=settings.text("model_type"),
        width=settings.whole("d_model"),
        heads=settings.whole("num_heads"),
        kv_heads=settings.whole("num_heads"),
        head_size=settings.whole("d_kv", 64),
        hidden=settings.whole("d_ff"),
        vocabulary=settings.whole("vocab_size"),
        context=LONGEST,
        epsilon=settings.number("layer_norm_epsilon", 1e-6),
        activation=activation_of(settings, act),
        gated=gated,
        score_scale=1.0,
        buckets=buckets,
        far=far,
    )
    count = settings.layers("num_decoder_layers") if settings.value("num_decoder_layers") is not None else layers
    encoder = EncoderArchitecture(**values, layers=(LayerNumbers(None),) * layers)
    scale = encoder.width**-0.5 if tied else 1.0
    decoder = Architecture(**values, layers=(LayerNumbers(None),) * count, sources=LONGEST, head_scale=scale)
    usual = settings.whole("n_positions", USUAL, LONGEST)
    return EncoderDecoderFamily(
        EncoderFamily(encoder, places(_names("encoder", gated))),
        DecoderFamily(decoder, places(_names("decoder", gated), head="lm_head")),
        usual,
        tied,
        TABLES,
        (*(f"{table}." for table in TABLES), *OTHERS),
    )


def _names(side: str, gated: bool) -> dict[str, str]:
    """Returns the names of parts of an encoder or a decoder."""
    block, last = f"{side}.block.{{}}.layer", 1 if side == "encoder" else 2
    names = {part: f"{block}.0.SelfAttention.{name}" for part, name in zip(("q", "k", "v", "output"), "qkvo")}
    names |= dict(attention_norm=f"{block}.0.layer_norm", hidden_norm=f"{block}.{last}.layer_norm")
    names |= dict(embedding=TABLES[0], norm=f"{side}.final_layer_norm")
    names["buckets"] = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias"
    fed = dict(gate="wi_0", up="wi_1", down="wo") if gated else dict(up="wi", down="wo")
    names |= {part: f"{block}.{last}.DenseReluDense.{name}" for part, name in fed.items()}
    if side == "decoder":
        cross = zip(("q", "k", "v", "output"), "qkvo")
        names |= {f"cross_{part}": f"{block}.1.EncDecAttention.{name}" for part, name in cross}
        names["cross_norm"] = f"{block}.1.layer_norm"
    return names
