"""Sliding windows over any number of spatial axes: sizes, taps, padding, and folding an axis into the batch."""

from __future__ import annotations

import numpy as np

from pelton.ir.dims import minimum
from pelton.ir.types import TensorType

from .op import TermLike, expect, expect_at_least
from .shape import pad, reshape, transpose

Ints = tuple[int, ...]


def check_window(x: TensorType, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints) -> None:
    """Checks the attributes of an op with a sliding window; raises ValueError if they do not fit x."""
    spatial = x.rank - 2
    expect(spatial >= 1, "needs an input of rank 3 and more: batch, channels, space")
    expect(
        len(kernel) == len(strides) == len(dilations) == spatial and len(pads) == 2 * spatial,
        f"needs a kernel, stride and dilation per spatial axis ({spatial}) and two pads, "
        f"got kernel {list(kernel)}, strides {list(strides)}, dilations {list(dilations)}, pads {list(pads)}",
    )
    expect(
        min(*kernel, *strides, *dilations) >= 1,
        "needs positive kernel sizes, strides and dilations, "
        f"got kernel {list(kernel)}, strides {list(strides)}, dilations {list(dilations)}",
    )
    expect(all(p >= 0 for p in pads), f"needs pads of zero and more, got {list(pads)}")


def window_sizes(
    space: Ints, kernel: Ints, strides: Ints, pads: Ints, dilations: Ints, ceil_mode: bool = False
) -> Ints:
    """Counts the windows along each spatial axis; in ceil_mode the last may end past the axis, but starts in it."""
    sizes = []
    for i, n in enumerate(space):
        room = n + pads[i] + pads[i + len(space)] - dilations[i] * (kernel[i] - 1) - 1
        count = (-(-room // strides[i]) if ceil_mode else room // strides[i]) + 1
        if ceil_mode:
            count = minimum(count, -(-(n + pads[i]) // strides[i]))
        expect_at_least(
            count,
            1,
            f"needs windows that fit: {n} + {pads[i]} + {pads[i + len(space)]} must be "
            f"{dilations[i] * (kernel[i] - 1) + 1} or more along spatial axis {i}",
        )
        sizes.append(count)
    return tuple(sizes)


def taps(kernel: Ints, strides: Ints, dilations: Ints, sizes: Ints):
    """Yields per tap its index in the kernel, and the index of its elements in a padded input."""
    for at in np.ndindex(*kernel):
        yield (
            (..., *at),
            (
                ...,
                *(
                    slice(t * d, t * d + max(0, (n - 1) * s + 1), s)
                    for t, d, s, n in zip(at, dilations, strides, sizes)
                ),
            ),
        )


def pad_space(x: np.ndarray, pads: Ints, value=0) -> np.ndarray:
    """Pads the spatial axes of x; pads are begin…, end…."""
    spatial = x.ndim - 2
    if not any(pads):
        return x
    return np.pad(x, [(0, 0), (0, 0), *zip(pads[:spatial], pads[spatial:])], constant_values=value)


MAX_TERMS = 1024  # limit of terms in one expansion, which keeps programs small


def pad_term(x: TermLike, pads: Ints) -> TermLike:
    """Pads the spatial axes of x [batch, channels, space…] with zeros, or crops them where pads are negative."""
    spatial = len(pads) // 2
    return pad(x, 0, pads=(0, 0, *pads[:spatial], 0, 0, *pads[spatial:])) if any(p != 0 for p in pads) else x


def fold_depth(x: TermLike, shape: Ints) -> TermLike:
    """Reshapes x [batch, channels, depth, space…] to [batch · depth, channels, space…]."""
    n, c, d, *space = shape
    return reshape(transpose(x, perm=(0, 2, 1, *range(3, len(shape)))), shape=(n * d, c, *space))


def unfold_depth(y: TermLike, batch: int, depth: int, shape: Ints) -> TermLike:
    """Reshapes y of `shape` [batch · depth, channels, space…] to [batch, channels, depth, space…]."""
    return transpose(reshape(y, shape=(batch, depth, *shape[1:])), perm=(0, 2, 1, *range(3, len(shape) + 1)))
