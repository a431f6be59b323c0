"""Private memory of GPU kernels: zeros that each leaves unchanged, and room in the arena during its step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from handmade import engine
from kernel_harness import Case, laid, program, region_of
from onnx import helper
from onnx_models import draw, model

import pelton
from pelton.backends.cuda import pack
from pelton.backends.cuda.null import NullDevice, seen
from pelton.builder.build import build_detailed
from pelton.engine import file, sizes
from pelton.engine.cubin import Cubin
from pelton.engine.validate import MAX_ZEROS, validate
from pelton.engine.plan import Buffer, EnginePlan, Port, Slice, Step, DynamicDimension, Tensor
from pelton.engine.memory import Lifetime, assign
from pelton.errors import EngineError
from pelton.importers.onnx import load as importer
from pelton.ir.evaluate import evaluate
from pelton.options import Options
from pelton.targets import gpus

N = 100
CODE = pack([Cubin("counted", 90, b"\x7fELF counted", 0, 4)])


def counted(programs: int, words: np.ndarray) -> None:
    """Twice x, unless its counters are not zero; it leaves them so."""
    x, y, counters = words.tolist()
    there = seen(counters, np.int32, 4)
    there += 1
    seen(y, np.float32, programs)[:] = seen(x, np.float32, programs) * (2 if (there == 1).all() else np.nan)
    there[:] = 0


def counting(*zeros: Buffer) -> EnginePlan:
    """Two steps at once, each with counters of its own."""
    own = zeros or (Buffer("zeros", 0, 16), Buffer("zeros", 64, 16))
    buffers = [Buffer("input", 0, 4 * N), Buffer("output", 0, 4 * N), Buffer("output", 1, 4 * N), *own]
    steps = [
        Step(
            f"s{i}",
            "counted",
            (Slice(0, 0), Slice(1 + i, 0), Slice(3 + i, 0)),
            (),
            N,
            1,
            0,
            outputs=(Tensor(Slice(1 + i, 0), "f32", (N,), (1,)),),
        )
        for i in range(2)
    ]
    plain = engine(
        [Port("x", "f32", (N,))], [Port("y", "f32", (N,)), Port("z", "f32", (N,))], buffers, steps, arena=0, code=CODE
    )
    return replace(plain, target=gpus([90]))


def test_each_context_has_zeros_of_its_own_that_serve_again():
    net = pelton.Engine(file.read(file.to_bytes(counting()))).start(NullDevice(kernels={"counted": counted}))
    x, places = np.arange(N, dtype=np.float32), []
    contexts = [net.context(), net.context()]
    for context in (*contexts, *contexts):
        got = context.run({"x": x})
        assert np.array_equal(got["y"], 2 * x) and np.array_equal(got["z"], 2 * x)
        memory = context.workspace.zeros
        assert memory.nbytes == 80 and not seen(memory.address, np.uint8, 80).any()
        places.append({launch.words[2] - memory.address for (launch,) in context._only.prepared.launches})
    assert places == [{0, 64}] * 4 and contexts[0].workspace.zeros.address != contexts[1].workspace.zeros.address


def test_no_zeros_are_asked_for_where_none_are_used():
    net = pelton.Engine(replace(counting(), steps=(), buffers=counting().buffers[:3])).start(NullDevice())
    net.device.happenings.clear()
    assert net.context().workspace.zeros is None and len(net.device.happened("allocate")) == 1


@pytest.mark.parametrize(
    "why, change",
    [
        ("zeros at byte", lambda e: counting(Buffer("zeros", 0, 16), Buffer("zeros", MAX_ZEROS - 64, 128))),
        ("not a multiple of 64", lambda e: counting(Buffer("zeros", 0, 16), Buffer("zeros", 8, 16))),
        ("expected an integer", lambda e: counting(Buffer("zeros", 0, 16), Buffer("zeros", -64, 16))),
        ("on GPUs only", lambda e: replace(e, target={**e.target, "arch": "x86_64"})),
        (
            "uses byte",
            lambda e: replace(e, steps=(e.steps[0], replace(e.steps[1], args=(*e.steps[1].args[:2], Slice(4, 17))))),
        ),
        (
            "of zeros whose size varies",
            lambda e: replace(
                counting(Buffer("zeros", 0, "n"), Buffer("zeros", 64, 16)),
                inputs=(Port("x", "f32", ("n",)),),
                symbols=(DynamicDimension("n", 1, N, 200),),
                sizes={"n": "n"},
            ),
        ),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_forged_zeros_are_refused(why, change):
    validate(counting())
    with pytest.raises(EngineError, match=why):
        validate(change(counting()))


def test_what_only_a_spare_kernel_uses_has_its_place_too():
    """Of an engine whose sizes a run decides: then the arena is laid out anew."""
    buffers = [
        Buffer("input", 0, "n"),
        Buffer("output", 0, "n"),
        Buffer("arena", 0, "n"),
        Buffer("arena", 0, 640),
        Buffer("arena", 0, 64),
    ]
    step = Step(
        "a", "k", (Slice(0, 0), Slice(2, 0)), alternatives=(Step("a", "l", (Slice(0, 0), Slice(2, 0), Slice(3, 0))),)
    )
    plain = replace(
        engine(
            [Port("x", "u8", ("n",))],
            [Port("y", "u8", ("n",))],
            buffers,
            [step, Step("b", "k", (Slice(2, 0), Slice(4, 0)), wave=1)],
            arena=0,
            code=b"none",
        ),
        symbols=(DynamicDimension("n", 1, 100, 200),),
        sizes={"n": "n"},
    )
    at = sizes.at(plain, {"n": 100})
    assert assign({2: Lifetime(100, 0, 1), 3: Lifetime(640, 0, 0), 4: Lifetime(64, 1, 1)}) == (
        {i: at.buffers[i].offset for i in (2, 3, 4)},
        at.arena,
    )


# ---- networks ----


def long_sums() -> Any:
    """Two products side by side, of few tiles with long sums, and a 1×1 convolution of as many channels."""
    rng = np.random.default_rng(5)

    def weights(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) / 40).astype(np.float32)

    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
        helper.make_node("MatMul", ["x", "w1"], ["b"]),
        helper.make_node("Conv", ["p", "w2"], ["c"]),
        helper.make_node("Sigmoid", ["c"], ["z"]),
    ]
    return model(
        nodes,
        {"x": "f32[19, 1300]", "p": "f32[1, 1030, 3, 3]"},
        ["y", "b", "z"],
        {"w0": weights(1300, 21), "w1": weights(1300, 40), "w2": weights(12, 1030, 1, 1)},
        opset=17,
    )


def twice(
    data: bytes, sources: Mapping[str, str], feeds: list[Mapping[str, np.ndarray]]
) -> list[dict[str, np.ndarray]]:
    """In a process where all of Triton is interpreted: what one context gives for each."""
    import triton_interpreter

    context = pelton.Engine(file.read(data)).start(triton_interpreter.device(sources)).context()
    return [context.run(each) for each in feeds]


def test_products_with_long_sums_run_in_one_launch_again_and_again(apart, kernel_cache):
    import triton_interpreter

    made = build_detailed(long_sums(), Options(target="cuda:sm_90", level=2, cache_dir=kernel_cache))
    plain = made.engine.plain
    streamed = [s for s in plain.steps if any(plain.buffers[a.buffer].kind == "zeros" for a in s.args)]
    own = [[a.buffer for a in s.args if plain.buffers[a.buffer].kind == "zeros"] for s in streamed]
    assert len(streamed) == 3 and len({b for each in own for b in each}) == 3 and all(len(each) == 1 for each in own)
    for s in streamed:  # sums lie beside all that lives at that time
        for spare in s.alternatives:
            assert {a.buffer for a in spare.args} <= {a.buffer for a in s.args}
    arena = {
        s.name: plain.buffers[
            next(
                a.buffer
                for a in s.args
                if plain.buffers[a.buffer].kind == "arena" and plain.buffers[a.buffer].size > 4096
            )
        ]
        for s in streamed
        if s.wave == streamed[0].wave
    }
    spans = sorted((b.offset, b.offset + b.size) for b in arena.values())
    assert len(spans) >= 2 and all(end <= begin for (_, end), (begin, _) in zip(spans, spans[1:]))
    feeds = [draw(long_sums(), seed, low=-1, high=1) for seed in (1, 2, 1)]
    got = apart.submit(twice, made.engine.tobytes(), triton_interpreter.sources(made), feeds).result()
    for results, given in zip(got, feeds):
        for port, want in evaluate(importer.load(long_sums()).graph, given).items():
            assert np.abs(results[port] - want).max() < 2e-3 * np.abs(want).max()
    assert all(got[0][port].tobytes() == got[2][port].tobytes() for port in got[0])


def test_kernels_are_timed_alone_with_memory_of_their_own():
    """Counters are zero whenever a kernel begins, as it leaves them so; sums are nobody else's."""
    pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
    from pelton.codegen.template import GPU_TEMPLATES, Target
    from pelton.codegen.triton.templates import library  # noqa: F401  (declares the templates)
    from pelton.codegen.triton.toolchain import TritonCompiler
    from pelton.plan.placed import Task
    from pelton.tuning.measure_cuda import GpuBench

    template, case = GPU_TEMPLATES["gemm"], program(("y", "matmul", "a b"), a="f16[19, 4000]", b="f16[4000, 40]")
    region = region_of(case)
    lay, on = laid(template, region, Case("long", case), 0), Target(isa="sm_90", lanes=32, threads=132)
    kernels = [template.emit(region, lay, t, on) for t in template.tactics(region, lay, on) if t["STREAM"]][:2]
    places: dict[str, set[tuple[int, int]]] = {k.symbol: set() for k in kernels}

    def begun(symbol: str, programs: int, words: np.ndarray) -> None:
        sums, counters = words.tolist()[-2:]
        assert not seen(counters, np.int32, programs).any()
        places[symbol].add((sums, counters))

    null = NullDevice(90, kernels={k.symbol: partial(begun, k.symbol) for k in kernels}, lasts=lambda launch: 1e5)
    null.l2 = 1 << 12
    times = GpuBench(TritonCompiler((90,)), null).race(
        [Task(region, lay)],
        [[k] for k in kernels],
        {k.symbol: Cubin(k.symbol, 90, b"\x7fELF", 0, 4) for k in kernels},
        rounds=2,
    )
    assert (
        times == [100_000, 100_000]
        and all(len(each) == 1 for each in places.values())
        and len({p for each in places.values() for p in each}) == 2
    )


def test_streams_are_timed_in_zeros_of_the_context(kernel_cache):
    pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
    made = build_detailed(long_sums(), Options(target="cuda:sm_90", level=2, cache_dir=kernel_cache)).engine
    null = NullDevice(90)
    null.l2 = 1 << 12
    tuned = pelton.tune(made, null)
    assert sum("times_ns" in s.info for s in tuned.steps) >= 3 and {s.name for s in tuned.steps} == {
        s.name for s in made.steps
    }
