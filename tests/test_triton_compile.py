"""GPU kernels become cubins for sm_80 and sm_90 without a GPU: their resources and instructions."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import islice

import pytest

pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")

from kernel_harness import Case, laid, program, region_of, symbolic  # noqa: E402
from test_triton_kernels import CASES, SCALARS  # noqa: E402
from triton_cases import HALF, attention, constant, conv, one  # noqa: E402
from triton_cases_integers import CASES as INTEGERS  # noqa: E402

from pelton.backends.cuda.bundle import pack, unpack  # noqa: E402
from pelton.system.cache import Cache  # noqa: E402
from pelton.errors import BuildError  # noqa: E402
from pelton.codegen.template import GPU_TEMPLATES, Kernel, Target  # noqa: E402
from pelton.codegen.triton.toolchain import TritonCompiler, compile_source, extract_cubin, split_sums  # noqa: E402
from pelton.codegen.triton.emit import with_alignment  # noqa: E402

TARGET = Target(isa="sm_90", lanes=32, threads=132)
SPILLED = 64  # bytes per thread that a first guess may spill


# bytes of scratch that a program takes for each box of memory that it has the GPU fetch
DESCRIPTOR = 128


def kernels(name: str, case: Case, target: Target = TARGET, most: int = 1) -> list[tuple[str, Kernel]]:
    template, region = GPU_TEMPLATES[name], region_of(case.graph)
    lay = laid(template, region, case, 0)
    return [
        (t.name, template.emit(region, lay, t, target)) for t in islice(template.tactics(region, lay, target), most)
    ]


@pytest.fixture(scope="module")
def compiler(kernel_cache):
    return TritonCompiler((80, 90), Cache(kernel_cache))


@pytest.mark.parametrize("name", CASES)
def test_every_template_compiles_for_both_architectures(name, compiler):
    made = [k for case in CASES[name] for _, k in kernels(name, case)]
    done = compiler.cubins({k.symbol: k.source for k in made})
    assert set(done) == {(k.symbol, arch) for k in made for arch in (80, 90)}
    for m in done.values():
        assert m.registers > 0 and m.spilled <= SPILLED and m.cubin.scratch % DESCRIPTOR == 0, m
    bundle = unpack(pack([m.cubin for m in done.values()]))
    assert {arch: set(of) for arch, of in bundle.items()} == {arch: {k.symbol for k in made} for arch in (80, 90)}


def large_gemm(dtype: str) -> Case:
    return one(
        f"large-{dtype}",
        ("y", "matmul", "a b"),
        ("z", "add", "y c"),
        ("o", "gelu", "z"),
        a=f"{dtype}[4096, 768]",
        b=f"{dtype}[768, 3072]",
        c=f"{dtype}[3072]",
    )


def large_conv(dtype: str) -> Case:
    return conv(dtype, (32, 128, 28, 28), 128, (3, 3), pads=1, tail=(("z", "relu", "y"),))


def large_attention(dtype: str) -> Case:
    return attention("large", dtype, (8, 12, 512, 64), (8, 12, 512, 64), (8, 12, 512, 64), (8, 1, 1, 512), heads=True)


def test_every_pointwise_op_compiles(compiler):
    made = [kernels("pointwise", case)[0][1] for case in SCALARS if case.name.endswith("-0")]
    done = TritonCompiler((90,)).cubins({k.symbol: k.source for k in made})
    assert len(done) == len({k.symbol for k in made}) > 50


def many_pictures(dtype: str) -> Case:
    return conv(dtype, (128, 128, 28, 28), 128, (3, 3), strides=2, pads=1, tail=(("z", "relu", "y"),))


def stem(dtype: str) -> Case:
    return one(
        f"stem-{dtype}",
        ("y", "convolution", "x w b", dict(strides=(2, 2), pads=(3,) * 4, dilations=(1, 1), group=1)),
        ("z", "relu", "y"),
        x=f"{dtype}[8, 3, 224, 224]",
        w=constant(dtype, 64, 3, 7, 7),
        b=constant(dtype, 64),
    )


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(
    "name, case",
    [
        ("gemm", large_gemm),
        ("conv", large_conv),
        ("conv", many_pictures),
        ("conv", stem),
        ("attention", large_attention),
    ],
    ids=["gemm", "conv", "many-images", "stem", "attention"],
)
def test_matrix_kernels_use_the_tensor_cores_and_hold_their_sums(name, case, dtype, compiler):
    for arch, instruction in ((80, "mma.sync"), (90, "wgmma.mma_async")):
        ((about, kernel),) = kernels(name, case(dtype), Target(isa=f"sm_{arch}", lanes=32, threads=132))
        found = compile_source(kernel.symbol, kernel.source, arch)
        asm = found.asm["ptx"]
        assert instruction in asm and ("cp.async.bulk.tensor" in asm) == (
            "DESCRIBED=1" in about or "PICTURES=1" in about
        ), about
        assert name != "gemm" or ("DESCRIBED=1" in about) == (arch == 90 and dtype != "f32"), about
        spilled = extract_cubin(found, kernel.source, arch).spilled
        assert spilled <= SPILLED, f"{about} spills {spilled} bytes"


@pytest.mark.parametrize(
    "arch, instruction", [(80, r"mma\.sync\S*\.tf32\.tf32"), (90, r"wgmma\.mma_async\S*\.tf32\.tf32")]
)
@pytest.mark.parametrize(
    "name, case",
    [("gemm", large_gemm), ("conv", large_conv), ("conv", stem), ("attention", large_attention)],
    ids=["gemm", "conv", "stem", "attention"],
)
def test_products_of_tf32_take_one_each(name, case, arch, instruction, compiler):
    """Where that may be; all else of f32 takes three or none."""
    target = Target(isa=f"sm_{arch}", lanes=32, threads=132, tf32=True)
    found = kernels(name, case("f32"), target, most=1000)
    assert found and all("PRECISION=2" in about for about, _ in found)
    assert all(
        "PRECISION=2" not in about for about, _ in kernels(name, case("f32"), replace(target, tf32=False), most=1000)
    )
    about, kernel = found[0]
    made = compile_source(kernel.symbol, kernel.source, arch)
    asm = made.asm
    dots = re.findall(r"inputPrecision = (\w+)", asm["ttgir"])
    # how a product of warps spells it
    assert re.search(instruction, asm["ptx"]) and dots and set(dots) <= {"tf32", "0"}, about
    spilled = extract_cubin(made, kernel.source, arch).spilled
    assert spilled <= SPILLED, f"{about} spills {spilled} bytes"


def test_pixels_of_many_pictures_are_fetched_as_boxes_and_go_to_the_tensor_cores_as_they_are():
    about, kernel = next((t, k) for t, k in kernels("conv", many_pictures("f16"), most=1000) if "PICTURES=1" in t)
    made = compile_source(kernel.symbol, kernel.source, 90)
    loop = made.asm["ttgir"].partition("scf.for")[2]
    assert "cp.async.bulk.tensor.4d" in made.asm["ptx"] and "cp.async.bulk.tensor.2d" in made.asm["ptx"], about
    assert "ttg.local_load" not in loop, f"{about} takes its operands through registers"
    again = with_alignment(kernel, [False] + [True] * (len(kernel.operands) - 1))
    assert "cp.async.bulk.tensor" not in compile_source(again.symbol, again.source, 90).asm["ptx"]


@pytest.mark.parametrize(
    "case", [stem("f16"), conv("f16", (2, 12, 32, 32), 64, (3, 3), pads=1)], ids=["planes", "few-channels"]
)
def test_few_channels_are_fetched_in_the_widest_pieces_that_lie_together(case):
    ((about, kernel),) = kernels("conv", case)
    loop = (
        compile_source(kernel.symbol, kernel.source, 90).asm["ttgir"].partition("scf.for")[2].partition("scf.yield")[0]
    )
    assert loop.count("ttg.async_copy_global_to_local") == 2 and "tt.load" not in loop, about


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize(
    "name, case",
    [
        ("gemm", one("few-rows", ("y", "matmul", "a b"), a="f16[100, 768]", b="f16[768, 3072]")),
        ("conv", conv("f16", (1, 256, 14, 14), 256, (3, 3), pads=1)),
        ("conv", conv("f16", (1, 128, 28, 28), 256, (3, 3), strides=2, pads=1)),
        ("conv", conv("f16", (1, 40, 28, 28), 64, (3, 3), pads=1)),
        ("conv", conv("bf16", (4, 96, 27, 27), 256, (5, 5), pads=2, group=2)),
        ("attention", large_attention("f16")),
    ],
    ids=lambda v: v.name if isinstance(v, Case) else str(v),
)
def test_operands_of_the_tensor_cores_are_copied_ahead_sixteen_bytes_at_a_time(name, case, arch):
    """Those of the first tactic, and of the first that shares steps; not by loads, which nothing is done beside, nor
    element by element."""
    found = kernels(name, case, Target(isa=f"sm_{arch}", lanes=32, threads=132), most=1000)
    shared = [k for k in found if "STREAM=" in k[0] and "STREAM=0@" not in k[0] and "DESCRIBED=1" not in k[0]]
    for about, kernel in (found[0], *shared[:1]):
        for loop in re.findall(
            r"scf\.for .*?scf\.yield", compile_source(kernel.symbol, kernel.source, arch).asm["ttgir"], re.S
        ):
            steps = loop.rpartition("scf.for")[2]  # the innermost one
            if "dot" in steps:
                copies = re.findall(r"async_copy_global_to_local .*?(?:contiguity = (\d+)|\n)", steps)
                assert (
                    len(copies) == 2
                    and set(copies) == {"8"}
                    and not re.search(r"tt\.load .*tensor<\d\d+x\d+x!tt", steps)
                ), about


def test_pixels_stay_in_the_threads_that_read_them():
    """Where a depthwise convolution has filters elsewhere, every tap waits for a barrier."""
    for about, kernel in kernels("window", conv("f16", (1, 384, 14, 14), 384, (3, 3), pads=1, group=384), most=12):
        assert compile_source(kernel.symbol, kernel.source, 90).asm["ptx"].count("bar.sync") < 4, about


def test_operands_are_read_in_pieces_of_sixteen_bytes():
    for name, case in (
        ("pointwise", one("wide", ("y", "relu", "a"), a="f16[4096]")),
        ("rows", one("wide", ("y", "softmax", "a", dict(axis=1)), a="f16[64, 2048]")),
    ):
        ((_, kernel),) = kernels(name, case)
        asm = compile_source(kernel.symbol, kernel.source, 80).asm["ptx"]
        assert "ld.global.v4.b32" in asm and "ld.global.b16" not in asm, name


def test_parameters_are_the_operands_then_sizes_then_two_pointers_of_tritons_own():
    case = one("sized", ("y", "add", "a b"), a="f32[6, 70]", b="f32[70]")
    template, region = GPU_TEMPLATES["pointwise"], region_of(symbolic(case.graph, GPU_TEMPLATES["pointwise"]))
    lay = laid(template, region, case, 0)
    tactic = next(iter(template.tactics(region_of(case.graph), laid(template, region_of(case.graph), case, 0), TARGET)))
    kernel = template.emit(region, lay, tactic, TARGET)
    asm = compile_source(kernel.symbol, kernel.source, 90).asm["ptx"]
    params = [
        line.split()[1] for line in asm.splitlines() if line.strip().startswith(".param") and kernel.symbol in line
    ]
    assert kernel.dims and params == [".u64"] * (len(kernel.operands) + len(kernel.dims) + 2)


def test_cubins_are_remembered_and_the_same_again(tmp_path):
    ((_, kernel),) = kernels("pointwise", CASES["pointwise"][0])
    first, again = (TritonCompiler((90,), Cache(tmp_path), jobs=1) for _ in range(2))
    made = first.cubins({kernel.symbol: kernel.source})
    assert again.cubins({kernel.symbol: kernel.source}) == made
    assert (first.compiled, first.reused, again.compiled, again.reused) == (1, 0, 0, 1)
    assert TritonCompiler((90,), jobs=1).cubins({kernel.symbol: kernel.source}) == made


def found_case(template: str, name: str) -> Case:
    return next(case for case in [*CASES[template], *INTEGERS.get(template, [])] if case.name == name)


def test_no_two_i16_are_added_in_one_register():
    """ptxas up to 12.9 loses constants there."""
    plain = "add.s16x2 \t%r28, %r26, %r27;\n\tadd.s16 %rs1, %rs2, %rs3;"
    parts = "{%al, %ah}, %r26", "{%bl, %bh}, %r27", "%r28, {%al, %ah}"
    assert all(part in split_sums(plain) for part in parts) and split_sums(plain).endswith(plain.partition("\n")[2])
    for _, kernel in kernels("move", found_case("move", "pad-wrap"), most=4):
        assert "s16x2" not in compile_source(kernel.symbol, kernel.source, 90).asm["ptx"]


def test_rows_that_begin_at_odd_places_are_written_one_by_one():
    """Triton 3.6 takes (i // 6) · 6 + i % 6 for a multiple of two."""
    template, case = GPU_TEMPLATES["conv"], found_case("conv", "f32-1x13x6x6-8-1x1-1-0-1-1")
    region = region_of(case.graph)
    lay = {**laid(template, region, case, 0), region.body.outputs[0]: (36 * 19, 1, 6 * 19, 19)}
    for tactic in islice(template.tactics(region, lay, TARGET), 4):
        kernel = template.emit(region, lay, tactic, TARGET)
        made = compile_source(kernel.symbol, kernel.source, 90).asm
        assert "st.global.v" not in made["ptx"]
        # whatever Triton makes of them: all that is divided are columns
        assert set(re.findall(r"arith\.(?:div|rem)si .*: tensor<([\dx]+)xi32>", made["ttir"])) == {f"{tactic['BM']}x1"}


def test_bytes_are_filled_with_negative_numbers():
    """Triton before 3.9 fills a word of four with fb ff ff ff for −5, where a load is to do it."""
    for _, kernel in kernels("window", found_case("window", "i8-1x16x21-16-4-2-1-16--5"), most=4):
        ir = compile_source(kernel.symbol, kernel.source, 90).asm["ttir"]
        (five,) = re.findall(r"(%\w+) = arith\.constant dense<-5> : tensor<[\dx]+xi8>", ir)
        others = re.findall(r"tt\.load %\w+, %\w+, (%\w+) : tensor<[\dx]+x!tt\.ptr<i8>>", ir)
        assert others and five not in others and five in ir.replace(f"{five} = ", "")


def test_what_triton_refuses_is_one_error(capfd):
    ((_, kernel),) = kernels("pointwise", CASES["pointwise"][0])
    with pytest.raises(BuildError, match="compiling kernel .* for sm_90 failed"):
        TritonCompiler((90,), jobs=1).cubins({kernel.symbol: kernel.source.replace("tl.store(", "tl.stored(")})
    assert not capfd.readouterr().out


def test_a_gpus_templates_are_its_own():
    from pelton.tuning.candidates import accepting_templates, rejection

    graph = program(("y", "matmul", "a b"), a="f16[64, 64]", b="f16[64, 64]")
    assert [t.name for t in accepting_templates(region_of(graph), isa="sm_90")] == ["gemm", "cublaslt"] and rejection(
        region_of(graph), isa="sm_90"
    ) is None
    assert all(t not in GPU_TEMPLATES.values() for t in accepting_templates(region_of(graph)))
