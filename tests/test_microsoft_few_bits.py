"""ONNX Runtime's products and tables with narrow weights, each beside its documentation, in float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from microsoft import Case, Cases, check_refusal, floats, judge, node

CASES = Cases()


def packed(q: np.ndarray, bits: int) -> np.ndarray:
    """The first number of each byte in its lowest bits; rows are filled up to whole bytes."""
    per = 8 // bits
    q = np.pad(q, [(0, 0)] * (q.ndim - 1) + [(0, -q.shape[-1] % per)])
    return sum(q.reshape(*q.shape[:-1], -1, per)[..., i] << (bits * i) for i in range(per)).astype(np.uint8)


# --- GatherBlockQuantized


def _table(rng, bits=4, size=16, width=40, zeros=True, fed=False, indices=((1, -1, 0), (-5, 2, 4))) -> Case:
    rows, blocks = 5, -(-width // size)
    q, z = rng.integers(0, 1 << bits, (rows, width)), np.full((rows, blocks), 1 << (bits - 1))
    z = rng.integers(0, 1 << bits, z.shape) if zeros else z
    s = rng.uniform(0.05, 0.2, (rows, blocks)).astype(np.float32)
    table = (q - z.repeat(size, 1)[:, :width]) * s.astype(float).repeat(size, 1)[:, :width]
    at = np.array(indices)
    inside = (-rows <= at) & (at < rows)
    want = np.where(inside[..., None], table[np.where(inside, at, 0)], 0)
    given = packed(q, bits)
    operands = [("fed", given) if fed else given, ("fed", at), s, *([packed(z, bits)] if zeros else [])]
    return node("GatherBlockQuantized", operands, [want], bits=bits, block_size=size, gather_axis=0, quantize_axis=1)


@CASES.add
def table_of_four_bits(rng):
    return _table(rng)


@CASES.add
def table_of_two_bits_without_zeros(rng):
    return _table(rng, bits=2, zeros=False)


@CASES.add
def table_of_bytes(rng):
    return _table(rng, bits=8, size=32)


@CASES.add
def table_that_is_fed(rng):
    return _table(rng, fed=True)


@CASES.add
def rows_outside_of_a_table(rng):
    return _table(rng, indices=(7, -6, 1))


def _typed(rng, dtype, gathered, quantized, zeros, shape=(3, 40, 5), size=16) -> Case:
    limits = ml_dtypes.iinfo(dtype)
    q = rng.integers(limits.min, limits.max + 1, shape)
    blocks = list(shape)
    blocks[quantized] = -(-shape[quantized] // size)
    s = rng.uniform(0.05, 0.2, blocks).astype(np.float32)
    z = rng.integers(limits.min, limits.max + 1, blocks) if zeros else np.zeros(blocks, int)
    spread = [v.repeat(size, quantized).take(range(shape[quantized]), quantized) for v in (z, s.astype(float))]
    at = np.array([[1, 0], [-1, 2]])
    operands = [q.astype(dtype), ("fed", at), s, *([z.astype(dtype)] if zeros else [])]
    want = np.take((q - spread[0]) * spread[1], at, gathered)
    return node(
        "GatherBlockQuantized", operands, [want], block_size=size, gather_axis=gathered, quantize_axis=quantized
    )


@CASES.add
def rows_of_int4(rng):
    return _typed(rng, ml_dtypes.int4, 0, 1, True)


@CASES.add
def columns_of_uint4(rng):
    return _typed(rng, ml_dtypes.uint4, 2, 1, False)


@CASES.add
def along_the_blocks(rng):
    return _typed(rng, ml_dtypes.int4, 1, 1, True)


@CASES.add
def blocks_before_the_rows(rng):
    return _typed(rng, ml_dtypes.uint4, 1, 0, True, shape=(20, 3, 5))


@CASES.add
def rows_of_narrow_floats_with_one_scale(rng):
    w = rng.standard_normal((5, 20)).astype(ml_dtypes.float8_e4m3fn)
    at, s = np.array([3, -1]), np.full((1, 1), 0.3, np.float32)
    operands = [w, ("fed", at), s]
    return node("GatherBlockQuantized", operands, [w.astype(float)[at] * float(s[0, 0])], block_size=0)


# --- MatMulBnb4

_NF4 = [-1.0, -0.69619280, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0]
_NF4 += [0.07958030, 0.16093020, 0.24611230, 0.33791524, 0.44070983, 0.56261700, 0.72295684, 1.0]
_FP4 = [0, 0.0625 / 12, 8 / 12, 1, 4 / 12, 6 / 12, 2 / 12, 3 / 12]


def four_bit_floats(rng, kind, fed=False, transposed=True, inner=33, columns=3, size=16, rows=4) -> Case:
    count = inner * columns
    codes, scales = rng.integers(0, 16, count + count % 2), rng.uniform(0.5, 2, -(-count // size)).astype(np.float32)
    table = np.array(_NF4 if kind else _FP4 + [-v for v in _FP4])
    w = (table[codes[:count]] * scales.repeat(size)[:count]).reshape(columns, inner)
    b = (codes[::2] << 4 | codes[1::2]).astype(np.uint8)
    a = floats(rng, 2, rows, inner if transposed else columns)
    operands = [("fed", a), *((("fed", v) if fed else v) for v in (b, scales))]
    attrs = dict(K=inner, N=columns, block_size=size, quant_type=kind)
    attrs |= {} if transposed else {"transB": 0}
    return node("MatMulBnb4", operands, [a.astype(float) @ (w.T if transposed else w)], **attrs)


@CASES.add
def fp4(rng):
    return four_bit_floats(rng, 0)


@CASES.add
def nf4(rng):
    return four_bit_floats(rng, 1)


@CASES.add
def nf4_that_is_fed(rng):
    return four_bit_floats(rng, 1, fed=True)


@CASES.add
def nf4_the_other_way_round(rng):
    return four_bit_floats(rng, 1, transposed=False)


# --- MatMulNBits


def _blocks(rng, zeros=None, groups=False, fed=False, bits=4, inner=40, columns=5, size=16) -> Case:
    blocks = -(-inner // size)
    q, s = rng.integers(0, 1 << bits, (columns, blocks * size)), rng.uniform(0.05, 0.2, (columns, blocks))
    s, z = s.astype(np.float32), rng.integers(0, 1 << bits, (columns, blocks))
    of = rng.permutation(np.arange(inner) // size) if groups else np.arange(inner) // size
    # the kernel does not read packed zero points of four bits beside g_idx
    points = z if zeros and not (groups and zeros == "packed") else np.full_like(z, 1 << (bits - 1))
    w = (q[:, :inner] - points[:, of]) * s.astype(float)[:, of]
    a, b = floats(rng, 2, 3, inner), packed(q, bits).reshape(columns, blocks, -1)
    given = {None: None, "packed": packed(z, bits), "plain": z.astype(np.float32)}[zeros]
    operands = [("fed", a), *((("fed", v) if fed else v) for v in (b, s)), given]
    operands += [of.astype(np.int32)] if groups else []
    return node("MatMulNBits", operands, [a.astype(float) @ w.T], K=inner, N=columns, bits=bits, block_size=size)


@CASES.add
def weights_that_are_fed(rng):
    return _blocks(rng, "packed", fed=True)


@CASES.add
def weights_in_groups(rng):
    return _blocks(rng, groups=True)


@CASES.add
def weights_in_groups_with_zero_points(rng):
    return _blocks(rng, "plain", groups=True)


@CASES.add
def weights_in_groups_with_packed_zero_points(rng):
    return _blocks(rng, "packed", groups=True)


@CASES.add
def weights_that_are_omitted(rng):
    a, c = floats(rng, 2, 3, 32), floats(rng, 5)
    b, s = np.zeros((5, 0, 16), np.uint8), np.zeros((5, 1), np.float32)
    operands = [("fed", a), b, s, None, None, c]
    return node("MatMulNBits", operands, [np.broadcast_to(c, (2, 3, 5))], K=32, N=5, block_size=32)


@pytest.mark.parametrize("name", CASES)
def test_as_documented(name):
    judge(CASES[name])


REFUSED = {
    "weights in another order": (
        lambda rng: node(
            "MatMulNBits",
            [("fed", floats(rng, 2, 16)), np.zeros((3, 1, 8), np.uint8), floats(rng, 3)],
            [None],
            K=16,
            N=3,
            block_size=16,
            weight_prepacked=1,
        ),
        "MatMulNBits of opset 1 with attribute 'weight_prepacked'",
    ),
    "an unknown attribute": (
        lambda rng: node(
            "MatMulBnb4",
            [("fed", floats(rng, 2, 16)), np.zeros(24, np.uint8), floats(rng, 3)],
            [None],
            K=16,
            N=3,
            block_size=16,
            quant_type=1,
            double=1,
        ),
        "MatMulBnb4 of opset 1 has no attribute 'double'",
    ),
    "an unknown input": (
        lambda rng: node(
            "MatMulBnb4",
            [("fed", floats(rng, 2, 16)), np.zeros(24, np.uint8), floats(rng, 3), floats(rng, 3)],
            [None],
            K=16,
            N=3,
            block_size=16,
            quant_type=1,
        ),
        "MatMulBnb4 needs 3 inputs, got 4",
    ),
    "scales that do not fit": (
        lambda rng: node(
            "GatherBlockQuantized",
            [np.zeros((5, 20), np.uint8), ("fed", np.array([1])), np.ones((5, 1), np.float32)],
            [None],
            block_size=16,
        ),
        r"scales of shape \[5, 3\]",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what):
    check_refusal(*REFUSED[what])
