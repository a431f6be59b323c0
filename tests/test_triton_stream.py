"""Kernels whose programs share sums (products by stream-K, reductions by parts): right for any number and order of
programs, the same bits each time, counters left zero."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")

import triton_interpreter  # noqa: E402
from compare import assert_close  # noqa: E402
from kernel_harness import Case, drawn, laid, region_of, symbolic  # noqa: E402
from triton_cases import HALF, RELU, conv, one, up  # noqa: E402
from triton_harness import TARGET, check, check_dynamic, interpreted  # noqa: E402

from pelton.ir import dims  # noqa: E402
from pelton.ir.evaluate import evaluate  # noqa: E402
from pelton.ir.builder import Builder  # noqa: E402
from pelton.ir.types import DType, TensorType  # noqa: E402
from pelton.codegen.template import GPU_TEMPLATES, Kernel, Tactic, Target  # noqa: E402
from pelton.codegen.triton.toolchain import TritonCompiler, compile_source  # noqa: E402
from pelton.codegen.triton.emit import with_alignment  # noqa: E402
from pelton.ops import get  # noqa: E402
from pelton.plan.workspace import KernelWorkspace  # noqa: E402

GEMM = GPU_TEMPLATES["gemm"]
ORDERS = {
    "as numbered": "tl.program_id(0)",
    "backwards": "(tl.num_programs(0) - 1 - tl.program_id(0))",
    "odd ones first": (
        "((tl.program_id(0) * 2 + 1) % (tl.num_programs(0) + 1 - tl.num_programs(0) % 2) % tl.num_programs(0))"
    ),
}


CASES = {
    "gemm": [
        one(
            f"{t}-long",
            ("y", "matmul", "a b"),
            ("z", "add", "y c"),
            ("o", "relu", "z"),
            a=f"{t}[37, 2100]",
            b=f"{t}[2100, 45]",
            c=f"{t}[45]",
        )
        for t in HALF
    ],
    "conv": [conv(t, (1, 130, 7, 5), 40, (3, 3), pads=1, tail=RELU) for t in HALF],
}


def way(
    bm: int, bn: int, bk: int, programs: int, f32: bool = False, described: int = 0, warps: int = 4, stages: int = 3
) -> Tactic:
    return Tactic(
        "gemm",
        "sm_90",
        (
            ("BM", bm),
            ("BN", bn),
            ("BK", bk),
            ("TALL", 8),
            ("WARPS", warps),
            ("STAGES", stages),
            ("PRECISION", int(f32)),
            ("DESCRIBED", described),
            ("PERSISTENT", 0),
            ("STREAM", programs),
        ),
    )


def conv_way(bm: int, bn: int, bk: int, programs: int, f32: bool = False, images: int = 0) -> Tactic:
    return Tactic(
        "conv",
        "sm_90",
        (
            ("BM", bm),
            ("BN", bn),
            ("BK", bk),
            ("TALL", 8),
            ("WARPS", 4),
            ("STAGES", 3),
            ("PRECISION", int(f32)),
            ("PICTURES", images),
            ("FLAT", 0),
            ("STREAM", programs),
        ),
    )


def emitted(case, tactic: Tactic, target: Target = TARGET):
    region, template = region_of(case.graph), GPU_TEMPLATES[tactic.template]
    lay = laid(template, region, case, 0)
    return region, lay, template.emit(region, lay, tactic, target)


def residual(t: str):
    """Three by two tiles of 16 rows and 32 columns, and of 13 steps of 16: 78 of them."""
    return one(
        f"{t}-residual",
        ("y", "matmul", "a b"),
        ("z", "add", "y c"),
        ("o", "relu", "z"),
        ("p", "add", "o r"),
        a=f"{t}[37, 203]",
        b=f"{t}[203, 45]",
        c=f"{t}[45]",
        r=f"{t}[37, 45]",
    )


def right(case, tactic: Tactic, order: str = "tl.program_id(0)") -> tuple[np.ndarray, Kernel]:
    """What a kernel gives whose programs run in some order, which is right."""
    region, lay, kernel = emitted(case, tactic)
    kernel = replace(kernel, source=kernel.source.replace("tl.program_id(0)", order))
    inputs = drawn(case)
    ((v, got),) = interpreted(region, kernel, lay, inputs, f"{case.name} by {tactic.name}").items()
    assert_close(got, evaluate(case.graph, inputs, round=False)[v.name].astype(v.type.dtype.numpy), about=tactic.name)
    return got, kernel


@pytest.mark.parametrize(
    "name, case", [pytest.param(name, case, id=case.name) for name, cases in CASES.items() for case in cases]
)
def test_streams_are_among_the_tactics_for_long_sums(name, case):
    class Shared(type(GPU_TEMPLATES[name])):  # type: ignore[misc]
        def tactics(self, region, layouts, target):
            return (t for t in super().tactics(region, layouts, target) if t["STREAM"])

    assert len({k.symbol for k in check(Shared(), case, 2)}) > 1


@pytest.mark.parametrize("programs", [2, 5, 7, 24, 40, 78, 500])
@pytest.mark.parametrize("dtype", HALF)
def test_steps_are_shared_by_any_number_of_programs(dtype, programs):
    _, kernel = right(residual(dtype), way(16, 32, 16, programs, dtype == "f32"))
    assert kernel.tiles == min(programs, 78)
    assert [(x.shape, x.zero) for x in kernel.operands if isinstance(x, KernelWorkspace)] == [
        ((2 * programs, 16, 32), False),
        ((programs,), True),
    ]


@pytest.mark.parametrize(
    "case, tactic",
    [
        (one("batched", ("y", "matmul", "a b"), a="f16[2, 3, 17, 150]", b="f16[3, 150, 9]"), way(16, 32, 32, 17)),
        (
            one("turned", ("y", "matmul", "a b"), a="f16[2, 33, 96]", b="f16[2, 96, 20]", orders={"b": (0, 2, 1)}),
            way(32, 32, 32, 5),
        ),
        (
            one("wide", ("y", "matmul", "a b"), ("z", "relu", "y"), a="f16[70, 130]", b="f16[130, 200]"),
            way(64, 128, 32, 7),
        ),
        (conv("f16", (2, 90, 5, 7), 40, (1, 1), tail=RELU), way(32, 32, 16, 8)),
        (one("long", ("y", "matmul", "a b"), a="f16[5, 1000]", b="f16[1000, 7]"), way(16, 32, 64, 16)),
        (one("many-tiles", ("y", "matmul", "a b"), a="bf16[100, 70]", b="bf16[70, 100]"), way(16, 32, 32, 4)),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_streams_of_other_products(case, tactic):
    right(case, tactic)


@pytest.mark.parametrize(
    "case, tactic",
    [
        *(
            (conv(t, (2, 33, 5, 7), 40, (3, 3), pads=1, tail=RELU), conv_way(32, 32, 16, n, t == "f32"))
            for t, n in (("f32", 7), ("f16", 24), ("bf16", 500))
        ),
        (conv("f16", (1, 64, 5, 5), 140, (3, 3), pads=1, strides=2), conv_way(16, 128, 64, 9)),
        (conv("f16", (1, 70, 9, 4), 24, (3, 3), group=2, dilations=2, pads=2), conv_way(16, 32, 32, 11)),
        (conv("f16", (2, 3, 17, 18), 20, (5, 5), strides=2, pads=2, tail=RELU), conv_way(32, 32, 16, 10)),
        (up("f16", (2, 48, 5, 4), 20, (3, 3), strides=2, pads=1), conv_way(16, 32, 16, 23)),
        (conv("f16", (70, 64, 3, 3), 36, (3, 3), pads=1), conv_way(64, 64, 32, 25, images=1)),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_streams_of_convolutions(case, tactic):
    got, kernel = right(case, tactic)
    assert (
        right(case, tactic, ORDERS["backwards"])[0].tobytes() == got.tobytes()
        and f"STREAM = tl.constexpr({tactic['STREAM']})" in kernel.source
    )


@pytest.mark.parametrize("programs", [7, 24, 32])
def test_who_is_the_last_does_not_matter(programs):
    found = [right(residual("f32"), way(16, 32, 16, programs, True), order)[0] for order in ORDERS.values()]
    assert all(f.tobytes() == found[0].tobytes() for f in found)


def test_counters_serve_again():
    """Twice on the same memory, the second time in another order."""
    case = residual("f16")
    region, lay, kernel = emitted(case, way(16, 32, 16, 24))
    held: list[np.ndarray] = []

    def run(source, symbol, arrays, dims, tiles, phases):
        own = len(kernel.operands) - 2  # where sums and counters stand
        if held:
            arrays = [*arrays[:own], *((a, name, first) for a, (_, name, first) in zip(held, arrays[own:]))]
        left = triton_interpreter.run(source, symbol, arrays, dims, tiles, phases)
        held[:] = left[own:]
        return left

    first = interpreted(region, kernel, lay, drawn(case), "once", run)
    kernel = replace(kernel, source=kernel.source.replace("tl.program_id(0)", ORDERS["backwards"]))
    again = interpreted(region, kernel, lay, drawn(case), "twice", run)
    assert [a.tobytes() for a in first.values()] == [a.tobytes() for a in again.values()]


def test_streams_by_descriptors():
    case = one(
        "described", ("y", "matmul", "a b"), ("z", "add", "y c"), a="f16[130, 264]", b="f16[264, 136]", c="f16[136]"
    )
    region, lay, kernel = emitted(case, way(64, 64, 32, 20, described=1))
    inputs = drawn(case)
    want = evaluate(case.graph, inputs, round=False)["z"].astype(np.float16)
    for k in (kernel, with_alignment(kernel, [True, False, True, True, True, True])):
        (got,) = interpreted(region, k, lay, inputs, "described").values()
        assert_close(got, want)


class Streams(type(GEMM)):  # type: ignore[misc]
    """Products by streams alone."""

    def tactics(self, region, layouts, target):
        yield way(16, 32, 16, 6)


@pytest.mark.parametrize(
    "case",
    [
        one("sized", ("y", "matmul", "a b"), ("z", "relu", "y"), a="f16[19, 100]", b="f16[100, 40]"),
        one("few steps", ("y", "matmul", "a b"), a="f16[2, 9, 20]", b="f16[20, 11]"),
    ],
    ids=lambda c: c.name,
)
def test_streams_of_sizes_that_a_run_decides(case):
    assert symbolic(case.graph, GEMM)
    kernel = check_dynamic(Streams(), case)
    assert kernel.dims and "STREAM = tl.constexpr(6)" in kernel.source


def test_without_steps_none_are_shared():
    """Of no elements at all, each tile's sums are zero."""
    b, k = Builder(), dims.symbol("K", 0, 100, 200)
    x, w = b.input(TensorType(DType.F16, (19, k)), "x"), b.input(TensorType(DType.F16, (k, 40)), "w")
    kernel = check_dynamic(Streams(), Case("none", b.graph(b.emit(get("matmul"), [x, w]))))
    assert kernel.dims and "STREAM = tl.constexpr(0)" in kernel.source


