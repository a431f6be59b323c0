"""Products by a fake cuBLASLt: results, selection, fallbacks, and resistance to forged engine files."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
import triton_interpreter  # noqa: E402
from handmade import zig_cc  # noqa: E402
from kernel_harness import laid, program, region_of  # noqa: E402
import test_cuda_tuning  # noqa: E402
from models import inverted_residuals  # noqa: E402
from onnx import helper  # noqa: E402
from onnx_models import draw, model  # noqa: E402
from test_cuda_tuning import built_on, device  # noqa: E402, F401  (fixtures)
from triton_cases import constant, conv, one  # noqa: E402
from test_triton_networks import TOLERANCE, block  # noqa: E402
from triton_harness import TARGET, Case, check  # noqa: E402

import pelton  # noqa: E402
from pelton.backends.cuda.cublaslt import CublasLtLibrary, bound  # noqa: E402
from pelton.backends.cuda.null import NullDevice  # noqa: E402
from pelton.builder.build import build_detailed as build  # noqa: E402
from pelton.engine import file, library, work  # noqa: E402
from pelton.engine.plan import Step  # noqa: E402
from pelton.engine.product import MatmulDescriptor  # noqa: E402
from pelton.engine.work import ALIGNED  # noqa: E402
from pelton.importers.onnx import load as importer  # noqa: E402
from pelton.ir.evaluate import evaluate  # noqa: E402
from pelton.ir.types import F16  # noqa: E402
from pelton.codegen.template import GPU_TEMPLATES  # noqa: E402
from pelton.options import Options  # noqa: E402
from pelton.backends.cuda import kernel_choice  # noqa: E402
from pelton.tuning import launches  # noqa: E402
from pelton.tuning.candidates import template_rejection  # noqa: E402

SYMBOL, NAMES = MatmulDescriptor.symbol, [f.name for f in fields(MatmulDescriptor)]
HERE = replace(TARGET, libraries=((SYMBOL, 130100),))
KINDS = ("f32", "f16", "bf16")


def built() -> Path:
    return zig_cc(
        [str(Path(__file__).parent / "fake_cublaslt.c")],
        ["-shared", "-fPIC", "-O1", "-fno-sanitize=all", "-Wno-everything", "-ldl", "-lm"],
    )


@pytest.fixture(scope="module")
def blas() -> CublasLtLibrary:
    return CublasLtLibrary(bound(str(built())))


def cases(dtype: str) -> list[Case]:
    def lies(*shape: int) -> str:
        return f"{dtype}{list(shape)}"

    k, ones = np.ones(1, np.float32), constant(dtype, 1, 7)
    tails = {
        "scaled": (("y", "mul", "p s"),),
        "bias": (("y", "add", "p b"),),
        "bias-relu": (("q", "add", "b p"), ("y", "relu", "q")),
        "relu": (("y", "relu", "p"),),
        "gelu": (("q", "add", "p b"), ("y", "gelu_tanh", "q")),
        "added": (("y", "add", "p z"),),
        "all": (("q", "mul", "p s"), ("r", "add", "q z"), ("t", "add", "r b"), ("y", "relu", "t")),
    }
    extra = {"s": np.asarray(0.25 * k, ones.dtype).reshape(()), "b": ones.reshape(7), "z": lies(5, 7)}
    found = [
        one(
            f"{name}-{dtype}",
            ("p", "matmul", "x w"),
            *tail,
            x=lies(5, 3),
            w=constant(dtype, 3, 7),
            **{n: v for n, v in extra.items() if any(n in words.split() for _, _, words in tail)},
        )
        for name, tail in tails.items()
    ]
    return [
        *found,
        one(f"plain-{dtype}", ("y", "matmul", "a b"), a=lies(17, 33), b=lies(33, 9)),
        one(f"one-{dtype}", ("y", "matmul", "a b"), a=lies(1, 3), b=lies(3, 1)),
        one(f"turned-{dtype}", ("y", "matmul", "a b"), a=lies(6, 5), b=lies(5, 11), orders={"a": (1, 0), "b": (1, 0)}),
        one(f"batch-{dtype}", ("y", "matmul", "a b"), a=lies(3, 5, 7), b=lies(3, 7, 4), orders={"b": (0, 2, 1)}),
        one(
            f"rows-{dtype}",
            ("p", "matmul", "a b"),
            ("y", "add", "p c"),
            a=lies(2, 3, 5),
            b=lies(5, 7),
            c=ones.reshape(7),
        ),
        one(f"spread-{dtype}", ("y", "matmul", "a b"), a=lies(1, 4, 6), b=lies(5, 6, 3)),
        conv(dtype, (1, 6, 1, 9), 10, (1, 1), tail=(("z", "relu", "y"),)),
        conv(dtype, (3, 5, 2, 4), 7, (1, 1)),
        one(
            f"residual-{dtype}",
            ("p", "convolution", "x w b", dict(strides=(1, 1), pads=(0,) * 4, dilations=(1, 1), group=1)),
            ("q", "add", "p z"),
            ("y", "relu", "q"),
            x=lies(2, 6, 3, 3),
            w=constant(dtype, 8, 6, 1, 1),
            b=constant(dtype, 8),
            z=lies(2, 8, 3, 3),
            orders={"x": (0, 2, 3, 1), "z": (0, 2, 3, 1)},
        ),
    ]


CASES = {SYMBOL: [case for dtype in KINDS for case in cases(dtype)]}


@pytest.mark.parametrize("case", CASES[SYMBOL], ids=lambda case: case.name)
def test_products(case, blas):
    def run(
        source: str,
        symbol: str,
        arrays: Sequence[tuple[np.ndarray, str, int]],
        dims: Sequence[int],
        tiles: int,
        phases: int,
    ) -> list[np.ndarray]:
        assert symbol == SYMBOL and tiles == 1 and "by cublaslt:CHOICE=" in source
        # so many does this library propose
        descriptor = replace(library.work(SYMBOL, dims), choice=library.work(SYMBOL, dims).choice % 2)
        for (array, _, first), (_, elements) in zip(arrays, descriptor.operands()):
            assert first + elements <= array.size  # which is what engines are checked by
        found, room = (
            blas.plan(descriptor, [ALIGNED if first % 8 == 0 else a.itemsize for a, _, first in arrays]),
            np.zeros(8192, np.uint8),
        )
        assert found.workspace == 4096 * descriptor.choice
        found(
            np.array(
                [*(a.ctypes.data + first * a.itemsize for a, _, first in arrays), *dims, room.ctypes.data, 0], np.int64
            ),
            0,
        )
        return [a for a, _, _ in arrays]

    kernels = check(GPU_TEMPLATES[SYMBOL], case, 3, target=HERE, run=run)
    planes = case.graph.nodes[0].op.name == "convolution" and case.graph.inputs[0].type.shape[2] > 1
    assert len(kernels) == (3 if planes else 6)  # gaps between rows of pixels are none of its


@pytest.mark.parametrize(
    "nodes, reason",
    [
        ([("p", "matmul", "a b"), ("y", "gelu", "p")], "gelu is none of the ends"),
        ([("p", "matmul", "a b"), ("y", "sub", "c p")], "sub is none"),
        ([("p", "matmul", "a b"), ("q", "relu", "p"), ("y", "add", "q c")], "add is none"),
        ([("p", "matmul", "a b"), ("q", "add", "p c"), ("y", "mul", "q s")], "mul is none"),
        ([("p", "matmul", "a b"), ("q", "add", "p c"), ("y", "add", "q c")], "add is none"),
        ([("p", "matmul", "a b"), ("y", "add", "p p")], "add is none"),
        ([("p", "matmul", "a b"), ("y", "cast", "p", {"to": F16})], "cast is none"),
        ([("out1", "matmul", "a b"), ("out2", "relu", "out1")], "several outputs"),
        ([("p", "matmul", "a b"), ("y", "mul", "p c")], "mul is none"),
    ],
)
def test_what_a_library_does_not_do(nodes, reason):
    inputs = {"a": "f32[5, 3]", "b": "f32[3, 7]", "c": "f32[7]", "s": np.float32(2)}
    read = {n for _, _, words, *_ in nodes for n in words.split()}
    region = region_of(program(*nodes, **{n: v for n, v in inputs.items() if n in read}))
    assert reason in (template_rejection(GPU_TEMPLATES[SYMBOL], region) or "")


@pytest.mark.parametrize("tf32, compute", [(False, 68), (True, 77)])
def test_products_of_f32_may_be_of_tf32(tf32, compute, blas, monkeypatch):
    asked = list[int]()
    made = type(blas).made
    monkeypatch.setattr(
        type(blas),
        "made",
        lambda self, owner, create, destroy, *a: (
            asked.append(a[0]) if create == "MatmulDescCreate" else None,
            made(self, owner, create, destroy, *a),
        )[1],
    )

    def run(source, symbol, arrays, dims, tiles, phases):
        descriptor = replace(library.work(SYMBOL, dims), choice=0)
        assert work.KINDS[descriptor.kind] == ("tf32" if tf32 else "f32") and {
            kind for kind, _ in descriptor.operands()
        } == {"f32"}
        found = blas.plan(descriptor, [4] * len(arrays))
        found(np.array([*(a.ctypes.data + first * a.itemsize for a, _, first in arrays), *dims, 0, 0], np.int64), 0)
        return [a for a, _, _ in arrays]

    case = next(c for c in CASES[SYMBOL] if c.graph.inputs[0].type.dtype.value == "f32")
    assert check(GPU_TEMPLATES[SYMBOL], case, target=replace(HERE, tf32=tf32), run=run) and set(asked) == {compute}


def test_operands_that_lie_otherwise_are_none_of_it():
    template = GPU_TEMPLATES[SYMBOL]
    case = one("heads", ("y", "matmul", "a b"), a="f32[2, 3, 5, 4]", b="f32[2, 3, 4, 5]", orders={"a": (0, 2, 1, 3)})
    region = region_of(case.graph)
    # two strides from head to head
    assert not list(template.tactics(region, laid(template, region, case, 0), HERE))
    assert len(list(template.tactics(region, laid(template, region, replace(case, orders={}), 0), HERE))) == 3
    overlap = {
        v: (1, 1) if v.name == "x" else s
        for v, s in laid(template, region_of(CASES[SYMBOL][0].graph), CASES[SYMBOL][0], 0).items()
    }
    assert not list(template.tactics(region_of(CASES[SYMBOL][0].graph), overlap, HERE))


def test_the_checks_on_a_gpu_know_it(blas, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1])
    from benchmarks.gpu.on_gpu import Kernels, Unproposed

    kernels, case = Kernels(NullDevice(libraries={SYMBOL: blas}), {}), CASES[SYMBOL][0]
    # the first for the third, which there is not
    assert len(check(GPU_TEMPLATES[SYMBOL], case, 3, target=HERE, run=kernels.run)) == kernels.launched == 6
    with pytest.raises(Unproposed):
        check(GPU_TEMPLATES[SYMBOL], case, target=HERE, run=Kernels(NullDevice(), {}).run)


# ---- engines ----


@pytest.fixture
def idle(monkeypatch):
    """Kernels in Triton do nothing on these devices: what they leave is not held against what the library writes."""
    monkeypatch.setattr(kernel_choice, "groups", lambda results, types: [[i for i, _ in enumerate(results)]])


def fast(launch) -> float:
    return 1000.0 if launch.function.cubin.symbol == SYMBOL else 5000.0


def wanted(x: np.ndarray) -> np.ndarray:
    return np.maximum(x @ np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32), 0)


def runs(engine, on: NullDevice) -> list[str]:
    """What an engine launches there; by the library, that must be right."""
    x = np.random.default_rng(1).standard_normal((32, 64)).astype(np.float32)
    got = engine.start(on).run({"x": x})["y"]
    launched = [h.facts["symbol"] for h in on.happened("launch")]
    if launched == [SYMBOL]:
        np.testing.assert_allclose(got, wanted(x), rtol=2e-5, atol=2e-5)
    return launched


def test_the_clock_decides_and_a_kernel_stands_in_where_the_library_is_not(
    built_on,
    blas,
    idle,
    caplog,
    monkeypatch,
    tmp_path,
    capsys,
):
    engine = built_on(device(fast, libraries={SYMBOL: blas}))
    (step,) = engine.steps
    assert (
        step.symbol == SYMBOL
        and step.info["tactic"] == "cublaslt:CHOICE=0,VERSION=130100@sm_90"
        and step.alternatives[0].symbol != SYMBOL
    )
    assert {n for n in step.info["times_ns"] if n.startswith(SYMBOL)} == {"cublaslt:CHOICE=0,VERSION=130100@sm_90"}
    data = engine.tobytes()
    assert runs(pelton.load(data, device=None), NullDevice(libraries={SYMBOL: blas})) == [SYMBOL]
    monkeypatch.setenv("FAKE_CUBLASLT_VERSION", "120904")
    for other, said in (
        ({}, "cublaslt is not installed"),
        ({SYMBOL: CublasLtLibrary(blas.functions)}, "cuBLASLt 12.9.4 is installed"),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "pelton.runtime"):
            loaded = pelton.load(data, device=None)
            assert runs(loaded, NullDevice(libraries=other)) == [step.alternatives[0].symbol]
            loaded.run({"x": np.zeros((32, 64), np.float32)})
        assert [r.message for r in caplog.records] == [
            "engine 'test': 1 of 1 steps use the engine's own kernels instead of a library, they were timed with "
            f"cublaslt 13.1.0: {said}; `pelton tune` times them again"
        ]
        assert (
            loaded.steps[0].info["tactic"] == step.alternatives[0].info["tactic"]
            and loaded.steps[0].alternatives[0].symbol == SYMBOL
        )
    from pelton import cli

    path = tmp_path / "e.pelton"
    path.write_bytes(data)
    assert cli.main(["inspect", str(path)]) == 0
    assert "cublaslt 13.1.0 for 1 of 1 step" in capsys.readouterr().out


def test_a_library_is_no_guess(built_on, blas, idle, tmp_path):
    guessed = built_on(None, level=3, timing_cache=None)
    (step,) = guessed.steps
    assert step.symbol != SYMBOL and [s.info["tactic"] for s in step.alternatives if s.symbol == SYMBOL] == [
        f"cublaslt:CHOICE={i},VERSION=0@sm_90" for i in range(3)
    ]
    slow = device(lambda launch: 6000.0 if launch.function.cubin.symbol == SYMBOL else 5000.0, libraries={SYMBOL: blas})
    assert built_on(slow, timing_cache=tmp_path / "slow.json").steps[0].symbol != SYMBOL
    assert (
        not device().happened("by_library")
        and built_on(device(fast), timing_cache=tmp_path / "none.json").steps[0].symbol != SYMBOL
    )
    assert pelton.tune(guessed, device(fast)).steps[0].symbol != SYMBOL  # not there
    tuned = pelton.tune(guessed, device(fast, libraries={SYMBOL: blas}))
    assert tuned.steps[0].symbol == SYMBOL and tuned.steps[0].info["tactic"] == "cublaslt:CHOICE=0,VERSION=130100@sm_90"
    assert runs(pelton.load(tuned.tobytes(), device=None), NullDevice(libraries={SYMBOL: blas})) == [SYMBOL]
    again = pelton.tune(tuned, device(lambda launch: 6000.0 - fast(launch), libraries={SYMBOL: blas}))
    assert again.steps[0].symbol != SYMBOL and SYMBOL in {s.symbol for s in again.steps[0].alternatives}


def test_a_library_that_stands_alone_is_left_out(built_on, blas, caplog):
    """Kernels in Triton do nothing on this device, so that the library gives something else."""
    with caplog.at_level(logging.WARNING, "pelton.build"):
        (step,) = built_on(device(fast, libraries={SYMBOL: blas}), timing_cache=None).steps
    assert SYMBOL not in {s.symbol for s in (step, *step.alternatives)}
    assert (
        "step 'product+relu': cublaslt:CHOICE=0" in caplog.text
        and "is not used, as its results differ on no GPU from those of gemm:" in caplog.text
    )


@pytest.fixture
def apart_from_others(monkeypatch):
    """No step becomes part of a chain, where libraries have none."""
    monkeypatch.setattr(launches, "find_chains", lambda *given: [])


def test_a_convolution_without_a_bias_has_a_kernel_to_stand_in(built_on, blas, idle, monkeypatch, apart_from_others):
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], "conv")]
    filters = {"w": np.random.default_rng(0).standard_normal((8, 16, 1, 1)).astype(np.float32)}
    monkeypatch.setattr(test_cuda_tuning, "product", lambda: model(nodes, {"x": "f32[1, 16, 3, 5]"}, ["y"], filters))
    engine = built_on(device(fast, libraries={SYMBOL: blas}), timing_cache=None)
    (step,) = (s for s in engine.steps if s.symbol == SYMBOL)
    assert (
        step.alternatives
        and step.alternatives[0].symbol != SYMBOL
        and len(step.alternatives[0].args) == len(step.args) + 1
    )
    assert pelton.load(engine.tobytes(), device=None).start(NullDevice(libraries={SYMBOL: blas})).loaded.functions


def by_library(step: Step) -> Step:
    """A step by the library where that is one of its alternatives."""
    spare = next((library.of_version(s, {SYMBOL: 130100}) for s in step.alternatives if s.symbol == SYMBOL), None)
    own = replace(step, outputs=(), alternatives=(), info={"tactic": step.info["tactic"]})
    return (
        step
        if spare is None
        else replace(spare, outputs=step.outputs, info={**step.info, **spare.info}, alternatives=(own,))
    )


def interpreted(
    data: bytes, sources: Mapping[str, str], feeds: Mapping[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], list[str]]:
    """In a process where all of Triton is interpreted: what the engine gives, and what it launched."""
    return triton_interpreter.ran(data, sources, feeds, libraries={SYMBOL: CublasLtLibrary(bound(str(built())))})


@pytest.mark.parametrize(
    "network, precision", [(block, "fp32"), (block, "fp16"), (block, "bf16"), (inverted_residuals, "bf16")]
)
def test_networks_by_the_library(network, precision, apart, apart_from_others, kernel_cache):
    m = network()
    made = build(m, Options(target="cuda:sm_90", precision=precision, level=3, cache_dir=kernel_cache))
    plain = made.engine.plain
    steps = tuple(map(by_library, plain.steps))
    feeds = draw(m, 3, low=-1, high=1)
    results, launched = apart.submit(
        interpreted, file.to_bytes(replace(plain, steps=steps)), triton_interpreter.sources(made), feeds
    ).result()
    wanted = evaluate(importer.load(m).graph, feeds)
    assert launched == [s.symbol for s in steps] and launched.count(SYMBOL) >= 2
    for port, want in wanted.items():
        off = np.abs(results[port].astype(np.float64) - want).max() / np.abs(want).max()
        assert off < TOLERANCE[precision], f"{port} is off by {off:.1e}"
