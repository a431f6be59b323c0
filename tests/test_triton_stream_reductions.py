"""Reductions in parts by several programs: right for any number of parts, and compiled."""

from __future__ import annotations


import pytest

pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
from test_triton_stream import ORDERS, emitted, right  # noqa: E402

from kernel_harness import Case, laid, region_of  # noqa: E402
from triton_cases import last_true, one  # noqa: E402
from triton_harness import check_dynamic  # noqa: E402

from pelton.ir import dims  # noqa: E402
from pelton.ir.builder import Builder  # noqa: E402
from pelton.ir.types import DType, TensorType  # noqa: E402
from pelton.codegen.template import GPU_TEMPLATES, Tactic, Target  # noqa: E402
from pelton.codegen.triton.toolchain import compile_source  # noqa: E402
from pelton.ops import get  # noqa: E402
from pelton.plan.workspace import KernelWorkspace  # noqa: E402


REDUCED = [
    one(
        "mean-f16",
        ("y", "reduce_mean", "x", dict(axes=(2, 3), keepdims=True)),
        ("z", "sigmoid", "y"),
        x="f16[2, 9, 29, 31]",
        orders={"x": (0, 2, 3, 1)},
    ),
    *(
        one(f"{op}-{t}", ("y", op, "x", dict(axes=(1,))), x=f"{t}[3, 4099]")
        for op, t in (("reduce_sum", "f32"), ("reduce_max", "bf16"), ("reduce_min", "i64"), ("reduce_sum", "f64"))
    ),
    last_true("max-bool", 3, 4099),
]


def reduction(parts: int) -> Tactic:
    return Tactic("rows", "sm_90", (("RB", 8), ("CB", 32), ("PARTS", parts), ("WARPS", 4)))


@pytest.mark.parametrize("case", REDUCED, ids=lambda case: case.name)
def test_parts_of_reductions(case):
    # of the mean, the last are more than there are steps
    for parts in (5, 33):
        found = [right(case, reduction(parts), order) for order in ORDERS.values()]
        assert all(got.tobytes() == found[0][0].tobytes() for got, _ in found)
        (_, parted), (counters, _) = (
            (w.shape, w.zero) for w in found[0][1].operands[-1:] + found[0][1].operands[-2:-1]
        )
        assert counters[0] == parts and parted


def test_reductions_of_few_long_rows_are_made_in_parts():
    target, template = Target(isa="sm_90", lanes=32, threads=132), GPU_TEMPLATES["rows"]

    def first(*shape: int, axes: tuple[int, ...] = (2, 3)) -> Tactic:
        case = one(
            "first",
            ("y", "reduce_mean", "x", dict(axes=axes)),
            x=f"f16[{', '.join(map(str, shape))}]",
            orders={"x": (0, 2, 3, 1)},
        )
        region = region_of(case.graph)
        return next(iter(template.tactics(region, laid(template, region, case, 0), target)))

    assert first(1, 32, 112, 112)["PARTS"] and first(1, 144, 56, 56)["PARTS"] and first(1, 1, 1000, 1000)["PARTS"]
    assert not any(first(*shape)["PARTS"] for shape in ((1, 1152, 7, 7), (128, 2048, 7, 7), (1, 64, 4, 4)))


@pytest.mark.parametrize(
    "rows, parts",
    [(5, 7), (dims.symbol("B", 1, 5, 99), 7), (dims.symbol("B", 1, 5), 0)],
    ids=["known", "bounded", "unbounded"],
)
def test_parts_of_reductions_whose_sizes_a_run_decides(rows, parts):
    """Where there is no telling how many rows there may be, nobody counts them."""

    class Parted(type(GPU_TEMPLATES["rows"])):  # type: ignore[misc]
        def tactics(self, region, layouts, target):
            yield reduction(7)

    b = Builder()
    x = b.input(TensorType(DType.F16, (rows, dims.symbol("N", 0, 900, 3000))), "x")
    kernel = check_dynamic(
        Parted(), Case("long", b.graph(b.emit(get("reduce_sum"), [x], dict(axes=(1,), keepdims=False))))
    )
    assert kernel.dims and f"PARTS = tl.constexpr({parts})" in kernel.source
    assert {w.zero for w in kernel.operands if isinstance(w, KernelWorkspace)} == ({False, True} if parts else set())


@pytest.mark.parametrize("arch", [80, 90])
def test_parts_of_reductions_compile(arch):
    for case in REDUCED:
        _, _, kernel = emitted(case, reduction(9))
        stored, _, rest = compile_source(kernel.symbol, kernel.source, arch).asm["ptx"].partition("atom.")
        assert (
            "bar.sync" in stored.rpartition("st.global")[2]
            and rest.startswith("global.gpu.acq_rel")
            and "bar.sync" in rest.partition("ld.global")[0]
        )
