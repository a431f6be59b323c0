"""benchmarks/gpu without a GPU: its checks on the memory of a fake device, its processes and parts, and merging of
results."""

from __future__ import annotations

import importlib
import json
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

from benchmarks import child  # noqa: E402
from benchmarks.gpu import page, parts, suite  # noqa: E402
from benchmarks.gpu.runtimes import Runtime  # noqa: E402

from pelton.errors import BuildError  # noqa: E402
from pelton.ir.evaluate import evaluate  # noqa: E402

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
    race = (
        "Error: Race reported between Write access at k_0+0x990\n=========     and Read access at k_0+0x990"
        " [82 hazards]\n=========\n"
    )

    def ask(self: Here, name: str, seconds: float, /, **given: Any) -> Any:
        for kind, said in (
            ("memcheck", "ERROR SUMMARY: 0 errors"),
            ("racecheck", f"{race}========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"),
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
    race = race.replace("Read", "Write")
    parts.sanitizer(run, found := {})
    assert found["racecheck"].endswith("each of one instruction with itself") and not found["wrong"]


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
