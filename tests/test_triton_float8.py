"""FP8 on GPUs: every code and all roundings, products on tensor cores, a quantized network."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest
from onnx_models import draw, model, node

pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
import triton_interpreter  # noqa: E402
from kernel_harness import drawn, laid, program, region_of  # noqa: E402
from triton_harness import TARGET, Case, interpreted, nhwc  # noqa: E402

from pelton.codegen.template import GPU_TEMPLATES, Tactic, Target  # noqa: E402
from pelton.codegen.triton.toolchain import compile_source, extract_cubin  # noqa: E402
from pelton.builder.build import build_detailed  # noqa: E402
from pelton.importers.onnx import load as importer  # noqa: E402
from pelton.ir.evaluate import evaluate  # noqa: E402
from pelton.ir.types import DType  # noqa: E402
from pelton.options import Options  # noqa: E402

F8 = DType.F8E4M3FN
CODES = np.arange(256, dtype=np.uint8).view(F8.numpy)
USUAL = "TALL=8,WARPS=4,STAGES=3,PRECISION=0"


def given(case: Case, tactic: str | None = None) -> np.ndarray:
    """What a kernel makes of a case."""
    name = tactic.partition(":")[0] if tactic else "pointwise"
    region, template = region_of(case.graph), GPU_TEMPLATES[name]
    lay = laid(template, region, case, 0)
    chosen = Tactic.parse(tactic + "@sm_90") if tactic else next(iter(template.tactics(region, lay, TARGET)))
    (found,) = interpreted(region, template.emit(region, lay, chosen, TARGET), lay, drawn(case), case.name).values()
    return found


def test_every_code_becomes_its_number():
    case = Case("codes", program(("y", "cast", "x", dict(to=DType.F32)), x="f8e4m3fn[256]"), {}, {"x": CODES})
    np.testing.assert_array_equal(given(case), CODES.astype(np.float32))


@pytest.mark.parametrize("saturate", [True, False])
def test_numbers_are_rounded_to_the_nearest_code(saturate):
    numbers = np.sort(CODES.astype(np.float32)[np.isfinite(CODES.astype(np.float32))])
    middles = (numbers[1:] + numbers[:-1]) / 2
    around = [f(middles, np.float32(side)) for f, side in ((np.nextafter, np.inf), (np.nextafter, -np.inf))]
    past = np.float32([464, 464.01, 480, 1e30, np.inf, np.nan, 1e-30, 2**-10, 1.5 * 2**-10, 0.0])
    x = np.concatenate([numbers, middles, *around, past, -past]).astype(np.float32)
    graph = program(("y", "cast", "x", dict(to=F8, saturate=saturate)), x=f"f32[{len(x)}]")
    got = given(Case("numbers", graph, {}, {"x": x}))
    want = np.where(np.abs(x) > 448, np.copysign(448, x), x) if saturate else x
    want = np.where(np.isnan(x), x, want).astype(np.float32).astype(F8.numpy)
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))


def floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) * 8).astype(F8.numpy)


def product(rows: int, deep: int, columns: int) -> Case:
    rng = np.random.default_rng(2)
    node = ("y", "matmul", "x w", dict(accumulate=DType.F32))
    graph = program(
        node, ("z", "mul", "y s"), x=f"f8e4m3fn[{rows}, {deep}]", w=floats(rng, deep, columns), s=np.float32(0.5)
    )
    return Case("product", graph, {}, {"x": floats(rng, rows, deep)})


def conv(images: int, channels: int, size: int, out: int) -> Case:
    rng = np.random.default_rng(3)
    attrs = dict(strides=(1, 1), pads=(1,) * 4, dilations=(1, 1), group=1, accumulate=DType.F32)
    b = rng.standard_normal(out).astype(np.float32)
    shape = (images, channels, size, size)
    graph = program(
        ("y", "convolution", "x w b", attrs), x=f"f8e4m3fn{list(shape)}", w=floats(rng, out, channels, 3, 3), b=b
    )
    return Case("conv", graph, {"x": nhwc(4)}, {"x": floats(rng, *shape)})


@pytest.mark.parametrize(
    "case, tactic",
    [
        (product(37, 125, 58), f"gemm:BM=64,BN=32,BK=64,{USUAL},DESCRIBED=0,PERSISTENT=0,STREAM=0"),
        (product(67, 144, 80), f"gemm:BM=64,BN=64,BK=128,{USUAL},DESCRIBED=1,PERSISTENT=1,STREAM=0"),
        (conv(1, 58, 5, 19), f"conv:BM=16,BN=32,BK=64,{USUAL},PICTURES=0,FLAT=0,STREAM=0"),
        (conv(1, 3, 7, 13), f"conv:BM=32,BN=32,BK=32,{USUAL},PICTURES=0,FLAT=0,STREAM=0"),
    ],
)
def test_products(case, tactic):
    (want,) = evaluate(case.graph, drawn(case), round=False).values()
    np.testing.assert_allclose(given(case, tactic), want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("name", ["gemm", "conv"])
def test_tensor_cores_multiply_floats_of_a_byte(name):
    case, template = product(4096, 768, 3072) if name == "gemm" else conv(8, 128, 28, 128), GPU_TEMPLATES[name]
    region, target = region_of(case.graph), Target(isa="sm_90", lanes=32, threads=132)
    lay = laid(template, region, case, 0)
    tactic = next(iter(template.tactics(region, lay, target)))
    kernel = template.emit(region, lay, tactic, target)
    found = compile_source(kernel.symbol, kernel.source, 90)
    assert re.search(r"wgmma\.mma_async\S*\.f32\.e4m3\.e4m3", found.asm["ptx"]), tactic.name
    assert extract_cubin(found, kernel.source, 90).spilled <= 64


def quantized(rng: np.random.Generator) -> onnx.ModelProto:
    """A convolution and a product, whose operands are quantized to floats of a byte."""
    scales = {"xs": np.float32(0.01), "rs": np.float32(0.03), "z": np.zeros((), F8.numpy)}

    def around(x: str, y: str, scale: str) -> list[onnx.NodeProto]:
        return [node("QuantizeLinear", f"{x} {scale} z", f"{y}q"), node("DequantizeLinear", f"{y}q {scale} z", y)]

    nodes = [
        *around("x", "x0", "xs"),
        node("DequantizeLinear", "w ws wz", "w0", axis=0),
        node("Conv", "x0 w0 b", "c", pads=[1, 1, 1, 1]),
        node("Relu", "c", "r"),
        *around("r", "r0", "rs"),
        node("Flatten", "r0", "f"),
        node("DequantizeLinear", "v vs z", "v0"),
        node("MatMul", "f v0", "y"),
    ]
    constants = {
        **scales,
        "w": floats(rng, 13, 5, 3, 3),
        "ws": rng.uniform(0.005, 0.02, 13).astype(np.float32),
        "wz": np.zeros(13, F8.numpy),
        "b": rng.standard_normal(13).astype(np.float32),
        "v": floats(rng, 13 * 6, 11),
        "vs": np.float32(0.01),
    }
    return model(nodes, {"x": "f32[5, 5, 3, 2]"}, ["y"], constants, opset=21)


@pytest.mark.parametrize("target, precision", [("cuda:sm_90", "fp16"), ("cuda:sm_80,sm_90", "fp32")])
def test_a_network_of_floats_of_a_byte(target, precision, apart, tmp_path):
    m = quantized(np.random.default_rng(4))
    made = build_detailed(m, Options(target=target, precision=precision, level=0, cache_dir=tmp_path))
    sources = triton_interpreter.sources(made)
    found = sum("FLOAT8 = tl.constexpr(True)" in s for s in sources.values())
    assert found == (2 if target == "cuda:sm_90" else 0) and not made.engine.meta["host_steps"]
    feeds = draw(m, 3, low=-1, high=1)
    got, _ = apart.submit(triton_interpreter.ran, made.engine.tobytes(), sources, feeds).result()
    want = evaluate(importer.load(m).graph, feeds)["y"]
    # one value near the middle of two may become the other, which is an eighth of it away
    assert np.abs(got["y"] - want).max() < 1e-2 * np.abs(want).max()
