"""Products by weights of mostly zeros: f32 at odd sizes and densities, and bytes of which half are kept."""

import emulator
import numpy as np
import pytest
from compare import assert_close
from kernel_cases import Case, named, program, region_of
from kernel_harness import (
    PICKS_BYTES,
    TARGET,
    TARGETS,
    check,
    check_on,
    compiler,
    declare,
    drawn,
    laid,
    linked,
    of_level,
    walk,
)
from kernel_memory import run_kernel

import machines
import pelton
from pelton.cli import build
from pelton.codegen.c.templates.sparse_int8 import nonzero_of_four
from pelton.codegen.template import TEMPLATES
from pelton.ir import lineage
from pelton.ir.evaluate import evaluate
from pelton.ir.lineage import Lineage
from pelton.ir.types import DType
from pelton.tuning.candidates import candidates, template_rejection

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


@pytest.mark.parametrize("template, case", walk("sparse"))
def test_cases(template, case):
    check(template, case)


@pytest.mark.parametrize("isa", list(TARGETS))
def test_tactics_of_every_level(isa):
    case = linear((83,), 67, 400)
    assert check_on(TARGETS[isa], SPARSE, case, 5, gaps=False) >= 4


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
    linear_int8("u8", (98,), 1, 513, tail=[("f", "cast", "y", dict(to=DType.F32)), ("out", "tanh", "f")]),
)


picks = pytest.mark.skipif(not PICKS_BYTES, reason=f"{TARGET.isa} has no kernel for two of four")


@picks
@pytest.mark.parametrize("template, case", walk("conv_int8_sparse", "gemm_int8_sparse"))
def test_bytes(template, case):
    check(template, case)


@picks
@pytest.mark.parametrize("isa", list(TARGETS))
@pytest.mark.parametrize("of", ["u8", "i8"])
def test_bytes_of_every_level(isa, of):
    case = linear_int8(of, (53,), 67, 200)
    assert check_on(TARGETS[isa], TEMPLATES["gemm_int8_sparse"], case, 4, gaps=False) >= 4


def results(template, case, tactics=1):
    """The outputs of a case by a template's first tactics, as bytes."""
    region, inputs = region_of(case.graph), drawn(case)
    layouts = laid(template, region, case, 0)
    kernels = [
        template.emit(region, layouts, t, TARGET) for t in list(template.tactics(region, layouts, TARGET))[:tactics]
    ]
    code = linked(kernels, TARGET)
    for kernel in kernels:
        found = run_kernel(region, kernel, code, layouts, inputs, case.name, behind=True, tiles="whole")
        yield [found[v].tobytes() for v in region.body.outputs]


@picks
@pytest.mark.parametrize("of", ["u8", "i8"])
def test_requantized_bytes_are_those_of_dense_kernels(of):
    tail = [("f", "cast", "y", dict(to=DType.F32)), ("s", "mul", "f m"), ("i", "round", "s")]
    tail += [("c", "clip", "i low high"), ("out", "cast", "c", dict(to=DType.U8))]
    numbers = dict(m=np.float32(0.0123), low=np.float32(0), high=np.float32(255))
    case = linear_int8(of, (29,), 75, 333, tail=tail, **numbers)
    (dense,) = results(TEMPLATES["gemm_int8"], case)
    for sparse in results(TEMPLATES["gemm_int8_sparse"], case, 4):
        assert sparse == dense


def tactics(template, case, isa, strict=False):
    region = region_of(case.graph)
    found = candidates(region, laid(template, region, case, 0), of_level(isa), strict, 1000)
    return [c for t, c in found if t is template]


def test_candidates_by_level():
    """Where picking bytes saves nothing, and where sums of two products may overflow, dense kernels are left."""
    gemm = TEMPLATES["gemm_int8_sparse"]
    whole, small = linear_int8("u8", (53,), 67, 200, most=127), linear_int8("u8", (53,), 67, 200, most=64)
    levels = ("x86_64_v3", "x86_64_v3_vnni", "x86_64_v4", "x86_64_v4_vnni", "aarch64", "aarch64_dotprod", "riscv64_v")
    assert [bool(tactics(gemm, small, isa)) for isa in levels] == [True] * 5 + [False] * 2
    # i8 by i8 on Arm: two products of whole bytes fit i16
    assert [bool(tactics(gemm, whole, isa)) for isa in levels] == [False, True, False, True, True, False, False]


def test_strict_builds_have_no_inexact_candidates():
    isa = "x86_64_v4_vnni"
    assert tactics(SPARSE, linear((37,), 43, 70), isa) and not tactics(SPARSE, linear((37,), 43, 70), isa, strict=True)
    gemm, case = TEMPLATES["gemm_int8_sparse"], linear_int8("u8", (53,), 67, 200)
    assert tactics(gemm, case, isa, strict=True) == tactics(gemm, case, isa)


