"""Tiny encoder–decoders on disk, with random weights, and what they compute in float64."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

import language_files as files

VOCABULARY, WIDTH, HEADS, SIZE, INNER, LAYERS = files.VOCABULARY, 32, 2, 12, 48, 2
ROWS, MELS, CONTEXT = 25, 16, 40  # of a Whisper: half a second
START, END, SILENT = 260, 1, 265
LANGUAGES, TASKS = {"<|en|>": 261, "<|de|>": 262}, {"translate": 263, "transcribe": 264}
T5 = dict(model_type="t5", d_model=WIDTH, d_kv=SIZE, num_heads=HEADS, d_ff=INNER, num_layers=LAYERS)
T5 |= dict(vocab_size=VOCABULARY, decoder_start_token_id=0, eos_token_id=END, pad_token_id=0, is_encoder_decoder=True)
T5 |= dict(relative_attention_num_buckets=8, relative_attention_max_distance=20)
WHISPER = dict(model_type="whisper", d_model=WIDTH, vocab_size=VOCABULARY, num_mel_bins=MELS, decoder_layers=LAYERS)
WHISPER |= dict(encoder_layers=LAYERS, encoder_attention_heads=HEADS, decoder_attention_heads=HEADS)
WHISPER |= dict(encoder_ffn_dim=INNER, decoder_ffn_dim=INNER, max_source_positions=ROWS, max_target_positions=CONTEXT)
WHISPER |= dict(decoder_start_token_id=START, eos_token_id=END, activation_function="relu")
RULES = dict(decoder_start_token_id=START, eos_token_id=END, no_timestamps_token_id=SILENT, lang_to_id=LANGUAGES)
RULES |= dict(task_to_id=TASKS, suppress_tokens=[*range(START, VOCABULARY)], begin_suppress_tokens=[END])
Tensors = dict[str, np.ndarray]


class Draw:
    """Random tensors: matrices that keep the size of rows, norms near 1, biases near 0."""

    def __init__(self, seed: int):
        self.rng, self.made = np.random.default_rng(seed), dict[str, np.ndarray]()

    def matrix(self, name: str, *shape: int) -> None:
        scale = math.prod(shape[1:]) ** -0.5
        self.made[f"{name}.weight"] = self.rng.normal(0, scale, shape).astype(np.float32)

    def norm(self, name: str) -> None:
        self.made[f"{name}.weight"] = self.rng.uniform(0.5, 1.5, WIDTH).astype(np.float32)

    def bias(self, name: str, size: int) -> None:
        self.made[f"{name}.bias"] = self.rng.normal(0, 0.3, size).astype(np.float32)


def t5(gated: bool = False, head: bool = False, seed: int = 0) -> Tensors:
    draw = Draw(seed)
    draw.matrix("shared", VOCABULARY, WIDTH)
    for side, parts in (("encoder", ("SelfAttention",)), ("decoder", ("SelfAttention", "EncDecAttention"))):
        for i in range(LAYERS):
            for j, part in enumerate(parts):
                at = f"{side}.block.{i}.layer.{j}"
                draw.norm(f"{at}.layer_norm")
                for name in "qkv":
                    draw.matrix(f"{at}.{part}.{name}", HEADS * SIZE, WIDTH)
                draw.matrix(f"{at}.{part}.o", WIDTH, HEADS * SIZE)
            at = f"{side}.block.{i}.layer.{len(parts)}"
            draw.norm(f"{at}.layer_norm")
            for name in ("wi_0", "wi_1") if gated else ("wi",):
                draw.matrix(f"{at}.DenseReluDense.{name}", INNER, WIDTH)
            draw.matrix(f"{at}.DenseReluDense.wo", WIDTH, INNER)
        draw.matrix(f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias", 8, HEADS)
        draw.norm(f"{side}.final_layer_norm")
    if head:
        draw.matrix("lm_head", VOCABULARY, WIDTH)
    return draw.made


def whisper(seed: int = 0) -> Tensors:
    draw = Draw(seed)
    draw.matrix("model.decoder.embed_tokens", VOCABULARY, WIDTH)
    draw.matrix("model.decoder.embed_positions", CONTEXT, WIDTH)
    draw.matrix("model.encoder.embed_positions", ROWS, WIDTH)
    for name, channels in (("conv1", MELS), ("conv2", WIDTH)):
        draw.matrix(f"model.encoder.{name}", WIDTH, channels, 3)
        draw.bias(f"model.encoder.{name}", WIDTH)
    for side, parts in (("encoder", ("self_attn",)), ("decoder", ("self_attn", "encoder_attn"))):
        norms = [f"model.{side}.layer_norm"]
        for i in range(LAYERS):
            at = f"model.{side}.layers.{i}"
            for part in parts:
                norms.append(f"{at}.{part}_layer_norm")
                for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    draw.matrix(f"{at}.{part}.{name}", WIDTH, WIDTH)
                    if name != "k_proj":
                        draw.bias(f"{at}.{part}.{name}", WIDTH)
            norms.append(f"{at}.final_layer_norm")
            for name, rows, inner in (("fc1", INNER, WIDTH), ("fc2", WIDTH, INNER)):
                draw.matrix(f"{at}.{name}", rows, inner)
                draw.bias(f"{at}.{name}", rows)
        for name in norms:
            draw.norm(name)
            draw.bias(name, WIDTH)
    return draw.made


def write(folder: Path, tensors: Tensors, config: dict, rules: dict | None = None) -> Path:
    """Writes a folder of transformers, which it returns. rules: those of generation_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(files.safetensors(tensors))
    (folder / "config.json").write_text(json.dumps(config))
    if rules is not None:
        (folder / "generation_config.json").write_text(json.dumps(rules))
    files.write_tokenizer(folder)
    return folder


