"""Convolutions whose pixels an H100's copy units gather: interpreted with an emulation of Gluon, and compiled if Triton
supports it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from draw import examples
from kernel_harness import Case, program, region_of
from onnx_models import draw, model

pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
import triton_interpreter  # noqa: E402
from triton.runtime.errors import InterpreterError  # noqa: E402
from test_triton_compile import SPILLED, kernels  # noqa: E402
from triton_cases import constant, conv  # noqa: E402
from triton_harness import TARGET, check, nhwc, tried  # noqa: E402

import pelton  # noqa: E402
from pelton.compiler import targets  # noqa: E402
from pelton.builder.build import build_detailed  # noqa: E402
from pelton.engine import file  # noqa: E402
from pelton.errors import BuildError  # noqa: E402
from pelton.importers.onnx import load as importer  # noqa: E402
from pelton.ir.evaluate import evaluate  # noqa: E402
from pelton.codegen.template import Tactic  # noqa: E402
from pelton.codegen.triton.toolchain import (
    GLUON,
    TritonCompiler,
    compile_source,
    read_tensor_maps,
    extract_cubin,
    release,
)  # noqa: E402
from pelton.codegen.triton.emit import TYPES, with_alignment  # noqa: E402
from pelton.codegen.triton.templates.library import GPU_TEMPLATES  # noqa: E402
from pelton.options import Options  # noqa: E402
from pelton.backends.cuda.kernel_choice import drop_wrong_kernels  # noqa: E402
from pelton.compiler.targets.cuda import target_for  # noqa: E402
from pelton.tuning import search  # noqa: E402
from pelton.tuning.candidates import template_rejection  # noqa: E402

NAME, TEMPLATE = "im2col", GPU_TEMPLATES["im2col"]
HERE = replace(TARGET, libraries=(("triton", GLUON),))
needs_gluon = pytest.mark.skipif(release() < GLUON, reason="Triton before 3.9 has no im2col mode")


def uneven(
    dtype: str,
    pads: tuple[int, ...],
    strides: tuple[int, int],
    dilations: tuple[int, int] = (1, 1),
    kernel: tuple[int, int] = (3, 3),
    x: tuple[int, ...] = (2, 32, 13, 9),
) -> Case:
    graph = program(
        ("y", "convolution", "x w b", dict(strides=strides, pads=pads, dilations=dilations, group=1)),
        ("z", "relu", "y"),
        x=f"{dtype}{list(x)}",
        w=constant(dtype, 24, x[1], *kernel),
        b=constant(dtype, 24),
    )
    return Case(f"uneven-{dtype}-{pads}-{strides}-{dilations}-{kernel}", graph, {"x": nhwc(4)})


CASES = {
    NAME: [
        conv("f16", (2, 32, 9, 7), 20, (3, 3), pads=1),
        conv("bf16", (3, 64, 9, 7), 20, (3, 3), strides=2, pads=1, tail=(("z", "relu", "y"),)),
        conv("f16", (2, 64, 12, 11), 40, (1, 1), strides=2),
        conv("f16", (2, 64, 10, 9), 48, (3, 3), pads=1, group=2),
        conv("f16", (2, 32, 17, 15), 24, (3, 3), pads=2, dilations=2),
        conv("bf16", (1, 64, 19, 21), 72, (5, 5), strides=2, pads=2),
        conv("f16", (1, 56, 8, 8), 33, (3, 3), pads=1, tail=(("z", "gelu", "y"),)),
        conv("f16", (70, 32, 3, 3), 16, (3, 3)),
        uneven("f16", (2, 0, 0, 1), (1, 1)),
        uneven("f16", (1, 3, 2, 0), (2, 1)),
        uneven("bf16", (0, 4, 1, 1), (1, 3), (2, 1), (2, 5)),
        uneven("f16", (0, 0, 0, 0), (4, 4), kernel=(2, 2)),
        uneven("f16", (3, 3, 3, 3), (8, 2), kernel=(1, 1)),
    ]
}


def shared_by(monkeypatch, programs: int) -> None:
    """Tactics with the steps of all tiles shared by so many programs, where each gets two and more; 0: not shared."""

    def tactics(region, lay, target, of=TEMPLATE.tactics):
        for t in of(region, lay, target):
            kernel = TEMPLATE.emit(region, lay, t, target)
            (filters,) = (m for m in read_tensor_maps(kernel.source) if not m.lower)
            if not t["STREAM"] and kernel.tiles * -(-filters.sizes[0] // filters.box[0]) >= 2 * programs:
                yield Tactic(t.template, t.isa, tuple({**dict(t.params), "STREAM": programs}.items()))

    monkeypatch.setattr(TEMPLATE, "tactics", tactics)


@pytest.mark.parametrize("programs", [0, 2, 7])
@pytest.mark.parametrize("case", CASES[NAME], ids=lambda c: c.name)
def test_right_as_emulated(case, programs, monkeypatch):
    shared_by(monkeypatch, programs)
    # of which nobody gets two steps
    few = case.graph.constants[case.graph.nodes[0].inputs[1]][0].size <= 64
    assert check(TEMPLATE, case, 3, target=HERE) or programs == 7 or few and programs


WAIT = "mbarrier.wait(barriers.index(at % RING), at // RING & 1)"


@pytest.mark.parametrize("programs", [0, 5])
@pytest.mark.parametrize(
    "old, new",
    [
        (WAIT, "mbarrier.wait(barriers.index(at % RING), 1 - (at // RING & 1))"),
        (WAIT, "pass"),
        ("warpgroup_mma_wait(1,", "warpgroup_mma_wait(2,"),
        ("step + RING - 1 < until", "step + RING < until"),
        ("(BM + BN) * BK * 2", "(BM + BN) * BK"),
        ("(BM + BN) * BK * 2", "(BM + BN) * BK * 4"),
        ("range(RING - 1)", "range(RING)"),
        ("begin % OW * SW - PL", "begin % OW * SW"),
        ("tap % KW * DW", "tap % KW"),
        ("at = turn + step - first", "at = step - first"),
        ("turn % RING", "step % RING"),
        ("first - start + tile * STEPS", "first - start"),
        ("u * BN + v", "u * BM + v"),
    ],
    ids=lambda text: text,
)
def test_mistakes_are_seen(old, new, programs, monkeypatch):
    """The emulation of barriers, fetches and products makes whatever is not waited for, overwritten early or fetched
    from elsewhere wrong, or raises."""
    if not programs and ("turn" in old or "start" in old or "u *" in old):
        pytest.skip("a program has but one tile")
    shared_by(monkeypatch, programs)
    case = conv("f16", (2, 64, 12, 11), 20, (3, 3), pads=1, dilations=2)

    def run(source: str, *rest, **named):
        assert old in source
        return triton_interpreter.run(source.replace(old, new), *rest, **named)

    assert check(TEMPLATE, case, target=HERE)
    with pytest.raises((AssertionError, InterpreterError)):
        check(TEMPLATE, case, target=HERE, run=run)


def test_where_it_is_tried():
    region = region_of(CASES[NAME][0].graph)
    lay = tried(TEMPLATE, CASES[NAME][0], 1, HERE).__next__()[1]

    def count(**change) -> int:
        return len(list(TEMPLATE.tactics(region, lay, replace(HERE, **change))))

    assert count() and not count(libraries=()) and not count(libraries=(("triton", GLUON - 1),))
    assert not count(isa="sm_80") and not count(isa="sm_90,sm_80") and not count(isa="sm_100")
    assert not target_for([90]).version("triton") and target_for([90], level=5).version("triton") == release()
    for case, why in (
        (conv("f16", (2, 32, 9), 20, (3,)), "two spatial axes"),
        (conv("f16", (1, 32, 90, 90), 20, (1, 1), strides=9), "too large"),
        (conv("f16", (1, 32, 300, 300), 20, (2, 2), dilations=257), "too large"),
        (conv("f16", (1, 32, 9, 9), 8, (3, 3), pads=200), "too large"),
    ):
        assert why in (template_rejection(TEMPLATE, region_of(case.graph)) or "")


# ---- compiled ----


def large(dtype: str) -> list[Case]:
    return [
        conv(dtype, (8, 256, 14, 14), 256, (3, 3), pads=1),
        conv(dtype, (32, 128, 28, 28), 128, (3, 3), strides=2, pads=1, tail=(("z", "relu", "y"),)),
        conv(dtype, (1, 512, 7, 7), 512, (3, 3), pads=1),
        conv(dtype, (128, 64, 56, 56), 256, (1, 1), strides=2),
    ]


@needs_gluon
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_pixels_are_gathered_by_units_that_copy_and_go_to_the_tensor_cores_as_they_are(dtype):
    for case in (*large(dtype), *(c for c in CASES[NAME] if c.name.partition("-")[0] == dtype)):
        for about, kernel in kernels(NAME, case, replace(HERE, threads=132), most=2):
            found = compile_source(kernel.symbol, kernel.source, 90)
            made, ptx = extract_cubin(found, kernel.source, 90), found.asm["ptx"]
            assert made.spilled <= SPILLED, f"{about} spills {made.spilled} bytes"
            assert made.cubin.maps == read_tensor_maps(kernel.source) and {m.kind for m in made.cubin.maps} == {
                6 if dtype == "f16" else 9
            }
            assert not any(m.rejection() for m in made.cubin.maps)
            assert (
                "wgmma.mma_async" in ptx and ".tensor.4d" in ptx and ".im2col." in ptx and "cp.async.cg" not in ptx
            ), about
            loop = ptx[ptx.index("mbarrier.try_wait") :]
            read = loop.index("wgmma.wait_group")
            assert loop.index("bar.sync", read) < loop.find("cp.async.bulk", read) % len(loop), (
                f"{about} fetches before all warps have read"
            )
            assert not re.search(r"ld\.param\.\w+\s+%\w+, \[\w+_param_([1-4]|[6-9])\]", ptx), (
                f"{about} reads what stands behind its maps"
            )


@needs_gluon
def test_every_pointwise_op_compiles_behind_it():
    made, ops = dict[str, str](), set[str]()
    for _, op, types, attrs in examples("pointwise"):
        if not all(t.dtype.value in TYPES for t in types):
            continue
        others = {f"u{i}": f"{t.dtype.value}[2, 8, 8, 8]" for i, t in enumerate(types[1:])}
        graph = program(
            ("c", "convolution", "x w b", dict(strides=(1, 1), pads=(1,) * 4, dilations=(1, 1), group=1)),
            ("y", "cast", "c", dict(to=types[0].dtype)),
            ("z", op.name, " ".join(("y", *others)), attrs),
            x="f16[2, 32, 8, 8]",
            w=constant("f16", 8, 32, 3, 3),
            b=constant("f16", 8),
            **others,
        )
        case = Case(f"behind-{op.name}", graph, dict.fromkeys(("x", *others), nhwc(4)))
        if template_rejection(TEMPLATE, region_of(graph)) is None:
            ops.add(op.name)
            made |= {k.symbol: k.source for _, k in kernels(NAME, case, HERE)}
    assert {"add", "erf", "tanh", "pow", "sqrt", "floor"} <= ops and len(ops) > 40
    failed = dict[str, BuildError]()
    TritonCompiler((90,)).cubins(made, failed=failed)
    assert not failed, {made[symbol].splitlines()[0]: str(why)[-300:] for symbol, why in failed.items()}


@needs_gluon
def test_operands_that_begin_elsewhere_are_not_compiled():
    ((_, kernel),) = kernels(NAME, CASES[NAME][0], HERE)
    again = with_alignment(kernel, [False] + [True] * (len(kernel.operands) - 1))
    with pytest.raises(BuildError, match="do not begin at multiples of 16 bytes"):
        TritonCompiler((90,)).cubins({again.symbol: again.source})


@pytest.mark.skipif(release() >= GLUON, reason="this Triton has im2col mode")
def test_a_triton_without_it_is_named():
    ((_, kernel),) = kernels(NAME, CASES[NAME][0], HERE)
    with pytest.raises(BuildError, match="install triton 3.9 or newer"):
        TritonCompiler((90,)).cubins({kernel.symbol: kernel.source})


# ---- in engines ----


def network() -> onnx.ModelProto:
    rng = np.random.default_rng(3)

    def weights(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    node = onnx.helper.make_node
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c0"], pads=[1] * 4),
        node("Relu", ["c0"], ["r0"]),
        node("Conv", ["r0", "w1", "b1"], ["c1"], strides=[2, 2], pads=[1] * 4),
        node("Conv", ["r0", "w2"], ["c2"], strides=[2, 2]),
        node("Add", ["c1", "c2"], ["a"]),
        node("Relu", ["a"], ["y"]),
    ]
    constants = {
        "w0": weights(32, 32, 3, 3),
        "b0": weights(32, 1)[:, 0],
        "w1": weights(64, 32, 3, 3),
        "b1": weights(64, 1)[:, 0],
        "w2": weights(64, 32, 1, 1),
    }
    return model(nodes, {"x": "f32[2, 32, 11, 9]"}, ["y"], constants)


def run(
    data: bytes, sources: dict[str, str], feeds: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], dict[str, list[str]]]:
    """What an engine gives on a device that interprets, and the tactics of its steps that agree with each other
    there."""
    device, plain = triton_interpreter.device(sources), file.read(data)
    return pelton.Engine(plain).start(device).run(feeds), tactics(drop_wrong_kernels(plain, device))


def tactics(plain: Any) -> dict[str, list[str]]:
    return {s.name: [k.info["tactic"] for k in (s, *s.alternatives)] for s in plain.steps}


@needs_gluon
@pytest.mark.parametrize("precision, off", [("fp16", 5e-3), ("bf16", 4e-2)])
def test_engines_carry_it_and_it_agrees_with_the_others(precision, off, apart, kernel_cache, monkeypatch):
    """At the level that tries everything, though with few alternatives; and a network by it alone is right."""
    monkeypatch.setitem(targets.cuda.ALTERNATIVES, 5, 3)
    m = network()
    feeds = draw(m, 1, low=-1, high=1)
    want = evaluate(importer.load(m).graph, feeds)["y"]
    for alone in (False, True):
        if alone:
            monkeypatch.setattr(
                search,
                "candidates",
                lambda *a, of=search.candidates: sorted(of(*a), key=lambda way: way[0].name != NAME),
            )
        made = build_detailed(m, Options(target="cuda:sm_90", precision=precision, level=5, cache_dir=kernel_cache))
        sources = {
            k.symbol: k.source
            for c in made.scheduled
            if c.kernel is not None
            for k in (c.kernel, *(k for _, k in c.alternatives))
        }
        carried = tactics(made.engine.plain)
        by_it = [
            name
            for name, found in carried.items()
            if any(t.startswith("im2col:") for t in found[: 1 if alone else None])
        ]
        assert len(by_it) == 3
        got, left = apart.submit(run, made.engine.tobytes(), sources, feeds).result()
        assert np.abs(got["y"].astype(np.float64) - want).max() < off * np.abs(want).max() and left == carried
