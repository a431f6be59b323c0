"""Quantization: conversions between numbers and few bits, and products with weights that stay in few bits."""

from __future__ import annotations

import numpy as np

from pelton.ir.dims import equal
from pelton.ir.graph import Value
from pelton.ir.types import F32, F64, I32, U8, DType, TensorType

from .activations import clip
from .linear import matmul
from .logic import bitwise_and, shift_right
from .math import add, cast, div, mul, round_, sub
from .index import gather
from .op import TermLike, composite, expect, expect_equal, structured
from .shape import along, reshape, transpose
from .shape import expand as spread


def fits(v: TensorType, x: TensorType, axis: int, block: int) -> bool:
    """True if a scale or zero point is one number, one per element of an axis of x, or one per block along it.

    Raises Undecided if dynamic dimensions decide that.
    """
    if v.size == 1:
        return True
    if block:
        return v.rank == x.rank
    if v.rank == x.rank > 1 and all(d == 1 or equal(d, e) for d, e in zip(v.shape, x.shape)):
        return True
    return v.rank == 1 and equal(v.size, x.shape[axis])


def _check(x: TensorType, axis: int, block: int, *others: TensorType | None) -> None:
    for v in others:
        if v is not None and v.size != 1:
            expect(0 <= axis < x.rank, f"needs an axis below {x.rank}, got {axis}")
            expect(fits(v, x, axis, block), f"needs scales and zero points for axis {axis} of {x}, got {v}")


def _spread(thing: TermLike, v: TensorType, x: TensorType, axis: int, block: int) -> TermLike:
    """Returns a scale or zero point of type v in the shape that broadcasts against x."""
    if v.size == 1:
        return thing if v.shape == () else reshape(thing, shape=())
    if block:
        before, rows, after = v.shape[:axis], v.shape[axis], v.shape[axis + 1 :]
        apart: TermLike = reshape(thing, shape=(*before, rows, 1, *after))
        apart = apart if block == 1 else spread(apart, shape=(*before, rows, block, *after))
        whole: TermLike = reshape(apart, shape=(*before, rows * block, *after))
        return whole if rows * block == x.shape[axis] else along(whole, axis, 0, x.shape[axis])
    if v.rank == x.rank > 1 and all(d == 1 or equal(d, e) for d, e in zip(v.shape, x.shape)):
        return thing
    return thing if axis == x.rank - 1 else reshape(thing, shape=(v.size, *[1] * (x.rank - axis - 1)))


def _as(thing: TermLike, dtype: DType, to: DType) -> TermLike:
    return thing if dtype is to else cast(thing, to=to)


@composite(
    stepwise=True,
    dequantizes=True,
    examples=(
        ("i8[5, 13]", "f32[]"),
        ("u8[5, 13]", "f32[13]", "u8[13]", dict(axis=1)),
        ("i32[7]", "f32[]"),
        ("i32[7]", "f32[]", "i32[]"),
        ("i8[3, 5, 7]", "f32[5]", "i8[5]", dict(axis=1)),
        ("i8[11, 3]", "f32[3, 3]", "i8[3, 3]", dict(block=4)),
        ("u8[3, 61]", "f16[3, 31]", dict(axis=1, block=2)),
        ("i16[5, 3]", "f64[1]", "i16[1]"),
    ),
)
class dequantize:
    """(x − zero) · scale, in the type of the scale; narrow ones, which do not hold all integers, only in the end.

    Scale and zero point are one number each, one per element of `axis`, or one for every `block` elements along it;
    without a zero point it is 0.
    """

    def infer(
        x: TensorType, scale: TensorType, zero: TensorType | None = None, *, axis: int = 0, block: int = 0
    ) -> TensorType:
        expect(scale.dtype.is_float, "needs a scale of floating point")
        _check(x, axis, block, scale, zero)
        return x.with_dtype(scale.dtype)

    def expand(x: Value, scale: Value, zero: Value | None = None, *, axis: int, block: int) -> TermLike:
        to = F64 if scale.type.dtype is F64 else F32
        within = I32 if x.type.dtype is I32 and zero is not None else to
        wide = _as(x, x.type.dtype, within)
        if zero is not None:
            middle = _spread(_as(zero, zero.type.dtype, within), zero.type, x.type, axis, block)
            wide = _as(sub(wide, middle), within, to)
        wide = mul(wide, _spread(_as(scale, scale.type.dtype, to), scale.type, x.type, axis, block))
        return _as(wide, to, scale.type.dtype)

    def flops(x: TensorType, scale: TensorType, zero: TensorType | None = None, **attrs) -> int:
        return x.size * (1 if zero is None else 2)


