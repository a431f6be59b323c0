"""Reads a Llama out of a GGUF file: gguf_file.py FILE OUT TEXT. Needs the packages gguf and tokenizers.

Writes OUT, an npz file: `sizes` (JSON); float32 arrays by their names; `NAME codes`, a byte each, `NAME scale` and, of
Q4_1, `NAME least` for weights in blocks of 32 along rows (scale · code + least; in Q8_0, scale · (code − 128)); and
`tokens`, those of the text file TEXT. Queries and keys rotate halves of a head, the file's rotate pairs.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SIZES = {
    "layers": "block_count",
    "width": "embedding_length",
    "heads": "attention.head_count",
    "kv_heads": "attention.head_count_kv",
    "epsilon": "attention.layer_norm_rms_epsilon",
    "theta": "rope.freq_base",
}
BLOCK = 32


def tokenizer(reader: GGUFReader) -> Tokenizer:
    """Returns the file's tokenizer, of the kind "smollm"."""

    def of(name: str):
        return reader.fields[f"tokenizer.ggml.{name}"].contents()

    kind = of("model"), of("pre")
    if kind != ("gpt2", "smollm"):
        raise ValueError(f"the tokenizer is {kind}, expected ('gpt2', 'smollm')")
    tokens, merges = of("tokens"), [tuple(m.split(" ")) for m in of("merges")]
    made = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    digits, words = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer, made.decoder = pre_tokenizers.Sequence([digits, words]), decoders.ByteLevel()
    control = 3
    made.add_special_tokens([AddedToken(t, special=True) for t, k in zip(tokens, of("token_type")) if k == control])
    return made


def fields(tensor: ReaderTensor) -> dict[str, np.ndarray]:
    """Returns the parts of a tensor, by the end of their names. A block has bytes of its scale and codes in Q8_0, of
    scale, least and codes in Q4_1, with the first 16 codes in low halves. Raises ValueError for other types, and
    AssertionError if the parts are not the weights that the package gguf reads."""
    kind, data = tensor.tensor_type.name, np.asarray(tensor.data)
    if kind == "F32":
        return {"": data}
    if kind not in ("Q4_1", "Q8_0"):
        raise ValueError(f"{tensor.name} is {kind}, expected F32, Q4_1 or Q8_0")
    blocks = data.reshape(len(data), -1, 20 if kind == "Q4_1" else 34)
    head = np.ascontiguousarray(blocks[..., : 4 if kind == "Q4_1" else 2]).view(np.float16)
    codes = blocks[..., head.shape[-1] * 2 :]
    parts = {" scale": head[..., 0]}
    if kind == "Q4_1":
        codes, parts[" least"] = np.concatenate([codes & 15, codes >> 4], -1), head[..., 1]
    else:
        codes = codes ^ 128  # signed numbers as those above 128
        parts[" least"] = -128 * head[..., 0].astype(np.float32)
    parts[" codes"] = codes.reshape(len(data), -1)
    wide = parts[" scale"].astype(np.float32).repeat(BLOCK, 1) * parts[" codes"]
    wide += parts[" least"].astype(np.float32).repeat(BLOCK, 1)
    np.testing.assert_allclose(wide, dequantize(tensor.data, tensor.tensor_type), rtol=1e-5, atol=1e-6)
    if kind == "Q8_0":
        del parts[" least"]
    return parts


def main(path: str, out: str, text: str) -> None:
    reader = GGUFReader(path)
    sizes = {name: reader.fields[f"llama.{key}"].contents() for name, key in SIZES.items()}
    arrays = {"sizes": np.array(json.dumps(sizes))}
    for tensor in reader.tensors:
        heads = {"attn_q": sizes["heads"], "attn_k": sizes["kv_heads"]}.get(tensor.name.split(".")[-2])
        for part, array in fields(tensor).items():
            if heads:
                array = array.reshape(heads, -1, 2, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
            arrays[tensor.name.removesuffix(".weight") + part] = array
    with open(text) as file:
        arrays["tokens"] = np.array(tokenizer(reader).encode(file.read()).ids)
    np.savez(out, **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
