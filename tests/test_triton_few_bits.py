"""Weights of few bits on GPUs: all ways to share the work, what is refused, estimates, instructions, and a network."""

from __future__ import annotations

import re
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import islice

import numpy as np
import onnx
import pytest
from onnx_models import draw

pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
import triton_interpreter  # noqa: E402
from compare import assert_close  # noqa: E402
from kernel_harness import drawn, laid, region_of, symbolic  # noqa: E402
from test_triton_networks import TOLERANCE, block, compared  # noqa: E402
from triton_cases import one  # noqa: E402
from triton_cases_few_bits import product  # noqa: E402
from triton_harness import TARGET, check, interpreted, tried  # noqa: E402

from pelton.builder.build import BuildResult, build_detailed  # noqa: E402
from pelton.codegen.template import GPU_TEMPLATES, Packed, Tactic, Target  # noqa: E402
from pelton.codegen.triton.cost import cycles  # noqa: E402
from pelton.codegen.triton.toolchain import compile_source, extract_cubin  # noqa: E402
from pelton.importers.onnx import load as importer  # noqa: E402
from pelton.ir.evaluate import evaluate  # noqa: E402
from pelton.ir.graph import optimum_sizes  # noqa: E402
from pelton.ops.quantize import unpacked  # noqa: E402
from pelton.options import Options  # noqa: E402
from pelton.passes.precision import tf32  # noqa: E402
from pelton.tuning.candidates import template_rejection, why_no_kernel  # noqa: E402

FEW, MANY = GPU_TEMPLATES["quantized_few"], GPU_TEMPLATES["quantized_linear"]


@pytest.mark.parametrize("template", [FEW, MANY], ids=lambda t: t.name)
@pytest.mark.parametrize("bits, zeros", [(2, "f32"), (4, "u8"), (8, "")])
def test_tactics_agree_with_the_reference(template, bits, zeros):
    case = product("f16", (3,), 140, 400, bits, 48, zeros=zeros)
    check(template, case, most=4)


class Shared(type(MANY)):  # type: ignore[misc]
    """Products by tactics whose programs share the steps of all tiles."""

    def tactics(self, region, layouts, target):
        return [t for t in super().tactics(region, layouts, target) if t["STREAM"]]


@pytest.mark.parametrize("of, bits", [("f16", 4), ("f32", 2), ("bf16", 8)])
def test_programs_share_the_steps_of_few_tiles(of, bits):
    kernels = check(Shared(), product(of, (19,), 70, 1000, bits, 32, zeros="u8"), most=2)
    assert len(kernels) == 4 and all("STREAM = tl.constexpr(0)" not in k.source for k in kernels)


def test_factors_of_tf32_are_rounded_to_nearest():
    case, target = product("f32", (9,), 40, 160, 4, 32, zeros="u8"), replace(TARGET, tf32=True)
    region, inputs = region_of(case.graph), drawn(case)
    codes, scale, zero = region.body.constants.values()
    of = np.arange(160) // 32
    weights = (unpacked(codes, 4, 160) - zero.astype(np.float32)[:, of]) * scale[:, of]
    want = tf32.nearest(inputs["x"]).astype(np.float64) @ tf32.nearest(weights).T
    for kernel, lay, about in tried(MANY, case, 2, target):
        (got,) = interpreted(region, kernel, lay, inputs, about).values()
        assert "PRECISION=2" in about
        assert_close(got, want.astype(np.float32), about=about)


@pytest.mark.parametrize(
    "case, reason",
    [
        (product("f32", (9,), 40, 100, 4, 24), "blocks of 24 elements, no multiple of 16"),
        (product("f16", (), 40, 96, 4, 32), "the operand is a vector"),
        (product("f64", (9,), 40, 96, 4, 32, "f32"), "not in one of f32, f16 and bf16"),
        (product("f32", (9,), 40, 96, 4, 32, "f64"), "scales or zero points that are neither f32, f16 nor bf16"),
        (
            one(
                "computed",
                ("y", "quantized_linear", "x w s", dict(block=32, bits=8)),
                x="f16[9, 64]",
                w="u8[40, 64]",
                s="f16[40, 2]",
            ),
            "the weights are not constant",
        ),
    ],
    ids=lambda x: getattr(x, "name", ""),
)
def test_what_is_expanded_instead(case, reason):
    region = region_of(case.graph)
    assert template_rejection(MANY, region) == template_rejection(FEW, region) == reason
    assert why_no_kernel(region, isa="sm_90") == f"quantized_few, quantized_linear: {reason}"