@composite(
    stepwise=True,
    examples=(
        ("f32[5, 13]", "f32[]", dict(to=DType.I8)),
        ("f32[5, 13]", "f32[13]", "u8[13]", dict(to=DType.U8, axis=1)),
        ("f32[3, 5, 7]", "f32[5]", "i8[5]", dict(to=DType.I8, axis=1)),
        ("f64[5, 3]", "f64[1]", "i16[1]", dict(to=DType.I16)),
        ("f32[11, 3]", "f32[3, 3]", "i8[3, 3]", dict(to=DType.I8, block=4)),
    ),
)
class quantize:
    """x / scale rounded half to even, + zero, saturated, as `to`. Floats round as a cast does, and their zero is 0.

    Scale and zero point as those of `dequantize`.
    """

    def infer(
        x: TensorType,
        scale: TensorType,
        zero: TensorType | None = None,
        *,
        to: DType,
        axis: int = 0,
        block: int = 0,
        saturate: bool = True,
    ) -> TensorType:
        expect(x.dtype.is_float and scale.dtype.is_float, "needs floating point and a scale of it")
        expect(to.is_float or to.is_integer, "needs a numeric output type")
        _check(x, axis, block, scale, zero)
        return x.with_dtype(to)

    def expand(
        x: Value, scale: Value, zero: Value | None = None, *, to: DType, axis: int, block: int, saturate: bool
    ) -> TermLike:
        dtype = x.type.dtype
        at = _spread(scale, scale.type, x.type, axis, block)
        y = div(x, _as(at, scale.type.dtype, dtype))
        if to.is_float:
            return cast(y, to=to, saturate=saturate or not to.value.startswith("f8"))
        within = F64 if dtype is F64 else F32
        y = _as(round_(y), dtype, within)
        if zero is not None:
            y = add(y, _spread(_as(zero, zero.type.dtype, within), zero.type, x.type, axis, block))
        return cast(clip(y, to.lowest, to.highest), to=to)

    def flops(x: TensorType, scale: TensorType, zero: TensorType | None = None, **attrs) -> int:
        return x.size * (4 if zero is None else 5)


def unpacked(packed: np.ndarray, bits: int, count: int | None = None) -> np.ndarray:
    """Returns the first `count` numbers of `bits` bits of each row, the first one of each byte in its lowest bits."""
    if bits == 8:
        return packed[..., :count]
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    apart = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return apart.reshape(*packed.shape[:-1], packed.shape[-1] * len(shifts))[..., :count]


