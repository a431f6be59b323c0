"""Shared by kernels: the place of a program's tile, and scalar functions that Triton lacks or defines differently."""

import triton
import triton.language as tl


# <functions>
@triton.jit
def block(tile, columns, high: tl.constexpr, wide: tl.constexpr):
    """Returns the rows and columns of a tile; tiles of a row are side by side."""
    across = tl.cdiv(columns, wide)
    return tile // across * high + tl.arange(0, high)[:, None], tile % across * wide + tl.arange(0, wide)[None, :]


@triton.jit
def grouped(tile, down, across, tall: tl.constexpr):
    """Returns the place of a tile among those down and across: `tall` of them go side by side through the columns, so
    the L2 cache keeps what they read there."""
    first = tile // (tall * across) * tall
    high = tl.minimum(down - first, tall)
    return first + tile % (tall * across) % high, tile % (tall * across) // high


@triton.jit
def halves(sums, rows: tl.constexpr, columns: tl.constexpr):
    """Returns the left and the right half of a tile."""
    return tl.split(tl.permute(tl.reshape(sums, (rows, 2, columns // 2)), (0, 2, 1)))


@triton.jit
def share(program, total):
    """Returns the range of a program's steps in those of all tiles, one tile after the other; all programs have equally
    many."""
    programs = tl.num_programs(0)
    return program * total // programs, (program + 1) * total // programs


@triton.jit
def sharers(tile, steps, total):
    """Returns the first and the last program that has steps of a tile."""
    programs = tl.num_programs(0)
    return (programs * (tile * steps + 1) - 1) // total, (programs * ((tile + 1) * steps) - 1) // total


@triton.jit
def last_to_arrive(counter, others):
    """Counts this program; true for the last one, behind so many others: it sees all that they stored before. The
    counter returns to zero."""
    tl.debug_barrier()  # all threads have stored before one of them counts
    ended = tl.atomic_add(counter, 1, sem="acq_rel") == others
    if ended:
        tl.store(counter, 0)
    tl.debug_barrier()
    return ended


@triton.jit
def places(rows: tl.constexpr, columns: tl.constexpr, left, wide: tl.constexpr):
    """Returns the places of a tile's elements in consecutive rows: so many columns of all rows, from `left` on."""
    return tl.arange(0, rows)[:, None] * columns + left + tl.arange(0, wide)[None, :]


@triton.jit
def parted(acc, at, size, program, one, last, sums, arrived):
    """Stores a program's part of a tile's sums, `size` elements in all, at these places, for `joined`; true for the
    last of the programs from `one` to `last` to do so, whichever that is. `arrived` counts them at the place of a
    tile's first program, and returns to zero; `sums` has two tiles for each program: a part of the tile that it begins
    in the middle of, and one of the tile that it is the first of."""
    tl.store(sums + (2 * program + (program == one)) * size + at, acc)
    return last_to_arrive(arrived + one, last - one)


@triton.jit
def joined(one, last, at, size, sums):
    """Adds all parts of some of a tile's sums, in the order of their programs."""
    total = (at * 0).to(sums.dtype.element_ty)
    for program in tl.range(one, last + 1, num_stages=4):  # several loads in flight
        total += tl.load(sums + (2 * program + (program == one)) * size + at, cache_modifier=".cg")
    return total


@triton.jit
def load_or(at, there, other: tl.constexpr):
    """Loads elements, `other` where there are none. Triton before 3.9 wrongly fills words with integers of 8 and 16
    bits whose first bit is set, so they are set afterwards."""
    if other != 0 and at.dtype.element_ty.is_int():
        x = tl.where(there, tl.load(at, mask=there, other=0), tl.full([], other, at.dtype.element_ty))
    else:
        x = tl.load(at, mask=there, other=other)
    return x


@triton.jit
def nearest(x, wanted: tl.constexpr):
    """Rounds floats to the nearest TF32, halves away from zero; a GPU truncates factors after ten bits behind the
    point."""
    if wanted:  # half of the last bit that stays; infinities and NaN stay
        x += (x.to(tl.uint32, bitcast=True) & 0xFF800000).to(tl.float32, bitcast=True) * 2.0**-11
    return x


@triton.jit
def less_128(x, wanted: tl.constexpr):
    """Subtracts 128 from u8, for an i8, which tensor cores multiply."""
    if wanted:
        x = (x ^ 128).to(tl.int8, bitcast=True)
    return x


@triton.jit
def from_e4m3(x):
    """Converts FP8 (sign, 4 bits of exponent, 3 of mantissa; OCP 8-bit Floating Point Specification) to f32."""
    large = ((x & 127).to(tl.int16) << 7).to(tl.float16, bitcast=True).to(tl.float32) * 256
    large = tl.where((x & 127) == 127, float("nan"), large)
    return tl.where(x > 127, -large, large)


@triton.jit
def to_e4m3(x, saturate: tl.constexpr):
    """Converts f32 to such FP8, halves to even; numbers past 448 become 448, or NaN."""
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - 960
    # halves of the least normal one and less are multiples of 2⁻⁹: adding 1.5 · 2²³ rounds
    small = ((tl.abs(x) * 512 + 12582912.0).to(tl.int32, bitcast=True)) & 15
    code = tl.where(size < 0x3C800000, small, tl.minimum(normal, 126 if saturate else 127))
    code = tl.where(x != x, 127, code)
    return (code | ((bits >> 24) & 128)).to(tl.uint8)


@triton.jit
def minimum(x, y):
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def maximum(x, y):
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def sign(x):
    return tl.where(x > 0, tl.full([], 1, x.dtype), tl.where(x < 0, tl.full([], -1, tl.int32).to(x.dtype), x))


@triton.jit
def isnan(x):
    return x != x


@triton.jit
def isinf(x):
    return tl.abs(x) == float("inf")


@triton.jit
def quotient(x, y):
    """Divides whole numbers, rounding towards 0; by 0 it gives 0, and the least one by −1 wraps."""
    one, nothing = tl.full([], 1, y.dtype), y == 0
    if x.dtype.is_int_signed():
        turns = y + 1 == 0
        found = tl.where(turns, -x, x // tl.where(nothing | turns, one, y))
    else:
        found = x // tl.where(nothing, one, y)
    return tl.where(nothing, tl.full([], 0, x.dtype), found)


@triton.jit
def remainder(x, y):
    """Returns the remainder of whole numbers, with the sign of x; by 0 it is 0."""
    return tl.where(y == 0, tl.full([], 0, x.dtype), x - quotient(x, y) * y)


@triton.jit
def mod(x, y):
    """Returns the remainder with the sign of the divisor."""
    rest = remainder(x, y)
    return tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


@triton.jit
def power(x, n):
    """Raises to whole powers, wrapping; negative ones are truncated reciprocals: all 0 but those of 1 and −1."""
    none = (n < 0) & (x != 1) & (x + 1 != 0)
    y = tl.full([], 1, x.dtype) + x * 0
    bits: tl.constexpr = x.dtype.primitive_bitwidth
    for _ in tl.static_range(bits):
        y = tl.where((n & 1) != 0, y * x, y)
        x = x * x
        n = n >> 1
    return tl.where(none, tl.full([], 0, x.dtype), y)


@triton.jit
def shl(x, n):
    inside = (n >= 0) & (n < x.dtype.primitive_bitwidth)
    return tl.where(inside, x << tl.where(inside, n, 0).to(x.dtype), tl.full([], 0, x.dtype))


@triton.jit
def shr(x, n):
    inside = (n >= 0) & (n < x.dtype.primitive_bitwidth)
    past = tl.where(x < 0, tl.full([], -1, tl.int32).to(x.dtype), tl.full([], 0, x.dtype))
    return tl.where(inside, x >> tl.where(inside, n, 0).to(x.dtype), past)
