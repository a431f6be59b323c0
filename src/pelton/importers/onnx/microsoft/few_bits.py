"""Readers of products and tables with narrow weights: 2, 4 or 8 bits in blocks, and four-bit floats."""

from __future__ import annotations

from math import gcd

import numpy as np

from pelton.ir.graph import Value
from pelton.ir.types import F32, I8, I64, U8
from pelton.ops.quantize import packed, unpacked

from pelton.importers.onnx.ops.linear import transpose_last_axes
from pelton.importers.onnx.ops.quant import dequantize
from pelton.importers.onnx.node import MICROSOFT, Reading, Binding, reads


def unpack_bits(n: Reading, packed: Value, bits: int, count: int | None = None) -> Value:
    """Unpacks numbers of `bits` bits along the last axis to bytes, the first one of each byte in its lowest bits; the
    first `count` of them."""
    known = n.known(packed)
    if known is not None:
        numbers = n.constant(unpacked(known, bits))
    elif bits == 8:
        numbers = packed
    else:
        places = n.constant(np.arange(0, 8, bits), U8)
        apart = n.emit("shift_right", n.reshape(packed, (*packed.type.shape, 1)), places)
        low = n.emit("bitwise_and", apart, n.constant((1 << bits) - 1, U8))
        numbers = n.reshape(low, (*packed.type.shape[:-1], packed.type.shape[-1] * (8 // bits)))
    return numbers if count is None else n.slice(numbers, numbers.type.rank - 1, 0, count)


# --- MatMulNBits


@reads("MatMulNBits", domain=MICROSOFT, attributes="K N bits block_size accuracy_level", inputs=6)
def matmul_n_bits(n: Reading) -> Binding:
    """Computes A · Bᵀ + bias, with B in blocks along its rows: 2, 4 or 8 bits a number, the first one in the lowest
    bits, a scale and a zero point per block. With an empty B, the product is 0.

    accuracy_level 4 allows A to be rounded to 8 bits. g_idx holds the block of each element. With it, ONNX Runtime's
    kernel replaces packed zero points of four bits by the middle; so does this reader.
    """
    a, b, bits, size = n.input(0), n.input(1), n.attr("bits", 4), n.attr("block_size")
    inner, columns = n.attr("K"), n.attr("N")
    if bits not in (2, 4, 8) or not all(isinstance(d, int) and d > 0 for d in (inner, columns, size)):
        raise n.refuse(
            f"MatMulNBits needs 2, 4 or 8 bits, and sizes K, N and block_size, got {bits} bits, K={inner}, N={columns},"
            f" block_size={size}"
        )
    if b.type.size == 0:
        y = n.filled(0, (*a.type.shape[:-1], columns), a.type.dtype)
        return _add_bias(n, y)
    blocks = -(-inner // size)
    scales, zeros, group = n.input(2), n.optional(3), n.optional(4)
    if (
        b.type.dtype is not U8
        or b.type.size != columns * blocks * size * bits // 8
        or scales.type.size != columns * blocks
    ):
        raise n.refuse(
            f"MatMulNBits needs {columns} × {blocks} blocks of {size * bits // 8} bytes, and a scale for each, got"
            f" {b.type} and {scales.type}"
        )
    packed = n.reshape(b, (columns, b.type.size // columns))
    scale = n.reshape(n.cast(scales, F32), (columns, blocks))
    if zeros is not None and group is not None and zeros.type.dtype is U8 and bits == 4:
        zeros = None
    if zeros is None:
        points = n.constant(np.full((columns, blocks), 1 << (bits - 1)), U8)
    elif zeros.type.dtype is U8:
        points = unpack_bits(n, n.reshape(zeros, (columns, zeros.type.size // columns)), bits, blocks)
    else:
        points = n.reshape(zeros, (columns, blocks))
    of_use = points.type.dtype is U8 or points.type.dtype.is_float
    weights = packed, scale, *([] if zeros is None else [points])
    if of_use and all(n.known(v) is not None for v in (*weights, *([] if group is None else [group]))):
        attrs = dict(block=size, bits=bits, round_rows=n.attr("accuracy_level", 0) == 4)
        if group is not None:
            a, weights = _by_blocks(n, a, weights, group)
        else:
            weights = n.slice(packed, 1, 0, -(-inner * bits // 8)), *weights[1:]
        return _add_bias(n, n.emit("quantized_linear", a, *weights, **attrs))
    stored = unpack_bits(n, packed, bits)
    rows = _dequantize_rows(n, stored, scale, points)
    return _add_bias(n, n.emit("matmul", a, n.transpose(n.cast(rows, a.type.dtype), (1, 0))))


def _indices_of_blocks(n: Reading, group: Value, blocks: int) -> np.ndarray:
    """Returns g_idx: the block of each element."""
    at = n.known(group)
    assert at is not None
    if at.size != n.attr("K") or at.min(initial=0) < 0 or at.max(initial=0) >= blocks:
        raise n.refuse(f"MatMulNBits needs {n.attr('K')} indices below {blocks} as g_idx")
    return at.reshape(-1)


def _by_blocks(n: Reading, a: Value, weights: tuple[Value, ...], group: Value) -> tuple[Value, tuple[Value, ...]]:
    """Returns operands with the elements of each block of g_idx side by side, as the order of a sum is free. Blocks
    with more than block_size elements become several; all but the last are filled up, where A has zeros."""
    size, bits, inner = n.attr("block_size"), n.attr("bits", 4), n.attr("K")
    codes, *others = (v for w in weights if (v := n.known(w)) is not None)
    at = _indices_of_blocks(n, group, others[0].shape[1])
    order = np.argsort(at, kind="stable")
    runs = np.split(order, np.flatnonzero(np.diff(at[order])) + 1)
    parts = [run[i : i + size] for run in runs for i in range(0, len(run), size)]
    parts.sort(key=lambda part: len(part) < size)  # one that is not full needs no filling at the end
    columns = np.full((len(parts), size), inner)
    for row, part in zip(columns, parts):
        row[: len(part)] = part
    columns = columns.reshape(-1)[: columns.size - size + len(parts[-1])]
    apart = np.pad(unpacked(codes, bits, inner), ((0, 0), (0, 1)))
    moved = n.constant(packed(apart[:, columns], bits))
    if (columns == inner).any():
        a = n.emit("pad", a, n.like(a, 0), pads=(*[0] * (2 * a.type.rank - 1), 1))
    if not np.array_equal(columns, np.arange(inner)):
        a = n.emit("gather", a, n.constant(columns, I64), axis=a.type.rank - 1)
    return a, (moved, *(n.constant(v[:, at[[part[0] for part in parts]]]) for v in others))


def _dequantize_rows(n: Reading, stored: Value, scale: Value, points: Value) -> Value:
    """Computes (stored − points) · scale, of rows in blocks, or of elements in the blocks of g_idx; as long as K."""
    inner, blocks, group = n.attr("K"), scale.type.shape[1], n.optional(4)
    known = [n.known(v) for v in (stored, scale, points)]
    if group is None:
        places = n.constant(np.arange(inner) // n.attr("block_size"), I64)
    else:
        if n.known(group) is not None:
            _indices_of_blocks(n, group, blocks)
        places = n.cast(n.reshape(group, (inner,)), I64)
    at = n.known(places)
    if at is not None and all(v is not None for v in known):  # at once, which avoids eight bytes for each
        q, s, z = (v.astype(np.float32) for v in known if v is not None)
        return n.constant((q[:, :inner] - z[:, at]) * s[:, at])
    each = [n.emit("gather", v, places, axis=1) for v in (n.cast(points, F32), scale)]
    wide = n.cast(n.slice(stored, 1, 0, inner), F32)
    return n.emit("mul", n.emit("sub", wide, each[0]), each[1])


def _add_bias(n: Reading, y: Value) -> Value:
    return y if n.optional(5) is None else n.emit("add", y, n.input(5))


# --- MatMulBnb4

_FP4 = np.array([0, 0.0625, 8, 12, 4, 6, 2, 3]) / 12
_CODES = (  # values of four bits, before scaling by the largest number of their block
    np.concatenate([_FP4, -_FP4]).astype(np.float32),
    np.array(
        [
            -1.0,
            -0.6961928009986877,
            -0.5250730514526367,
            -0.39491748809814453,
            -0.28444138169288635,
            -0.18477343022823334,
            -0.09105003625154495,
            0.0,
            0.07958029955625534,
            0.16093020141124725,
            0.24611230194568634,
            0.33791524171829224,
            0.44070982933044434,
            0.5626170039176941,
            0.7229568362236023,
            1.0,
        ],
        np.float32,
    ),
)


@reads("MatMulBnb4", domain=MICROSOFT, attributes="K N block_size quant_type training_mode transB", inputs=3)
def matmul_bnb4(n: Reading) -> Binding:
    """Computes A · Bᵀ, or A · B without transB, with B [N, K] flat, in blocks: FP4 or NF4 in four bits, the first
    number in the highest, times one factor per block. Weights stay packed if each row has whole blocks, or equal parts
    of them that are multiples of 16."""
    a, b, scales = n.input(0), n.input(1), n.input(2)
    inner, columns, size, kind = n.attr("K"), n.attr("N"), n.attr("block_size"), n.attr("quant_type")
    if kind not in (0, 1) or not all(isinstance(d, int) and d > 0 for d in (inner, columns, size)):
        raise n.refuse(
            f"MatMulBnb4 needs sizes K, N and block_size, and quant_type 0 (FP4) or 1 (NF4), got K={inner},"
            f" N={columns}, block_size={size}, quant_type={kind}"
        )
    count = inner * columns
    blocks = -(-count // size)
    if b.type.dtype is not U8 or b.type.size != (count + 1) // 2 or scales.type.size != blocks:
        raise n.refuse(
            f"MatMulBnb4 needs {(count + 1) // 2} bytes and {blocks} scales for {columns} × {inner} weights in blocks"
            f" of {size}, got {b.type} and {scales.type}"
        )
    codes, scale, run = n.known(b), n.known(scales), gcd(inner, size)
    transposed = n.flag("transB", 1)
    if codes is not None and scale is not None:
        numbers = unpacked(codes.reshape(-1), 4).reshape(-1, 2)[:, ::-1].reshape(-1)[:count]
        factors = scale.reshape(-1).astype(np.float32)
        if transposed and (run % 16 == 0 or run == inner):  # blocks, or parts of them, within a row
            by = factors[np.arange(0, count, run) // size].reshape(columns, inner // run)
            rows = packed(numbers.reshape(columns, inner), 4)
            table = tuple(map(float, _CODES[kind]))
            return n.emit("codebook_linear", a, n.constant(rows), n.constant(by), block=run, table=table)
        w = n.constant((_CODES[kind][numbers] * factors.repeat(size)[:count]).reshape(columns, inner), a.type.dtype)
    else:
        pairs = n.reshape(unpack_bits(n, n.reshape(b, (b.type.size,)), 4), (b.type.size, 2))
        order = n.emit("gather", pairs, n.constant([1, 0], I64), axis=1)
        flat = n.slice(n.reshape(order, (2 * b.type.size,)), 0, 0, count)
        values = n.emit("gather", n.constant(_CODES[kind]), n.cast(flat, I64), axis=0)
        places = n.constant(np.arange(count) // size, I64)
        by_number = n.emit("gather", n.cast(n.reshape(scales, (blocks,)), F32), places, axis=0)
        w = n.cast(n.reshape(n.emit("mul", values, by_number), (columns, inner)), a.type.dtype)
    return n.emit("matmul", a, transpose_last_axes(n, w) if transposed else w)


# --- GatherBlockQuantized


@reads("GatherBlockQuantized", domain=MICROSOFT, attributes="bits block_size gather_axis quantize_axis", inputs=4)
def gather_block_quantized(n: Reading) -> Binding:
    """Gathers rows of a table in blocks, each with a scale and a zero point. Rows outside the table are 0.

    Bytes hold numbers of 2, 4 or 8 bits along their last axis, with the middle as default zero point; it is 0 for types
    of four bits. Narrow floats have no zero points; their blocks may be as long as the axis (block_size 0), and their
    scales may be shared along other axes.
    """
    data, indices, scales, zeros = n.input(0), n.input(1), n.input(2), n.optional(3)
    rank, bits, size = data.type.rank, n.attr("bits", 4), n.attr("block_size", 128)
    gathered, quantized = n.axis(n.attr("gather_axis", 0), rank), n.axis(n.attr("quantize_axis", 1), rank)
    packed = data.type.dtype is U8
    if packed:
        if bits not in (2, 4, 8) or gathered == rank - 1 and bits < 8:
            raise n.refuse(
                "GatherBlockQuantized needs 2, 4 or 8 bits, and another axis than that of the packed bits, got"
                f" {bits} bits, axis {gathered} of {data.type}"
            )
    elif data.type.dtype.is_integer:
        data, zeros = n.cast(data, I8), None if zeros is None else n.cast(zeros, I8)
    held = 8 // bits if packed else 1  # numbers of an element along the last axis
    shape = (*data.type.shape[:-1], data.type.shape[-1] * held)
    size = size or shape[quantized]
    blocks = -(-shape[quantized] // size)
    wanted = tuple(blocks if i == quantized else d for i, d in enumerate(shape))
    fits = scales.type.rank == rank and all(
        d == e or d == 1 and data.type.dtype.is_float and i != quantized
        for i, (d, e) in enumerate(zip(scales.type.shape, wanted))
    )
    points = (*wanted[:-1], -(-wanted[-1] // held))
    if not fits or zeros is not None and (zeros.type.shape != points or data.type.dtype.is_float):
        raise n.refuse(
            f"GatherBlockQuantized needs scales of shape {list(wanted)}, and zero points of integers of shape"
            f" {list(points)}, got {scales.type} for {data.type}"
            + ("" if zeros is None else f" and zero points {zeros.type}")
        )
    at = n.cast(indices, I64)
    y = _pick_rows(n, (data, n.cast(scales, F32), zeros), at, (gathered, quantized), size, bits if packed else 0)
    y = n.cast(y, scales.type.dtype)
    least, most = n.constant(-data.type.shape[gathered], I64), n.constant(data.type.shape[gathered] - 1, I64)
    inside = n.emit("logical_and", n.emit("less_equal", least, at), n.emit("less_equal", at, most))
    known = n.known(inside)
    if known is not None and known.all():
        return y
    beside = (*[1] * gathered, *at.type.shape, *[1] * (rank - gathered - 1))
    return n.emit("where", n.reshape(inside, beside), y, n.like(y, 0))


def _pick_rows(
    n: Reading,
    table: tuple[Value, Value, Value | None],
    at: Value,
    axes: tuple[int, int],
    size: int,
    bits: int,
) -> Value:
    """Gathers rows along the first of two axes, dequantized in blocks along the second one. table: numbers, scales and
    zero points; bits: of numbers that share bytes, which are unpacked once they are picked."""
    (data, scales, zeros), (gathered, quantized) = table, axes
    count = data.type.shape[gathered]
    at = n.emit("clip", at, n.constant(-count, I64), n.constant(count - 1, I64))

    def numbers(v: Value, length: int | None = None) -> Value:
        return unpack_bits(n, v, bits, length) if bits else v

    stored = [v for v in (data, scales, zeros) if v is not None]
    if bits and data.type.rank == 2 and axes == (0, 1) and all(n.known(v) is not None for v in stored):
        length = data.type.shape[1] * (8 // bits)
        more = [] if zeros is None else [numbers(zeros, scales.type.shape[1])]
        return n.emit("quantized_gather", data, at, scales, *more, block=size, bits=bits, length=length)

    def pick(v: Value) -> Value:
        if v.type.shape[gathered] == 1 < count:  # one for all of them
            return n.reshape(v, (*v.type.shape[:gathered], *[1] * at.type.rank, *v.type.shape[gathered + 1 :]))
        return n.emit("gather", v, at, axis=gathered)

    together = gathered == quantized  # blocks lie across rows
    codes, by, points = (v if together or v is None else pick(v) for v in (data, scales, zeros))
    assert codes is not None and by is not None
    if points is not None:
        points = numbers(points, by.type.shape[-1])
    elif bits:
        points = n.filled(1 << (bits - 1), by.type.shape, U8)
    axis = quantized if together or quantized < gathered else quantized + at.type.rank - 1
    rows = dequantize(n, numbers(codes), by, points, axis, size)
    return n.emit("gather", rows, at, axis=gathered) if together else rows
