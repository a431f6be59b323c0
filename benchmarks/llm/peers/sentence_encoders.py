#!/usr/bin/env python3
"""Makes tiny sentence encoders of every family, and records what transformers computes: sentence_encoders.py FOLDER.

Needs the packages transformers, torch and tokenizers. Each model is a folder of FOLDER with random weights and the
files of sentence-transformers, and has answers.npz beside it: `lengths`, `ids` of all texts, one behind the other, and
`embeddings` in float64, of each text alone, by the formulas of sentence-transformers' Pooling, Dense and Normalize.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from language_models import FAMILIES, tokens, write_tokenizer

VOCABULARY, CONTEXT, WIDTH = len(tokens()), 160, 64
LENGTHS = (1, 2, 3, 17, 40, 64, 65, 100, 141)
SMALL = dict(vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4)
SMALL |= dict(max_position_embeddings=CONTEXT, pad_token_id=0)
DISTIL = dict(vocab_size=VOCABULARY, dim=WIDTH, hidden_dim=96, n_layers=3, n_heads=4, max_position_embeddings=CONTEXT)
MODERN = dict(local_attention=16, global_attn_every_n_layers=3, norm_eps=1e-5, bos_token_id=0, eos_token_id=1)
MODERN |= dict(cls_token_id=0, sep_token_id=1)
FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


@dataclass(frozen=True)
class Encoder:
    """A model. modes: of pooling, () for a folder without modules.json. dense: the activation of a product behind it,
    "" for none. headed: weights lie in a model with a head, whose names have a prefix."""

    config: Any
    modes: tuple[str, ...] = ("mean",)
    dense: str = ""
    normalize: bool = True
    headed: bool = False


def encoders() -> dict[str, Encoder]:
    bert = transformers.BertConfig(**SMALL)
    pad = {**SMALL, "pad_token_id": 1}
    qwen = FAMILIES["qwen3"]()
    qwen.max_position_embeddings = CONTEXT
    found = {
        "bert, mean, normalized": Encoder(bert),
        "bert, no modules": Encoder(bert, (), normalize=False),
        "bert, with a head": Encoder(bert, headed=True),
        "bert, relu": Encoder(transformers.BertConfig(**SMALL, hidden_act="gelu_new"), ("cls",), normalize=False),
        "bert, dense": Encoder(bert, dense="Tanh"),
        "bert, dense, linear": Encoder(bert, ("cls", "mean"), dense="Identity", normalize=False),
        "roberta": Encoder(transformers.RobertaConfig(**pad, type_vocab_size=1)),
        "xlm-roberta, cls": Encoder(transformers.XLMRobertaConfig(**pad, type_vocab_size=1), ("cls",)),
        "xlm-roberta, with a head": Encoder(transformers.XLMRobertaConfig(**pad, type_vocab_size=1), headed=True),
        "mpnet": Encoder(transformers.MPNetConfig(**pad)),
        "distilbert": Encoder(transformers.DistilBertConfig(**DISTIL)),
        "modernbert": Encoder(transformers.ModernBertConfig(**SMALL, **MODERN)),
        "modernbert, cls": Encoder(transformers.ModernBertConfig(**SMALL, **MODERN), ("cls",), normalize=False),
        "qwen3, last token": Encoder(qwen, ("lasttoken",)),
        "mistral, window, mean": Encoder(
            transformers.MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=9), normalize=False
        ),
    }
    for mode in FLAGS:
        found[f"bert, {mode}"] = Encoder(bert, (mode,), normalize=False)
    return {name.replace("bert, relu", "bert, gelu_new, cls"): e for name, e in found.items()}


def random_model(encoder: Encoder) -> Any:
    torch.manual_seed(1)
    kind = transformers.AutoModelForMaskedLM if encoder.headed else transformers.AutoModel
    model = kind.from_config(encoder.config, attn_implementation="eager").eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            norm = p.dim() == 1 and "norm" in name.lower() and "weight" in name
            scale = 1.0 if "relative_attention_bias" in name else p.shape[-1] ** -0.5
            p.copy_(torch.randn_like(p) * (scale if p.dim() > 1 else 0.3) + float(norm))
    return model


def pooled(rows: torch.Tensor, mode: str) -> torch.Tensor:
    """Returns one row of [tokens, width]."""
    n = len(rows)
    if mode == "weightedmean":
        weights = torch.arange(1, n + 1, dtype=rows.dtype)[:, None]
        return (rows * weights).sum(0) / weights.sum()
    return {
        "cls": rows[0],
        "max": rows.amax(0),
        "mean": rows.mean(0),
        "mean_sqrt_len_tokens": rows.sum(0) / n**0.5,
        "lasttoken": rows[-1],
    }[mode]


def answers(encoder: Encoder, model: Any, dense: Any) -> dict[str, np.ndarray]:
    rng, out = np.random.default_rng(2), []
    texts = [rng.integers(3, VOCABULARY, n) for n in LENGTHS]
    base = (model.base_model if encoder.headed else model).double()
    with torch.no_grad():
        for ids in texts:
            batch = torch.from_numpy(ids)[None]
            mask = torch.ones_like(batch)
            rows = base(input_ids=batch, attention_mask=mask).last_hidden_state[0]
            x = torch.cat([pooled(rows, mode) for mode in FLAGS if mode in (encoder.modes or ("mean",))])
            if dense is not None:
                x = dense.double()(x)
                x = torch.tanh(x) if encoder.dense == "Tanh" else x
            out.append((torch.nn.functional.normalize(x, dim=0) if encoder.normalize else x).numpy())
    return {"lengths": np.array(LENGTHS), "ids": np.concatenate(texts), "embeddings": np.stack(out)}


def write_modules(folder: Path, encoder: Encoder, dense: Any) -> None:
    """Writes the files of sentence-transformers."""
    from safetensors.torch import save_file

    kinds = {"Transformer": "", "Pooling": "1_Pooling"} | ({"Dense": "2_Dense"} if encoder.dense else {})
    kinds |= {"Normalize": "3_Normalize"} if encoder.normalize else {}
    modules = [
        dict(idx=i, name=str(i), path=path, type=f"sentence_transformers.models.{kind}")
        for i, (kind, path) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    flags = {flag: mode in encoder.modes for mode, flag in FLAGS.items()}
    pooling = dict(word_embedding_dimension=WIDTH, **flags, include_prompt=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    if dense is not None:
        (folder / "2_Dense").mkdir(exist_ok=True)
        kind = f"torch.nn.modules.{'activation.Tanh' if encoder.dense == 'Tanh' else 'linear.Identity'}"
        about = dict(
            in_features=dense.in_features, out_features=dense.out_features, bias=True, activation_function=kind
        )
        (folder / "2_Dense" / "config.json").write_text(json.dumps(about))
        weights = {f"linear.{name}": p.detach().float().contiguous() for name, p in dense.named_parameters()}
        save_file(weights, folder / "2_Dense" / "model.safetensors")


def main(folder: Path) -> None:
    for name, encoder in encoders().items():
        to = folder / name
        to.mkdir(parents=True, exist_ok=True)
        model = random_model(encoder)
        model.save_pretrained(to)
        torch.manual_seed(3)
        dense = torch.nn.Linear(WIDTH * len(encoder.modes), 40) if encoder.dense else None
        write_tokenizer(to)
        if encoder.modes:
            write_modules(to, encoder, dense)
        np.savez(to / "answers.npz", **answers(encoder, model, dense))
        print(name, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