def packed(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Packs rows of numbers of `bits` bits into bytes, the first one of each byte in its lowest bits."""
    held = 8 // bits
    padded = np.pad(numbers, ((0, 0), (0, -numbers.shape[1] % held))).reshape(len(numbers), -1, held)
    return np.bitwise_or.reduce(padded << np.arange(0, 8, bits, dtype=np.uint8), axis=2)


@structured(
    heavy=True,
    examples=(
        ("f32[3, 70]", "u8[5, 35]", "f32[5, 3]", "u8[5, 3]", dict(block=32, bits=4)),
        ("f32[2, 3, 64]", "u8[7, 64]", "f16[7, 1]", dict(block=64, bits=8)),
        ("f32[1, 128]", "u8[9, 64]", "f32[9, 8]", dict(block=16, bits=4, round_rows=True)),
        ("f32[48]", "u8[5, 48]", "f32[5, 1]", "u8[5, 1]", dict(block=48, bits=8)),
        ("f16[4, 33]", "u8[6, 9]", "f16[6, 3]", "u8[6, 3]", dict(block=16, bits=2)),
        ("f32[4, 70]", "u8[6, 35]", "f16[6, 3]", "f32[6, 3]", dict(block=32, bits=4)),
    ),
)
class quantized_linear:
    """y[…, n] = Σₖ x[…, k] · (w[n, k] − zero[n, k / block]) · scale[n, k / block], a product with weights of few bits,
    which stay stored as they are.

    w holds N rows of K unsigned numbers of 2, 4 or 8 bits, the first one of each byte in its lowest bits. scale and
    zero are [N, blocks], one for every `block` elements of a row; without zero it is half of the numbers' range. zero
    holds bytes, or floats for weights with a minimum of their own.
    round_rows: kernels may round x to 8 bits, each 32 elements of a row (or 16) by a scale of their own.
    """

    def infer(
        x: TensorType,
        w: TensorType,
        scale: TensorType,
        zero: TensorType | None = None,
        *,
        block: int,
        bits: int,
        round_rows: bool = False,
    ) -> TensorType:
        expect(x.rank >= 1 and x.dtype.is_float and scale.dtype.is_float, "needs floats, and scales of them")
        expect(bits in (2, 4, 8), f"needs numbers of 2, 4 or 8 bits, got {bits}")
        expect(w.rank == 2 and w.dtype is U8, "needs a matrix of bytes")
        expect(block > 0, f"needs blocks of at least one element, got {block}")
        rows, inner = w.shape[0], x.shape[-1]
        expect_equal(w.shape[1], -(-inner * bits // 8), f"needs rows of {inner} numbers of {bits} bits")
        for v in (scale, zero):
            if v is not None:
                expect_equal(v.shape, (rows, -(-inner // block)), "needs scales and zero points for each block")
        expect(zero is None or zero.dtype is U8 or zero.dtype.is_float, "needs zero points as bytes or floats")
        return x.with_shape((*x.shape[:-1], rows))

    def reference(x, w, scale, zero=None, *, block, bits, round_rows):
        at = np.arange(x.shape[-1]) // block
        wide = unpacked(w, bits, x.shape[-1]).astype(np.float64)
        wide -= 1 << (bits - 1) if zero is None else zero.astype(np.float64)[:, at]
        wide *= scale.astype(np.float64)[:, at]
        return np.matmul(x, wide.T)

    def expand(
        x: Value, w: Value, scale: Value, zero: Value | None = None, *, block: int, bits: int, round_rows: bool
    ) -> TermLike:
        codes: TermLike = w
        if bits < 8:
            apart = shift_right(reshape(w, shape=(*w.type.shape, 1)), np.arange(0, 8, bits, dtype=np.uint8))
            codes = bitwise_and(apart, np.uint8((1 << bits) - 1))
            codes = reshape(codes, shape=(w.type.shape[0], w.type.shape[1] * (8 // bits)))
            codes = along(codes, 1, 0, x.type.shape[-1])
        middle = np.full(scale.type.shape, 1 << (bits - 1), np.uint8)
        by = _as(scale, scale.type.dtype, x.type.dtype)
        rows = dequantize(codes, by, middle if zero is None else zero, axis=1, block=block)
        return matmul(x, transpose(rows, perm=(1, 0)))

    def flops(x: TensorType, w: TensorType, *others: TensorType, **attrs) -> int:
        return 2 * x.size * w.shape[0]


@structured(
    heavy=True,
    examples=(
        ("f32[3, 70]", "u8[5, 35]", "f32[5, 3]", dict(block=32, table=tuple(float(i * i - 9) for i in range(16)))),
        ("f32[2, 1, 48]", "u8[7, 24]", "f16[7, 1]", dict(block=48, table=tuple(i / 8 - 1 for i in range(16)))),
        ("f16[4, 33]", "u8[6, 17]", "f16[6, 3]", dict(block=16, table=tuple(1 / (i + 1) for i in range(16)))),
    ),
)
class codebook_linear:
    """y[…, n] = Σₖ x[…, k] · table[w[n, k]] · scale[n, k / block], a product with weights of four bits that number the
    entries of a table of 16, as those of NF4 and FP4.

    w holds N rows of K numbers, the first one of each byte in its lowest bits; scale is [N, blocks], one for every
    `block` elements of a row.
    """

    def infer(x: TensorType, w: TensorType, scale: TensorType, *, block: int, table: tuple[float, ...]) -> TensorType:
        expect(x.rank >= 1 and x.dtype.is_float and scale.dtype.is_float, "needs floats, and scales of them")
        expect(w.rank == 2 and w.dtype is U8, "needs a matrix of bytes")
        expect(block > 0, f"needs blocks of at least one element, got {block}")
        expect(len(table) == 16, f"needs a table of 16 numbers, got {len(table)}")
        rows, inner = w.shape[0], x.shape[-1]
        expect_equal(w.shape[1], -(-inner // 2), f"needs rows of {inner} numbers of 4 bits")
        expect_equal(scale.shape, (rows, -(-inner // block)), "needs a scale for each block")
        return x.with_shape((*x.shape[:-1], rows))

    def reference(x, w, scale, *, block, table):
        by = scale.astype(np.float64)[:, np.arange(x.shape[-1]) // block]
        return np.matmul(x, (np.array(table)[unpacked(w, 4, x.shape[-1])] * by).T)

    def expand(x: Value, w: Value, scale: Value, *, block: int, table: tuple[float, ...]) -> TermLike:
        rows, inner = w.type.shape[0], x.type.shape[-1]
        apart = shift_right(reshape(w, shape=(*w.type.shape, 1)), np.array([0, 4], np.uint8))
        codes = reshape(bitwise_and(apart, np.uint8(15)), shape=(rows, 2 * w.type.shape[1]))
        codes = cast(along(codes, 1, 0, inner), to=I32)
        numbers = cast(gather(np.array(table, np.float32), codes, axis=0), to=x.type.dtype)
        wide = x.type.with_shape((rows, inner))
        numbers = mul(numbers, _spread(_as(scale, scale.type.dtype, x.type.dtype), scale.type, wide, 1, block))
        return matmul(x, transpose(numbers, perm=(1, 0)))

    def flops(x: TensorType, w: TensorType, *others: TensorType, **attrs) -> int:
        return 2 * x.size * w.shape[0]


@structured(
    indexed=True,
    examples=(
        ("u8[5, 35]", "i64[3]", "f32[5, 3]", "u8[5, 3]", dict(block=32, bits=4, length=70)),
        ("u8[7, 64]", "i32[2, 1]", "f32[7, 1]", dict(block=64, bits=8, length=64)),
        ("u8[6, 9]", "i64[]", "f16[6, 3]", "f32[6, 3]", dict(block=16, bits=2, length=33)),
    ),
)
class quantized_gather:
    """y[i…, k] = (w[indices[i…], k] − zero[…, k / block]) · scale[…, k / block], rows of a table of few bits, which
    stays stored as it is; negative indices count from the end.

    w, scale and zero are those of `quantized_linear`, of rows of `length` numbers. round_scales: kernels may round
    scales to f16, as those of a product with the same weights do.
    """

    def infer(
        w: TensorType,
        indices: TensorType,
        scale: TensorType,
        zero: TensorType | None = None,
        *,
        block: int,
        bits: int,
        length: int,
        round_scales: bool = False,
    ) -> TensorType:
        expect(indices.dtype.is_integer, "needs integer indices")
        row = TensorType(scale.dtype, (length,))
        quantized_linear.infer(row, w, scale, zero, block=block, bits=bits)
        return TensorType(scale.dtype, (*indices.shape, length))

    def reference(w, indices, scale, zero=None, *, block, bits, length, round_scales):
        at = np.arange(length) // block
        rows = unpacked(w[indices], bits, length).astype(np.float64)
        rows -= 1 << (bits - 1) if zero is None else zero[indices][..., at].astype(np.float64)
        return rows * scale[indices][..., at].astype(np.float64)

    def expand(
        w: Value,
        indices: Value,
        scale: Value,
        zero: Value | None = None,
        *,
        block: int,
        bits: int,
        length: int,
        round_scales: bool,
    ) -> TermLike:
        shape, axis = indices.type.shape, indices.type.rank
        codes: TermLike = gather(w, indices, axis=0)
        if bits < 8:
            apart = reshape(codes, shape=(*shape, w.type.shape[1], 1))
            apart = bitwise_and(shift_right(apart, np.arange(0, 8, bits, dtype=np.uint8)), np.uint8((1 << bits) - 1))
            codes = along(reshape(apart, shape=(*shape, w.type.shape[1] * (8 // bits))), axis, 0, length)
        by = gather(scale, indices, axis=0)
        middle = spread(np.uint8(1 << (bits - 1)), shape=(*shape, scale.type.shape[1]))
        zeros = middle if zero is None else gather(zero, indices, axis=0)
        return dequantize(codes, by, zeros, axis=axis, block=block)

    def flops(w: TensorType, indices: TensorType, *others: TensorType, length: int, **attrs) -> int:
        return 2 * indices.size * length