def test_few_tiles_with_long_sums_are_shared_first():
    target = Target(isa="sm_90", lanes=32, threads=132)

    def first(m: int, k: int, n: int) -> Tactic:
        case = one("first", ("y", "matmul", "a b"), a=f"f16[{m}, {k}]", b=f"f16[{k}, {n}]")
        region = region_of(case.graph)
        return next(iter(GEMM.tactics(region, laid(GEMM, region, case, 0), target)))

    assert first(128, 16384, 128)["STREAM"] and first(32, 8192, 256)["STREAM"] and first(8, 2048, 1000)["STREAM"]
    assert not any(first(*sizes)["STREAM"] for sizes in ((4096, 4096, 4096), (128, 768, 768), (128, 64, 128)))


def in_order(asm: str) -> bool:
    """Whether what a program stores is there for all before it is counted, and it reads the others' parts after
    that."""
    stored, _, rest = asm.partition("atom.")
    return (
        asm.count("atom.") == 1
        and rest.startswith("global.gpu.acq_rel")
        and "bar.sync" in stored.rpartition("st.global")[2]
        and ("bar.sync" in rest.partition("cp.async")[0])
    )


@pytest.mark.parametrize(
    "dtype, arch, case",
    [
        *((t, arch, conv(t, (2, 512, 14, 14), 512, (3, 3), pads=1, tail=RELU)) for t in HALF for arch in (80, 90)),
        ("f16", 90, conv("f16", (128, 512, 7, 7), 512, (3, 3), pads=1, tail=RELU)),
    ],
    ids=lambda x: getattr(x, "name", x),
)
def test_streams_of_convolutions_compile(dtype, arch, case):
    region, target, template = (
        region_of(case.graph),
        Target(isa=f"sm_{arch}", lanes=32, threads=132),
        GPU_TEMPLATES["conv"],
    )
    lay = laid(template, region, case, 0)
    t = next(t for t in template.tactics(region, lay, target) if t["STREAM"])
    kernel = template.emit(region, lay, t, target)
    asm = compile_source(kernel.symbol, kernel.source, arch).asm["ptx"]
    assert (
        ("wgmma.mma_async" in asm) == (arch == 90 and t["BM"] >= 64)
        and ("cp.async.bulk.tensor" in asm) == bool(t["PICTURES"])
        and in_order(asm)
    ), t.name
    spilled = TritonCompiler((arch,), jobs=1).cubins({kernel.symbol: kernel.source})[kernel.symbol, arch].spilled
    assert spilled is not None and spilled <= 64, f"{t.name} spills {spilled} bytes"


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("arch", [80, 90])
def test_streams_compile(arch, dtype):
    case = one(
        "large",
        ("y", "matmul", "a b"),
        ("z", "add", "y c"),
        ("o", "gelu", "z"),
        a=f"{dtype}[1536, 4096]",
        b=f"{dtype}[4096, 1536]",
        c=f"{dtype}[1536]",
    )
    region, target = region_of(case.graph), Target(isa=f"sm_{arch}", lanes=32, threads=132)
    lay = laid(GEMM, region, case, 0)
    found = [t for t in GEMM.tactics(region, lay, target) if t["STREAM"]]
    ways = [found[0], *(t for t in found if t["DESCRIBED"])][:2]
    assert found and (len({t["DESCRIBED"] for t in ways}) == 2 or arch == 80 or dtype == "f32" or ways[0]["DESCRIBED"])
    for t in ways:
        kernel = GEMM.emit(region, lay, t, target)
        made = compile_source(kernel.symbol, kernel.source, arch)
        asm = made.asm["ptx"]
        assert ("wgmma.mma_async" if arch == 90 else "mma.sync") in asm and ("cp.async.bulk.tensor" in asm) == bool(
            t["DESCRIBED"]
        ), t.name
        assert in_order(asm), t.name
        spilled = TritonCompiler((arch,), jobs=1).cubins({kernel.symbol: kernel.source})[kernel.symbol, arch].spilled
        assert spilled is not None and spilled <= 64, f"{t.name} spills {spilled} bytes"
