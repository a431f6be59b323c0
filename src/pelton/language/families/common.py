"""What several families share: numbers of a configuration, places of tensors."""

from __future__ import annotations

from typing import Any

from pelton.errors import ModelError

from pelton.language.architecture import Architecture, LayerNumbers, TensorPlace
from pelton.language.rotations import rotation
from pelton.language.source import LanguageSettings

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
LLAMA = {
    "embedding": "model.embed_tokens",
    "head": "lm_head",
    "norm": "model.norm",
    "attention_norm": "model.layers.{}.input_layernorm",
    "q": "model.layers.{}.self_attn.q_proj",
    "k": "model.layers.{}.self_attn.k_proj",
    "v": "model.layers.{}.self_attn.v_proj",
    "output": "model.layers.{}.self_attn.o_proj",
    "hidden_norm": "model.layers.{}.post_attention_layernorm",
    "gate": "model.layers.{}.mlp.gate_proj",
    "up": "model.layers.{}.mlp.up_proj",
    "down": "model.layers.{}.mlp.down_proj",
}
HEAD_NORMS = {"q_norm": "model.layers.{}.self_attn.q_norm", "k_norm": "model.layers.{}.self_attn.k_norm"}


def places(names: dict[str, str], **others: str) -> dict[str, TensorPlace]:
    """Returns the places of whole tensors."""
    return {part: TensorPlace(name) for part, name in {**names, **others}.items()}


def activation(settings: LanguageSettings, name: str = "hidden_act") -> str:
    """Returns the activation; ModelError for one that is not known."""
    return activation_of(settings, settings.text(name))


def activation_of(settings: LanguageSettings, kind: str) -> str:
    """Returns the activation of this name in transformers; ModelError for one that is not known."""
    if kind not in ACTIVATIONS:
        raise ModelError(f"{settings.path}: the activation {kind!r} is not supported, only {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[kind]


def window_of(settings: LanguageSettings, used: bool = True) -> int:
    """Returns the window of layers that have one; 0 for none."""
    window = settings.value("sliding_window")
    return settings.whole("sliding_window") if window is not None and used else 0


def windows(settings: LanguageSettings, count: int, window: int, sliding: Any) -> list[int]:
    """Returns the window of each layer, by `layer_types`, or where `sliding(i)` is true."""
    kinds = settings.value("layer_types")
    if kinds is None:
        return [window if sliding(i) else 0 for i in range(count)]
    known = ("full_attention", "sliding_attention")
    if not isinstance(kinds, list) or len(kinds) != count or any(k not in known for k in kinds):
        raise ModelError(f"{settings.path}: layer_types must be {count} times one of {', '.join(known)}")
    return [window if kind == "sliding_attention" else 0 for kind in kinds]


def rotated_pairs(settings: LanguageSettings, head_size: int) -> int:
    """Returns the pairs of each head that rotate."""
    parameters = settings.value("rope_parameters")
    inner = parameters.get("partial_rotary_factor") if isinstance(parameters, dict) else None
    share = settings.number("partial_rotary_factor", 1.0) if inner is None else inner
    settings.seen.add("partial_rotary_factor")
    pairs = int(head_size * share) // 2 if isinstance(share, (int, float)) else 0
    if not 1 <= pairs <= head_size // 2:
        raise ModelError(f"{settings.path}: partial_rotary_factor must rotate a part of {head_size}, got {share!r}")
    return pairs


def head_size_of(settings: LanguageSettings) -> int:
    """Returns the size of a head; ModelError if it is odd, or the heads do not divide the width."""
    width, heads = settings.whole("hidden_size"), settings.whole("num_attention_heads")
    if settings.value("head_dim") is None and width % heads:
        raise ModelError(f"{settings.path}: {heads} heads do not divide a hidden_size of {width}")
    size = settings.whole("head_dim", max(1, width // heads))
    if size % 2:
        raise ModelError(f"{settings.path}: heads of {size} numbers cannot rotate; expected an even size")
    return size


def decoder(settings: LanguageSettings, windows: list[int], **others: Any) -> Architecture:
    """Returns the architecture of a Llama with these windows, and with other values where a family has them."""
    size, heads = head_size_of(settings), settings.whole("num_attention_heads")
    kv_heads, context = settings.whole("num_key_value_heads", heads), settings.whole("max_position_embeddings")
    if heads % kv_heads:
        raise ModelError(f"{settings.path}: {kv_heads} heads of keys do not divide {heads} heads")
    values = dict(
        family=settings.text("model_type"),
        width=settings.whole("hidden_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_size=size,
        hidden=settings.whole("intermediate_size"),
        vocabulary=settings.whole("vocab_size"),
        context=context,
        layers=tuple(LayerNumbers(window=w) for w in windows),
    )
    values.update(others)
    if "rotations" not in values:
        values["rotations"] = (rotation(settings, rotated_pairs(settings, size), context),)
    if "epsilon" not in values:
        values["epsilon"] = settings.number("rms_norm_eps", 1e-6)
    if "activation" not in values:
        values["activation"] = activation(settings)
    return Architecture(**values)  # type: ignore[arg-type]
