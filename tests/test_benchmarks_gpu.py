"""benchmarks/gpu without a GPU: its checks on the memory of a device that is none, its processes and parts, how results
come together."""

from __future__ import annotations

import ctypes
import importlib
import json
import math
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import small_cnn

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks import child, interpreted  # noqa: E402
from benchmarks.gpu import page, parts, results, suite  # noqa: E402
from benchmarks.gpu.runtimes import Runtime  # noqa: E402

import pelton  # noqa: E402
from pelton.errors import BuildError  # noqa: E402
from pelton.importers.onnx import load as importer  # noqa: E402
from pelton.ir.evaluate import evaluate  # noqa: E402

# ---- checks of kernels, interpreted


def checked(kind: str, at: int, seed: int) -> dict[str, Any]:
    """In a process where all of Triton is interpreted: one case as `checks.Templates` runs it, by the kernels as they
    are or by damaged ones."""
    import triton_harness
    import triton_interpreter
    from benchmarks.gpu.checks import Templates, found_cases

    from pelton.engine.cubin import Cubin
    from pelton.backends.cuda.null import NullDevice
    from pelton.codegen.template import GPU_TEMPLATES

    checks = object.__new__(Templates)
    checks.harness, checks.templates, checks.seed, checks.target = (
        triton_harness,
        GPU_TEMPLATES,
        seed,
        triton_harness.TARGET,
    )
    name = ("pointwise", "rows")[at % 2]
    checks.cases = [(name, found_cases()[name][0])]
    kernels = {k.symbol: k for k, _, _ in triton_harness.tried(GPU_TEMPLATES[name], checks.cases[0][1], 3)}

    def kernel(symbol: str) -> Any:
        def run(programs: int, words: np.ndarray) -> None:
            if kind == "lazy":
                return
            triton_interpreter.launch(kernels[symbol].source, symbol, words.tolist(), programs)
            if kind == "careless":  # behind the last operand, which is written
                ctypes.c_uint8.from_address(int(words[-1]) + 3500).value = 7

        return run

    checks.device = NullDevice(kernels={s: kernel(s) for s in kernels})
    checks.cubins = {s: Cubin(s, 90, b"none", 0, 4) for s in kernels}
    return checks.check(0)


@pytest.mark.parametrize("at", [0, 1])
def test_templates_are_checked_on_a_device(at, apart):
    said = apart.submit(checked, "right", at, 11).result()
    assert said["launched"] >= 2 and "wrong" not in said
    assert "NaN" in apart.submit(checked, "lazy", at, 11).result()["wrong"]
    assert "beside an array" in apart.submit(checked, "careless", at, 11).result()["wrong"]