@pytest.mark.parametrize("isa", ["aarch64", "aarch64_dotprod", "riscv64_v"])
def test_compiles_for_other_architectures(isa):
    for template, case in (
        (SPARSE, linear((37,), 43, 70)),
        (SPARSE, linear((3,), 43, 70)),
        (SPARSE, linear((1,), 43, 70)),
        (TEMPLATES["gemm_int8_sparse"], linear_int8("i8", (37,), 43, 71)),
    ):
        region, target = region_of(case.graph), of_level(isa)
        layouts = laid(template, region, case, 0)
        kernels = [
            template.emit(region, layouts, t, target) for t in list(template.tactics(region, layouts, target))[:1]
        ]
        assert kernels or (template is not SPARSE and isa != "aarch64")
        exact = compiler(isa, machines.Exact)
        assert all(exact.objects({k.symbol: k.source}) for k in kernels)


@pytest.mark.parametrize(
    "case, reason",
    [
        (linear((9,), 64, 64, 0.9), "% of the weights are not zero, more than 55%"),
        (linear((9,), 16, 16), "fewer than 1024 weights"),
    ],
)
def test_rejections(case, reason):
    assert reason in template_rejection(SPARSE, region_of(case.graph))


def test_rejects_denser_bytes():
    case, dense = linear_int8("u8", (9,), 40, 64), np.zeros((64, 40), np.int8)
    dense[60:63, 39] = 1  # three of the last four
    graph = program(("y", "matmul", "x w", dict(accumulate=DType.I32)), x="u8[9, 64]", w=dense)
    template = TEMPLATES["gemm_int8_sparse"]
    assert template_rejection(template, region_of(case.graph)) is None
    assert template_rejection(template, region_of(graph)).startswith("more than two of four neighbouring channels")


@pytest.mark.parametrize(
    "name, case", [("sparse", linear((9,), 64, 64)), ("gemm_int8_sparse", linear_int8("u8", (9,), 40, 64))]
)
def test_weights_that_can_be_refitted_have_no_sparse_kernel(name, case):
    region, known = region_of(case.graph), Lineage()
    assert template_rejection(TEMPLATES[name], region) is None
    known.depends(region.body.constants[region.anchor.inputs[1]], frozenset({"w"}))
    with lineage.following(known):
        assert template_rejection(TEMPLATES[name], region) == "the weights can be refitted: their zeros may differ"


def test_places_name_the_weights_of_a_four():
    array = two_of_four(np.random.default_rng(0), (11, 37), 64).T[None, None]
    weights, places = nonzero_of_four(array)
    assert weights.shape == places.shape == (1, 1, 20, 11) and places.max() == 3
    dense = np.zeros((40, 11), np.int8)
    fours = np.arange(20) // 2 * 4
    np.add.at(dense, (fours[:, None] + places[0, 0], np.arange(11)), weights[0, 0])
    assert (dense[:37] == array[0, 0]).all() and not dense[37:].any()


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_numbers_behind_zeros_do_not_count(rows):
    """An infinity and a NaN change only the outputs that have a weight for them."""
    case = linear((rows,), 40, 64)
    w = next(iter(case.graph.constants.values()))
    x = np.random.default_rng(0).standard_normal((rows, 64)).astype(np.float32)
    x[0, 5], x[0, 60] = np.inf, np.nan
    case = Case(case.name, case.graph, {}, dict(x=x))
    want = evaluate(case.graph, dict(x=np.where(np.isfinite(x), x, 0)), round=False)["y"].astype(np.float32)
    clean = (w[5] == 0) & (w[60] == 0)
    assert clean.any() and not clean.all()
    for (y,) in results(SPARSE, case, 3):
        found = np.frombuffer(y, np.float32).reshape(rows, 40)
        assert_close(found[:, clean], want[:, clean])
        assert not np.isfinite(found[0, ~clean]).any() and np.isfinite(found[1:]).all()


@emulator.here
def test_build_names_the_skipped_weights():
    """Of a layer that is many times as fast without its zeros."""
    net, w = pelton.Network("layer"), sparse((256, 256), 0.04)
    net.output(net.relu(net.linear(net.input("x", "f32[96, 256]"), w, np.ones(256, np.float32), name="fc")), "y")
    engine, strict = (pelton.build(net, level=1, threads=1, strict=strict) for strict in (False, True))
    (step,) = engine.steps
    assert step.info["tactic"].startswith("sparse:")
    assert step.info["sparsity"] == "about 95 % of the weights skipped, which are zero"
    assert ("sparsity", f"1 step with {step.info['sparsity']}") in build.described(engine)
    assert len(engine.plain.constants) < w.nbytes / 8
    assert "sparsity" not in dict(build.described(strict)) and len(strict.plain.constants) > w.nbytes
    x = np.random.default_rng(0).standard_normal((96, 256)).astype(np.float32)
    assert_close(engine(x), np.maximum(x.astype(np.float64) @ w.T + 1, 0).astype(np.float32))
