"""Tactics timed on a fake GPU: winners, rejects and records, at build time and, from the kernels in engines, later."""

from __future__ import annotations

import dataclasses
import json
import logging

import numpy as np
import pytest
from handmade import chain
from onnx import helper
from onnx_models import model

import pelton
from pelton.compiler import targets
from pelton.backends.cuda import pack
from pelton.backends.cuda.clock import Clock, TimedCandidate
from pelton.backends.cuda.device import Launch
from pelton.backends.cuda.null import NullDevice
from pelton.engine.cubin import Cubin
from pelton.engine.plan import EnginePlan, Step
from pelton.errors import BuildError, EngineError, InputError
from pelton.codegen.triton import toolchain as triton_compile
from pelton.options import Options
from pelton.targets import TYPICAL, gpus, typical
from pelton.tuning import measure_cuda
from test_cuda_runtime import KERNELS, N


def device(lasts=lambda launch: 1000.0, arch: int = 90, **given) -> NullDevice:
    """One with little to sweep between two replays."""
    found = NullDevice(arch, lasts=lasts, **given)
    found.l2 = 1 << 12
    return found


def launch(on: NullDevice, symbol: str, *words: int) -> Launch:
    with on:
        return Launch(
            on.load(Cubin(symbol, 90, b"\x7fELF", 0, 4), len(words) + 2), 1, np.array([*words, 0, 0], np.int64)
        )


def way(on: NullDevice, symbol: str) -> TimedCandidate:
    at = launch(on, symbol)
    return TimedCandidate(symbol, lambda turn: [at])


def test_ways_take_turns_and_slow_ones_leave_early():
    took = {"slow": 5000.0, "middling": 1400.0, "fast": 1000.0}
    null = device(lambda launch: took[launch.function.cubin.symbol])
    times = Clock(null).race([way(null, name) for name in took], rounds=5)
    assert times == [5000, 1400, 1000]
    replays = [h.facts["nodes"] for h in null.happened("replay")]
    # some to see how long they take; then turns that make 200 µs, 50 at most;
    assert [replays.count(n) for n in (8, 40, 50)] == [3 * 2, 1, 3 + 5]
    # after one and three rounds some leave
    assert len(null.happened("copy")) == len(replays)  # the L2 cache swept before each
    nodes = null.happened("node")
    assert all(n.facts["after"] in ([], [m.facts["node"]]) for m, n in zip([nodes[0], *nodes], nodes))


def test_a_median_is_not_moved_by_one_slow_replay():
    slow = iter([*[1.0] * 17, 9.0, *[1.0] * 1000])  # after two replays of eight turns
    null = device(lambda launch: 100_000 * next(slow))
    assert Clock(null).race([way(null, "k")], rounds=5) == [100_000]


def test_what_does_not_launch_is_dropped_and_said(caplog):
    def lasts(launch):
        if launch.function.cubin.symbol == "bad":
            raise EngineError("too many resources requested for launch")
        return 100.0

    null = device(lasts)
    ways = [way(null, name) for name in ("bad", "good")]
    with caplog.at_level(logging.WARNING, "pelton.build"):
        assert Clock(null).race(ways, 3) == [None, 100]
    assert "bad is not timed: too many resources" in caplog.text and "good" not in caplog.text


def test_a_lost_context_ends_it():
    def lasts(launch):
        raise EngineError("the GPU's context is lost")

    null = device(lasts)

    def synchronize(stream: int) -> None:
        raise EngineError("the GPU's context is lost, still")

    null.synchronize = synchronize
    with pytest.raises(EngineError, match="still"):
        Clock(null).race([way(null, "k")], 3)


def test_every_turn_reads_other_constants():
    null = device()
    seen: list[int] = []

    def launches(turn: int):
        seen.append(turn)
        return [launch(null, "k", turn)]

    Clock(null).race([TimedCandidate("k", launches, turns=7)], 1)
    words = [h.facts["words"][0] for h in null.happened("launch")]
    assert words[-7:] == list(range(7)) and max(seen) == 6


def test_what_is_known_of_architectures():
    assert (
        typical(90) is TYPICAL[90]
        and typical(87) is TYPICAL[86]
        and typical(100) is TYPICAL[90]
        and typical(70) is TYPICAL[75]
        and typical(121) is TYPICAL[120]
    )
    here = device()
    here.multiprocessors, here.l2 = 114, 1 << 20
    found = targets.cuda.target_for((90,), here)
    assert (found.threads, found.l2, found.isa) == (114, 1 << 20, "sm_90")
    assert targets.cuda.target_for((80, 90)).threads == 108 and targets.cuda.target_for((80, 90)).isa == "sm_80,sm_90"


