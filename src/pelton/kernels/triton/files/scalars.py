"""What kernels share: where a program's tile is, and scalar functions that Triton has not, or means differently."""
import triton
import triton.language as tl


# <functions>
@triton.jit
def block(tile, columns, high: tl.constexpr, wide: tl.constexpr):
    """The rows and columns of a tile, tiles of a row side by side."""
    across = tl.cdiv(columns, wide)
    return tile // across * high + tl.arange(0, high)[:, None], tile % across * wide + tl.arange(0, wide)[None, :]


@triton.jit
def grouped(tile, down, across, tall: tl.constexpr):
    """Which of the tiles down and across a tile is: `tall` of them go side by side through the columns, so that what they read there stays in the L2 cache."""
    first = tile // (tall * across) * tall
    high = tl.minimum(down - first, tall)
    return first + tile % (tall * across) % high, tile % (tall * across) // high


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
def mod(x, y):
    """The remainder with the sign of the divisor."""
    rest = x % y
    return tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


@triton.jit
def power(x, n):
    """Whole powers, wrapping."""
    y = tl.full([], 1, x.dtype) + x * 0
    for _ in tl.static_range(x.dtype.primitive_bitwidth):
        y = tl.where((n & 1) != 0, y * x, y)
        x = x * x
        n = n >> 1
    return y


@triton.jit
def shl(x, n):
    inside = (n >= 0) & (n < x.dtype.primitive_bitwidth)
    return tl.where(inside, x << tl.where(inside, n, 0).to(x.dtype), tl.full([], 0, x.dtype))


@triton.jit
def shr(x, n):
    inside = (n >= 0) & (n < x.dtype.primitive_bitwidth)
    past = tl.where(x < 0, tl.full([], -1, tl.int32).to(x.dtype), tl.full([], 0, x.dtype))
    return tl.where(inside, x >> tl.where(inside, n, 0).to(x.dtype), past)