def ran(data: bytes, sources: Mapping[str, str], feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """In such a process: what `checks.Networks` makes of an engine."""
    import triton_interpreter
    from benchmarks.gpu.checks import Networks

    from pelton.engine import file

    networks = object.__new__(Networks)
    return networks.run(pelton.Engine(file.read(data)).start(triton_interpreter.device(sources)), feeds)


def test_networks_are_checked_on_a_device(apart, tmp_path):
    import triton_interpreter

    from pelton.compiler.build import build_detailed
    from pelton.options import Options

    graph = importer.load(small_cnn(size=12)).graph
    feeds = suite.drawn(suite.ports(graph), 3)
    made = build_detailed(small_cnn(size=12), Options(target="cuda:sm_90", precision="fp16", cache_dir=tmp_path))
    got = apart.submit(ran, made.engine.tobytes(), triton_interpreter.sources(made), feeds).result()
    want = evaluate(graph, feeds, round=False)
    assert suite.off(got, want) <= suite.TOLERANCE["fp16"]
    assert suite.off({"y": got["y"] * np.nan}, want) == suite.off({}, want) == math.inf


def test_engines_are_interpreted_at_full_size(tmp_path, capsys, monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "small.onnx"
    path.write_bytes(small_cnn(size=12).SerializeToString())
    given = [str(path), "--precision", "fp16", "--target", "cuda:sm_80", "cuda:sm_90", "--jobs", "2"]
    assert interpreted.main(given) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 2 and {row.count("|") for row in rows} == {head.count("|")}
    assert all(row.startswith(f"| small | cuda:sm_{arch} | fp16 | ") for row, arch in zip(rows, (80, 90)))
    monkeypatch.setitem(suite.TOLERANCE, "fp16", 1e-6)
    assert interpreted.main(given) == 1


def test_outputs_have_to_follow_the_inputs():
    """Also where rounding is nearly as much as what an input changes."""
    rng = np.random.default_rng(0)
    large, noise = 10 * rng.standard_normal(1000), 0.4 * rng.standard_normal((2, 1000))
    want = [{"y": large + rng.standard_normal(1000)} for _ in range(2)]
    assert suite.follows([{"y": w["y"] + n} for w, n in zip(want, noise)], want) > suite.FOLLOWS
    assert suite.follows(want, want) == pytest.approx(1)
    assert (
        suite.follows([{"y": large + n} for n in noise], want) < 0.2
        and suite.follows(want[:1] * 2, want) == 0
        and suite.follows(want[::-1], want) < 0
    )


# ---- processes


class Answers:
    """What a process is asked in these tests."""

    def __init__(self, base: int):
        self.base = base

    def add(self, number: int) -> int:
        print("what libraries say is no answer")
        return self.base + number

    def fail(self) -> None:
        raise ValueError("it cannot be done")

    def sleep(self) -> None:
        time.sleep(60)

    def spread(self) -> int:
        """The number of a process that it starts and forgets."""
        return subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(60)"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        ).pid

    def advise(self) -> None:
        raise ValueError("it cannot be done\n\nSet THIS=1 for more")


def test_processes_answer_fail_and_take_too_long(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    with child.Child("test_benchmarks_gpu", "Answers", {"base": 3}) as asked:
        assert [asked.ask("add", 60, number=n) for n in (4, 5)] == [7, 8]
        with pytest.raises(child.Failed, match="it cannot be done"):
            asked.ask("fail", 60)
    with child.Child("test_benchmarks_gpu", "Answers", {"base": 3}) as asked:
        assert asked.ask("add", 60, number=1) == 4
        with pytest.raises(child.Failed, match="no answer in time"):
            asked.ask("sleep", 0.2)
    with (
        child.Child("test_benchmarks_gpu", "Answers", {"base": 3}) as asked,
        pytest.raises(child.Failed, match="ValueError: it cannot be done Set THIS"),
    ):
        asked.ask("advise", 60)
    with child.Child("test_benchmarks_gpu", "Absent", {}) as asked, pytest.raises(child.Failed, match="Absent"):
        asked.ask("add", 60, number=1)


def test_what_processes_say_and_start(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    script, said = tmp_path / "watch", tmp_path / "said.txt"
    script.write_text('#!/bin/sh\necho "========= WATCHED"\necho "========= and told" >&2\nexec "$@"\n')
    script.chmod(0o755)
    said.write_text("before\n")
    with child.Child("test_benchmarks_gpu", "Answers", {"base": 3}, before=(str(script),), said=said) as asked:
        assert asked.ask("add", 60, number=1) == 4  # what watches over it may say something, too
        other = asked.ask("spread", 60)
    for _ in range(100):
        state = Path(f"/proc/{other}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        pytest.fail("a process goes on that the one that ended had started")
    assert said.read_text() == "before\n========= and told\nwhat libraries say is no answer\n"


class Sleeper(Runtime):
    """A runtime whose runs take a while."""

    def __init__(self):
        self.count, self.estimate, self.started = 2, 0.0, []

    def start(self, i: int) -> None:
        self.started.append(i)
        time.sleep(1e-3)

    def wait(self) -> None:
        pass


def test_trains_are_as_long_as_asked_and_inputs_take_turns():
    runtime = Sleeper()
    runtime.time(0.1)
    found = runtime.time(0.1)
    assert 1.0 <= found["ms"] < 20 and found["runs"] >= 5 and runtime.started[1:5] == [0, 1, 0, 1]
    assert 1.0 <= runtime.alone(5) < 20


def test_inputs_in_turns_are_larger_than_caches():
    assert suite.sets({"x": ((1, 3, 224, 224), np.dtype(np.float32))}) * 3 * 224 * 224 * 4 >= suite.L2
    assert suite.sets({"ids": ((1, 128), np.dtype(np.int64))}) == suite.MOST_SETS
    assert suite.sets({"x": ((512, 3, 512, 512), np.dtype(np.float32))}) == 2
    mask = suite.drawn({"mask": ((5, 16), np.dtype(np.int64))}, 1)["mask"]
    assert (mask[:, :8] == 1).all() and (np.diff(mask) <= 0).all()


class Here:
    """Stands for a process: makes the object here, and says as a process what went wrong with it."""

    def __init__(self, module: str, kind: str, arguments: Mapping[str, Any], **_: Any):
        self.made = lambda: getattr(importlib.import_module(module), kind)(**arguments)
        self.thing: Any = None

    def ask(self, name: str, seconds: float, /, **given: Any) -> Any:
        try:
            self.thing = self.thing or self.made()
            return json.loads(json.dumps(getattr(self.thing, name)(**given)))
        except (ValueError, ImportError) as e:
            raise child.Failed(str(e)) from None

    def end(self, seconds: float = 0.0) -> None:
        self.thing = None

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


@pytest.fixture
def no_gpu(monkeypatch):
    """Where there is one, a device that is none; its kernels do nothing."""
    pytest.importorskip("triton", reason="Triton is not installed (make test-gpu)")
    from benchmarks.gpu import checks

    from pelton.backends.cuda import driver
    from pelton.backends.cuda.null import NullDevice
    from pelton.backends.cuda import backend

    found = NullDevice()
    found.shared = 227 << 10
    for module, name in ((driver, "device"), (backend, "gpu"), (checks, "gpu")):
        monkeypatch.setattr(module, name, lambda ordinal=0: found)
    monkeypatch.setattr(parts, "Child", Here)
    return found


@pytest.fixture
def run(tmp_path):
    return parts.Run(tmp_path, 3, lambda said: None, time.monotonic() + 600, level=0)


def test_a_model_is_timed_beside_others(no_gpu, run, monkeypatch):
    from benchmarks.gpu import runtimes

    class Broken(Runtime):
        def prepare(self) -> dict[str, Any]:
            raise ValueError("it has no memory")

    path = run.models / "cnn.onnx"
    path.parent.mkdir()
    path.write_bytes(small_cnn(size=12).SerializeToString())
    entry = suite.Entry("cnn", 1, ("torch", "broken"))
    monkeypatch.setattr(suite, "ENTRIES", {"cnn": entry})
    monkeypatch.setattr(suite, "generated", lambda entry, folder: entry.path(folder))
    other = {"folder": str(run.room), "precision": "fp32", "level": 0, "budget": 1.0}
    monkeypatch.setattr(parts, "KINDS", {"torch": ("Pelton", other), "broken": ("Broken", {})})
    monkeypatch.setattr(runtimes, "Broken", Broken, raising=False)
    monkeypatch.setattr(
        runtimes.Reference,
        "first",
        lambda self: list(evaluate(self.graph, suite.drawn(self.ports, self.seed)).values()),
    )
    for name, value in (("TRAIN", 0.01), ("ALONE", 2)):
        monkeypatch.setattr(parts, name, value)
    monkeypatch.setattr(runtimes, "WARM", 0.001)
    found: dict[str, Any] = {}
    parts.model("cnn", run, found)
    ours, other, broken = (found["runtimes"][n] for n in ("pelton", "torch", "broken"))
    assert (
        len(ours["passes"]) == len(other["passes"]) == parts.PASSES
        and ours["alone_ms"] > 0
        and ours["engine_bytes"] > 0
        and found["flops"] > 0
    )
    assert broken == {"passes": [], "failed": "it has no memory"}
    # nothing was written, which is seen
    assert ours["off"] == other["off"] == 1e30 and list(found["wrong"]) == ["cnn: fp16"]
    assert no_gpu.happened("replay") and json.dumps(found)
    text = page.page({"gpu": "none", "machine": {}, "parts": {"cnn": {**found, "took_s": 1.0}}})
    assert "broken: it has no memory" in text and "| cnn |" in text


def test_templates_that_fail_do_not_lose_the_others(no_gpu, run, monkeypatch):
    from benchmarks.gpu import checks

    from pelton.errors import EngineError

    some = checks.found_cases()
    monkeypatch.setattr(
        checks, "found_cases", lambda: {"pointwise": some["pointwise"][:1], "rows": some["rows"][-3:-1]}
    )
    found: dict[str, Any] = {}
    parts.templates(run, found)
    assert found["cases"] == len(found["wrong"]) == 3 and found["kernels"] == 3 and found["compiled"] >= 4

    def lost(*_: Any) -> None:
        raise EngineError("the GPU's context is lost")

    monkeypatch.setattr(no_gpu, "launch", lost)
    parts.templates(run, found := {})
    assert found["cases"] == 3 and set(found["wrong"].values()) == {"the GPU's context is lost"}
    monkeypatch.setattr(parts, "MOST_LOST", 2)
    with pytest.raises(child.Failed, match="2 cases ended their processes"):
        parts.templates(run, found := {})
    assert found["cases"] == 2
    run.end = 0.0
    with pytest.raises(child.Failed, match="its time is over"):
        parts.templates(run, {})


def test_networks_that_cannot_run_or_write_nothing_are_wrong(no_gpu, run, monkeypatch):
    from benchmarks.gpu import checks

    path = run.models / "lstm.onnx"
    path.parent.mkdir()
    path.write_bytes(small_cnn(size=12).SerializeToString())
    parts.network("lstm", run, found := {})
    assert (
        list(found["wrong"]) == [f"lstm {p}" for p in suite.TOLERANCE]
        and found["fp16"]["off"] == 1e30
        and "1.0e+30" in found["wrong"]["lstm fp16"]
    )

    def refused(*_: Any, **__: Any) -> None:
        raise BuildError("there is no kernel")

    monkeypatch.setattr(checks.pelton, "build", refused)
    parts.network("lstm", run, found := {})
    assert found["fp32"] == {"wrong": "there is no kernel"} and set(found["wrong"].values()) == {"there is no kernel"}


def test_the_sanitizer_may_be_absent_and_is_read(no_gpu, run, monkeypatch):
    from benchmarks.gpu import checks

    some = checks.found_cases()
    monkeypatch.setattr(checks, "found_cases", lambda: {"rows": some["rows"][-3:]})
    monkeypatch.setattr(parts, "SANITIZERS", ())
    monkeypatch.setattr(parts.shutil, "which", lambda name: None)
    parts.sanitizer(run, absent := {})
    assert absent == {"absent": True}
    monkeypatch.setattr(parts.shutil, "which", lambda name: name)
    plain = Here.ask

    def ask(self: Here, name: str, seconds: float, /, **given: Any) -> Any:
        for kind, said in (
            ("memcheck", "ERROR SUMMARY: 0 errors"),
            ("racecheck", "RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)"),
        ):
            (run.room / f"{kind}.txt").write_text(f"========= COMPUTE-SANITIZER\n========= {said}\n")
        return {"launched": 1} if name == "check" else plain(self, name, seconds, **given)

    monkeypatch.setattr(Here, "ask", ask)
    parts.sanitizer(run, found := {})
    assert (
        found["cases"] == parts.SANITIZED
        and found["memcheck"] == "0 errors in 2 cases"
        and list(found["wrong"]) == ["racecheck"]
    )


def test_models_that_cannot_be_written_leave_nothing(monkeypatch, tmp_path):
    generator = tmp_path / "generator.py"
    monkeypatch.setattr(suite, "GENERATOR", generator)
    entry, room = suite.ENTRIES["resnet50_b8"], tmp_path / "room"
    generator.write_text(
        "import sys; open(f'{sys.argv[1]}/resnet50_b8.onnx', 'w').write('half'); sys.exit('no more room')"
    )
    with pytest.raises(child.Failed, match="resnet50_b8 cannot be generated: no more room"):
        suite.generated(entry, room)
    assert not list(room.iterdir())
    generator.write_text(
        "import sys; assert sys.argv[2:] == ['resnet50', '--batch', '8']; open(f'{sys.argv[1]}/resnet50_b8.onnx',"
        " 'w').write('whole')"
    )
    assert suite.generated(entry, room).read_text() == "whole" and [p.name for p in room.iterdir()] == [
        "resnet50_b8.onnx"
    ]
    generator.unlink()
    assert suite.generated(entry, room).read_text() == "whole"


# ---- results


def told(ms: float, off: float = 1e-3, **more: Any) -> dict[str, Any]:
    return {"passes": [{"ms": ms, "spread": 1.02, "host_ms": ms}] * 2, "off": off, **more}


def some() -> dict[str, Any]:
    """Results of most parts, as good as they have to be."""
    engine = dict(start_s=0.1, engine_bytes=60_000_000, weight_bytes=51_000_000, build_s=9.0, steps=60, alone_ms=0.4)
    found: dict[str, Any] = {
        f"networks-{m}": {"fp32": {"off": 1e-6}, "fp16": {"off": 1e-3}, "bf16": {"off": 1e-2}, "wrong": {}}
        for m in suite.MODELS
    }
    times = {"resnet50": 0.3, "resnet50_b128": 4.0, "bert_base": 0.4, "bert_base_b32": 1.5}
    for e in suite.ENTRIES:
        ms = times.get(e, 1.0)
        found[e] = {
            "batch": suite.ENTRIES[e].batch,
            "flops": 700_000_000_000,
            "wrong": {},
            "runtimes": {
                "pelton": told(ms, **engine),
                "torch": told(2 * ms),
                "torch.compile": told(1.2 * ms),
                "jax": told(ms / 2, off=0.5),
            },
        }
    found["ceilings"] = {
        "f16": [{"TFLOP_per_s": 780.0, "spread": 1.0}] * 2,
        "copy": [{"TB_per_s": 4.3, "spread": 1.0}] * 2,
        "starts": {"launch_us": 3.0},
    }
    return {"gpu": "NVIDIA H200", "machine": {"driver": "580"}, "parts": found}


def test_gates_hold_as_they_should():
    found = some()
    # what is wrong does not count
    assert all(g.holds for g in results.gates(found)) and results.lead(found["parts"]["lstm"]) == pytest.approx(1.2)
    # nor does it where it is Pelton's
    assert math.isnan(results.ms({"runtimes": {"pelton": told(0.1, off=0.5)}}))
    found["parts"]["googlenet"]["runtimes"]["torch"] = told(0.8)
    found["parts"]["networks-lstm"]["fp32"]["off"] = 3e-3
    del found["parts"]["resnet50_b128"], found["parts"]["ceilings"]
    known = {g.what.split(":")[0]: g.holds for g in results.gates(found)}
    assert (
        known["best other runtime / Pelton"] is False
        and known["all six models right in fp32"] is False
        and known["all six models right in fp16"] is True
    )
    assert known["resnet50, batch 128"] is known["bert_base, 32 × 128"] is None
    assert {g.holds for g in results.gates({"parts": {}})} == {None}


def test_results_come_together_part_by_part(tmp_path, monkeypatch):
    assert [results.file_name(n) for n in ("NVIDIA H200", "NVIDIA A100-SXM4-80GB", "Fake 0")] == [
        "h200",
        "a100-sxm4-80gb",
        "fake-0",
    ]
    results.write(some(), tmp_path)
    monkeypatch.setitem(
        parts.PARTS, "ceilings", lambda run, found: found.update(copy=[{"TB_per_s": 5.0, "spread": 1.0}])
    )
    calls = []

    def half(run: parts.Run, found: dict[str, Any]) -> None:
        calls.append(run.seed)
        found["fp32"] = {"off": 1e-6}
        raise child.Failed("the GPU is lost")

    monkeypatch.setitem(parts.PARTS, "networks-lstm", half)
    from benchmarks.gpu import __main__ as command

    monkeypatch.setattr(command, "describe", lambda: {"model": "NVIDIA H200", "isa": "sm_90"})
    monkeypatch.setattr(command, "versions", lambda gpu: {"driver": "581"})

    def run(*given: str) -> int:
        monkeypatch.setattr(
            sys, "argv", ["benchmarks.gpu", "--output", str(tmp_path), "--room", str(tmp_path / "room"), *given]
        )
        return command.main()

    assert (
        run("--only", "ceilings") == 0
        and json.loads((tmp_path / "h200.json").read_text())["parts"]["ceilings"]["copy"][0]["TB_per_s"] == 4.3
    )
    assert run("--only", "ceilings", "--only", "networks-lstm", "--again", "--seed", "5") == 1 and calls == [5]
    found = json.loads((tmp_path / "h200.json").read_text())
    assert found["parts"]["ceilings"]["copy"][0]["TB_per_s"] == 5.0 and found["machine"] == {"driver": "581"}
    assert found["parts"]["networks-lstm"]["fp32"] and found["parts"]["networks-lstm"]["error"] == "the GPU is lost"
    assert {g["gate"].split(":")[0]: g["holds"] for g in found["gates"]}["resnet50, batch 1"] is True
    text = (tmp_path / "h200.md").read_text()
    assert (
        "networks-lstm: the GPU is lost" in text
        and "| resnet50_b128 | 4.000 / 4.000 (±1%)" in text
        and "off 5e-01" in text
    )
    assert run("--only", "networks-lstm") == 1 and len(calls) == 2  # what failed is tried again
    assert run("--only", "ceilings") == 0

    def strange(run: parts.Run, found: dict[str, Any]) -> None:
        calls.append(0)
        raise KeyError("strange")

    monkeypatch.setitem(parts.PARTS, "sanitizer", strange)
    # the new one first
    assert run("--only", "networks-lstm", "--only", "sanitizer") == 1 and calls[2] == 0 and len(calls) == 4
    found = json.loads((tmp_path / "h200.json").read_text())["parts"]
    assert found["sanitizer"]["error"] == "KeyError: 'strange'" and found["networks-lstm"]["error"]
    # no part begins that has no time left
    assert run("--only", "networks-lstm", "--seconds", "1") == 1 and len(calls) == 4
    with pytest.raises(SystemExit):
        run("--only", "everything")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["h200.json", "h200.md", "room"]


def test_a_page_of_nothing_says_so():
    assert "not measured" in page.page({"gpu": "NVIDIA H200", "machine": {}, "parts": {}})
