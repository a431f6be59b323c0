"""Makes tiny random decoders, exports them by onnxruntime-genai's builder, and records ONNX Runtime's answers.

    decoders.py FOLDER [NAMES]

Writes FOLDER/NAME/FORM/model.onnx and answers.npz beside it, or refused.txt with the builder's or runtime's reason.
Answers of a run are "RUN logits STEP" and "RUN OUTPUT" of the last step. Existing results are kept.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import safetensors.torch
import torch
import transformers
from configurations import COMPOSITE, FAMILIES, FORMS, SCALES, SIZES, VOCABULARY, forms
from onnxruntime_genai.models.builder import create_model, parse_extra_options
from steps import RUNS, State, steps


def write_tokenizer(folder: Path) -> None:
    """Writes a tokenizer of one token a word: the builder copies it, nothing here reads it."""
    vocabulary = {f"<t{i}>": i for i in range(VOCABULARY)}
    words = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<t0>"},
    }
    (folder / "tokenizer.json").write_text(json.dumps(words))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<t0>", "eos_token": "<t1>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind))


def write_model(family: str, folder: Path) -> None:
    """Writes a folder of Hugging Face's form, with random weights of useful sizes."""
    kind, fields = FAMILIES[family]
    sizes: dict[str, Any] = {**SIZES, **fields}
    if kind in COMPOSITE:
        sizes = {"text_config": sizes, "vision_config": COMPOSITE[kind]}
    config = getattr(transformers, f"{kind}Config")(**sizes)
    torch.manual_seed(sum(family.encode()))
    head = "ForConditionalGeneration" if kind in COMPOSITE else "ForCausalLM"
    model = getattr(transformers, kind.removesuffix("Text") + head)(config).float()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 1:
                middle = 1.0 if "norm" in name and name.endswith("weight") and kind[:5] != "Gemma" else 0.0
                p.copy_(middle + 0.2 * torch.randn(p.shape))
            else:
                p.copy_(torch.randn(p.shape) * (1.0 if "embed" in name else 1.5 * p.shape[-1] ** -0.5))
    model.save_pretrained(folder)
    write_tokenizer(folder)
    if kind == "GptOss":
        add_packed_experts(folder / "model.safetensors", **fields)


def add_packed_experts(path: Path, num_local_experts: int, **_: Any) -> None:
    """Adds random experts in MXFP4, as the original files have them and the builder reads them for int4."""
    tensors, hidden, inner = safetensors.torch.load_file(path), SIZES["hidden_size"], SIZES["intermediate_size"]
    for layer in range(SIZES["num_hidden_layers"]):
        for name, rows, columns in (("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)):
            start, blocks = f"model.layers.{layer}.mlp.experts.{name}", (num_local_experts, rows, columns // 32)
            tensors[f"{start}_blocks"] = torch.randint(0, 256, (*blocks, 16), dtype=torch.uint8)
            tensors[f"{start}_scales"] = torch.randint(122, 125, blocks, dtype=torch.uint8)  # powers of two
    safetensors.torch.save_file(tensors, path, {"format": "pt"})


def adapt(config: Any) -> None:
    """Gives a configuration the fields that the builder reads, and transformers 5 has in another form."""
    if config.model_type == "gemma3_text":
        config.rope_local_base_freq = config.rope_parameters["sliding_attention"]["rope_theta"]
        config.rope_parameters = dict(config.rope_parameters["full_attention"])


def export(family: str, form: str, source: Path, folder: Path) -> None:
    """Runs the builder, and moves weights into the file."""
    precision, options = FORMS[form]
    if "cache" in form:
        scales = folder / "scales.json"
        scales.write_text(json.dumps(SCALES))
        options = {**options, "kv_cache_scale_file": str(scales)}
    cache = str(folder / "cache")
    pairs = [f"{k}={v}" for k, v in {**options, "hf_token": "false"}.items()]
    if "use_qdq" in options:  # the builder refuses shared embeddings of this form
        pairs.append("shared_embeddings=false")
    parsed = parse_extra_options("", str(source), str(folder), precision, "cpu", cache, pairs)
    adapt(parsed["hf_details"]["hf_config"])
    create_model("", str(source), str(folder), precision, "cpu", cache, **parsed)


def answer(folder: Path) -> dict[str, np.ndarray]:
    """Returns ONNX Runtime's answers of every run."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options, ["CPUExecutionProvider"])
    inputs = {p.name: (p.shape, np.dtype(ONNX_TYPES[p.type])) for p in session.get_inputs()}
    depth = json.loads((folder / "genai_config.json").read_text())["model"]["decoder"]["head_size"]
    names = [p.name for p in session.get_outputs()]
    shapes = {name: [shape, dtype.str] for name, (shape, dtype) in inputs.items()}
    (folder / "inputs.json").write_text(json.dumps({"depth": depth, "inputs": shapes}))
    answers = {}
    for run in RUNS:
        state = State(inputs, run, depth)
        for index, tokens in enumerate(steps(VOCABULARY, run)):
            outputs = dict(zip(names, session.run(None, state.inputs(tokens))))
            state.extend(tokens, outputs)
            answers |= {f"{run} {name} {index}": a for name, a in outputs.items() if not name.startswith("present")}
        answers |= {f"{run} {name}": a for name, a in outputs.items() if name.startswith("present")}
    return answers


ONNX_TYPES = {"tensor(int64)": "i8", "tensor(float)": "f4", "tensor(int32)": "i4", "tensor(int8)": "i1"}
ONNX_TYPES |= {"tensor(uint8)": "u1", "tensor(float16)": "f2", "tensor(bool)": "?"}


def reason(error: Exception, folder: Path) -> str:
    text = re.sub(r"\s+", " ", str(error)).strip()
    place = traceback.extract_tb(error.__traceback__)[-1]
    text = text.replace(f"{folder.parent.parent}/", "")  # no folders of this machine
    return f"{type(error).__name__}: {text[:300]} ({Path(place.filename).name}:{place.lineno})"


def make(family: str, form: str, source: Path, folder: Path) -> str:
    """Makes one model and its answers, and returns "" or the reason why there is none."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    who = "builder"
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            export(family, form, source, folder)
        who = "ONNX Runtime"
        answers = answer(folder)
    except Exception as e:  # whatever the builder raises is its refusal
        text = f"{who}: {reason(e, folder)}"
        (folder / "refused.txt").write_text(text)
        return text
    np.savez(folder / "answers.npz", **answers)
    shutil.rmtree(folder / "cache", ignore_errors=True)
    return ""


def main(root: Path, names: list[str]) -> None:
    for family in names or FAMILIES:
        source = root / family / "source"
        if not (source / "tokenizer_config.json").exists():
            source.mkdir(parents=True, exist_ok=True)
            write_model(family, source)
        (root / family / "forms.json").write_text(json.dumps([*forms(family)]))
        for form in forms(family):
            folder = root / family / form
            if not any((folder / name).exists() for name in ("answers.npz", "refused.txt")):
                print(family, form, make(family, form, source, folder), sep=", ", flush=True)


if __name__ == "__main__":
    logging.disable()
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2:])
