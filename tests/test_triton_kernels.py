"""GPU templates, interpreted: every template on small awkward sizes against the float64 reference."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
from triton_cases import RELU, constant, conv, one, up  # noqa: E402

from compare import assert_close  # noqa: E402
from draw import examples, operands  # noqa: E402
from kernel_harness import drawn, laid, region_of  # noqa: E402
import triton_cases_products  # noqa: E402  (first: cases draw from one generator)
import triton_cases_elements  # noqa: E402
import triton_cases_few_bits  # noqa: E402
from triton_harness import TARGET, Case, check, check_dynamic, check_empty, checked, interpreted, nhwc  # noqa: E402

from pelton.engine.library import LIBRARIES  # noqa: E402
from pelton.ir import dims  # noqa: E402
from pelton.ir.evaluate import evaluate  # noqa: E402
from pelton.ir.builder import Builder  # noqa: E402
from pelton.ir.types import DType, TensorType  # noqa: E402
from pelton.codegen.template import GPU_TEMPLATES, Tactic  # noqa: E402
from pelton.codegen.triton.emit import TYPES, with_alignment  # noqa: E402
from pelton.ops import get  # noqa: E402

CASES: dict[str, list[Case]] = {
    **triton_cases_products.CASES,
    **triton_cases_elements.CASES,
    **triton_cases_few_bits.CASES,
}
ALL = [pytest.param(name, case, id=f"{name}-{case.name}") for name, cases in CASES.items() for case in cases]


def of_example(name, op, types, attrs) -> Case:
    arrays = dict(zip("abcdefgh", operands(op, types, attrs)))
    b = Builder()
    return Case(name, b.graph(b.emit(op, [b.input(t, n) for n, t in zip(arrays, types)], attrs)), arrays=arrays)


def held(case: Case) -> bool:
    """Whether kernels hold all its element types, and it has something to compute."""
    values = (*case.graph.inputs, *case.graph.outputs)
    return all(v.type.dtype.value in TYPES and v.type.size for v in values)


SCALARS = [case for example in examples("pointwise") if held(case := of_example(*example))]


@pytest.mark.parametrize("case", SCALARS, ids=lambda case: case.name)
def test_every_pointwise_op_has_a_triton_reading(case):
    check(GPU_TEMPLATES["pointwise"], case)


def test_every_template_has_cases():
    # the latter have their own: test_triton_cublaslt.py, …_cudnn.py, …_im2col.py
    assert {*CASES, *LIBRARIES, "im2col"} == set(GPU_TEMPLATES)


@pytest.mark.parametrize("name, case", ALL)
def test_template(name, case):
    check(GPU_TEMPLATES[name], case)


@pytest.mark.parametrize(
    "name, index",
    [
        ("pointwise", 0),
        ("gemm", 1),
        ("gemm", 3),
        ("window", 3),
        ("rows", 0),
        ("rows", 7),
        ("conv", 1),
        ("attention", 0),
        ("attention", 3),
        ("attention", 9),
        ("few", 0),
        ("few", 4),
        ("scan", 0),
        ("top_k", 7),
        ("recurrent", 0),
        ("recurrent", 11),
        ("move", 0),
        ("move", 7),
        ("matmul", 0),
        ("quantized_linear", 0),
        ("quantized_linear", 1),
    ],
)
def test_sizes_that_a_run_decides(name, index):
    assert check_dynamic(GPU_TEMPLATES[name], CASES[name][index]).dims


@pytest.mark.parametrize(
    "name, index",
    [
        ("window", 4),
        ("lrn", 0),
        ("roi", 0),
        ("rows", 0),
        ("gemm", 3),
        ("conv", 1),
        ("attention", 0),
        ("few", 0),
        ("recurrent", 0),
        ("move", 0),
        ("quantized_linear", 1),
    ],
)
def test_sizes_that_may_be_none(name, index):
    assert check_empty(GPU_TEMPLATES[name], CASES[name][index])


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("tactic", ["BM=64,BN=64,BK=32", "BM=128,BN=64,BK=64"])
def test_products_by_descriptors(tactic, turned):
    case = one(
        "described",
        ("y", "matmul", "a b"),
        ("z", "add", "y c"),
        a="f16[3, 67, 72]",
        b="f16[72, 136]",
        c="f16[136]",
        orders={"b": (1, 0)} if turned else {},
    )
    region, template = region_of(case.graph), GPU_TEMPLATES["gemm"]
    lay = laid(template, region, case, 0)
    way = Tactic.parse(f"gemm:{tactic},TALL=8,WARPS=4,STAGES=3,PRECISION=0,DESCRIBED=1,PERSISTENT=1,STREAM=0@sm_90")
    assert {t["DESCRIBED"] for t in template.tactics(region, lay, TARGET)} == {0, 1}
    kernel, inputs = template.emit(region, lay, way, TARGET), drawn(case)
    assert kernel.tiles == TARGET.threads and "descriptor" in kernel.source
    for k in (kernel, with_alignment(kernel, [True, False, True, True])):
        (got,) = interpreted(region, k, lay, inputs, way.name).values()
        assert_close(got, evaluate(case.graph, inputs, round=False)["z"].astype(np.float16))


class Images(type(GPU_TEMPLATES["conv"])):  # type: ignore[misc]
    """Convolutions by tactics whose rows are one pixel of many images."""

    def tactics(self, region, layouts, target):
        found = [t for t in super().tactics(region, layouts, target) if t["PICTURES"]]
        return found or super().tactics(region, layouts, target)


@pytest.mark.parametrize(
    "case",
    [
        *(conv(t, (70, 24, 4, 3), 20, (3, 3), strides=s, pads=1, tail=RELU) for t, s in (("f16", 1), ("bf16", 2))),
        conv("f16", (65, 64, 3, 3), 36, (3, 3), dilations=2, pads=2, group=2),
        conv("f16", (66, 32, 5), 9, (3,), pads=1),
        up("f16", (66, 16, 3, 2), 8, (3, 3), pads=1),
    ],
    ids=lambda case: case.name,
)
def test_pixels_of_many_pictures_side_by_side(case):
    dense, gapped = check(Images(), case)
    assert "DESCRIBED = tl.constexpr(True)" in dense.source and "DESCRIBED = tl.constexpr(False)" in gapped.source


def test_many_pictures_whose_number_a_run_decides():
    b = Builder()
    x = b.input(TensorType(DType.F16, (dims.symbol("N", 1, 70, 99), 16, 4, 3)), "x")
    attrs = dict(strides=(1, 1), pads=(1,) * 4, dilations=(1, 1), group=1)
    y = b.emit(
        get("convolution"),
        [x, *(b.constant(constant("f16", *shape), name) for name, shape in (("w", (20, 16, 3, 3)), ("b", (20,))))],
        attrs,
    )
    kernel = check_dynamic(Images(), Case("many", b.graph(y), {"x": nhwc(4)}))
    assert kernel.dims and "DESCRIBED = tl.constexpr(True)" in kernel.source


@pytest.mark.parametrize(
    "name, case",
    [
        (
            "blend",
            one("blend", ("y", "blend", "x i w", dict(axis=1)), x="f32[3, 29, 6]", i="i64[11, 2]", w="f32[11, 2]"),
        ),
        (
            "scatter",
            one(
                "scatter",
                ("y", "scatter_nd", "x i u", dict(reduction="add")),
                x="f32[9, 7]",
                i="i64[4, 1]",
                u="f32[4, 7]",
            ),
        ),
        (
            "scatter",
            one(
                "elements",
                ("y", "scatter_elements", "x i u", dict(axis=0, reduction="mul")),
                x="f32[9, 7]",
                i="i64[4, 3]",
                u="f32[4, 3]",
            ),
        ),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_indices_into_sizes_that_a_run_decides(name, case):
    assert check_dynamic(GPU_TEMPLATES[name], case).dims


@pytest.mark.parametrize(
    "name, op, types, attrs",
    [
        ("gemm", "matmul", ((19, "n"), ("n", 21)), {}),
        ("few", "matmul", ((2, "n"), ("n", 21)), {}),
        ("attention", "attention", ((1, 2, 5, 8), (1, 2, "n", 8), (1, 2, "n", 8), ()), dict(scale=0.3)),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_sums_of_nothing_that_a_run_decides(name, op, types, attrs):
    b, n = Builder(), dims.symbol("N", 0, 24, 99)
    inputs = [
        b.input(TensorType(DType.F32, tuple(n if d == "n" else d for d in shape)), f"x{i}")
        for i, shape in enumerate(types)
    ]
    assert checked(
        GPU_TEMPLATES[name], Case("nothing", b.graph(b.emit(get(op), inputs, attrs))), {"N": -24}, {"N": 3}
    ).dims


def test_few_rows_by_few_bits_that_a_run_decides():
    b, rng = Builder(), np.random.default_rng(3)
    x = b.input(TensorType(DType.F16, (dims.symbol("N", 0, 2, 4), 1, 70)), "x")
    weights = (
        rng.integers(0, 256, (37, 35), np.uint8),
        rng.random((37, 3)).astype(np.float16),
        rng.integers(0, 16, (37, 3), np.uint8),
    )
    inputs = [x, *(b.constant(array, name) for name, array in zip("wsz", weights))]
    graph = b.graph(b.emit(get("quantized_linear"), inputs, dict(block=32, bits=4)))
    ways = [{"N": more} for more in (-2, -1, 0, 2)]
    assert checked(GPU_TEMPLATES["quantized_few"], Case("few", graph), *ways).dims


def test_sizes_may_have_the_names_that_kernels_use():
    n, m, k, c = (dims.symbol(name, 1, size, 99) for name, size in (("N", 5), ("M", 19), ("K", 24), ("COLS", 7)))
    b = Builder()
    x, w = b.input(TensorType(DType.F32, (n, c, m, k)), "x"), b.input(TensorType(DType.F32, (k, c * 3)), "w")
    (y,) = b.emit(get("matmul"), [x, w])
    assert check_dynamic(GPU_TEMPLATES["gemm"], Case("names", b.graph(b.emit(get("relu"), [y])))).dims
