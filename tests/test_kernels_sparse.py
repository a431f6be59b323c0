"""Products by weights of mostly zeros: f32 at odd sizes and densities, and bytes of which half are kept."""

import numpy as np
import pytest
from kernel_cases import Case, named, program, region_of
from kernel_harness import CASES, TARGET, TARGETS, check, check_on, declare, laid, walk

from pelton.codegen.template import TEMPLATES
from pelton.ir.types import DType
from pelton.tuning.candidates import template_rejection

SPARSE = TEMPLATES["sparse"]


def sparse(shape, share, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * (rng.random(shape) < share)).astype(np.float32)


def linear(rows, n, k, share=0.2, tail=(), orders=None, holes=(), **more):
    """holes: outputs without a weight."""
    w = sparse((k, n), share, n)
    w[:, list(holes)] = 0
    graph = program(("y", "matmul", "x w"), *tail, x=f"f32[{', '.join(map(str, (*rows, k)))}]", w=w, **more)
    return Case(named((*rows, k), n, share, holes), graph, orders or {})


def convolution(size, n, k, share=0.2, tail=(), **more):
    w, bias = sparse((n, k, *(1 for _ in size)), share, n), np.linspace(-1, 1, n, dtype=np.float32)
    attrs = dict(strides=[1] * len(size), pads=[0] * 2 * len(size), dilations=[1] * len(size), group=1)
    shape = ", ".join(map(str, (2, k, *size)))
    graph = program(("y", "convolution", "x w b", attrs), *tail, x=f"f32[{shape}]", w=w, b=bias, **more)
    return Case(named("1x1", size, n, k, share), graph, dict(x=(0, *range(2, 2 + len(size)), 1)))


declare(
    "sparse",
    linear((37,), 43, 70),
    linear((1,), 45, 96, holes=range(16, 45)),
    linear((3,), 45, 81, 0.4),
    linear((2, 5), 33, 200, 0.1, holes=(0, 1, 31, 32)),
    linear((1,), 1, 5000, 0.3),
    linear((130,), 3, 1100, 0.25),
    linear((9,), 64, 64, 0.0),
    linear((17,), 40, 160, tail=[("s", "add", "y c"), ("out", "tanh", "s")], c="f32[40]"),
    linear((3, 4, 5), 61, 64, orders=dict(x=(1, 0, 2, 3))),
    convolution((7, 9), 43, 50, tail=[("out", "relu", "y")]),
    convolution((49,), 33, 257, 0.05, tail=[("s", "add", "y z"), ("out", "sigmoid", "s")], z="f32[2, 33, 49]"),
)


@pytest.mark.parametrize("template, case", [pytest.param(SPARSE, c, id=c.name) for c in CASES["sparse"]])
def test_cases(template, case):
    check(template, case)


@pytest.mark.parametrize("isa", list(TARGETS))
def test_tactics_of_every_level(isa):
    case = linear((83,), 67, 400)
    assert check_on(TARGETS[isa], SPARSE, case, 9, gaps=False) >= 4


def two_of_four(rng, shape, most):
    """i8 weights [output, channel, …], as large as allowed or zero, at most two of every four channels not zero."""
    w = np.where(rng.random(shape) < 0.5, rng.choice([-most, most], shape), rng.integers(-most, most + 1, shape))
    for start in range(0, shape[1], 4):
        four = w[:, start : start + 4]
        four[rng.random(four.shape).argsort(1).argsort(1) >= 2] = 0
    return w.astype(np.int8)


def bytes_of(rng, of, shape):
    low, high = (0, 255) if of == "u8" else (-128, 127)
    x = np.where(rng.random(shape) < 0.25, rng.choice([low, high], shape), rng.integers(low, high + 1, shape))
    return x.astype("uint8" if low == 0 else "int8")


def conv_int8(of, shape, channels, kernel, strides=(1, 1), group=1, pad=0, most=64, tail=(), **more):
    rng = np.random.default_rng(channels)
    w = two_of_four(rng, (channels, shape[1] // group, *kernel), most)
    pads = tuple(k // 2 for k in kernel) * 2
    attrs = dict(strides=strides, pads=pads, dilations=(1, 1), group=group, accumulate=DType.I32)
    attrs |= dict(pad_value=pad) if pad else {}
    b = rng.integers(-(2**20), 2**20, channels).astype(np.int32)
    graph = program(("y", "convolution", "x w b", attrs), *tail, x=f"{of}{list(shape)}", w=w, b=b, **more)
    name = named(of, shape, channels, kernel, strides, group, pad, most)
    return Case(name, graph, dict(x=(0, 2, 3, 1)), dict(x=bytes_of(rng, of, shape)))


def linear_int8(of, rows, n, k, most=64, tail=(), **more):
    rng = np.random.default_rng(n)
    w, x = np.ascontiguousarray(two_of_four(rng, (n, k), most).T), bytes_of(rng, of, (*rows, k))
    node = ("y", "matmul", "x w", dict(accumulate=DType.I32))
    return Case(named(of, rows, n, k, most), program(node, *tail, x=f"{of}{list(x.shape)}", w=w, **more), {}, dict(x=x))


declare(
    "conv_int8_sparse",
    conv_int8("u8", (1, 64, 6, 7), 35, (1, 1)),
    conv_int8("i8", (2, 37, 9, 7), 43, (3, 3), pad=-128),
    conv_int8("u8", (1, 66, 9, 8), 70, (3, 1), (2, 1), pad=255),
    conv_int8("i8", (1, 110, 5, 4), 18, (1, 1), (2, 2)),
    conv_int8("u8", (1, 96, 6, 5), 40, (3, 3), group=2),
    conv_int8("u8", (1, 40, 13, 3), 7, (1, 1), tail=[("f", "cast", "y", dict(to=DType.F32)), ("out", "relu", "f")]),
)
declare(
    "gemm_int8_sparse",
    linear_int8("u8", (37,), 43, 71),
    linear_int8("i8", (1,), 70, 384),
    linear_int8("i8", (2, 5), 33, 34),
    linear_int8("u8", (98,), 1, 513, tail=[("f", "cast", "y", dict(to=DType.F32)), ("out", "mul", "f s")], s=np.float32(2)),
)


@pytest.mark.parametrize("template, case", walk("conv_int8_sparse", "gemm_int8_sparse"))
def test_bytes(template, case):
    check(template, case)


@pytest.mark.parametrize("isa", list(TARGETS))
@pytest.mark.parametrize("of", ["u8", "i8"])
def test_bytes_of_every_level(isa, of):
    case = linear_int8(of, (53,), 67, 200)
    assert check_on(TARGETS[isa], TEMPLATES["gemm_int8_sparse"], case, 9, gaps=False) >= 4
