"""TF32 products, interpreted: factors are rounded to nearest first, as GPUs truncate them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")

from compare import assert_close  # noqa: E402
from kernel_harness import drawn, region_of  # noqa: E402
from triton_cases import RELU, attention, constant, conv, one  # noqa: E402
from triton_harness import TARGET, interpreted, tried  # noqa: E402

from pelton.ir.evaluate import evaluate  # noqa: E402
from pelton.codegen.template import GPU_TEMPLATES  # noqa: E402
from pelton.passes.precision import tf32  # noqa: E402

TF32 = replace(TARGET, tf32=True)


@pytest.mark.parametrize(
    "name, case",
    [
        ("gemm", one("tf32", ("y", "matmul", "a b"), a="f32[9, 67]", b="f32[67, 35]")),
        ("conv", conv("f32", (2, 19, 5, 6), 20, (3, 3), pads=1, tail=RELU)),
        (
            "gemm",
            one("tf32-weights", ("y", "matmul", "a b"), a="f32[2, 7, 64]", b=tf32.nearest(constant("f32", 64, 33))),
        ),
    ],
    ids=["gemm", "conv", "weights"],
)
def test_products_of_tf32_are_those_of_the_nearest(name, case):
    """GPUs cut off what is past ten bits behind the point, and so does the interpreter. Of constants, the kernels leave
    it to the passes to have done so."""
    region, template = region_of(case.graph), GPU_TEMPLATES[name]
    # none is in the middle of two
    inputs = {n: (a.view(np.uint32) | 1).view(np.float32) for n, a in drawn(case).items()}
    first = next(iter(inputs.values())).reshape(-1)
    # the NaN of GPUs, all bits one
    first[[3, -2]] = np.inf, np.uint32(0x7FFFFFFF).view(np.float32)
    graph = case.graph.replace(
        constants={v: tf32.nearest(a) if v.name == "w" else a for v, a in case.graph.constants.items()}
    )
    want = evaluate(graph, {n: tf32.nearest(a) for n, a in inputs.items()}, round=False)
    region = region_of(graph)
    for kernel, lay, about in tried(template, replace(case, graph=graph), 2, TF32):
        assert "PRECISION=2" in about
        for v, got in interpreted(region, kernel, lay, inputs, about).items():
            assert np.isfinite(got).any() and not np.isfinite(got).all()
            assert_close(got, want[v.name].astype(np.float32), about=about)


def test_attention_of_tf32_leans_to_no_side():
    case = attention("tf32", "f32", (2, 40, 32), (2, 50, 32), (2, 50, 48))
    region, inputs = region_of(case.graph), {n: abs(a) for n, a in drawn(case).items()}
    (want,) = evaluate(case.graph, inputs, round=False).values()
    for kernel, lay, about in tried(GPU_TEMPLATES["attention"], case, 3, TF32):
        (got,) = interpreted(region, kernel, lay, inputs, about).values()
        off = got / want - 1
        assert 1e-5 < np.abs(off).max() < 2e-3 and abs(off.mean()) < 3e-5, about
