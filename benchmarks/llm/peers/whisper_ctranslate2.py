"""Reads a Whisper as CTranslate2 writes it (`model_spec.py` of CTranslate2): packages hold such files."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}


def variables(path: Path) -> dict[str, np.ndarray]:
    """Returns the variables of a file by name."""
    with open(path, "rb") as f:

        def numbers(form: str) -> tuple[Any, ...]:
            return struct.unpack(f"<{form}", f.read(struct.calcsize(f"<{form}")))

        def text() -> str:
            return f.read(*numbers("H"))[:-1].decode()

        version, _, _, count = *numbers("I"), text(), *numbers("I"), *numbers("I")
        if version != 6:
            raise ValueError(f"{path} has version {version} of the format, expected 6")
        out = {}
        for _ in range(count):
            name, (rank,) = text(), numbers("B")
            shape, (kind, size) = numbers("I" * rank), numbers("BI")
            out[name] = np.frombuffer(f.read(size), TYPES[kind]).reshape(shape)
        return out


def tensors(of: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the tensors by the names of transformers, in f32."""
    out, width = {}, len(of["encoder/conv1/bias"])

    def put(name: str, at: str, rows: slice = slice(None)) -> None:
        """Puts a product, a convolution or a norm. rows: of products that are stored as one."""
        for kind, stored in (("weight", "weight"), ("bias", "bias"), ("weight", "gamma"), ("bias", "beta")):
            if f"{at}/{stored}" in of and not (kind == "bias" and name.endswith("k_proj")):
                out[f"model.{name}.{kind}"] = of[f"{at}/{stored}"][rows].astype(np.float32)

    def attention(to: str, at: str, cross: bool) -> None:
        for i, part in enumerate("qkv"):
            stored, row = (f"linear_{int(i > 0)}", max(i - 1, 0)) if cross else ("linear_0", i)
            put(f"{to}.{part}_proj", f"{at}/{stored}", slice(row * width, (row + 1) * width))
        put(f"{to}.out_proj", f"{at}/linear_{1 + cross}")
        put(f"{to}_layer_norm", f"{at}/layer_norm")

    put("encoder.conv1", "encoder/conv1")
    put("encoder.conv2", "encoder/conv2")
    put("decoder.embed_tokens", "decoder/embeddings")
    for side in ("encoder", "decoder"):
        positions = of[f"{side}/position_encodings/encodings"].astype(np.float32)
        out[f"model.{side}.embed_positions.weight"] = positions
        put(f"{side}.layer_norm", f"{side}/layer_norm")
        for i in range(layers(of, side)):
            to, at = f"{side}.layers.{i}", f"{side}/layer_{i}"
            attention(f"{to}.self_attn", f"{at}/self_attention", False)
            if side == "decoder":
                attention(f"{to}.encoder_attn", f"{at}/attention", True)
            put(f"{to}.fc1", f"{at}/ffn/linear_0")
            put(f"{to}.fc2", f"{at}/ffn/linear_1")
            put(f"{to}.final_layer_norm", f"{at}/ffn/layer_norm")
    return out


def layers(of: dict[str, np.ndarray], side: str) -> int:
    return sum(f"{side}/layer_{i}/ffn/linear_0/bias" in of for i in range(100))


def settings(folder: Path, of: dict[str, np.ndarray]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns config.json and generation_config.json of a model of one language."""
    config = json.loads((folder / "config.json").read_text())
    (rows, width), mels = of["encoder/position_encodings/encodings"].shape, of["encoder/conv1/weight"].shape[1]
    heads, end = int(of["encoder/num_heads"]), config["suppress_ids_begin"][-1]
    sides = {f"{side}_layers": layers(of, side) for side in ("encoder", "decoder")}
    sides |= {f"{side}_attention_heads": heads for side in ("encoder", "decoder")}
    sides |= {f"{side}_ffn_dim": len(of[f"{side}/layer_0/ffn/linear_0/bias"]) for side in ("encoder", "decoder")}
    ids = dict(decoder_start_token_id=end + 1, eos_token_id=end, bos_token_id=end, pad_token_id=end)
    about = dict(vocab_size=len(of["decoder/embeddings/weight"]), d_model=width, num_mel_bins=int(mels), **sides, **ids)
    about |= dict(max_source_positions=rows, max_target_positions=len(of["decoder/position_encodings/encodings"]))
    about |= dict(suppress_tokens=None, begin_suppress_tokens=None)
    silent = end + 106  # of models of English
    rules = dict(**ids, forced_decoder_ids=[[1, silent]], no_timestamps_token_id=silent, is_multilingual=False)
    rules |= dict(suppress_tokens=config["suppress_ids"], begin_suppress_tokens=config["suppress_ids_begin"])
    return about, {**rules, "max_length": about["max_target_positions"], "return_timestamps": False}
