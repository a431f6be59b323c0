"""Every template at sizes of one: a single element has no stride, so addresses may be numbers where blocks are
expected."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")

from kernel_harness import Case  # noqa: E402
from test_triton_compile import kernels  # noqa: E402
from triton_cases import attention, blend, conv, one, picks, pool, scatters, steps, up  # noqa: E402
from triton_harness import check  # noqa: E402

from pelton.system.cache import Cache  # noqa: E402
from pelton.codegen.template import GPU_TEMPLATES  # noqa: E402
from pelton.codegen.triton.toolchain import TritonCompiler  # noqa: E402

CASES: dict[str, list[Case]] = {
    "pointwise": [one("add-of-one", ("y", "add", "x w"), x="f32[1, 1]", w="f32[1]")],
    "gemm": [
        one("product-of-one", ("y", "matmul", "a b"), a="f16[1, 1]", b="f16[1, 1]"),
        one("batch-of-one", ("y", "matmul", "a b"), a="f32[3, 1, 1]", b="f32[1, 1]"),
    ],
    "few": [
        one("few-of-one", ("y", "matmul", "a b"), a="f32[1, 1]", b="f32[1, 1]"),
        one("rows-of-one", ("y", "matmul", "a b"), a="f16[3, 1]", b="f16[1, 21]"),
    ],
    "conv": [conv("f32", (1, 1, 1, 1), 1, (3, 3), pads=1), up("f32", (1, 1, 1, 1), 1, (2, 2))],
    "window": [
        conv("f32", (1, 1, 1, 1), 1, (3, 3), pads=1),
        pool("max_pool", "f16", (1, 1, 1, 1), (1, 1), (1, 1), (0, 0, 0, 0)),
    ],
    "attention": [
        attention("of-one", "f32", (1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1), scale=0.5),
        attention("key-of-one", "f16", (2, 4, 3, 8), (2, 4, 1, 8), (2, 4, 1, 8), (1, 1), scale=0.5),
    ],
    "scan": [one("cumsum-of-one", ("y", "cumsum", "x", dict(axis=0)), x="f32[1]")],
    "top_k": [one("top-of-one", ("v i", "top_k", "x", dict(k=1, axis=0)), x="f32[1]")],
    "lrn": [one("lrn-of-one", ("y", "lrn", "x", dict(size=3, alpha=1e-2, beta=0.75, bias=1.0)), x="f32[1, 1, 1, 1]")],
    "gather": [picks("gather-of-one", ("y", "gather", "x i", dict(axis=0)), "f32[1]", [0])],
    "matmul": [one("integers-of-one", ("y", "matmul", "a b"), a="i32[1, 1]", b="i32[1, 1]")],
    "move": [one("pad-of-one", ("y", "pad", "x v", dict(pads=(1, 0))), x="f32[1]", v="f32[]")],
    "blend": [blend("f32", (1,), (1, 1), 0, 0, "f32")],
    "scatter": [
        scatters("scatter_nd", "f32", (1,), [[0]], (1,), "add"),
        scatters("scatter_elements", "f32", (1, 1), [[0]], (1, 1), "max", axis=1),
    ],
    "recurrent": [steps(op, "f32", 1, 1, 1) for op in ("lstm", "gru", "rnn")],
    "rows": [
        *(
            one(f"{op}-of-one", ("y", op, "x", attrs), x="f32[1, 1]")
            for op, attrs in (
                ("softmax", dict(axis=1)),
                ("log_softmax", dict(axis=1)),
                ("reduce_mean", dict(axes=(1,))),
                ("arg_max", dict(axis=1)),
            )
        ),
        one(
            "norm-of-one",
            ("y", "layer_norm", "x g b", dict(axis=1, epsilon=1e-5)),
            x="f32[1, 1]",
            g="f32[1]",
            b="f32[1]",
        ),
    ],
}
ALL = [pytest.param(name, case, id=f"{name}-{case.name}") for name, cases in CASES.items() for case in cases]


@pytest.mark.parametrize("name, case", ALL)
def test_template(name, case):
    check(GPU_TEMPLATES[name], case)


def test_they_compile(tmp_path):
    sources = {k.symbol: k.source for name, cases in CASES.items() for case in cases for _, k in kernels(name, case)}
    assert len(TritonCompiler((80, 90), Cache(tmp_path)).cubins(sources)) == 2 * len(sources)
