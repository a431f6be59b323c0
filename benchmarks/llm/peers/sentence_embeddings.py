#!/usr/bin/env python3
"""Embeds texts by transformers in float64, each alone: sentence_embeddings.py FOLDER TEXTS.json ANSWERS.npy.

The folder is one of sentence-transformers, whose embeddings are means of length 1, as its modules must say.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers


def main(folder: Path, texts: Path, answers: Path) -> None:
    kinds = [m["type"].rpartition(".")[2] for m in json.loads((folder / "modules.json").read_text())]
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    assert kinds == ["Transformer", "Pooling", "Normalize"] and pooling["pooling_mode_mean_tokens"]
    most = json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").double().eval()
    out = []
    with torch.no_grad():
        for text in json.loads(texts.read_text()):
            batch = tokenizer(text, truncation=True, max_length=most, return_tensors="pt")
            rows = model(**batch).last_hidden_state[0]
            out.append(torch.nn.functional.normalize(rows.mean(0), dim=0).numpy())
    np.save(answers, np.stack(out))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
