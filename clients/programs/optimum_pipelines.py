"""transformers' pipelines on optimum's ONNX models: a BERT that classifies and one that fills masks, and a GPT-2 that
writes, all tiny and random."""

import os
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # noqa: E402
from optimum.onnxruntime import (  # noqa: E402
    ORTModelForCausalLM,
    ORTModelForMaskedLM,
    ORTModelForSequenceClassification,
)
from report import report  # noqa: E402
from transformers import (  # noqa: E402
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertTokenizerFast,
    GPT2Config,
    GPT2LMHeadModel,
    pipeline,
)

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"the water of a mountain turns wheel and engine is best it drives power".split(),
]
SMALL = dict(
    vocab_size=len(WORDS),
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
    max_position_embeddings=64,
)
SENTENCES = ("the water of the mountain turns a wheel", "it is the best engine", "power")
KEPT = tempfile.TemporaryDirectory(prefix="pelton-clients-")  # until the program ends
FOLDER = Path(KEPT.name)


def exported(kind, config, onnx_kind, name: str) -> Path:
    """A folder with a model of random weights, its tokenizer and its ONNX file."""
    torch.manual_seed(0)
    tokenizer.save_pretrained(FOLDER / name)
    kind(config).eval().save_pretrained(FOLDER / name)
    onnx_kind.from_pretrained(FOLDER / name, export=True).save_pretrained(FOLDER / f"{name}-onnx")
    tokenizer.save_pretrained(FOLDER / f"{name}-onnx")
    return FOLDER / f"{name}-onnx"


(FOLDER / "words.txt").write_text("\n".join(WORDS))
tokenizer = BertTokenizerFast(str(FOLDER / "words.txt"))
KINDS = {
    "text-classification": (
        ORTModelForSequenceClassification,
        exported(
            BertForSequenceClassification,
            BertConfig(**SMALL, num_labels=3),
            ORTModelForSequenceClassification,
            "classes",
        ),
    ),
    "fill-mask": (ORTModelForMaskedLM, exported(BertForMaskedLM, BertConfig(**SMALL), ORTModelForMaskedLM, "masks")),
    "text-generation": (
        ORTModelForCausalLM,
        exported(
            GPT2LMHeadModel,
            GPT2Config(
                vocab_size=len(WORDS), n_positions=64, n_embd=64, n_layer=2, n_head=4, bos_token_id=2, eos_token_id=3
            ),
            ORTModelForCausalLM,
            "writer",
        ),
    ),
}


def make() -> dict:
    return {
        f"{task}, bound: {bound}": pipeline(
            task, model=kind.from_pretrained(folder, use_io_binding=bound), tokenizer=tokenizer
        )
        for task, (kind, folder) in KINDS.items()
        for bound in (False, True)
    }


def ask(pipelines: dict) -> dict:
    found = {}
    for name, pipe in pipelines.items():
        if name.startswith("text-generation"):
            found[name] = pipe(["the water", "it is the"], max_new_tokens=12, do_sample=False)
        elif name.startswith("fill-mask"):
            found[name] = pipe([s.replace("the", "[MASK]", 1) for s in SENTENCES if "the" in s])
        else:
            found[name] = pipe([*SENTENCES], top_k=None)
    return found


report("optimum-onnx", make, ask)
