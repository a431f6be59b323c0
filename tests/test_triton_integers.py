"""Products and convolutions of bytes on GPUs, interpreted and compiled: the sums of integers, by any tactic."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx_models import draw, model, node
from quantized_models import STEP, qdq_cnn

pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
import triton_interpreter  # noqa: E402
from kernel_harness import drawn, laid, region_of  # noqa: E402
from triton_cases_integers import CASES, REQUANTIZED, conv, product  # noqa: E402
from triton_harness import TARGET, Case, check, check_dynamic, interpreted  # noqa: E402

from pelton.codegen.template import GPU_TEMPLATES, Kernel, Tactic, Target  # noqa: E402
from pelton.codegen.triton.toolchain import compile_source, extract_cubin  # noqa: E402
from pelton.builder.build import BuildResult, build_detailed  # noqa: E402
from pelton.importers.onnx import load as importer  # noqa: E402
from pelton.ir.evaluate import evaluate  # noqa: E402
from pelton.options import Options  # noqa: E402

ALL = [pytest.param(name, case, id=f"{name}-{case.name}") for name, cases in CASES.items() for case in cases]
USUAL = "TALL=8,WARPS=4,STAGES=3,PRECISION=0"


@pytest.mark.parametrize("name, case", ALL)
def test_sums_are_exact(name, case):
    check(GPU_TEMPLATES[name], case)


@pytest.mark.parametrize("name, index", [("gemm", 0), ("conv", 0), ("conv", 3)])
def test_sums_are_exact_at_sizes_that_a_run_decides(name, index):
    check_dynamic(GPU_TEMPLATES[name], replace(CASES[name][index], arrays={}))


@pytest.mark.parametrize(
    "case, tactic",
    [
        (product("u8", (67, 144), (144, 80)), f"gemm:BM=64,BN=64,BK=32,{USUAL},DESCRIBED=1,PERSISTENT=1,STREAM=0"),
        (product("i8", (67, 144), (144, 80)), f"gemm:BM=64,BN=64,BK=128,{USUAL},DESCRIBED=1,PERSISTENT=1,STREAM=0"),
        (
            product("u8", (35, 413), (413, 45), REQUANTIZED),
            f"gemm:BM=16,BN=32,BK=32,{USUAL},DESCRIBED=0,PERSISTENT=0,STREAM=7",
        ),
        (conv("u8", (1, 58, 7, 5), 40, (3, 3), pad=9), f"conv:BM=32,BN=32,BK=64,{USUAL},PICTURES=0,FLAT=0,STREAM=5"),
        (conv("u8", (70, 48, 3, 2), 20, (3, 3)), f"conv:BM=64,BN=32,BK=64,{USUAL},PICTURES=1,FLAT=0,STREAM=0"),
        (conv("i8", (70, 16, 3, 2), 20, (3, 3), 2), f"conv:BM=64,BN=32,BK=32,{USUAL},PICTURES=1,FLAT=0,STREAM=0"),
    ],
    ids=lambda x: x.name if isinstance(x, Case) else None,
)
def test_tactics_give_the_same_sums(case, tactic):
    region, template = region_of(case.graph), GPU_TEMPLATES[tactic.partition(":")[0]]
    lay, inputs = laid(template, region, case, 0), drawn(case)
    kernel = template.emit(region, lay, Tactic.parse(tactic + "@sm_90"), TARGET)
    described = "DESCRIBED=1" in tactic or "PICTURES=1" in tactic
    assert (
        "DESCRIBED = tl.constexpr(True)" in kernel.source or "DESCRIBED = tl.constexpr(1)" in kernel.source
    ) == described
    ((v, got),) = interpreted(region, kernel, lay, inputs, tactic).items()
    assert np.array_equal(got, evaluate(case.graph, inputs)[v.name])


def test_boxes_hold_zeros_around_images():
    """So that images padded with other numbers are read through pointers."""
    template = GPU_TEMPLATES["conv"]
    for pad, found in ((0, {0, 1}), (3, {0})):
        region = region_of((case := conv("u8", (70, 48, 3, 2), 20, (3, 3), pad=pad)).graph)
        lay = laid(template, region, case, 0)
        assert {t["PICTURES"] for t in template.tactics(region, lay, TARGET)} == found


def large(name: str) -> Case:
    if name == "gemm":
        return product("u8", (4096, 768), (768, 3072), REQUANTIZED)
    return conv("u8", (8, 128, 28, 28), 128, (3, 3), pad=7 if name == "padded" else 0, tail=REQUANTIZED)


@pytest.mark.parametrize(
    "arch, instruction", [(80, r"mma\.sync\S*\.s8\.s8\.s32"), (90, r"wgmma\.mma_async\S*\.s8\.s8")]
)
@pytest.mark.parametrize("name", ["gemm", "conv", "padded"])
def test_tensor_cores_multiply_bytes(name, arch, instruction):
    case, template = large(name), GPU_TEMPLATES["gemm" if name == "gemm" else "conv"]
    region, target = region_of(case.graph), Target(isa=f"sm_{arch}", lanes=32, threads=132)
    lay = laid(template, region, case, 0)
    tactic = next(iter(template.tactics(region, lay, target)))
    kernel = template.emit(region, lay, tactic, target)
    found = compile_source(kernel.symbol, kernel.source, arch)
    assert re.search(instruction, found.asm["ptx"]), tactic.name
    spilled = extract_cubin(found, kernel.source, arch).spilled
    assert spilled <= 64, f"{tactic.name} spills {spilled} bytes"


def integer_kernels(made: BuildResult) -> list[Kernel]:
    return [
        c.kernel for c in made.scheduled if c.kernel is not None and "INTEGERS = tl.constexpr(True)" in c.kernel.source
    ]


@pytest.mark.parametrize("precision", ["fp16"])  # whose halves sums of integers exceed
def test_a_quantized_network_stays_in_bytes(precision, apart, tmp_path):
    m = qdq_cnn(last=STEP)
    made = build_detailed(m, Options(target="cuda:sm_90", precision=precision, level=0, cache_dir=tmp_path))
    assert len(integer_kernels(made)) == 4 and not made.engine.meta["host_steps"]
    for s in made.engine.steps:
        if s.name.startswith(("a_", "b_")):
            assert {t.dtype for t in s.outputs} == {"u8"}, s
    feeds = draw(m, 3, low=-1, high=1)
    got, _ = apart.submit(
        triton_interpreter.ran, made.engine.tobytes(), triton_interpreter.sources(made), feeds
    ).result()
    off = np.abs(got["y"] - evaluate(importer.load(m).graph, feeds)["y"]) / STEP
    assert off.max() < 1.01 and np.mean(off > 0.01) <= 0.1  # one quotient near the middle of two bytes


def dynamic(rng: np.random.Generator) -> onnx.ModelProto:
    """A convolution and a product as dynamic quantizers write them: zero points of a run, u8 weights less theirs."""
    nodes = [
        node("DynamicQuantizeLinear", "x", "xq xs xz"),
        node("ConvInteger", "xq w xz wz", "c", pads=[1, 1, 1, 1]),
        node("Cast", "c", "cf", to=onnx.TensorProto.FLOAT),
        node("Mul", "cf xs", "y0"),
        node("Flatten", "y0", "f"),
        node("DynamicQuantizeLinear", "f", "fq fs fz"),
        node("MatMulInteger", "fq v fz vz", "y1"),
    ]
    constants = {
        "w": rng.integers(0, 256, (7, 5, 3, 3)).astype(np.uint8),
        "wz": np.uint8(111),
        "v": rng.integers(0, 256, (7 * 5 * 4, 11)).astype(np.uint8),
        "vz": np.uint8(131),
    }
    return model(nodes, {"x": "f32[6, 5, 5, 4]"}, ["c", "y1"], constants)


def test_what_is_quantized_by_its_own_range(apart, tmp_path):
    m = dynamic(np.random.default_rng(1))
    made = build_detailed(m, Options(target="cuda:sm_90", level=0, cache_dir=tmp_path))
    assert len(integer_kernels(made)) == 3 and not made.engine.meta["host_steps"]  # the sums of all bytes among them
    feeds = draw(m, 3, low=-1, high=2)
    got, _ = apart.submit(
        triton_interpreter.ran, made.engine.tobytes(), triton_interpreter.sources(made), feeds
    ).result()
    want = evaluate(importer.load(m).graph, {k: v.astype(np.float32) for k, v in feeds.items()})
    assert np.array_equal(got["c"], want["c"])
    assert np.abs(got["y1"] - want["y1"]).max() <= 255  # one byte may be another by one
