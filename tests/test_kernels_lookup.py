"""Table lookups for pointwise functions of one byte."""

import numpy as np
import pytest
from kernel_cases import Case, named, program, region_of
from kernel_harness import CASES, check, check_dynamic, declare

from pelton.codegen.c.templates.library import TEMPLATES
from pelton.ir.types import DType


def looked_up(of: str, to: str, shape, order=None, more=0.0) -> Case:
    """Dequantize, a sigmoid and a product, quantize."""
    nodes = [
        ("f", "cast", "x", dict(to=DType.F32)),
        ("a", "add", "f z"),
        ("s", "mul", "a scale"),
        ("g", "sigmoid", "s"),
        ("p", "mul", "g s"),
        ("q", "mul", "p factor"),
        ("r", "round", "q"),
        ("c", "clip", "r low high"),
        ("y", "cast", "c", dict(to=DType(to))),
    ]
    low, high = (0, 255) if to == "u8" else (-128, 127)
    numbers = dict(z=-121 + more, scale=0.0371, factor=27.3, low=low, high=high)
    graph = program(*nodes, x=f"{of}{list(shape)}", **{k: np.float32(v) for k, v in numbers.items()})
    fed = np.arange(np.prod(shape), dtype=np.int64).reshape(shape).astype("uint8" if of == "u8" else "int8")
    return Case(named(of, to, shape, order or (), more), graph, {} if order is None else dict(x=order), dict(x=fed))


declare(
    "lookup",
    looked_up("u8", "u8", (3, 125)),
    looked_up("i8", "u8", (2, 5, 7, 9), (0, 2, 3, 1)),
    looked_up("u8", "i8", (1, 58, 11)),
    looked_up("i8", "i8", (4099,), more=90.0),
)


@pytest.mark.parametrize("case", CASES["lookup"], ids=lambda c: c.name)
def test_bytes_are_looked_up(case):
    assert check(TEMPLATES["lookup"], case)
    assert check_dynamic(TEMPLATES["lookup"], case)


def test_what_is_no_function_of_one_byte_is_not_looked_up():
    two = program(("s", "add", "x y"), ("m", "add", "s c"), x="u8[3, 4]", y="u8[3, 4]", c=np.uint8(1))
    each = program(("s", "add", "x c"), x="u8[3, 4]", c=np.arange(4, dtype=np.uint8))
    wide = program(("s", "cast", "x", dict(to=DType.F32)), ("m", "mul", "s c"), x="u8[3, 4]", c=np.float32(2))
    spread = program(("s", "add", "x c"), ("m", "add", "s c"), x="u8[4]", c=np.uint8(3))
    reasons = [TEMPLATES["lookup"].rejection(region_of(g)) for g in (two, each, wide, spread)]
    assert all(reasons[:3]) and reasons[3] is None
