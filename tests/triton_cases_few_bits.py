"""Cases of the GPU templates for weights of few bits: every storage, at odd sizes."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
from kernel_harness import named, program  # noqa: E402
from triton_harness import Case  # noqa: E402

from pelton.ir.types import DType  # noqa: E402


def product(of, rows, n, k, bits, block, scale="", zeros="", tail=(), orders=None, **more) -> Case:
    """rows: the sizes before the last one; scale, zeros: element types, those of x and no zero points unless given."""
    rng, blocks = np.random.default_rng(n), -(-k // block)
    arrays = dict(w=rng.integers(0, 256, (n, -(-k * bits // 8)), np.uint8))
    arrays["s"] = (rng.uniform(-2, 2, (n, blocks)) / 8).astype(DType(scale or of).numpy)
    if zeros:
        arrays["z"] = rng.integers(0, 1 << bits, (n, blocks), np.uint8)
    if zeros not in ("", "u8"):
        arrays["z"] = (arrays["z"] - rng.random((n, blocks))).astype(DType(zeros).numpy)
    node = ("y", "quantized_linear", " ".join(["x", *arrays]), dict(block=block, bits=bits))
    graph = program(node, *tail, x=f"{of}[{', '.join(map(str, (*rows, k)))}]", **arrays, **more)
    return Case(named(of, (*rows, k), n, bits, block, scale, zeros, "tail" if tail else ""), graph, orders or {})


BIAS = (("u", "add", "y c"), ("out", "gelu", "u"))
RESIDUAL = (("u", "add", "y c"), ("out", "add", "u d"))

CASES: dict[str, list[Case]] = {
    "quantized_linear": [
        product("f16", (13,), 43, 160, 4, 32, tail=BIAS, c="f16[43]"),
        product("f32", (2, 9), 70, 96, 4, 32, "f16", "u8", tail=RESIDUAL, c="f32[70]", d="f32[2, 9, 70]"),
        product("bf16", (37,), 33, 200, 8, 64, zeros="u8"),
        product("f16", (7,), 61, 513, 4, 128, "f32", "f32"),
        product("f32", (5,), 130, 90, 2, 16, zeros="u8"),
        product("f16", (6,), 45, 130, 2, 32),
        product("bf16", (9,), 31, 100, 4, 48, zeros="bf16"),
        product("f32", (11,), 35, 100, 8, 100),
        product("f32", (50,), 5, 33, 8, 40, zeros="u8"),
        product("f16", (1,), 40, 64, 4, 16, zeros="u8"),
        product("f16", (3, 4, 5), 21, 64, 8, 32, orders=dict(x=(1, 0, 2, 3))),
    ],
    "quantized_few": [
        product("f16", (1,), 43, 160, 4, 32, tail=BIAS, c="f16[43]"),
        product("f32", (3,), 70, 96, 4, 32, "f16", "u8", tail=RESIDUAL, c="f32[70]", d="f32[3, 70]"),
        product("bf16", (1, 2), 33, 200, 8, 64, zeros="u8"),
        product("f16", (4,), 61, 513, 4, 128, "f32", "f32"),
        product("f32", (1,), 130, 90, 2, 16, zeros="u8"),
        product("f16", (2,), 45, 130, 2, 32),
        product("bf16", (3,), 31, 100, 4, 48, zeros="bf16"),
        product("f32", (1,), 35, 100, 8, 100),
        product("f32", (1,), 9, 2100, 4, 32, zeros="u8"),
        product("f16", (2, 2, 1), 21, 64, 8, 32, orders=dict(x=(1, 0, 2, 3))),
    ],
}
