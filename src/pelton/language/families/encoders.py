"""Families of encoders: BERT, RoBERTa, DistilBERT, MPNet and ModernBERT."""

from __future__ import annotations

from collections.abc import Callable

from pelton.errors import ModelError

from pelton.language.architecture import LayerNumbers, TensorPlace
from pelton.language.encoder_architecture import EncoderArchitecture, EncoderFamily
from pelton.language.rotations import rotation, scaled
from pelton.language.source import LanguageSettings

from .common import activation, places, windows

BERT = {
    "embedding": "{p}embeddings.word_embeddings",
    "positions": "{p}embeddings.position_embeddings",
    "types": "{p}embeddings.token_type_embeddings",
    "table_norm": "{p}embeddings.LayerNorm",
    "q": "{l}attention.self.query",
    "k": "{l}attention.self.key",
    "v": "{l}attention.self.value",
    "output": "{l}attention.output.dense",
    "attention_norm": "{l}attention.output.LayerNorm",
    "up": "{l}intermediate.dense",
    "down": "{l}output.dense",
    "hidden_norm": "{l}output.LayerNorm",
}
MPNET = {
    **{part: name for part, name in BERT.items() if part != "types"},
    **{part: f"{{l}}attention.attn.{part}" for part in "qkv"},
    "output": "{l}attention.attn.o",
    "attention_norm": "{l}attention.LayerNorm",
    "buckets": "{p}encoder.relative_attention_bias",
}
DISTILBERT = {
    **{part: BERT[part] for part in ("embedding", "positions", "table_norm")},
    **{part: f"{{l}}attention.{part}_lin" for part in "qkv"},
    "output": "{l}attention.out_lin",
    "attention_norm": "{l}sa_layer_norm",
    "up": "{l}ffn.lin1",
    "down": "{l}ffn.lin2",
    "hidden_norm": "{l}output_layer_norm",
}
MODERNBERT = {
    "embedding": "{p}embeddings.tok_embeddings",
    "table_norm": "{p}embeddings.norm",
    "attention_norm": "{l}attn_norm",
    "output": "{l}attn.Wo",
    "hidden_norm": "{l}mlp_norm",
    "down": "{l}mlp.Wo",
    "norm": "{p}final_norm",
}
HEADS = ("cls.", "lm_head.", "vocab_", "classifier.", "pre_classifier.", "head.", "decoder.", "mlm.")


def bert(settings: LanguageSettings) -> EncoderFamily:
    """BERT (arXiv 1810.04805)."""
    a = _architecture(settings, types=settings.whole("type_vocab_size", 2))
    return _family(a, BERT, "bert.", "encoder.layer")


def roberta(settings: LanguageSettings) -> EncoderFamily:
    """RoBERTa (arXiv 1907.11692), XLM-R and CamemBERT: BERT, whose positions begin behind that of padding."""
    first = _first_row(settings)
    a = _architecture(settings, first, types=settings.whole("type_vocab_size", 2))
    return _family(a, BERT, "roberta.", "encoder.layer")


def mpnet(settings: LanguageSettings) -> EncoderFamily:
    """MPNet (arXiv 2004.09297): distances have biases."""
    a = _architecture(settings, _first_row(settings), buckets=settings.whole("relative_attention_num_buckets", 32))
    return _family(a, MPNET, "mpnet.", "encoder.layer")


def distilbert(settings: LanguageSettings) -> EncoderFamily:
    """DistilBERT (arXiv 1910.01108): BERT without kinds of tokens."""
    settings.flag("sinusoidal_pos_embds")  # the file has the table in both cases
    names = dict(hidden_size="dim", intermediate_size="hidden_dim", num_attention_heads="n_heads")
    names |= dict(num_hidden_layers="n_layers", hidden_act="activation")
    values = {**settings.values, **{to: settings.value(name) for to, name in names.items()}}
    own = LanguageSettings(values, settings.path)
    a = _architecture(own)
    settings.seen |= own.seen | {"qa_dropout", "seq_classif_dropout", "dropout"}
    return _family(a, DISTILBERT, "distilbert.", "transformer.layer")