def test_more_rows_than_four_go_to_the_tensor_cores():
    region = region_of(product("f16", (5,), 40, 96, 4, 32).graph)
    assert template_rejection(FEW, region) == "more than 4 rows" and template_rejection(MANY, region) is None


def test_estimates_count_bytes_of_weights_and_their_unpacking():
    def estimate(tactic: str, rows: int, bits: int) -> float:
        way = Tactic.parse(f"quantized_linear:{tactic},BK=64,STAGES=4,PRECISION=0,STREAM=0@sm_90")
        count = -(-rows // way["BM"]) * 4096 // way["BN"]
        return cycles(way, count, 4096, 2, False, Target("sm_90", lanes=32, threads=132), bits)

    narrow, wide = "BM=16,BN=32,WARPS=4", "BM=128,BN=128,WARPS=8"
    assert estimate(narrow, 16, 2) <= estimate(narrow, 16, 4) <= estimate(narrow, 16, 8)
    assert estimate(wide, 4096, 4) > estimate(wide, 4096, 0)  # products wait for what threads unpack
    assert estimate(wide, 4096, 4) < estimate(narrow, 4096, 4)  # which less often unpack the same


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_bytes_are_copied_ahead_in_wide_pieces(bits, arch):
    """Of sixteen, or a thread's part of a tile, by the first tactics, which spill nothing."""
    target = Target(isa=f"sm_{arch}", lanes=32, threads=132)
    for template, rows, multiplies in ((FEW, 1, False), (FEW, 4, False), (MANY, 64, True)):
        case = product("f16", (rows,), 1024, 2048, bits, 64, zeros="u8")
        region = region_of(case.graph)
        lay = laid(template, region, case, 0)
        for tactic in islice(template.tactics(region, lay, target), 2):
            kernel = template.emit(region, lay, tactic, target)
            made = compile_source(kernel.symbol, kernel.source, arch)
            assert ("mma" in made.asm["ptx"]) == multiplies, tactic.name
            copies = re.findall(r"async_copy.*contiguity = (\d+) .*x16x!tt.ptr<i8>", made.asm["ttgir"])
            each = 16 if template is FEW else tactic["BN"] * tactic["BK"] * bits // 8 // (32 * tactic["WARPS"])
            assert set(copies) == {str(min(16, each))}, tactic.name
            assert extract_cubin(made, kernel.source, arch).spilled == 0, tactic.name


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("template, most", [(FEW, 4), (MANY, 4096)], ids=["few", "many"])
def test_kernels_of_rows_that_a_run_decides_compile(template, most, arch):
    usual = product("bf16", (4, 1), 1000, 2048, 4, 64, zeros="u8")
    graph = symbolic(usual.graph, template, lambda d: (0, d, most))
    region, sizes = region_of(graph), optimum_sizes(graph)
    lay, to = laid(template, region, usual, 0), {}
    sized = region.sized(sizes, to)
    target = Target(isa=f"sm_{arch}", lanes=32, threads=132)
    tactics = list(template.tactics(sized, lay.sized(sizes, to), target))
    shared = [t for t in tactics if "STREAM=" in t.name and t["STREAM"]]
    assert bool(shared) == (template is MANY)
    for tactic in (tactics[0], *shared[:1]):
        kernel = template.emit(region, lay, tactic, target)
        made = compile_source(kernel.symbol, kernel.source, arch)
        assert kernel.dims and extract_cubin(made, kernel.source, arch).spilled == 0, tactic.name


def in_few_bits(model: onnx.ModelProto, bits: int, size: int) -> onnx.ModelProto:
    """The model with its constant factors as random numbers of few bits, in blocks with scales and zero points."""
    rng, weights = np.random.default_rng(bits), {t.name: t for t in model.graph.initializer}
    for node in [n for n in model.graph.node if n.op_type == "MatMul" and n.input[1] in weights]:
        w = node.input[1]
        inner, columns = weights[w].dims
        blocks = -(-inner // size)
        arrays = {
            f"{w}_codes": rng.integers(0, 256, (columns, blocks, size * bits // 8), np.uint8),
            f"{w}_scales": (rng.uniform(0.5, 1, (columns, blocks)) / np.sqrt(inner) / 2**bits).astype(np.float32),
            f"{w}_zeros": rng.integers(0, 256, (columns, -(-blocks * bits // 8)), np.uint8),
        }
        node.op_type, node.domain = "MatMulNBits", "com.microsoft"
        del node.input[1]
        node.input.extend(arrays)
        for name, number in dict(K=inner, N=columns, bits=bits, block_size=size).items():
            node.attribute.append(onnx.helper.make_attribute(name, number))
        known = {t.name for t in model.graph.initializer}
        model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items() if n not in known)
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    return model


def assert_right(made: BuildResult, m: onnx.ModelProto, precision: str, apart: ProcessPoolExecutor) -> None:
    feeds = draw(m, 3, low=-1, high=1)
    results, _ = apart.submit(
        triton_interpreter.ran, made.engine.tobytes(), triton_interpreter.sources(made), feeds
    ).result()
    wanted = evaluate(importer.load(m).graph, feeds)
    off = np.abs(results["y"].astype(np.float64) - wanted["y"]).max() / np.abs(wanted["y"]).max()
    assert off < TOLERANCE[precision], f"y is off by {off:.1e}"


@pytest.mark.parametrize("rows, template", [(13, "quantized_linear"), (2, "quantized_few")])
@pytest.mark.parametrize("precision, bits", [("fp32", 4), ("fp16", 4), ("bf16", 4), ("fp16", 2), ("fp16", 8)])
def test_a_block_of_a_transformer_multiplies_bytes(precision, bits, rows, template, apart, tmp_path):
    m = in_few_bits(block(rows=rows, width=48), bits, 16)
    made = build_detailed(m, Options(target="cuda:sm_90", precision=precision, level=0, cache_dir=tmp_path))
    by = Counter(str(s.info.get("tactic")).partition(":")[0] for s in made.engine.steps)
    assert by[template] == 4 and not {"gemm", "few"} & set(by), by  # q, k and v are one
    assert not any("shift" in str(s.info.get("op")) for s in made.engine.steps)
    assert_right(made, m, precision, apart)


def test_small_products_share_a_launch(apart, tmp_path):
    m = in_few_bits(block(rows=2, width=48), 4, 16)
    made = build_detailed(m, Options(target="cuda:sm_90", precision="fp16", level=4, cache_dir=tmp_path))
    chains = [s for s in made.engine.steps if str(s.info.get("tactic")).startswith("chain:")]
    assert any("MatMulNBits" in s.name for s in chains), [s.name for s in made.engine.steps]
    assert_right(made, m, "fp16", apart)


def test_all_kernels_of_a_step_agree(apart, tmp_path):
    m = in_few_bits(block(width=48), 4, 16)
    made = build_detailed(m, Options(target="cuda:sm_90", precision="fp16", level=4, cache_dir=tmp_path))
    kernels = [k for c in made.scheduled if c.kernel is not None for k in (c.kernel, *(k for _, k in c.alternatives))]
    sources, data = {k.symbol: k.source for k in kernels}, made.engine.tobytes()
    same, launched, said = apart.submit(compared, data, sources).result()
    assert same == data and launched > len(made.engine.steps) and not said
    packed = [form for k in kernels for x in k.operands if isinstance(x, Packed) for form in [x.form]]
    assert set(packed) == {"runs4"}  # whatever the tactic, an engine has its weights once
