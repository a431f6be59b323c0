"""Damaged GGUF files: bytes and numbers changed, parts copied over each other, and cut."""

from __future__ import annotations

import functools
import random
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import language_files
import numpy as np

from benchmarks.llm.llama import Llama, Reference
import pelton.language
from pelton.errors import Error, ModelError
from pelton.language.gguf import gguf_model
from pelton.language.source import DecoderSizes

ODD = (0, 1, 2, 31, 32, 127, 128, 255, 256, 65535, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, (1 << 64) - 1)
TEXT = "to be, or not to be: the naïve 😺"
NETWORKS, BUILT = 4, 10  # of so many files that can be read, one becomes a network, one is built and run
CLOSE = 1e-3  # of the largest logit; and f32 and f64 of the reference must be closer than a tenth of it
LONGEST = 800  # characters of a message


@functools.cache
def original() -> tuple[bytes, int]:
    """Returns a file, and the begin of its weights."""
    from pelton.language.gguf_file import GgufFile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "whole.gguf"
        language_files.write_gguf(path, language_files.llama())
        return path.read_bytes(), min(t.start for t in GgufFile(path).tensors.values())


@functools.cache
def numbers() -> list[int]:
    """Returns the places of types and counts: behind each key, that of its value, and two of an array; behind each
    name of a tensor, its number of axes, the first of them and its type."""
    from pelton.language.gguf_file import GgufFile

    whole, begin = original()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "whole.gguf"
        path.write_bytes(whole)
        file = GgufFile(path)
    ends = [(name, struct.pack("<Q", len(name)) + name.encode()) for name in (*file.metadata, *file.tensors)]
    places = {name: whole.index(text, 0, begin) + len(text) for name, text in ends}
    behind = {name: (0, 4, 4 + 8 * len(t.shape)) for name, t in file.tensors.items()}
    return [8, 16, *(at + more for name, at in places.items() for more in behind.get(name, (0, 4, 8)))]


def damaged(seed: int) -> bytes:
    rng = random.Random(seed)
    whole, begin = original()
    data = bytearray(whole)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        # most of the file are weights, most of what can go wrong lies in front of them
        at = rng.randrange(len(data)) if rng.random() < 0.2 else rng.randrange(min(begin, len(data)))
        how = rng.choice((0, 0, 1, 2, 2, 3, 3, 4, 5, 6, 6, 7))
        if how == 0:
            data[at : at + 1] = bytes([rng.randrange(256)])
        elif how == 1:
            kind = rng.choice(("<I", "<Q"))
            size = struct.calcsize(kind)
            data[at : at + size] = struct.pack(kind, rng.choice(ODD) % (1 << 8 * size))
        elif how == 2:  # a little more or less
            value = int.from_bytes(data[at : at + 4], "little") + rng.randrange(-8, 9)
            data[at : at + 4] = struct.pack("<I", value % (1 << 32))
        elif how == 3:
            other, size = rng.randrange(len(data)), rng.choice((2, 4, 8, 32, 200))
            data[at : at + size] = data[other : other + size]
        elif how == 4:
            del data[at : at + rng.choice((1, 4, 8))]
        elif how == 6:  # another type or count
            at = rng.choice(numbers())
            data[at : at + 4] = struct.pack("<I", rng.choice((rng.randrange(45), rng.choice(ODD) % (1 << 32))))
        elif how == 7:
            data[at] ^= 1 << rng.randrange(8)
        elif rng.random() < 0.5:
            del data[at:]
        if len(data) < 2:
            break
    return bytes(data)


def gguf_case(cache: Path) -> Callable[[int], str]:
    """The case of damaged GGUF files: "read", "network", "right", "not finite" or refused in a sentence."""

    def case(seed: int) -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            path.write_bytes(damaged(seed))
            try:
                return opened(path, seed, cache)
            except Error as e:
                assert "\n" not in str(e) and len(str(e)) < LONGEST, f"no sentence: {e}"
                raise

    return case


def opened(path: Path, seed: int, cache: Path) -> str:
    """Reads a file, and does with it what the seed decides; returns what that was."""
    source = gguf_model(path)
    tokens = source.tokens()
    ids = tokens.encode(TEXT)
    tokens.decode(ids, special=True)
    context = min(source.description.context, 64)
    if seed % BUILT == 0:
        return _compared(path, ids, context, cache)
    if seed % NETWORKS == 0:
        source.network(DecoderSizes(context, min(16, context)))
        return "network"
    return "read"


def _compared(path: Path, ids: list[int], context: int, cache: Path) -> str:
    """Builds and runs a model, and compares it with the file's own numbers in float64."""
    ids = [i % language_files.VOCABULARY for i in ids][: max(1, context - 1)] or [2]
    decoder = pelton.language.open(path, threads=1, context=max(2, context), cache_folder=cache)
    model = model_of(path)
    with np.errstate(all="ignore"):
        want, rough = (Reference(model, dtype).logits(np.array(ids)) for dtype in (np.float64, np.float32))
    largest = np.abs(want).max()
    try:
        got = decoder.state().extend(ids, all_rows=True)
    except ModelError:
        assert not np.isfinite(rough).all(), "a model that is finite was refused as one that is not"
        return "not finite"
    if not np.isfinite(rough).all() or np.abs(rough - want).max() > CLOSE / 10 * largest:
        return "not finite"  # or beyond f32
    error = np.abs(got - want).max() / largest
    assert error <= CLOSE, f"logits differ by {error:.1e} of the largest"
    return "right"


@dataclass(frozen=True)
class _Wide:
    """A matrix in floats, where the reference has blocks."""

    array: np.ndarray

    def wide(self, dtype: Any) -> np.ndarray:
        return self.array.astype(dtype)


def model_of(path: Path) -> Llama:
    """Returns the numbers of a file, read by the package gguf."""
    import gguf

    reader = gguf.GGUFReader(path)

    def number(name: str, default: float | None = None) -> Any:
        field = reader.fields.get(f"llama.{name}")
        return default if field is None else field.contents()

    heads = number("attention.head_count")
    split = {"attn_q": heads, "attn_k": number("attention.head_count_kv", heads)}
    matrices, norms = {}, {}
    for tensor in reader.tensors:
        name = tensor.name.removesuffix(".weight")
        array = gguf.dequantize(tensor.data, tensor.tensor_type)
        if array.ndim == 1:
            norms[name] = array
            continue
        of = split.get(name.split(".")[-1])
        if of:  # pairs that rotate are neighbours in the file, halves in the reference
            array = array.reshape(of, -1, 2, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        matrices[name] = _Wide(array)
    table = matrices.get("output", matrices["token_embd"])
    return Llama(
        int(number("block_count")),
        int(number("embedding_length")),
        int(heads),
        int(split["attn_k"]),
        float(number("attention.layer_norm_rms_epsilon", 1e-5)),
        float(number("rope.freq_base", 1e4)),
        matrices,
        norms,
        table,
    )
