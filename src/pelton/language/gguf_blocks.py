"""Blocks of GGUF files as the kernels of products take them: codes, with scales and zeros.

Blocks of 4 and 8 bits stay as they are. Those of 5 and 6 bits have codes of 8 bits here, the next size that kernels
have; values are the same. Source: ggml-common.h and ggml-quants.c of llama.cpp.
"""

from __future__ import annotations

import numpy as np

from pelton.ops.quantize import packed

from .gguf_file import GgufTensor
from .weights import BlockMatrix, Matrix

FLOATS = {"F32": "<f4", "F16": "<f2"}
WIDENED = ("Q5_0", "Q5_1", "Q5_K", "Q6_K")


def matrix_of(tensor: GgufTensor, data: np.ndarray) -> Matrix:
    """Returns a tensor from its bytes: floats as f32, others as blocks of the last axis."""
    kind = tensor.kind
    if kind.name in FLOATS:
        return np.asarray(data.view(FLOATS[kind.name]).reshape(tensor.shape), np.float32)
    if kind.name == "BF16":
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(tensor.shape)
    blocks = data.reshape(-1, tensor.shape[-1] // kind.count, kind.size)
    return READERS[kind.name](blocks)


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """Returns the f16 at a place of each block, [rows, blocks]."""
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")[..., 0]


def _matrix(codes: np.ndarray, scale: np.ndarray, least: np.ndarray | None, block: int, bits: int) -> BlockMatrix:
    """Makes a matrix of codes [rows, blocks, block]. Without least, codes count from half of their range; with it,
    numbers are scale · code + least."""
    rows = codes.reshape(len(codes), -1)
    zero = None
    if least is not None:
        scale, least = scale.astype(np.float32), least.astype(np.float32)
        constant = scale == 0  # blocks of one number: (0 + 1) · least
        rows = np.where(constant.repeat(block, 1), np.uint8(0), rows)
        scale = np.where(constant, least, scale)
        zero = np.divide(-least, scale, out=np.zeros_like(least), where=scale != 0)
    return BlockMatrix(packed(rows, bits) if bits < 8 else np.ascontiguousarray(rows), scale, zero, block, bits)


def _nibbles(data: np.ndarray) -> np.ndarray:
    """Returns the low halves of bytes, then the high ones."""
    return np.concatenate([data & 15, data >> 4], -1)


def _fifth_bits(blocks: np.ndarray, at: int) -> np.ndarray:
    """Returns the fifth bits of 32 codes, as 16 or 0."""
    return np.unpackbits(blocks[..., at : at + 4], axis=-1, bitorder="little") << np.uint8(4)


def _q4_0(b: np.ndarray) -> BlockMatrix:
    return _matrix(_nibbles(b[..., 2:]), _half(b, 0), None, 32, 4)


def _q4_1(b: np.ndarray) -> BlockMatrix:
    return _matrix(_nibbles(b[..., 4:]), _half(b, 0), _half(b, 2), 32, 4)


def _q5_0(b: np.ndarray) -> BlockMatrix:
    codes = _nibbles(b[..., 6:]) | _fifth_bits(b, 2)
    return _matrix(codes + np.uint8(128 - 16), _half(b, 0), None, 32, 8)


def _q5_1(b: np.ndarray) -> BlockMatrix:
    return _matrix(_nibbles(b[..., 8:]) | _fifth_bits(b, 4), _half(b, 0), _half(b, 2), 32, 8)


def _q8_0(b: np.ndarray) -> BlockMatrix:
    return _matrix(b[..., 2:] ^ np.uint8(128), _half(b, 0), None, 32, 8)


def _k_scales(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns scales and least numbers of the 8 parts of blocks of 256, [rows, 8 · blocks]: 6 bits each in 12 bytes,
    times two f16."""
    s = b[..., 4:16]
    low, high = s[..., 0:4], s[..., 4:8]
    last = s[..., 8:12]
    scale = np.concatenate([low & 63, (last & 15) | (low >> 6) << 4], -1)
    least = np.concatenate([high & 63, (last >> 4) | (high >> 6) << 4], -1)
    d, m = (_half(b, at).astype(np.float32)[..., None] for at in (0, 2))
    return (d * scale).reshape(len(b), -1), -(m * least).reshape(len(b), -1)


def _q4_k(b: np.ndarray) -> BlockMatrix:
    codes = _nibbles(b[..., 16:].reshape(*b.shape[:2], 4, 32))
    return _matrix(codes, *_k_scales(b), 32, 4)


def _q5_k(b: np.ndarray) -> BlockMatrix:
    codes = _nibbles(b[..., 48:].reshape(*b.shape[:2], 4, 32)).reshape(*b.shape[:2], 8, 32)
    fifth = (b[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    return _matrix(codes | fifth << np.uint8(4), *_k_scales(b), 32, 8)


def _q6_k(b: np.ndarray) -> BlockMatrix:
    lead = b.shape[:2]
    low = _nibbles(b[..., :128].reshape(*lead, 2, 64)).reshape(*lead, 2, 4, 32)
    high = b[..., 128:192].reshape(*lead, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    scale = b[..., 192:208].view(np.int8) * _half(b, 208).astype(np.float32)[..., None]
    codes = (low | high << np.uint8(4)) + np.uint8(128 - 32)
    return _matrix(codes, scale.reshape(len(b), -1), None, 16, 8)


READERS = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