def test_options_without_an_effect_are_refused_or_said(monkeypatch, caplog, tmp_path):
    with pytest.raises(InputError, match="threads are those of CPUs"):
        Options(target="cuda", threads=2)
    with pytest.raises(InputError, match="strict keeps the model's arithmetic"):
        Options(target="cuda", strict=True, precision="fp16")
    pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
    monkeypatch.setattr(targets.cuda, "here", lambda: None)
    with (
        pytest.raises(InputError, match="there are no GPUs sm_70, sm_99; kernels are made for sm_75, sm_80, "),
        targets.back_end(Options(target="cuda:sm_90,sm_99,sm_70", cache_dir=tmp_path), 0),
    ):
        pass
    with (
        caplog.at_level(logging.WARNING, "pelton.build"),
        targets.back_end(Options(target="cuda", budget=3.0, cache_dir=tmp_path), 0) as back,
    ):
        assert (
            back.timing is None
            and back.target.isa == "sm_80,sm_90"
            and back.meta == {"multiprocessors": 108, "gpu": None}
        )
    assert "budget has no effect: kernels are not timed without a GPU" in caplog.text


def test_strict_takes_products_of_f32_alone():
    pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
    from kernel_harness import program, region_of

    from pelton.codegen.triton.templates import library  # noqa: F401  (declares the templates)
    from pelton.plan.layout import dense
    from pelton.tuning.candidates import candidates

    region = region_of(program(("y", "matmul", "a b"), a="f32[64, 64]", b="f32[64, 64]"))
    lies = {v: dense(v.type.shape) for v in (*region.body.inputs, *region.body.outputs)}
    target = targets.cuda.target_for((90,))
    precise = {
        strict: {c["PRECISION"] for t, c in candidates(region, lies, target, strict, 4) if not t.timed_only}
        for strict in (False, True)
    }
    assert precise == {False: {0, 1}, True: {0}}


# ---- engines that carry kernels ----

F32 = np.float32


def spare(step: Step, symbol: str) -> Step:
    return dataclasses.replace(step, symbol=symbol, info={"tactic": symbol})


def carrying(symbols=("scale", "scale_b", "scale_c", "scale_d")) -> EnginePlan:
    """Handmade: x + 2 x, times three; the steps that scale, of which two are the same, carry other kernels for that."""
    plain = chain(N)
    steps = [
        dataclasses.replace(
            s,
            info={"tactic": s.symbol},
            alternatives=tuple(spare(s, other) for other in symbols if s.symbol == "scale" and other != "scale"),
        )
        for s in plain.steps
    ]
    cubins = [Cubin(s, 90, b"\x7fELF " + s.encode(), 0, 4) for s in (*symbols, "add")]
    return dataclasses.replace(plain, steps=tuple(steps), code=pack(cubins), target=gpus([90]))


def scaling(took: dict[str, float]) -> NullDevice:
    """A device whose kernels do what they should, and take so long."""
    return device(
        lambda launch: took[launch.function.cubin.symbol],
        kernels={**dict.fromkeys(took, KERNELS["scale"]), "add": KERNELS["add"]},
    )


TOOK = {"scale": 3000.0, "scale_b": 2000.0, "scale_c": 1000.0, "scale_d": 2990.0, "add": 10.0}


# ---- builds ----


@pytest.fixture
def built_on(monkeypatch, tmp_path, kernel_cache):
    """Builds a product with its tail for GPUs where this device is the one here."""
    pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
    monkeypatch.setattr(measure_cuda, "POOL", 1 << 20)
    monkeypatch.setitem(targets.cuda.ALTERNATIVES, 1, 1)

    def build(here: NullDevice | None, **options):
        monkeypatch.setattr(targets.cuda, "here", lambda: here)
        return pelton.build(
            product(),
            **{
                "target": "cuda:sm_90",
                "cache_dir": kernel_cache,
                "timing_cache": tmp_path / "timing.json",
                "level": 1,
                **options,
            },
        )

    return build


def product():
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"], "product"), helper.make_node("Relu", ["p"], ["y"], "relu")]
    return model(
        nodes, {"x": "f32[32, 64]"}, ["y"], {"w": np.random.default_rng(0).standard_normal((64, 48)).astype(np.float32)}
    )


def warps(launch: Launch) -> int:
    return launch.function.cubin.warps