def modernbert(settings: LanguageSettings) -> EncoderFamily:
    """ModernBERT (arXiv 2412.13663): norms in front, gates, rotations, and layers whose tokens see those nearby."""
    count, half = settings.layers(), settings.whole("local_attention", 128) // 2
    every = settings.whole("global_attn_every_n_layers", 3)
    near = windows(settings, count, half + 1, lambda i: i % every != 0)
    parameters, bases = settings.value("rope_parameters"), dict(global_rope_theta=160000.0, local_rope_theta=10000.0)
    width, heads = settings.whole("hidden_size"), settings.whole("num_attention_heads")
    context, pairs = settings.whole("max_position_embeddings"), width // heads // 2
    rotations = []
    for kind, (name, base) in zip(("full_attention", "sliding_attention"), bases.items()):
        base = settings.number(name, base)
        if isinstance(parameters, dict) and isinstance(parameters.get(kind), dict):
            own = LanguageSettings(dict(parameters[kind]), settings.path)
            rotations.append(scaled(own, own.number("rope_theta", base), pairs, context))
        else:
            rotations.append(rotation(LanguageSettings({}, settings.path), pairs, context, base))
    a = _architecture(
        settings,
        0,
        "norm_eps",
        1e-5,
        "hidden_activation",
        after=False,
        gated=True,
        positions=False,
        bare_first=True,
        rotations=tuple(rotations),
        layers=tuple(LayerNumbers(int(window > 0), window) for window in near),
    )
    family = _family(a, MODERNBERT, "model.", "layers")
    fused, both = "model.layers.{}.attn.Wqkv", "model.layers.{}.mlp.Wi"
    parts = {part: TensorPlace(fused, (i * width, (i + 1) * width)) for i, part in enumerate("qkv")}
    parts |= {part: TensorPlace(both, (i * a.hidden, (i + 1) * a.hidden)) for i, part in enumerate(("gate", "up"))}
    return EncoderFamily(a, {**family.places, **parts}, family.harmless)


ENCODERS: dict[str, Callable[[LanguageSettings], EncoderFamily]] = {
    "bert": bert,
    "camembert": roberta,
    "distilbert": distilbert,
    "modernbert": modernbert,
    "mpnet": mpnet,
    "roberta": roberta,
    "xlm-roberta": roberta,
}
# what configurations of encoders have for training, and for other tasks
HARMLESS = {
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "cls_token_id", "sep_token_id"),
    *("embedding_dropout", "mlp_dropout", "attention_dropout", "classifier_activation", "classifier_bias", "dropout"),
    *("classifier_pooling", "decoder_bias", "deterministic_flash_attn", "norm_bias", "attention_bias", "mlp_bias"),
    *("classifier_dropout_prob", "sparse_prediction", "sparse_pred_ignore_index", "reference_compile", "position_bias"),
    *(
        "initializer_cutoff_factor",
        "repad_logits_with_grad",
        "tie_weights_",
        "output_past",
        "pad_token_id",
        "mask_token_id",
    ),
    *("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head"),
    *("pooler_type", "adaptive_dropout", "gradient_checkpointing", "model_max_length", "use_cache"),
}


def _first_row(settings: LanguageSettings) -> int:
    pad = settings.value("pad_token_id")
    return (1 if pad is None else settings.whole("pad_token_id")) + 1


def _architecture(
    settings: LanguageSettings,
    first: int = 0,
    epsilon: str = "layer_norm_eps",
    default: float = 1e-12,
    act: str = "hidden_act",
    **others: object,
) -> EncoderArchitecture:
    """Returns the architecture of a BERT, with other values where a family has them."""
    if settings.text("position_embedding_type", "absolute") not in ("absolute", "sans_pos"):
        raise ModelError(
            f"{settings.path}: position_embedding_type {settings.value('position_embedding_type')!r} is not supported"
        )
    for name in ("is_decoder", "add_cross_attention"):
        if settings.flag(name):
            raise ModelError(f"{settings.path}: {name} is not supported in encoders")
    width, heads = settings.whole("hidden_size"), settings.whole("num_attention_heads")
    context = settings.whole("max_position_embeddings") - first
    if width % heads:
        raise ModelError(f"{settings.path}: {heads} heads do not divide a hidden_size of {width}")
    if context < 1:
        raise ModelError(f"{settings.path}: max_position_embeddings must be above {first}, got {first + context}")
    values = dict(
        family=settings.text("model_type"),
        width=width,
        heads=heads,
        kv_heads=heads,
        head_size=width // heads,
        hidden=settings.whole("intermediate_size"),
        vocabulary=settings.whole("vocab_size"),
        context=context,
        epsilon=settings.number(epsilon, default),
        layers=(LayerNumbers(None),) * settings.layers(),
        norm="layer",
        activation=activation(settings, act),
        gated=False,
        positions=True,
        first_row=first,
        table_norm=True,
        after=True,
    )
    return EncoderArchitecture(**{**values, **others})  # type: ignore[arg-type]


def _family(a: EncoderArchitecture, names: dict[str, str], prefix: str, layers: str) -> EncoderFamily:
    full = {part: name.format(p=prefix, l=f"{prefix}{layers}.{{}}.") for part, name in names.items()}
    own = ("pooler.", "embeddings.position_ids", *HEADS)
    return EncoderFamily(a, places(full), (*HEADS, *(prefix + name for name in own)))
