"""Cases of the GPU templates for products and convolutions of bytes, at odd sizes and with the largest factors."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
from kernel_harness import named, program  # noqa: E402
from triton_harness import Case, nhwc  # noqa: E402

from pelton.ir.types import DType  # noqa: E402

REQUANTIZED = (
    ("f", "cast", "y", dict(to=DType.F32)),
    ("s", "mul", "f m"),
    ("i", "round", "s"),
    ("z", "add", "i n"),
    ("c", "clip", "z l h"),
    ("out", "cast", "c", dict(to=DType.U8)),
)
SCALED = dict(m=np.float32(3.1e-3), n=np.float32(7), l=np.float32(0), h=np.float32(255))


def extreme(rng, shape, low: int, high: int) -> np.ndarray:
    """Numbers of the whole range, a quarter of them the least and the largest."""
    return np.where(rng.random(shape) < 0.25, rng.choice([low, high], shape), rng.integers(low, high + 1, shape))


def image(of: str, shape: tuple, rng) -> np.ndarray:
    return extreme(rng, shape, *((0, 255) if of == "u8" else (-128, 127))).astype(DType(of).numpy)


def conv(
    of,
    shape,
    channels,
    kernel,
    strides=1,
    pads=None,
    dilations=1,
    group=1,
    *,
    pad=0,
    computed=None,
    wide=False,
    tail=(),
    last=True,
) -> Case:
    """pad: what padding holds; computed: the same, where it and the biases are known only when the kernel runs. wide:
    i16 filters. last: whether channels lie last."""
    rng, spatial = np.random.default_rng(0), len(kernel)
    limit = 255 if wide else 127
    w = extreme(rng, (channels, shape[1] // group, *kernel), -limit, limit).astype(np.int16 if wide else np.int8)
    b = rng.integers(-(2**20), 2**20, channels).astype(np.int32)
    attrs = dict(
        strides=(strides,) * spatial,
        pads=pads if pads is not None else tuple(k // 2 for k in kernel) * 2,
        dilations=(dilations,) * spatial,
        group=group,
        accumulate=DType.I32,
        **({"pad_value": pad} if pad else {}),
    )
    fed, given = dict(x=image(of, shape, rng)), dict(w=w, b=b, **(SCALED if tail else {}))
    if computed is not None:
        fed |= dict(b=b, p=np.array(computed, fed["x"].dtype))
        given |= dict(b=f"i32[{channels}]", p=f"{of}[]")
    node = ("y", "convolution", "x w b" if computed is None else "x w b p", attrs)
    graph = program(node, *tail, x=f"{of}{list(shape)}", **given)
    name = named(of, shape, channels, kernel, strides, dilations, group, pad, computed, "tail" if tail else "")
    return Case(name, graph, {"x": nhwc(len(shape))} if last else {}, fed)


def product(of, a, b, tail=()) -> Case:
    rng = np.random.default_rng(0)
    w = extreme(rng, b, -127, 127).astype(np.int8)
    node = ("y", "matmul", "x w", dict(accumulate=DType.I32))
    graph = program(node, *tail, x=f"{of}{list(a)}", w=w, **(SCALED if tail else {}))
    return Case(named(of, a, b, "tail" if tail else ""), graph, {}, dict(x=image(of, a, rng)))


CASES: dict[str, list[Case]] = {
    "gemm": [
        product("u8", (37, 125), (125, 58)),
        product("i8", (2, 19, 64), (64, 45), tail=REQUANTIZED),
        product("u8", (5, 3), (3, 17)),
        conv("u8", (2, 58, 5, 7), 40, (1, 1), tail=REQUANTIZED),
    ],
    "few": [product("u8", (3, 125), (125, 58), tail=REQUANTIZED), product("i8", (1, 700), (700, 33))],
    "conv": [
        conv("u8", (1, 13, 8, 9), 19, (3, 3), pad=7, tail=REQUANTIZED),
        conv("i8", (2, 16, 9, 7), 35, (3, 3), 2, pad=-128),
        conv("u8", (1, 3, 15, 17), 13, (7, 7), 2, pad=255, last=False),
        conv("i8", (1, 3, 9, 11), 5, (5, 3), dilations=2, computed=-77),
        conv("u8", (1, 125, 4, 5), 58, (3, 3)),
        conv("u8", (2, 12, 7, 6), 24, (3, 2), group=3, computed=255),
        conv("i8", (1, 5, 31), 7, (4,), 3, (2, 1), pad=3),
    ],
    "window": [
        conv("u8", (1, 13, 9, 8), 13, (3, 3), group=13, pad=7, tail=REQUANTIZED),
        conv("i8", (2, 58, 5, 6), 58, (5, 5), 2, group=58, computed=-128),
        conv("u8", (1, 35, 7, 5), 35, (3, 3), group=35, pad=255, wide=True),
        conv("i8", (1, 16, 21), 16, (4,), 2, (2, 1), group=16, pad=-5),
    ],
}