def test_the_clock_decides(built_on, tmp_path):
    few = built_on(device(lambda launch: 1000.0 * warps(launch)))
    many = built_on(device(lambda launch: 9000.0 / warps(launch)), timing_cache=tmp_path / "other.json")
    for engine, wins in ((few, "WARPS=4"), (many, "WARPS=8")):
        (step,) = engine.steps
        times = step.info["times_ns"]
        assert (
            wins in step.info["tactic"]
            and len(times) > 3
            and {ns for name, ns in times.items() if wins in name} == {min(times.values())}
        )
        assert wins in step.alternatives[0].info["tactic"]  # the next best first
    assert few.meta["gpu"] == "no GPU" and few.meta["multiprocessors"] == 132 and "threads" not in few.meta
    keys = list(json.loads((tmp_path / "timing.json").read_text())["times"])
    assert len(keys) == 1 and keys[0].startswith("no GPU|sm_90|132|4096|CUDA 13.0|sm_90|triton 3.")


def test_times_are_remembered_by_gpu(built_on, tmp_path):
    engine = built_on(device(lambda launch: 1000.0 * warps(launch)))
    again = device(lambda launch: 9000.0 / warps(launch))
    assert built_on(again).tobytes() == engine.tobytes() and not again.happened("replay")
    other = device(lambda launch: 9000.0 / warps(launch))
    other.name = "another GPU"
    assert built_on(other).tobytes() != engine.tobytes() and other.happened("launch")
    assert len(json.loads((tmp_path / "timing.json").read_text())["times"]) == 2


def test_kernels_that_do_not_launch_do_not_win(built_on, caplog):
    def lasts(launch):
        if warps(launch) == 4:
            raise EngineError("too many resources requested for launch")
        return 1000.0

    with caplog.at_level(logging.WARNING, "pelton.build"):
        (step,) = built_on(device(lasts)).steps
    assert (
        "WARPS=4" not in step.info["tactic"] + " ".join(step.info["times_ns"])
        and "is not timed: too many resources" in caplog.text
    )


def test_a_gpu_of_another_architecture_times_nothing(built_on):
    null = device(arch=80)
    engine = built_on(null, timing_cache=None)
    assert (
        not null.happenings
        and engine.meta["gpu"] is None
        and engine.meta["multiprocessors"] == 132
        and not engine.steps[0].info["times_ns"]
    )


def test_explained_for_gpus(monkeypatch, capsys, tmp_path):
    from pelton import cli
    from pelton.diagnose.explain import explain

    monkeypatch.setattr(targets.cuda, "here", lambda: None)
    found = explain(product(), target="cuda:sm_90", precision="fp16")
    assert [set(names) for names in found.tactics] == [{"pointwise"}, {"gemm"}] and all(
        "@sm_90" in t for t in found.tactics[1]["gemm"]
    )
    assert found.why_not("gemm").applied == ("product+relu",) and found.why_not("conv").rejected
    path = tmp_path / "e.pelton"
    pelton.Engine(carrying()).save(path)
    assert (
        cli.main(["inspect", str(path)]) == 0
        and "and 6 kernels for `pelton tune` to choose from" in capsys.readouterr().out
    )
    assert cli.main(["inspect", str(path), "--json"]) == 0
    assert [len(s["alternatives"]) for s in json.loads(capsys.readouterr().out)["steps"]] == [3, 0, 3]


def test_what_does_not_compile_gives_way_to_another_tactic(built_on, caplog, monkeypatch):
    real, first = triton_compile.compile_cubin, built_on(None, timing_cache=None).steps[0]

    def compile_cubin(symbol, text, arch):
        if symbol == first.symbol:
            raise BuildError("out of registers")
        return real(symbol, text, arch)

    monkeypatch.setattr(triton_compile, "compile_cubin", compile_cubin)
    monkeypatch.setattr(triton_compile.TritonCompiler, "_known", lambda self, text, arch: None)
    monkeypatch.setattr(targets.cuda.cpu, "default_threads", lambda: 1)
    with caplog.at_level(logging.WARNING, "pelton.build"):
        step = built_on(None, timing_cache=None).steps[0]
    assert (
        step.symbol == first.alternatives[0].symbol
        and {s.symbol for s in step.alternatives} == {"cublaslt"}
        and "out of registers" in caplog.text
    )
    (step,) = built_on(None, timing_cache=None, level=0).steps  # also where none is carried
    assert step.symbol not in (first.symbol, "cublaslt") and not step.alternatives
    monkeypatch.setattr(
        triton_compile, "compile_cubin", lambda symbol, text, arch: compile_cubin(first.symbol, text, arch)
    )
    with pytest.raises(BuildError, match="out of registers"):
        built_on(None, timing_cache=None, level=0)