# --- in float64


def product(w: Tensors, name: str, x: np.ndarray) -> np.ndarray:
    return x @ w[f"{name}.weight"].astype(np.float64).T + w.get(f"{name}.bias", 0.0)


def attended(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, bias: np.ndarray | float = 0.0) -> np.ndarray:
    q, k, v = (x.reshape(len(x), HEADS, -1).swapaxes(0, 1) for x in (q, k, v))
    scores = q @ k.swapaxes(1, 2) * scale + bias
    e = np.exp(scores - scores.max(-1, keepdims=True))
    y = e / e.sum(-1, keepdims=True) @ v
    return y.swapaxes(0, 1).reshape(y.shape[1], -1)


def causal(count: int) -> np.ndarray:
    return np.where(np.tri(count, dtype=bool), 0.0, -np.inf)


def bucket(distance: int, both: bool) -> int:
    """Returns the bucket of a distance of a key from its row, of 8 up to 20, by the formula of T5."""
    count, first = (4, 4 * (distance > 0)) if both else (8, 0)
    far = abs(distance) if both else max(-distance, 0)
    exact = count // 2
    if far < exact:
        return first + far
    return first + min(count - 1, exact + int(math.log(far / exact) / math.log(20 / exact) * (count - exact)))


class Text:
    """A T5 in float64."""

    def __init__(self, w: Tensors, gated: bool, head: bool):
        self.w, self.gated, self.head = w, gated, head

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * self.w[f"{name}.weight"]

    def rows(self, side: str, ids: list[int], source: np.ndarray | None = None) -> np.ndarray:
        w, x, count = self.w, self.w["shared.weight"].astype(np.float64)[ids], len(ids)
        both = side == "encoder"
        each = np.array([[bucket(k - q, both) for k in range(count)] for q in range(count)])
        table = w[f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
        bias = table[each].transpose(2, 0, 1) + (0 if both else causal(count))
        for i in range(LAYERS):
            for j, part in enumerate(("SelfAttention", "EncDecAttention")[: 1 + (not both)]):
                at = f"{side}.block.{i}.layer.{j}"
                y = self.norm(f"{at}.layer_norm", x)
                of = y if j == 0 else source
                q, k, v = (product(w, f"{at}.{part}.{n}", t) for n, t in (("q", y), ("k", of), ("v", of)))
                x = x + product(w, f"{at}.{part}.o", attended(q, k, v, 1.0, 0.0 if j else bias))
            at = f"{side}.block.{i}.layer.{1 if both else 2}"
            y, fed = self.norm(f"{at}.layer_norm", x), f"{at}.DenseReluDense"
            if self.gated:
                gate = product(w, f"{fed}.wi_0", y)
                gate = gate * 0.5 * (1 + np.tanh((2 / np.pi) ** 0.5 * (gate + 0.044715 * gate**3)))
                y = gate * product(w, f"{fed}.wi_1", y)
            else:
                y = np.maximum(product(w, f"{fed}.wi", y), 0)
            x = x + product(w, f"{fed}.wo", y)
        return self.norm(f"{side}.final_layer_norm", x)

    def logits(self, source: list[int], ids: list[int]) -> np.ndarray:
        y = self.rows("decoder", ids, self.rows("encoder", source))
        return product(self.w, "lm_head", y) if self.head else product(self.w, "shared", y * WIDTH**-0.5)


class Speech:
    """A Whisper in float64."""

    def __init__(self, w: Tensors):
        self.w = w

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]

    def layers(self, side: str, x: np.ndarray, source: np.ndarray | None = None) -> np.ndarray:
        w, masked = self.w, causal(len(x)) if source is not None else 0.0
        for i in range(LAYERS):
            at = f"model.{side}.layers.{i}"
            for part in ("self_attn", "encoder_attn")[: 1 + (source is not None)]:
                y = self.norm(f"{at}.{part}_layer_norm", x)
                of = y if part == "self_attn" else source
                q, k, v = (product(w, f"{at}.{part}.{n}_proj", t) for n, t in (("q", y), ("k", of), ("v", of)))
                y = attended(q, k, v, (WIDTH // HEADS) ** -0.5, masked if part == "self_attn" else 0.0)
                x = x + product(w, f"{at}.{part}.out_proj", y)
            y = np.maximum(product(w, f"{at}.fc1", self.norm(f"{at}.final_layer_norm", x)), 0)
            x = x + product(w, f"{at}.fc2", y)
        return self.norm(f"model.{side}.layer_norm", x)

    def convolved(self, name: str, x: np.ndarray, stride: int) -> np.ndarray:
        kernel = self.w[f"model.encoder.{name}.weight"].astype(np.float64)
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (1, 1))), 3, axis=1)[:, ::stride]
        y = np.einsum("ock,ctk->ot", kernel, windows) + self.w[f"model.encoder.{name}.bias"][:, None]
        return y * 0.5 * (1 + np.vectorize(math.erf)(y / 2**0.5))

    def logits(self, spectrogram: np.ndarray, ids: list[int]) -> np.ndarray:
        x = self.convolved("conv2", self.convolved("conv1", spectrogram.astype(np.float64), 1), 2).T
        source = self.layers("encoder", x + self.w["model.encoder.embed_positions.weight"])
        table = self.w["model.decoder.embed_tokens.weight"].astype(np.float64)
        y = self.layers("decoder", table[ids] + self.w["model.decoder.embed_positions.weight"][: len(ids)], source)
        return y @ table.T
